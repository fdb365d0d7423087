"""Run a program for as long as a fence holds: it is told to end when the fence is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..errors import InvalidRequest

LOST = 1
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
LOOK_EVERY = 0.1


class Loss(Protocol):
    """What tells that a fence is lost."""

    def is_set(self) -> bool: ...


def run_under(command: Sequence[str], lost: Loss, facts: dict[str, Any], more: Mapping[str, str]) -> int:
    """Run the command with the facts in its environment; its exit code, or 1 where the fence was lost meanwhile.

    The environment has `LATCHWORK_<NAME>` for each fact, and `more`. SIGTERM is passed on; Ctrl-C reaches the child by
    itself.
    """
    if not command:
        raise InvalidRequest("no command to run: put it behind --, as in `latchwork lock run NAME -- ./job.sh`")
    told = {f"LATCHWORK_{name.upper()}": str(value) for name, value in facts.items()}
    environment = {**os.environ, **told, **more}
    try:
        child = subprocess.Popen(list(command), env=environment)  # noqa: S603 - running it is what was asked for
    except OSError as failure:
        raise InvalidRequest(f"cannot run {command[0]!r}: {failure.strerror}") from None
    before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        return _watch(child, lost)
    finally:
        signal.signal(signal.SIGTERM, before)
        _end(child)


def _watch(child: subprocess.Popen[bytes], lost: Loss) -> int:
    while child.poll() is None:
        if lost.is_set():
            print("latchwork: the fence was lost; ending the command", file=sys.stderr)  # noqa: T201 - the command's own message
            _end(child)
            return LOST
        _wait(child, LOOK_EVERY)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        _wait(child, GRACE)
    if child.poll() is None:
        child.kill()
        child.wait()


def _wait(child: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return
