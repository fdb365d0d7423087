"""SIGTERM and SIGINT for a program that runs until it receives one: the first drains, a second one forces the end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any


class Signals:
    """A handler of both signals while it is entered, if that is in the main thread; in another it does nothing.

    drains: a signal has come: take no more work.
    forced: one has come while the program was ending already: do not wait. Plain flags, as a signal may interrupt the
        very thread that holds the lock of an event. In a child that was forked meanwhile, both signals do what they did
        before.

    ending: whether the program ends already, for another reason than a signal.
    """

    def __init__(self, ending: Callable[[], bool]) -> None:
        self.drains = self.forced = False
        self._ending = ending
        self._pid = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._pid = os.getpid()
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, _frame: Any) -> None:
        if os.getpid() != self._pid:  # a forked child has no thread that reads the flags
            self.__exit__()
            signal.raise_signal(number)
            return
        self.forced = self.forced or self.drains or self._ending()
        self.drains = True
