"""The progress of a latch, and the cheap repeated reads of a waiter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidRequest
from ...inputs import is_int
from ...plain import shown
from ...seams import Seams
from ...store.decode import damaged
from ...store.port import Record
from ..waits import INFINITY, Answer, Watch
from .layout import COUNT, FARMS, bins_of, has_joined

WHOLE_EVERY = 1.0
"""Seconds between two reads of the whole record during a wait: another farm may have created its counter."""


@dataclass(frozen=True, slots=True)
class LatchProgress:
    """The progress of a latch, as a waiter sees it.

    counts: the counters by farm.
    remaining: their sum.
    absent_farms: the named farms that have not created their counter.
    """

    counts: dict[str, int]
    remaining: int
    absent_farms: tuple[str, ...] = ()

    @property
    def released(self) -> bool:
        """Whether nothing remains and no farm is absent."""
        return self.remaining <= 0 and not self.absent_farms


def by_farm(record: Record, prefix: str) -> dict[str, Any]:
    """Return the bins whose names begin with `prefix`, by farm."""
    return {name[len(prefix) :]: value for name, value in sorted(record.bins.items()) if name.startswith(prefix)}


def counts_of(record: Record) -> dict[str, int]:
    """Return the counters, by farm. Raises `Corrupt` where one is no number."""
    counts = by_farm(record, COUNT)
    for farm, count in counts.items():
        if not is_int(count):
            raise damaged(record.key, f"bin {COUNT}{shown(farm)} is not a number")
    return counts


def progress_of(record: Record) -> LatchProgress:
    """Return the progress in a whole record: the counters of all farms, and the named farms without one."""
    counts = counts_of(record)
    lists = by_farm(record, FARMS)
    if not all(isinstance(farms, list) and all(isinstance(farm, str) for farm in farms) for farms in lists.values()):
        raise damaged(record.key, f"a bin {FARMS}* holds no names of farms")
    named = sorted({farm for farms in lists.values() for farm in farms})
    return LatchProgress(
        counts, sum(counts.values()), tuple(farm for farm in named if not has_joined(record.bins, farm))
    )


class DcReads:
    """The reads of one wait at DC level, where this farm's counter decides.

    look: what a read of this farm's bins means; raises `NotFound`.
    every: whether each change ends a pause, and not only the release.
    """

    def __init__(
        self, watch: Watch, count: str, look: Callable[[Record | None], LatchProgress], *, every: bool
    ) -> None:
        self.watch, self._count, self._look = watch, count, look
        if not every:
            watch.worth = self._is_worth

    def __call__(self) -> LatchProgress:
        """Return the progress now. One read, or none if another thread has read for this wait."""
        return self._look(self.watch.read().record)

    def due(self) -> float:
        """Return when to look though nothing has changed: never."""
        return INFINITY

    def _is_worth(self, answer: Answer) -> bool:
        """Whether the latch is released, was created, or is gone or another one. A count of 3 after 4 is not."""
        now, before = answer.record, self.watch.seen
        if now is None or before is None:
            return now is not before
        others = {**now.bins, self._count: None} != {**before.bins, self._count: None}
        count = now.bins.get(self._count)
        return others or type(count) is not int or count <= 0


class XdcReads:
    """The reads of one wait at XDC level.

    Most reads ask only for the known counters, as the bins that remember parties may be large. The whole record is read
    first, then once a second, and before the latch is reported as released.
    """

    def __init__(self, watch: Watch, whole: Callable[[], LatchProgress], seams: Seams) -> None:
        self.watch, self._whole, self._seams = watch, whole, seams
        self._seen: LatchProgress | None = None
        self._seen_at = 0.0

    def __call__(self) -> LatchProgress:
        """Return the progress now. One read, or two."""
        now = self._glance()
        if now is None or now.released:
            now = self._seen = self._whole()
            self._seen_at = self._seams.monotonic()
            self.watch.bins = self._known(now)
        return now

    def due(self) -> float:
        """Return when the whole record is to be read again."""
        return INFINITY if self._seen is None else self._seen_at + WHOLE_EVERY

    def _known(self, seen: LatchProgress) -> tuple[str, ...]:
        """Return the bins of the counters that the whole read has found; none, which is all, if one cannot be named."""
        try:
            bins = [bins_of(farm).count for farm in (*seen.counts, *seen.absent_farms)]
            bins += [bins_of(farm).id for farm in seen.absent_farms]
        except InvalidRequest:  # another program's farm, whose bin can only be read with the whole record
            return ()
        return tuple(bins)

    def _glance(self) -> LatchProgress | None:
        """Read the counters that the last whole read found; None if another whole read is due."""
        seen = self._seen
        if seen is None or not self.watch.bins or self._seams.monotonic() - self._seen_at >= WHOLE_EVERY:
            self.watch.handed = None
            return None
        record = self.watch.read().record
        if record is None or not seen.counts.keys() <= (counts := counts_of(record)).keys():
            return None  # gone, or made again
        absent = tuple(farm for farm in seen.absent_farms if not has_joined(record.bins, farm))
        return LatchProgress(counts, sum(counts.values()), absent)
