"""The stored layout of a large circular queue: names of bins, positions of offsets, sizes (docs/protocols P4).

One record `queue-metadata` holds the lock, head and tail, the transactions and the groups; the records
`queue-buffer-<i>` hold the entries. Offset `o` is in record `o // slots % records` at index `o % slots`, as `[o,
value]`: each slot names the offset that it holds, so an older or newer entry is never taken for it. Slots in the older
form `{"offset": o, "entry": value}` are read too; there an empty one is `{"offset": -1, "value": None}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct, field

from ...errors import InvalidRequest, NotFound, RecordTooBig
from ...inputs import checked_store_name, checked_whole, is_int
from ...plain import shown
from ...store.decode import MAX_COUNTER, damaged, decoded
from ...store.model.expr import Bin, Bound, Expr, MapSmallestValue, Param, missing
from ...store.model.record import Key, checked_key
from ...store.model.values import MAX_DEPTH, MAX_INT, bound, encode, taken

META, BUFFER = "queue-metadata", "queue-buffer-"
HEAD, TAIL = "head-offset", "tail-offset"
RECORDS, SLOTS, CAPACITY = "num-buf-recs", "slots-per-rec", "capacity"
SHAPE = RECORDS, SLOTS, CAPACITY
TXNS, GROUPS = "txns", "groups"
MARK, ENTRIES = "fencing-mark", "entries"

SENTINEL, UNLIMITED = "", MAX_INT
"""A key and its position that are always in `groups`, so that the watermark exists without a group too."""

MAX_SLOTS, MAX_RECORDS = 10_000, 10_000_000
_ROOM = 2048
"""Bytes of a buffer record that are not entries: names, mark, headers."""
_AROUND = 24
"""Bytes around the value in a slot: the pair's header and the offset."""
_DEPTH = MAX_DEPTH - 2
"""Levels of lists and maps in a value; the pair and the list of entries are two more."""

_NOT_STALE = Bin(MARK) <= Param("fence")
_OF_RECORDS = Bin(RECORDS).eq(Param("records")) & Bin(SLOTS).eq(Param("slots"))
_OF_CAPACITY = Bin(CAPACITY).eq(Param("capacity"))
_UNCHANGED = {
    True: _OF_RECORDS & (missing(CAPACITY) | _OF_CAPACITY),  # whether the capacity is the product of the other two
    False: _OF_RECORDS & _OF_CAPACITY,
}
WATERMARK = MapSmallestValue(GROUPS)
"""The smallest position that head waits for; groups that do not hold head are far above (`groups.FREE`)."""


class _Stored(Struct):
    """The shape of a queue, in its metadata record."""

    records: Annotated[int, Meta(ge=1, le=MAX_RECORDS)] = field(name=RECORDS)
    slots: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] = field(name=SLOTS)
    capacity: Annotated[int, Meta(ge=1, le=MAX_RECORDS * MAX_SLOTS)] | None = field(name=CAPACITY, default=None)


def offset_in(meta: Key, bin: str, value: Any) -> int:
    """Return the offset in a bin of the metadata record. Raises `Corrupt`."""
    if not is_int(value) or not 0 <= value <= MAX_COUNTER:
        raise damaged(meta, f"bin {bin!r} is not an offset")
    return int(value)


def watermark_in(meta: Key, value: Any) -> int:
    """Return the position that head waits for, from the smallest of `groups`. Raises `Corrupt`."""
    if not is_int(value) or value < 0:
        raise damaged(meta, f"bin {GROUPS!r} has an entry that is not a position")
    return int(value)


def not_stale(fence: int) -> Bound:
    """Return the guard "no higher fence has written to the buffer record"."""
    return _NOT_STALE.bind(fence=fence)


