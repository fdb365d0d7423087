"""The statistics of a queue at one moment, for gauges and for people: a few calls, whatever its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import NotFound
from ...inputs import is_int
from ...store import Record
from ..rows import read_each
from .depth import QueueDepth, depth_of
from .envelope import MAX_TIME
from .pointers import ShardPointers
from .queue import ShardedQueue
from .record import LastSweep, last_sweep_of
from .registry import QueueRegistry
from .slots import Slot

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue at one moment.

    oldest_age: seconds since the oldest of the messages that are next in their shards was published; None = there is
        none.
    balance: the fullest shard against the mean of all, or of as many as there were messages: 1.0 = even. For a group,
        of the queue's shards, by what was published to the group.
    """

    name: str
    active: bool
    consumers: int
    depth: QueueDepth
    oldest_age: float | None
    balance: float | None
    last_sweep: LastSweep


def all_stats(registry: QueueRegistry) -> list[QueueStats]:
    """Return the statistics of every queue of the client, by name. Two calls, and four for each queue."""
    return of_each(registry, stats_of)


def of_each(registry: QueueRegistry, look: Callable[[ShardedQueue, Mapping[str, Any]], T]) -> list[T]:
    """Return what `look` finds of every queue of the client, by name, given the queue and its record.

    A group that is being made, or dropped, has no pointers: it is left out, and the others are shown.
    """
    found: list[T] = []
    for queue, bins in registry.listed(active=None):
        with suppress(NotFound):
            found.append(look(queue, bins))
    return found


def stats_of(queue: ShardedQueue, bins: Mapping[str, Any] | None = None) -> QueueStats:
    """Return the statistics of one queue. bins: its record, if already read. Five calls, six without; more where
    messages have expired, as `ShardedQueue.depth` says.
    """
    main, sideline, parked = queue.states_now()
    last = queue.registry.last_sweep(queue.name) if bins is None else last_sweep_of(bins)
    oldest = _oldest(queue, main)
    age = None if oldest is None else max(0.0, queue.store.seams.wall() - oldest / 1000)
    return QueueStats(
        queue.name,
        queue.live.active,
        queue.concurrency,
        depth_of(main, sideline, parked),
        age,
        _balance(main[: queue.config.shards]),  # a group's own shards, behind these, have only messages that came back
        last,
    )


def _oldest(queue: ShardedQueue, states: Sequence[ShardPointers]) -> int | None:
    """Return when the oldest of the shards' next messages was published, in ms since the epoch."""
    heads = [
        Slot(state.shard, state.fired + state.gone + 1) for state in states if state.fired + state.gone < state.loaded
    ]
    records = read_each(queue.store, [queue.pointers.key(slot) for slot in heads], "enqueuedAt")
    times: list[Any] = [record.bins.get("enqueuedAt") for record in records if isinstance(record, Record)]
    return min((time for time in times if is_int(time) and 0 < time <= MAX_TIME), default=None)


def _balance(states: Sequence[ShardPointers]) -> float | None:
    loaded = [max(0, state.loaded - state.before) for state in states]
    messages = sum(loaded)
    return max(loaded) * min(len(loaded), messages) / messages if messages else None
