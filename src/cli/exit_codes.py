"""The exit codes of commands; one that runs a program has that program's (`run/supervise.py`)."""

FAILED, USAGE, NOT_FOUND, TIMED_OUT, INTERRUPTED = 1, 2, 3, 4, 130
"""Of messages: FAILED = the outcome of some is unknown, or not all were tried; NOT_FOUND = some were not there."""