class Extent(NamedTuple):
    """Consecutive offsets, from `first` on, in consecutive slots of one record, from `slot` on."""

    slot: int
    first: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The records and slots of one queue.

    room: bytes that one value may have, as the server stores it.
    """

    name: str
    capacity: int
    records: int
    slots: int
    room: int

    @classmethod
    def planned(cls, name: str, capacity: int, slots: int, record_limit: int) -> Layout:
        """Return the layout of a new queue, of a checked shape. Raises `InvalidRequest` if its records have no room."""
        room = (record_limit - _ROOM) // slots - _AROUND
        if room < 1:
            raise InvalidRequest(
                f"entries_per_record is {slots}: {record_limit} bytes, the store's record size limit, leave no room "
                "for so many; use fewer"
            )
        return cls(name, capacity, -(-capacity // slots), slots, room)

    @classmethod
    def stored(cls, name: str, bins: dict[str, Any], record_limit: int) -> Layout:
        """Return the layout of a queue that is stored, from the bins of its metadata record."""
        kept = decoded(_Stored, Key(name, META), bins)
        records, slots = kept.records, kept.slots
        room = (record_limit - _ROOM) // slots - _AROUND
        return cls(name, records * slots if kept.capacity is None else kept.capacity, records, slots, room)

    @property
    def unchanged(self) -> Expr:
        """The guard "the queue has this layout", with the parameters of `shape`."""
        return _UNCHANGED[self.capacity == self.records * self.slots]

    @property
    def shape(self) -> dict[str, int]:
        """What makes the places of the offsets."""
        return {"records": self.records, "slots": self.slots, "capacity": self.capacity}

    def check(self, bins: dict[str, Any]) -> None:
        """Raise `NotFound` if the bins of the metadata record say that the queue has another layout by now."""
        found = Layout.stored(self.name, {bin: bins[bin] for bin in SHAPE if bins.get(bin) is not None}, 0)
        if found.shape != self.shape:
            raise NotFound(
                f"the queue {shown(self.name)} was made again, with capacity {found.capacity} and {found.slots} "
                f"entries per record, since this handle was opened with {self.capacity} and {self.slots}: open it again"
            )

    @property
    def meta(self) -> Key:
        """The key of the metadata record."""
        return Key(self.name, META)

    def buffer(self, record: int) -> Key:
        """Return the key of the buffer record with that number, from 0."""
        return Key(self.name, f"{BUFFER}{record}")

    def place(self, offset: int) -> tuple[Key, int]:
        """Return the buffer record and the slot of an offset."""
        record, slot = divmod(offset, self.slots)
        return Key(self.name, f"{BUFFER}{record % self.records}"), slot

    def extents(self, first: int, count: int) -> dict[int, list[Extent]]:
        """Return the positions of these offsets, by record. A long range that wraps around uses its first
        record twice.
        """
        record, slot = divmod(first, self.slots)
        if slot + count <= self.slots:
            return {record % self.records: [Extent(slot, first, count)]}
        by_record: dict[int, list[Extent]] = {}
        offset, end = first, first + count
        while offset < end:
            slot = offset % self.slots
            length = min(self.slots - slot, end - offset)
            by_record.setdefault(offset // self.slots % self.records, []).append(Extent(slot, offset, length))
            offset += length
        return by_record

    def fitting(self, value: Any) -> Any:
        """Return a checked copy of the value, if `slots` values of its size fit into one record.

        Raises `InvalidRequest` if no bin can hold it, `RecordTooBig` if it is too large.
        """
        value = taken(value, _DEPTH)
        if bound(value) > self.room:
            size = len(encode({"": _typed(value)}))
            if size > self.room:
                raise RecordTooBig(
                    f"a value of {size} bytes for queue {shown(self.name)}: {self.slots} entries share a record, so "
                    f"one may have {self.room} bytes; create the queue with fewer entries_per_record, or store a "
                    "reference",
                    size=size,
                    limit=self.room,
                )
        return value


def checked_name(name: str) -> str:
    """Return the queue's name if it can be the name of a set. Raises `InvalidRequest`."""
    return checked_key(Key(checked_store_name("queue name", name), META)).set


def checked_shape(name: str, capacity: int, slots: int) -> None:
    """Raise `InvalidRequest` if no queue can have this name, capacity and number of entries per record."""
    checked_name(name)
    checked_whole("entries_per_record", slots, 1, MAX_SLOTS)
    checked_whole("capacity", capacity, 1, MAX_RECORDS * slots)


def checked_count(name: str, count: int) -> int:
    """Return a number of entries if it is 1 or more. Raises `InvalidRequest`."""
    return checked_whole(name, count, 1, MAX_INT)


def checked_offset(offset: int) -> int:
    """Return an offset if it is 0 or more. Raises `InvalidRequest`."""
    return checked_whole("offset", offset, 0, MAX_INT - 1)


def total_bound(values: Sequence[Any]) -> int:
    """Return an upper bound of the bytes that the values take in their slots."""
    return sum(map(bound, values)) + _AROUND * len(values)


def _typed(value: Any) -> Any:
    """Return a value whose encoding is as long as the server's, which puts a type byte in front of every text and
    bytes.

    Slots are never emptied, so one value above its room would keep its record from taking any more.
    """
    kind = type(value)
    if kind is str:
        return f" {value}"
    if kind is bytes:
        return b" " + value
    if kind is list:
        return [_typed(item) for item in value]
    if kind is dict:
        return {_typed(key): _typed(item) for key, item in value.items()}
    return value
