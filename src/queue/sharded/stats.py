"""The statistics of a queue at one moment, for gauges and for people: a few calls, whatever its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from ...errors import LatchworkError, NotFound
from ...inputs import is_int
from ...store import Record
from ...store.rows import chunked
from ..rows import read_each
from .delayed.control import WAITING_BINS, waiting_by
from .delayed.stored import LastRetry, Unsettled, Waiting
from .depth import LOOKED, PARTS, QueueDepth, depth_of, looked_through, with_delayed
from .envelope import MAX_TIME
from .groups.pointers import GROUP_STATE_BINS
from .pointers import ShardPointers
from .record import LastSweep, last_sweep_of
from .shards import Shards
from .subscription import Subscription
from .sweep_record import LAST


@dataclass(frozen=True, slots=True)
class Side:
    """The messages that wait in one part of a queue, by those that are next in their shards.

    waiting: slots.
    is_exact: whether each of these slots was looked at; else messages may have been removed one by one, and `waiting`
        is an upper bound. True for ready messages, which are not removed so.
    oldest_age: seconds since the oldest of them was published, or since it came here, if that is longer, as where the
        clock of its publisher is ahead; None = there is none.
    left: seconds for which the first of them to expire still lives; None = there is none.
    life: seconds for which a message lives here.
    expired: slots that held no message when it was their turn, or whose turn it is, since the queue's name was first
        used: it had expired unread, was removed alone, or its publisher never wrote it.
    expired_ago: seconds since the last of these was noticed, as somebody took messages from there; 0 = nobody has since
        one expired, so the time is not known; None = there is none, or its time is not known.
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
    stream: the stream that owns shards of it, which then has no other consumers; None = no stream does.
    last_retry: the message that failed last and is tried again, while any waits for that.
    oldest_parked: the message that was parked first; None where nothing is parked, or it cannot be read.
    delayed_late: seconds by which the delivery of delayed messages is behind; None = there are none. A few seconds are
        usual.
    delayed_expired: delayed messages, and retries, that expired before anybody delivered them, since the queue's name
        was first used; delayed_expired_ago: seconds since that was noticed last; None = there are none. Roughly.
    unsettled: messages that wait, for more than a minute, for the write with which they go; the oldest first.
    in_order: whether ordered consumers work on it, or have; each shard has one handler at a time then.
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
    stream: str | None
    delayed_late: float | None
    balance: float | None
    last_sweep: LastSweep
    last_retry: LastRetry | None = None
    oldest_parked: Parked | None = None
    unsettled: tuple[Unsettled, ...] = ()
    in_order: bool = False
    delayed_expired: int = 0
    delayed_expired_ago: float | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether a stream owns shards of it."""
        return self.stream is not None

    @property
    def oldest_age(self) -> float | None:
        """Seconds since the oldest of the ready messages that are next in their shards was published."""
        return self.ready.oldest_age


MOST_QUEUES = 500
"""Queues whose pointers one call reads."""


def stats_of(queue: Subscription) -> QueueStats:
    """Return the statistics of one queue. Three calls; more where messages have expired, as `ShardedQueue.depth` says.

    Raises `NotFound` where it is gone.
    """
    (stats,) = stats_of_each([(queue, queue.registry.records.read(queue.name, LAST))])
    if stats is None:
        raise NotFound(f"queue {queue.name!r} has no pointers: it is being made, or dropped", queue=queue.name)
    return stats


def stats_of_each(queues: Sequence[tuple[Subscription, Mapping[str, Any]]]) -> list[QueueStats | None]:
    """Return the statistics of these queues of one client, each given with its record; None for a group that has no
    pointers, as it is being made, or dropped.

    Two calls, and one for each further 500 queues; more where messages have expired, as `ShardedQueue.depth` says.
    """
    # 1. The pointers of all shards, and what is delayed.
    found: list[list[list[Record | LatchworkError | None]]] = []
    for some in chunked(queues, MOST_QUEUES):
        keys = [
            [*(part.state_keys(range(part.shards)) for part in _parts(queue)), [queue.delayed.control]]
            for queue, _ in some
        ]
        rows = iter(read_each(some[0][0].store, list(chain(*chain(*keys))), *GROUP_STATE_BINS, *WAITING_BINS))
        found += [[list(islice(rows, len(part))) for part in one] for one in keys]
    states = [_states(queue, rows) for (queue, _), rows in zip(queues, found, strict=True)]
    # 2. The oldest messages of each shard.
    parts = [zip(_parts(queue), some, strict=True) for (queue, _), some in zip(queues, states, strict=True) if some]
    looked = iter(looked_through(list(chain(*parts))))
    return [
        _stats(queue, bins, list(islice(looked, PARTS)), rows[-1][0]) if some else None
        for (queue, bins), some, rows in zip(queues, states, found, strict=True)
    ]


def _parts(queue: Subscription) -> tuple[Shards, ...]:
    return queue.pointers, queue.sideline.pointers, queue.parked.pointers


def _states(
    queue: Subscription, rows: Sequence[Sequence[Record | LatchworkError | None]]
) -> list[list[ShardPointers]] | None:
    """Return the states of each part of a queue by the rows of their pointers; None for a group that has none."""
    try:
        return [part.states_of(range(part.shards), some) for part, some in zip(_parts(queue), rows, strict=False)]
    except NotFound:
        return None


def _stats(
    queue: Subscription,
    bins: Mapping[str, Any],
    states: Sequence[list[ShardPointers]],
    control: Record | LatchworkError | None,
) -> QueueStats:
    main, sideline, parked = states
    depth, delayed = depth_of(main, sideline, parked), Waiting()
    if isinstance(control, LatchworkError):  # all the rest is known
        depth = replace(depth, damaged=depth.damaged + 1)
    elif control is not None:
        delayed = waiting_by(control.bins, queue.store.seams.wall())
        depth = with_delayed(depth, delayed)
    ready, left, given_up = _sides(queue, states)
    # A group's own shards, behind these, have only messages that came back.
    loaded = [max(0, state.loaded - state.before) for state in main[: queue.config.shards]]
    messages = sum(loaded)
    return QueueStats(
        queue.name, queue.live.active, queue.concurrency, depth, ready, left, given_up,
        stream=next((state.stream for state in main if state.stream), None),
        delayed_late=delayed.late if depth.delayed else None,
        balance=max(loaded) * min(len(loaded), messages) / messages if messages else None,
        last_sweep=last_sweep_of(bins), last_retry=delayed.last_retry if delayed.retrying else None,
        oldest_parked=_oldest_parked(queue, parked), unsettled=delayed.unsettled,
        in_order=any(state.in_order for state in main), delayed_expired=delayed.expired,
        delayed_expired_ago=_ago(queue, delayed.expired_at) if delayed.expired else None,
    )  # fmt: skip


def _ago(queue: Subscription, at: int) -> float:
    return max(0.0, queue.store.seams.wall() - at / 1000)


def _oldest_parked(queue: Subscription, states: Sequence[ShardPointers]) -> Parked | None:
    """Return the message that was parked first. No call."""
    heads = [state.head for state in states if state.head is not None and state.head.ttl >= 0]
    if not heads:
        return None
    oldest = min(heads, key=lambda record: record.ttl)
    name, error = oldest.bins.get("msgId"), oldest.bins.get("lastError") or oldest.bins.get("reason") or ""
    if not isinstance(name, str):
        return None
    ago = max(0.0, float(queue.parked.pointers.ttl - oldest.ttl))
    return Parked(name, error if isinstance(error, str) else "", ago)


def _sides(queue: Subscription, states: Sequence[Sequence[ShardPointers]]) -> list[Side]:
    """Return what waits in each part of a queue, by the next message of each shard. No call."""
    now, sides = queue.store.seams.wall(), []
    for part, some in zip(_parts(queue), states, strict=True):
        heads = [state.head for state in some if state.head is not None]
        times: list[Any] = [record.bins.get("enqueuedAt") for record in heads]
        oldest = min((time for time in times if is_int(time) and 0 < time <= MAX_TIME), default=None)
        age = None if oldest is None else max(0.0, now - oldest / 1000)
        left = min((record.ttl for record in heads if record.ttl >= 0), default=None)
        if left is not None:  # it has been here for so long by the server's clock, whatever its publisher's said
            age = max(age or 0.0, float(part.ttl - left - 1))
        waiting, expired = sum(state.waiting for state in some), sum(state.expired + state.gone for state in some)
        exact = part is queue.pointers or waiting + sum(state.holes for state in some) <= LOOKED
        last = max((state.expired_at for state in some), default=0)
        ago = 0.0 if any(state.gone for state in some) else max(0.0, now - last / 1000) if last else None
        sides.append(Side(waiting, age, left, part.ttl, expired, ago, exact))
    return sides
