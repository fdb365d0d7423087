"""The shares of farms in the record of a latch, for callers that need each farm's parties and not only its count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import NotFound
from ...store.model.expr import MapSize
from ...store.model.ops import Compute, Read
from ...store.port import Key, Record, RecordStore
from .layout import COUNT, DONE, FARMS, bins_of, names_in
from .watch import by_farm


@dataclass(frozen=True, slots=True)
class Share:
    """One farm's share of a latch: the number to count (None if not brought yet) and the parties that have counted."""

    farm: str
    remaining: int | None
    counted: frozenset[Any]
    named: int | None
    """The parties that the share was created for, if the record names them."""

    @property
    def total(self) -> int:
        """The number of parties that the share was created for."""
        return (self.remaining or 0) + len(self.counted) if self.named is None else self.named


def shares_of(record: Record) -> list[Share]:
    """Return the shares of all farms that have one or are expected to bring one, by farm. Raises `Corrupt`."""
    expected = {farm for farms in by_farm(record, FARMS).values() for farm in farms}
    return [_share(record, farm) for farm in sorted(expected | by_farm(record, COUNT).keys())]


def _share(record: Record, farm: str) -> Share:
    names = names_in(record.bins, farm, record.key)
    counted = frozenset(record.bins.get(DONE + farm, ()))
    return Share(farm, record.bins.get(COUNT + farm), counted, None if names is None else len(names))


def total_of(store: RecordStore, key: Key, farm: str) -> int | None:
    """Return how many parties a farm's share was created for, from its counts; None without a share. One read."""
    bins = bins_of(farm)
    try:
        remaining, counted = store.operate(key, Read(bins.count), Compute(MapSize(bins.done)))
    except NotFound:
        return None
    return None if remaining is None else remaining + (counted or 0)
