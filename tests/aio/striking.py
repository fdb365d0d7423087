"""A cancel at one await point of a verb, chosen by its number, in a loop whose store and clock are the test's own.

    struck = await Striker({3}).run(lambda: lock.acquire(5))

Each call of the store is made in the loop's own thread, by a callback of its own, and each pause lets the loop go on
once: so a run repeats exactly. Wherever the task waits for one of them is an await point.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from latchwork import aio
from latchwork.aio import bridge


class LoopPool:
    """Makes each call in the loop that asks for it, as its next callback."""

    is_closed = False

    def submit(self, job):
        asyncio.get_running_loop().call_soon(job)

    def close(self):
        """Nothing is to be closed."""


def store_of(inner):
    """An `aio.Store` on which every call is an await point."""
    store = aio.Store(inner)
    store.bridged.pool = store._pool = LoopPool()
    store.bridged._is_instant = False
    return store


@dataclass
class Struck:
    """How a task ended that was struck.

    points: the await points that it came to.  cancelled: the `CancelledError`; None if it was not raised.
    """

    points: int
    result: Any = None
    error: BaseException | None = None
    cancelled: asyncio.CancelledError | None = None

    @property
    def ended(self):
        return aio.ended(self.cancelled) if self.cancelled else None

    @property
    def kind(self) -> str:
        """In one word, for the table."""
        ended = self.ended
        if self.cancelled is None:
            return "not cancelled"
        if ended is None:
            return "outside"
        if ended.error is not None:
            return "unknown" if ended.error.code == "OUTCOME_UNKNOWN" else "failed"
        return "undone" if ended.undone else "done" if ended.returned else "stopped"


class Striker:
    """Counts the await points of one task, and cancels it at some of them."""

    def __init__(self, at=()) -> None:
        self.at, self.points = set(at), 0

    async def run(self, work) -> Struck:
        """Await `work()` in a task of its own, struck as planned."""
        task = asyncio.ensure_future(work())
        before = bridge.Gate.passed

        async def passed(gate):
            if asyncio.current_task() is task:
                self.points += 1
                if self.points in self.at:
                    task.cancel()  # it is raised where this waits
            await before(gate)

        bridge.Gate.passed = passed
        try:
            await asyncio.wait([task])
        finally:
            bridge.Gate.passed = before
        if not task.cancelled():
            error = task.exception()
            return Struck(self.points, None if error else task.result(), error)
        try:
            await task
        except asyncio.CancelledError as cancelled:
            return Struck(self.points, cancelled=cancelled)
        raise AssertionError
