"""The shares of farms in the record of a latch, for callers that need each farm's parties and not only its count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from ...errors import NotFound
from ...store.decode import decoded
from ...store.model.expr import MapSize
from ...store.model.ops import Compute, Read
from ...store.port import Key, Record, RecordStore
from ..farms import farms_of
from .layout import COUNT, DONE, FARMS, MAX_PARTIES, bins_of, names_in


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


class _Stored(Struct, frozen=True):
    """The bins of one farm, with their limits. Across farms a counter may be below zero."""

    count: Annotated[int, Meta(le=MAX_PARTIES)] | None = field(default=None, name=COUNT)
    done: dict[str | int, int] = field(default_factory=dict, name=DONE)
    farms: list[str] = field(default_factory=list, name=FARMS)


def shares_of(record: Record) -> list[Share]:
    """Return the shares of all farms that have one or are expected to bring one, by farm. Raises `Corrupt`."""
    stored = farms_of(_Stored, record.key, record.bins)
    joined = {farm for farm, one in stored.items() if one.count is not None}
    expected = {farm for one in stored.values() for farm in one.farms}
    shares = []
    for farm in sorted(expected | joined):
        own, names = stored.get(farm, _Stored()), names_in(record.bins, farm, record.key)
        shares.append(Share(farm, own.count, frozenset(own.done), None if names is None else len(names)))
    return shares


def total_of(store: RecordStore, key: Key, farm: str) -> int | None:
    """Return how many parties a farm's share was created for, from its counts; None without a share. One read.

    Raises `Corrupt`.
    """
    bins = bins_of(farm)
    try:
        remaining, counted = store.operate(key, Read(bins.count), Compute(MapSize(bins.done)))
    except NotFound:
        return None
    if remaining is None:
        return None
    return (decoded(_Stored, key, {COUNT: remaining}).count or 0) + (counted or 0)
