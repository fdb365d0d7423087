"""Ctrl-C while a command still has to say what it has done."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from .exit_codes import INTERRUPTED

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_OVER = 2
"""Signals that are passed over while a command that was interrupted ends."""


def pass_over(signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> None:
    """Let a signal that comes again, as `timeout -s INT` sends it, neither cut off the last words nor leave a stack
    trace. After a few of them the next one ends the process at once: the reader of its output may hang.
    """
    left = iter(range(PASSED_OVER))

    def again(*_: object) -> None:
        if next(left, None) is None:
            os._exit(INTERRUPTED)

    for number in signals:
        with suppress(ValueError):  # in another thread than the main one, where none comes
            while True:
                with suppress(KeyboardInterrupt):  # one that comes at this moment
                    signal.signal(number, again)
                    break


@contextmanager
def interrupted_once(*, for_good: bool = False) -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, instead of ending the process at once. What comes after the first of
    these signals is passed over, as `pass_over` does it, so that it does not cut off what is then said.

    for_good: all of them are, as what is said then would else be lost. Then only SIGKILL ends a process whose reader
        hangs.
    """

    def interrupt(*_: object) -> None:
        if for_good:
            for number in ENDS:
                signal.signal(number, signal.SIG_IGN)
        else:
            pass_over(ENDS)
        raise KeyboardInterrupt

    before = {}
    with suppress(ValueError):  # as above
        for number in ENDS:
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN:
                signal.signal(number, interrupt)
                before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
