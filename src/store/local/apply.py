"""What the server does to one record, in Python, for the local stores: guards, operations, times to live.

`apply` is a pure function from a record (or none) to a record; the memory and the SQLite store differ only in where
they keep what it returns. The rules, odd ones included, are the server's (docs/protocols P0): a guard on an absent
record is skipped, a missing bin makes a comparison and its negation refuse, an update that fails changes nothing.

Simulations run millions of updates through here, so a record that grows is not encoded each time to see whether it is
too big: an upper bound of its size goes along with it, and only where that passes the limit is the size measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field

from ...errors import AlreadyExists, BinMismatch, InvalidRequest, NotFound, RecordTooBig, Refused
from ...plain import shown
from ..model import expr as e
from ..model import ops as o
from ..model.form import plain
from ..model.values import (  # fmt: skip
    HEADER,
    MAX_DEPTH,
    NESTED,
    amount,
    bound,
    element,
    encode,
    given,
    map_key,
    taken,
    with_entry,
    without_smallest,
)
from ..port import KEEP, NEVER, Exists, Key, Record, Update, Values
from .evaluate import UNKNOWN, Scope, holds, value_of, wrap

RECORD_SIZE_LIMIT = 1024 * 1024
"""Bytes, the server's default."""


class Stored(Struct, frozen=True):
    """A record as a local store keeps it; its bins are never changed in place.

    updated, expires: ms since the epoch; None = never expires. bound: bytes that its bins do not exceed.
    """

    bins: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    updated: int = 0
    expires: int | None = None
    bound: int = 0

    def expired(self, now: int) -> bool:
        """Whether its time to live is over."""
        return self.expires is not None and self.expires <= now

    def ttl(self, now: int) -> int:
        """Whole seconds left to live, at least 1; `NEVER` where it never expires."""
        return NEVER if self.expires is None else max(1, (self.expires - now) // 1000)


def live(record: Stored | None, now: int) -> Stored | None:
    """The record, or None where it has expired."""
    return None if record is None or record.expired(now) else record


def as_record(key: Key, stored: Stored, bins: Sequence[str], now: int) -> Record:
    """The record as a reader gets it: these bins, or all where none is named."""
    names = [name for name in bins if name in stored.bins] if bins else stored.bins
    return Record(key, {name: given(stored.bins[name]) for name in names}, stored.generation, stored.ttl(now))


def apply(record: Stored | None, update: Update, now: int) -> tuple[Stored | None, Values]:
    """The record after the update, and what the update read. Raises as `RecordStore.operate`; then nothing changed."""
    update = plain(update)
    o.check_kinds(tuple(map(type, update.ops)))
    record, writes = live(record, now), o.writes(update.ops)
    if record is None:
        if update.exists is Exists.UPDATE or not writes or any(type(op) is o.Touch for op in update.ops):
            raise _absent(update.key)
        change = _Change({}, now, now, {}, update.key)
    else:
        if update.exists is Exists.CREATE and writes:
            raise AlreadyExists(f"the record {update.key} exists already", key=update.key)
        check_guard(record, update.when, now, update.key)
        # The server dates a record before the operations of a write, but after its guard, and never back.
        updated = max(now, record.updated) if writes else record.updated
        change = _Change(dict(record.bins), now, updated, {}, update.key, record.bound)
    values = [value for op in update.ops if (value := _RUN.get(type(op), _unknown)(op, change)) is not _WROTE]
    if record is None and not change.bins:
        raise _absent(update.key)
    return (_written(record, change, update) if writes else record), tuple(values)


def _absent(key: Key) -> NotFound:
    return NotFound(f"no record {key}: it was never created, was deleted, or has expired", key=key)


def check_guard(record: Stored, when: e.Guard | None, now: int, key: Key) -> None:
    """Raises `Refused` where the guard does not hold."""
    if when is not None and not holds(when, record.bins, now, record.updated):
        raise Refused(f"the guard on {key} did not hold; nothing was written", key=key)


@dataclass(slots=True)
class _Change(Scope):
    """The bins on their way from one state of the record to the next."""

    key: Key
    bound: int = 0


def _written(record: Stored | None, change: _Change, update: Update) -> Stored | None:
    if not change.bins:
        return None
    expires = record.expires if record else None
    if update.ttl != KEEP:
        expires = None if update.ttl == NEVER else change.now + update.ttl * 1000
    generation = record.generation if record else 0
    size = change.bound if change.bound <= RECORD_SIZE_LIMIT else _measured(change.bins, update.key)
    return Stored(change.bins, generation + 1 if generation < 65_535 else 1, change.updated, expires, size)


def _measured(bins: dict[str, Any], key: Key) -> int:
    size = len(encode(bins))
    if size > RECORD_SIZE_LIMIT:
        raise RecordTooBig(
            f"the record {key} would have {size} bytes; the limit is {RECORD_SIZE_LIMIT}: store less in it", key=key
        )
    return size


# ---- operations

_WROTE = object()
"""The answer of an operation that gives no result."""


def _unknown(op: Any, _: _Change) -> Any:
    raise InvalidRequest(f"{shown(op)} is not an operation of latchwork.store.model.ops")


def _set(change: _Change, bin: str, value: Any, grown: int) -> Any:
    """Put a bin; `grown` bounds what the record has grown by, but for the name and the header of a new bin."""
    change.bound += grown if bin in change.bins else grown + 2 * HEADER + 4 * len(bin)
    change.bins[bin] = value
    return _WROTE


def _put(op: o.Put, change: _Change) -> Any:
    value = _new_value(op.value, change)
    if value is None:
        change.bins.pop(op.bin, None)
        return _WROTE
    return _set(change, op.bin, value, bound(value))


def _add(op: o.Add, change: _Change) -> Any:
    return _set(change, op.bin, wrap(_held(change, op.bin, int, 0) + amount(op.amount)), 0)


def _map_put(op: o.MapPut, change: _Change) -> Any:
    key = map_key(_new_value(op.key, change) if o.is_computed(op.key) else op.key)
    value = _new_value(op.value, change)
    entries = _held(change, op.bin, dict, {})
    if op.new and key in entries:
        raise Refused(f"key {key!r} is in map bin {op.bin!r} already; nothing was written")
    entries = with_entry(entries, key, value)
    return _set(change, op.bin, entries, bound(key) + bound(value))


def _map_add(op: o.MapAdd, change: _Change) -> Any:
    entries, key = _held(change, op.bin, dict, {}), map_key(op.key)
    before = entries.get(key, 0)
    if type(before) not in (int, float):
        raise InvalidRequest(f"entry {shown(key)} of bin {shown(op.bin)} holds a {type(before).__name__}, not a number")
    after = before + amount(op.amount)
    entries = with_entry(entries, key, after if type(before) is float else wrap(after))
    return _set(change, op.bin, entries, bound(key) + HEADER)


def _map_remove(op: o.MapRemove, change: _Change) -> Any:
    entries, gone = _held(change, op.bin, dict, None), [map_key(key) for key in op.keys]
    if entries is None:
        return _WROTE
    return _set(change, op.bin, {key: value for key, value in entries.items() if key not in gone}, 0)


def _map_trim(op: o.MapTrim, change: _Change) -> Any:
    entries = _held(change, op.bin, dict, None)
    if entries is None or len(entries) <= op.keep:
        return _WROTE
    return _set(change, op.bin, without_smallest(entries, len(entries) - op.keep), 0)


def _list_append(op: o.ListAppend, change: _Change) -> Any:
    value = taken(op.value)
    return _set(change, op.bin, [*_held(change, op.bin, list, []), value], bound(value))


def _list_set(op: o.ListSet, change: _Change) -> Any:
    items, value = _held(change, op.bin, list, []), taken(op.value)
    gap = element(op.index) - len(items)
    if gap > RECORD_SIZE_LIMIT:
        raise InvalidRequest(
            f"index {shown(op.index)} of the list in bin {shown(op.bin)}, which has {len(items)} elements"
        )
    items = items + [None] * (gap + 1)
    items[op.index] = value
    return _set(change, op.bin, items, bound(value) + max(0, gap) * HEADER)


def _list_range(op: o.ListRange, change: _Change) -> Any:
    first, count = element(op.index), element(op.count)
    return given(_held(change, op.bin, list, [])[first : first + count])


def _map_get(op: o.MapGet, change: _Change) -> Any:
    return given(_held(change, op.bin, dict, {}).get(map_key(op.key)))


def _read(op: o.Read, change: _Change) -> Any:
    value = change.bins.get(op.bin)
    return given(value) if type(value) in NESTED else value


def _compute(op: o.Compute, change: _Change) -> Any:
    value = value_of(op.expr, change)
    return None if value is UNKNOWN else given(value)


def _held(change: _Change, bin: str, kind: type, default: Any) -> Any:
    value = change.bins.get(bin)
    if value is None:
        return default
    if type(value) is not kind:
        raise _mismatch(change, bin, f"it is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _mismatch(change: _Change, bin: str, what: str) -> BinMismatch:
    text = f"bin {bin!r} of {change.key} is not what the update needs: {what}; nothing was written"
    return BinMismatch(text, key=change.key, bins=(bin,))


def _new_value(value: Any, change: _Change) -> Any:
    if isinstance(value, e.EXPRESSIONS):
        value = value_of(value, change)
        if value is UNKNOWN:
            raise BinMismatch(
                f"an expression to be written to {change.key} has no value: a bin that it needs is missing, or of "
                "another type; nothing was written",
                key=change.key,
            )
        return taken(value, MAX_DEPTH + 1)  # it may put a list around a value that is stored
    return taken(value)


_RUN: dict[type, Callable[[Any, _Change], Any]] = {
    o.Put: _put,
    o.Add: _add,
    o.Read: _read,
    o.ReadAll: lambda _op, change: {name: given(value) for name, value in change.bins.items()},
    o.Compute: _compute,
    o.MapPut: _map_put,
    o.MapAdd: _map_add,
    o.MapRemove: _map_remove,
    o.MapTrim: _map_trim,
    o.MapGet: _map_get,
    o.ListAppend: _list_append,
    o.ListSet: _list_set,
    o.ListRange: _list_range,
    o.Touch: lambda _op, _change: _WROTE,
}
