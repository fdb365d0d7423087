"""What is seen of a latch, and how a waiter looks at it again and again without reading more than it must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidRequest
from ...seams import Seams
from ...store.port import Key, Record, RecordStore
from .layout import COUNT, FARMS, bins_of, has_joined

WHOLE_EVERY = 1.0
"""Seconds between two looks at the whole record while somebody waits: another farm may have come."""


@dataclass(frozen=True, slots=True)
class LatchProgress:
    """What a waiter sees: the counters by farm, what remains in all, and the farms that are still to bring theirs."""

    counts: dict[str, int]
    remaining: int
    absent_farms: tuple[str, ...] = ()

    @property
    def released(self) -> bool:
        """Whether the target was reached and no farm is missing."""
        return self.remaining <= 0 and not self.absent_farms


def by_farm(record: Record, prefix: str) -> dict[str, Any]:
    """The bins whose names begin so, by farm."""
    return {name[len(prefix) :]: value for name, value in sorted(record.bins.items()) if name.startswith(prefix)}


def progress_of(record: Record) -> LatchProgress:
    """The counters of all farms, whoever has named them, and the named farms that have none."""
    counts = by_farm(record, COUNT)
    named = sorted({farm for farms in by_farm(record, FARMS).values() for farm in farms})
    return LatchProgress(
        counts, sum(counts.values()), tuple(farm for farm in named if not has_joined(record.bins, farm))
    )


class Looks:
    """The looks of one waiter across farms.

    Mostly at the counters that it knows of, as the bins that remember parties may be large; at the whole record first,
    each second, and before it says that the latch is released.
    """

    def __init__(self, store: RecordStore, key: Key, whole: Callable[[], LatchProgress]) -> None:
        self._store, self._key, self._whole = store, key, whole
        self._seams: Seams = store.seams
        self._seen: LatchProgress | None = None
        self._seen_at = 0.0

    def __call__(self) -> LatchProgress:
        """The progress as it is now. One read, or two."""
        now = self._glance()
        if now is None or now.released:
            now = self._seen = self._whole()
            self._seen_at = self._seams.monotonic()
        return now

    def _glance(self) -> LatchProgress | None:
        """The counters that were there at the last whole look; None where another one is due."""
        seen = self._seen
        if seen is None or self._seams.monotonic() - self._seen_at >= WHOLE_EVERY:
            return None
        try:
            bins = [bins_of(farm).count for farm in (*seen.counts, *seen.absent_farms)]
            bins += [bins_of(farm).id for farm in seen.absent_farms]
        except InvalidRequest:  # another program's farm, whose bin can only be read with the whole record
            return None
        record = self._store.get(self._key, *bins)
        if record is None or not seen.counts.keys() <= (counts := by_farm(record, COUNT)).keys():
            return None  # gone, or made again
        absent = tuple(farm for farm in seen.absent_farms if not has_joined(record.bins, farm))
        return LatchProgress(counts, sum(counts.values()), absent)
