"""Processes of this machine by a mark that they have inherited: what a command has started, wherever it has gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

MARK = "LATCHWORK_TEST_MARK"


def marked(mark, besides=()):
    """The command lines of all living processes with this mark, by process id, but for those that are named."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in besides:
            try:
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has just ended
                continue
    return {pid: line for pid, line in found.items() if line}


def until(condition, timeout=60, pause=0.02):
    """What the condition returns, once that is true."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {timeout} s: {condition}"
        time.sleep(pause)
    return found


def end_all(mark):
    """End what a failed test has left."""
    for pid in marked(mark, besides={os.getpid()}):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
