"""How a queue was, minute by minute, for people: what the elected upkeep has noted (docs/protocols P27).

Set `{client}_meta_set`, key `{queue}_HISTORY_{YYYYMMDD}`, a record for each day by the server's clock; one map bin
`minutes`: the minute of the day -> the figures of `Minute` in this order, the failures as a list in the order of
`Reason`, and behind it `failing_since` and `failed_since`. What is not known is -1. A later version may append figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any, NamedTuple

from ...errors import Corrupt, LatchworkError, NotFound, Unreadable
from ...inputs import checked_number, is_int
from ...store import Compute, Key, MapPut, Put, Update
from ...store.decode import MAX_COUNTER
from ...store.model.expr import Const, MapValue
from ...store.model.ops import Op
from ...store.port import Exists, Values
from ...store.rows import Rows
from ..rows import read_each, readable
from .envelope import Reason
from .stats import QueueStats
from .subscription import Subscription, checked_subscription
from .workers import WorkerReport

MINUTES = "minutes"
MINUTE, DAY = 60, 86_400
"""Seconds."""
KEPT_DAYS = 15
"""Days that can be read: today, and two weeks before it."""
TTL = (KEPT_DAYS + 1) * DAY
"""Seconds for which a record lives from its last minute."""
_UNKNOWN = -1
_REASONS = tuple(Reason)


@dataclass(frozen=True, slots=True)
class Minute:
    """A queue in one minute. What is not known is None.

    at: when the minute begins, in seconds since the epoch, by the server's clock.
    ready, sideline, parked, delayed, retrying: messages there.
    expired, published, received: since the queue's name was first used, so that rates do not depend on who noted them.
    oldest: age of the oldest ready message in seconds; None also where there is none.
    workers: processes at work.
    joined: how many of them were not there a minute before.
    threads: what the settings allow each of them; 0 = the queue is paused.
    acked, failed: messages in about this minute, by the reports of the workers.
    epoch: of the leader that noted it.
    reasons: of `failed`.
    failing_since: the minute, in seconds since the epoch, of the first attempt that failed since a message was done;
        None where none has failed since, and where an earlier version noted it.
    failed_since: about how many attempts have failed since then, and no message was done.
    """

    at: int
    ready: int | None
    sideline: int | None
    parked: int | None
    delayed: int | None
    retrying: int | None
    expired: int | None
    published: int | None
    received: int | None
    oldest: int | None
    workers: int | None
    joined: int | None
    threads: int | None
    acked: int | None
    failed: int | None
    epoch: int | None
    reasons: Mapping[str, int] = field(default_factory=dict)
    failing_since: int | None = None
    failed_since: int = 0


class Failing(NamedTuple):
    """Attempts that failed since a message was done: since when (seconds since the epoch, -1 = none), and how many."""

    since: int
    attempts: int

    @staticmethod
    def of(minutes: Sequence[Minute]) -> Failing:
        """Return what the last of these minutes says."""
        if not minutes or (since := minutes[-1].failing_since) is None:
            return NOT_FAILING
        return Failing(since, minutes[-1].failed_since)

    def after(self, acked: int, failed: int, minute: int) -> Failing:
        """Return what it is after a minute in which so many messages were done, and so many attempts failed."""
        if acked:
            return NOT_FAILING
        if self.since < 0:
            return Failing(minute, failed) if failed else NOT_FAILING
        return Failing(self.since, self.attempts + failed)


NOT_FAILING = Failing(_UNKNOWN, 0)
_FIGURES = tuple(name for name in Minute.__slots__ if name not in {"at", "reasons", "failing_since", "failed_since"})


def history(queue: Subscription, *, days: float = 1.0) -> tuple[Minute, ...]:
    """Return the minutes that were noted in the last `days`, up to 15, the oldest first. One call.

    A minute without an entry is not known: no process did the upkeep, or the store was away. What is damaged is left
    out. Raises `InvalidRequest`, and the store's errors.
    """
    checked_subscription(queue)
    now, most = queue.store.seams.wall(), checked_number("days", days, 0, KEPT_DAYS)
    since = now - most * DAY
    # The day after is read too: the server's clock may be ahead of this one.
    dates = [int(now) // DAY - n for n in range(-1, int(most) + 2)]
    records = readable(read_each(queue.store, [_key(queue, date) for date in dates], MINUTES))
    found = {
        minute.at: minute
        for date, record in zip(dates, records, strict=True)
        if record is not None
        for minute in minutes_in(date, record.bins.get(MINUTES))
    }
    return tuple(found[at] for at in sorted(found) if at >= since - MINUTE)


def minutes_in(date: int, stored: Any) -> list[Minute]:
    """Return the minutes in a record, without what is damaged. date: days since the epoch."""
    found = []
    for number, entry in stored.items() if isinstance(stored, Mapping) else ():
        if type(number) is not int or not 0 <= number < DAY // MINUTE:
            continue
        if not isinstance(entry, list) or len(entry) <= len(_FIGURES) or not isinstance(entry[len(_FIGURES)], list):
            continue
        figures, reasons = dict(zip(_FIGURES, entry, strict=False)), entry[len(_FIGURES)]
        if all(map(_is_figure, figures.values())):
            more = entry[len(_FIGURES) + 1 : len(_FIGURES) + 3]
            since, attempts = more if len(more) == len(NOT_FAILING) and all(map(_is_figure, more)) else NOT_FAILING
            named = {one.value: n for one, n in zip(_REASONS, reasons, strict=False) if _is_figure(n) and n > 0}
            known = {name: None if value == _UNKNOWN else value for name, value in figures.items()}
            begun = None if since < 0 else since
            found.append(
                Minute(
                    at=date * DAY + number * MINUTE, reasons=named, failing_since=begun, failed_since=max(0, attempts),
                    **known,
                )
            )  # fmt: skip
    return found


class LastMinutes:
    """The minutes that were noted last, read of many queues in a batch of other reads.

    now: seconds since the epoch. Minutes by a server's clock that differs by more are not found.
    ago: the minutes before this one. Each takes a server some 0.1 ms a queue, as it looks through a day.
    """

    def __init__(self, now: float, ago: Sequence[int]) -> None:
        last = int(now) // MINUTE
        self._asked: dict[int, list[int]] = {}
        for n in sorted(ago, reverse=True):
            date, number = divmod(last - n, DAY // MINUTE)
            self._asked.setdefault(date, []).append(number)
        self._ops: dict[int, tuple[Op, ...]] = {
            date: tuple(Compute(MapValue(MINUTES, Const(one), list)) for one in numbers)
            for date, numbers in self._asked.items()
        }

    def reading(self, queue: Subscription) -> list[Update]:
        """Return the updates that read them: one, or two in the minutes after midnight."""
        return [Update(_key(queue, date), ops) for date, ops in self._ops.items()]

    def found(self, rows: Rows[Values]) -> list[tuple[Minute, ...]]:
        """Return the minutes of each queue, the oldest first, by the rows of `reading` of all of them; none of what is
        damaged. Raises the store's errors.
        """
        rows.raise_unless(NotFound, Corrupt, Unreadable)
        dates, each = list(self._asked.items()), list[tuple[Minute, ...]]()
        for begin in range(0, len(rows), len(dates)):
            some: list[Minute] = []
            for (date, numbers), row in zip(dates, rows[begin : begin + len(dates)], strict=True):
                if not isinstance(row, LatchworkError):
                    some += minutes_in(date, dict(zip(numbers, row, strict=True)))
            each.append(tuple(some))
        return each


def noting(queue: Subscription, now: int, figures: Sequence[int], *, replaces: bool = False) -> Update:
    """Return the update that notes a minute; harmless when repeated.

    now: when the figures were read, ms by the server's clock; that decides which minute they are of.
    replaces: whether the whole bin is replaced, as it is damaged.
    """
    date, seconds = divmod(now // 1000, DAY)
    number = seconds // MINUTE
    op = Put(MINUTES, {number: list(figures)}) if replaces else MapPut(MINUTES, number, list(figures))
    return Update(_key(queue, date), (op,), exists=Exists.ANY, ttl=TTL)


def figures_of(
    stats: QueueStats, workers: Sequence[WorkerReport], known: frozenset[str] | None, epoch: int, failing: Failing
) -> list[Any]:
    """Return the figures of a minute as they are stored.

    known: the workers a minute before, None = not known. failing: what has failed since a message was done.
    """
    depth, oldest = stats.depth, stats.ready.oldest_age
    at_work = [one for one in workers if not one.is_silent]
    joined = _UNKNOWN if known is None else sum(one.worker not in known for one in at_work)
    return [
        depth.ready, depth.sideline, depth.parked, depth.delayed, depth.retrying, depth.expired, depth.loaded,
        depth.fired, _UNKNOWN if oldest is None else int(oldest), len(at_work), joined, stats.consumers,
        sum(one.acked for one in at_work), sum(one.failed for one in at_work), epoch,
        [sum(one.reasons.get(reason.value, 0) for one in at_work) for reason in _REASONS], *failing,
    ]  # fmt: skip


def rates(minutes: Sequence[Minute]) -> list[tuple[float | None, float | None]]:
    """Return for each minute the messages a second that were published and received since the one before it.

    None for the first, and where the counts went back: the queue was lost, and made again.
    """
    found: list[tuple[float | None, float | None]] = [(None, None)] if minutes else []
    for before, now in pairwise(minutes):
        seconds = now.at - before.at
        found.append((_rate(before.published, now.published, seconds), _rate(before.received, now.received, seconds)))
    return found


def _rate(before: int | None, now: int | None, seconds: int) -> float | None:
    return None if before is None or now is None or now < before else (now - before) / seconds


def _key(queue: Subscription, date: int) -> Key:
    day = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(days=date)
    return Key(queue.pointers.meta_set, f"{queue.config.name}_HISTORY_{day:%Y%m%d}")


def _is_figure(value: Any) -> bool:
    return is_int(value) and _UNKNOWN <= value <= MAX_COUNTER
