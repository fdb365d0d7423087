"""SIGTERM, SIGINT and SIGHUP for a program that runs until it receives one: the first drains, a second one forces the
end.

Except a second SIGHUP: when a terminal is closed, the kernel and the shell may each send one. A SIGHUP that the program
ignores, as under nohup, or handles itself, is left alone.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from ....forks import reset_in_child
from ....logs import ends, let_end

SIGNAL_POLL = 0.1
"""Seconds between two looks of `run` at whether a signal has come."""


class Signals:
    """A handler of these signals while it is entered, if that is in the main thread; in another it does nothing. In a
    child that is forked meanwhile, they do what they did before.

    drains: a signal has come: take no more work.
    forced: one has come while the program was ending already: do not wait. Plain flags, as a signal may interrupt the
        very thread that holds the lock of an event.

    ending: whether the program ends already, for another reason than a signal.
    """

    def __init__(self, ending: Callable[[], bool]) -> None:
        self.drains = self.forced = False
        self._ending = ending
        self._before: dict[int, Any] = {}
        reset_in_child(self)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            hangup = (signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else ()
            for number in (signal.SIGTERM, signal.SIGINT, *hangup):
                self._before[number] = signal.getsignal(number)  # first, for a child that is forked at this moment
                signal.signal(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        if self._give_back() and self.drains:
            let_end()

    def reset_after_fork(self) -> None:
        """Give the signals back to a forked child, which has no thread that reads the flags."""
        self._give_back()

    def _give_back(self) -> bool:
        """Let the signals do what they did before; whether they were handled here."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)
        return bool(before)

    def _signalled(self, number: int, _frame: Any) -> None:
        again = self.drains or self._ending()
        self.forced = self.forced or (again and number != signal.SIGHUP)
        self.drains = True
        ends()
