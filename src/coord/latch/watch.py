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
from ...store.port import Key, Record, RecordStore
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
            raise damaged(record.key, f"bin {COUNT}{shown(farm)} is no number")
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


class Looks:
    """The reads of one waiter at XDC level.

    Most reads ask only for the known counters, as the bins that remember parties may be large. The whole record is read
    first, then once a second, and before the latch is reported as released.
    """

    def __init__(self, store: RecordStore, key: Key, whole: Callable[[], LatchProgress]) -> None:
        self._store, self._key, self._whole = store, key, whole
        self._seams: Seams = store.seams
        self._seen: LatchProgress | None = None
        self._seen_at = 0.0

    def __call__(self) -> LatchProgress:
        """Return the progress now. One read, or two."""
        now = self._glance()
        if now is None or now.released:
            now = self._seen = self._whole()
            self._seen_at = self._seams.monotonic()
        return now

    def _glance(self) -> LatchProgress | None:
        """Read the counters that the last whole read found; None if another whole read is due."""
        seen = self._seen
        if seen is None or self._seams.monotonic() - self._seen_at >= WHOLE_EVERY:
            return None
        try:
            bins = [bins_of(farm).count for farm in (*seen.counts, *seen.absent_farms)]
            bins += [bins_of(farm).id for farm in seen.absent_farms]
        except InvalidRequest:  # another program's farm, whose bin can only be read with the whole record
            return None
        record = self._store.get(self._key, *bins)
        if record is None or not seen.counts.keys() <= (counts := counts_of(record)).keys():
            return None  # gone, or made again
        absent = tuple(farm for farm in seen.absent_farms if not has_joined(record.bins, farm))
        return LatchProgress(counts, sum(counts.values()), absent)
