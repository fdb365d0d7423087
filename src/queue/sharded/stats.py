"""The statistics of a queue at one moment, for gauges and for people: a few calls, whatever its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ...errors import Corrupt, NotFound, Unreadable
from ...inputs import is_int
from .delayed.stored import LastRetry, Unsettled, Waiting
from .depth import LOOKED, QueueDepth, depth_of
from .envelope import MAX_TIME
from .pointers import ShardPointers
from .queue import ShardedQueue
from .record import LastSweep, last_sweep_of
from .registry import QueueRegistry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Side:
    """The messages that wait in one part of a queue, by those that are next in their shards.

    waiting: slots.
    is_exact: whether each of these slots was looked at; else messages may have been removed one by one, and `waiting`
        is an upper bound. True for ready messages, which are not removed so.
    oldest_age: seconds since the oldest of them was published; None = there is none.
    left: seconds for which the first of them to expire still lives; None = there is none.
    life: seconds for which a message lives here.
    expired: slots that held no message when it was their turn, or whose turn it is, since the queue's name was first
        used: it had expired unread, was removed alone, or its publisher never wrote it.
    expired_ago: seconds since the last of these was noticed; 0 = one is there now; None = there is none, or its time is
        not known.
    """

    waiting: int
    oldest_age: float | None
    left: float | None
    life: int
    expired: int = 0
    expired_ago: float | None = None
    is_exact: bool = True

    @property
    def is_half_over(self) -> bool:
        """Whether a message has waited for more than half of its life."""
        return self.left is not None and self.left < self.life / 2


@dataclass(frozen=True, slots=True)
class Parked:
    """The message that was parked first, of those that are next in their shards.

    error: of its last attempt, or the reason if there was none.
    ago: seconds since it was parked.
    """

    message_id: str
    error: str
    ago: float


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue at one moment.

    ready, sideline, parked: what waits in each.
    is_streamed: whether a stream owns shards of it, which then has no other consumers.
    last_retry: the message that failed last and is tried again, while any waits for that.
    oldest_parked: the message that was parked first; None where nothing is parked, or it cannot be read.
    delayed_late: seconds by which the delivery of delayed messages is behind; None = there are none. A few seconds are
        usual.
    unsettled: messages that wait, for more than a minute, for the write with which they go; the oldest first.
    balance: the fullest shard against the mean of all, or of as many as there were messages: 1.0 = even. For a group,
        of the queue's shards, by what was published to the group.
    """

    name: str
    active: bool
    consumers: int
    depth: QueueDepth
    ready: Side
    sideline: Side
    parked: Side
    is_streamed: bool
    delayed_late: float | None
    balance: float | None
    last_sweep: LastSweep
    last_retry: LastRetry | None = None
    oldest_parked: Parked | None = None
    unsettled: tuple[Unsettled, ...] = ()

    @property
    def oldest_age(self) -> float | None:
        """Seconds since the oldest of the ready messages that are next in their shards was published."""
        return self.ready.oldest_age


def all_stats(registry: QueueRegistry) -> list[QueueStats]:
    """Return the statistics of every queue of the client, by name. Two calls, and as many as `stats_of` for each."""
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
    """Return the statistics of one queue. bins: its record, if already read. Five calls, six without; one more where
    messages are parked; more where messages have expired, as `ShardedQueue.depth` says.
    """
    states = queue.states_now()
    last = queue.registry.last_sweep(queue.name) if bins is None else last_sweep_of(bins)
    depth = depth_of(*states)
    delayed = Waiting()
    try:
        delayed = queue.delayed.waiting()
        depth = replace(depth, delayed=delayed.messages, retrying=delayed.retrying)
    except (Corrupt, Unreadable):  # all the rest is known
        depth = replace(depth, damaged=depth.damaged + 1)
    ready, sideline, parked = _sides(queue, states)
    return QueueStats(
        queue.name,
        queue.live.active,
        queue.concurrency,
        depth,
        ready,
        sideline,
        parked,
        any(state.stream for state in states[0]),
        delayed.late if depth.delayed else None,
        # A group's own shards, behind these, have only messages that came back.
        _balance(states[0][: queue.config.shards]),
        last,
        delayed.last_retry if delayed.retrying else None,
        _oldest_parked(queue, states[2]),
        delayed.unsettled,
    )


def _oldest_parked(queue: ShardedQueue, states: Sequence[ShardPointers]) -> Parked | None:
    """Return the message that was parked first. One call, none where nothing is parked."""
    heads = [state.head for state in states if state.head is not None and state.head.ttl >= 0]
    if not heads:
        return None
    oldest = min(heads, key=lambda record: record.ttl)
    try:
        found = queue.store.get(oldest.key, "msgId", "lastError", "reason")
    except (Corrupt, Unreadable):
        return None
    bins: Mapping[str, Any] = found.bins if found else {}
    name, error = bins.get("msgId"), bins.get("lastError") or bins.get("reason") or ""
    if not isinstance(name, str):
        return None
    ago = max(0.0, float(queue.parked.pointers.ttl - oldest.ttl))
    return Parked(name, error if isinstance(error, str) else "", ago)


def _sides(queue: ShardedQueue, states: Sequence[Sequence[ShardPointers]]) -> list[Side]:
    """Return what waits in each part of a queue, by the next message of each shard. No call."""
    now, sides = queue.store.seams.wall(), []
    parts = (queue.pointers, queue.sideline.pointers, queue.parked.pointers)
    for part, some in zip(parts, states, strict=True):
        heads = [state.head for state in some if state.head is not None]
        times: list[Any] = [record.bins.get("enqueuedAt") for record in heads]
        oldest = min((time for time in times if is_int(time) and 0 < time <= MAX_TIME), default=None)
        age = None if oldest is None else max(0.0, now - oldest / 1000)
        left = min((record.ttl for record in heads if record.ttl >= 0), default=None)
        waiting, expired = sum(state.waiting for state in some), sum(state.expired + state.gone for state in some)
        exact = part is queue.pointers or waiting + sum(state.holes for state in some) <= LOOKED
        sides.append(Side(waiting, age, left, part.ttl, expired, _expired_ago(some, now), exact))
    return sides


def _expired_ago(some: Sequence[ShardPointers], now: float) -> float | None:
    if any(state.gone for state in some):
        return 0.0
    last = max((state.expired_at for state in some), default=0)
    return max(0.0, now - last / 1000) if last else None


def _balance(states: Sequence[ShardPointers]) -> float | None:
    loaded = [max(0, state.loaded - state.before) for state in states]
    messages = sum(loaded)
    return max(loaded) * min(len(loaded), messages) / messages if messages else None
