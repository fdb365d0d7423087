"""What upkeep does in hours, at once: for tests of consumers on a clock that stands still."""

from __future__ import annotations

from typing import cast

from ..errors import InvalidRequest
from ..inputs import checked_kind
from ..queue.sharded.queue import ShardedQueue
from ..queue.sharded.registry import QueueRegistry
from ..queue.sharded.upkeep.shovel import Shovel
from ..queue.sharded.upkeep.sweeper import Sweeper
from .clock import ManualClock

ROUNDS = 6
"""Sweeps that an abandoned message needs at most: its slot is marked, passed and brought back, each a sweep later."""


def bring_back(queue: ShardedQueue) -> None:
    """Let time pass and upkeep run until what failed, and what dead consumers had, is ready again.

    Sweeps and shovels run as upkeep runs them, a sweep duration apart, six times, on the store's `ManualClock`. What
    was handed out too often is parked, and what has a longer `backoff` stays in the sideline, as ever. Messages expire
    meanwhile, too: give them an expiry of more than six sweep durations.

    Raises `InvalidRequest` where the store's clock is not a `ManualClock`.
    """
    clock = checked_kind("queue", queue, ShardedQueue).store.seams
    if not isinstance(clock, ManualClock):
        raise InvalidRequest(f"the store's seams are {type(clock).__name__}; make it with a ManualClock")
    sweeper = Sweeper(cast(QueueRegistry, queue.registry), _Alone())
    for _ in range(ROUNDS):
        sweeper.run_once()
        Shovel(queue).run_once()
        clock.advance(queue.config.sweep_duration.total_seconds() + 1)


class _Alone:
    """An election and the leadership of it: a test has one process, which leads for ever."""

    epoch = 1

    @property
    def leadership(self) -> _Alone:
        return self

    def check(self) -> None:
        """Nobody else is there to depose it."""
