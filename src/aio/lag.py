"""A loop that is kept busy is noticed from outside: a gauge has its lag, and a line in the log names the handler."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import AbstractEventLoop
from weakref import WeakKeyDictionary

from ..background import LimitedLog
from ..logs import Log
from ..plain import shown
from ..seams import Event, Seams

log = Log(__name__)

EVERY = 0.25
"""Seconds between two looks at a loop."""
LONG = 1.0
"""Seconds of lag that are worth a line in the log."""


class LoopWatch:
    """A thread that asks a loop four times a second to answer, while somebody has joined. One for each loop."""

    def __init__(self, loop: AbstractEventLoop, seams: Seams, thread: int) -> None:
        self._loop, self._seams, self._thread = loop, seams, thread
        self._lock = seams.lock()
        self._joined: set[object] = set()
        self._left: Event = seams.event()
        self._log = LimitedLog(seams, log)

    @staticmethod
    def of_this(seams: Seams) -> LoopWatch:
        """Return the watch of the loop that runs in this thread."""
        loop = asyncio.get_running_loop()
        found = _ALL.get(loop)
        return found or _ALL.setdefault(loop, LoopWatch(loop, seams, Seams.thread(seams)))

    def join(self, who: object) -> None:
        """Watch the loop until `who` leaves."""
        with self._lock:
            starts = not self._joined
            self._joined.add(who)
            if starts:
                self._left = left = self._seams.event()
                self._seams.spawn(lambda: self._run(left), "latchwork-aio-loop-watch")

    def leave(self, who: object) -> None:
        """Harmless when repeated."""
        with self._lock:
            self._joined.discard(who)
            if not self._joined:
                self._left.set()
                if _ALL.get(self._loop) is self:
                    del _ALL[self._loop]  # it refers to its loop, which would be kept forever

    def _run(self, left: Event) -> None:
        while not (left.is_set() or self._loop.is_closed()):
            answered, asked = self._seams.event(), self._seams.monotonic()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # it was closed
                return
            if not answered.wait(LONG):
                self._log.log("blocked loops", logging.WARNING, self._blocked())
                while not (answered.wait(LONG) or left.is_set() or self._loop.is_closed()):
                    self._seams.note("loop_lag", self._seams.monotonic() - asked)
            self._seams.note("loop_lag", self._seams.monotonic() - asked)
            left.wait(EVERY)

    def _blocked(self) -> str:
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the only way to see another thread
        where = "" if frame is None else f" at {shown(frame.f_code.co_filename)}:{frame.f_lineno}"
        who = "a callback" if task is None else task.get_name()
        return (
            f"the loop has not answered for {LONG:g} s: {who} keeps it busy{where}; await what takes time, or let a "
            "thread do it (asyncio.to_thread)"
        )


_ALL: WeakKeyDictionary[AbstractEventLoop, LoopWatch] = WeakKeyDictionary()
