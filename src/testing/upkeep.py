"""Upkeep at once, as it is otherwise done in hours: for tests of consumers on a clock that stands still."""

from __future__ import annotations

from typing import cast

from ..background import FailureLog
from ..coord.election import Leadership
from ..errors import InvalidRequest
from ..logs import Log
from ..queue.sharded.registry import AnyQueue, QueueRegistry
from ..queue.sharded.subscription import checked_subscription
from ..queue.sharded.upkeep.ending import Ending
from ..queue.sharded.upkeep.shovel import Shovel
from ..queue.sharded.upkeep.sweeper import Sweeper
from ..queue.sharded.upkeep.timers import Timers
from .clock import ManualClock

log = Log(__name__)

ROUNDS = 6
"""Sweeps that an abandoned message needs at most: its slot is marked, passed and brought back, each a sweep later."""


def bring_back(queue: AnyQueue) -> None:
    """Let time pass and upkeep run until what failed, and what dead consumers had, is ready again.

    Sweeps and shovels run as upkeep runs them, a sweep duration apart, six times, on the store's `ManualClock`, for the
    queue and its groups. Delayed messages that are due meanwhile are moved into the queue, and batches that are done
    are ended. Not done: ticks of schedules. What was handed out too often is parked, and what has a longer `backoff`,
    or stays in the sideline of a queue that does not retry, stays where it is. Messages expire meanwhile, too: give
    them an expiry of more than six sweep durations.

    Raises `InvalidRequest` where the store's clock is not a `ManualClock`.
    """
    clock = checked_subscription(queue).store.seams
    if not isinstance(clock, ManualClock):
        raise InvalidRequest(f"the store's seams are {type(clock).__name__}; make it with a ManualClock")
    kept, leadership = _Kept(queue), cast(Leadership, _Alone())
    sweeper, timers, ending = Sweeper(cast(QueueRegistry, queue.registry), _Alone()), Timers(kept), Ending(kept)
    for _ in range(ROUNDS):
        sweeper.run_once()
        for one in kept.queues():
            Shovel(one).run_once()
        timers.run(leadership)
        ending.run(leadership)
        clock.advance(queue.config.sweep_duration.total_seconds() + 1)


class _Kept:
    """The queue that is kept up, and its groups."""

    def __init__(self, queue: AnyQueue) -> None:
        self._seams = queue.store.seams
        self._queues: list[AnyQueue] = [queue, *queue.groups()]

    def queues(self) -> list[AnyQueue]:
        return self._queues

    def failure_log(self) -> FailureLog:
        return FailureLog(self._seams, log)


class _Alone:
    """An election and its leadership for one process, which leads for the whole test."""

    epoch = 1

    @property
    def leadership(self) -> _Alone:
        return self

    def check(self) -> None:
        """Do nothing: no other process can depose it."""
