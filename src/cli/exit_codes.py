"""The exit codes of commands; one that runs a program has that program's (`run/supervise.py`)."""

FAILED, USAGE, NOT_FOUND, TIMED_OUT, INTERRUPTED = 1, 2, 3, 4, 130
"""Of several messages: FAILED = some failed, the outcome of some is unknown, or not all were tried; else NOT_FOUND =
some were not there.
"""
