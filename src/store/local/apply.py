"""The server's work on one record, in Python, for the local stores: guards, operations, times to live.

`apply` is a pure function from a record (or none) to a record; the memory and the SQLite store differ only in where
they keep its result. The rules, also the surprising ones, are the server's (docs/protocols P0): a guard on an absent
record is skipped, a missing bin makes a comparison and its negation refuse, an update that fails changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct, field

from ...errors import AlreadyExists, NotFound, RecordTooBig, Refused
from ..model import expr as e
from ..model import ops as o
from ..model.form import check_filled
from ..model.values import encode, given
from ..port import KEEP, NEVER, Exists, Key, Record, Update, Values
from .evaluate import holds, value_of
from .operations import OPERATIONS, RECORD_SIZE_LIMIT, WROTE, Change, Closure, closure_of_op


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
        """Return the whole seconds left to live, at least 1; `NEVER` if it never expires."""
        return NEVER if self.expires is None else max(1, (self.expires - now) // 1000)


def live(record: Stored | None, now: int) -> Stored | None:
    """Return the record, or None where it has expired."""
    return None if record is None or record.expired(now) else record


def as_record(key: Key, stored: Stored, bins: Sequence[str], now: int) -> Record:
    """Return the record as a reader gets it: these bins, or all where none is named."""
    names = [name for name in bins if name in stored.bins] if bins else stored.bins
    return Record(key, {name: given(stored.bins[name]) for name in names}, stored.generation, stored.ttl(now))


def apply(record: Stored | None, update: Update, now: int) -> tuple[Stored | None, Values]:
    """Return the record after the update, and what the update read. Raises as `RecordStore.operate`; then nothing
    changed.
    """
    key, ops, when, exists = update.key, update.ops, update.when, update.exists
    form, params = update.form, update.params
    if form is not None and ops is form.ops:
        check_filled(form, params)
        kinds, closures = form.closures = form.closures or (_kinds_of(ops), _closures(ops))
    else:
        kinds, closures = _kinds_of(ops), None
    record = live(record, now)
    if record is None:
        if exists is Exists.UPDATE or not kinds.write or kinds.touch:
            raise absent(key)
        change = Change({}, now, now, params, key)
    else:
        if exists is Exists.CREATE and kinds.write:
            raise AlreadyExists(f"the record {key} exists already", key=key)
        change = Change(record.bins, now, record.updated, params, key, record.bound)
        if when is not None and value_of(when, change) is not True:
            raise _refused(key)
        if kinds.write:
            # The server dates a record before the operations of a write, but after its guard, and never back.
            change.bins, change.updated = record.bins.copy(), max(now, record.updated)
    if closures is None:  # not made for a record that is not there
        closures = _closures(ops)
    values = tuple([value for run in closures if (value := run(change)) is not WROTE])
    if record is None and not change.bins:
        raise absent(key)
    return (_written(record, change, update.ttl) if kinds.write else record), values


class _Kinds(NamedTuple):
    """The facts that follow from the kinds of an update's operations.

    touch: whether it asks for a record that exists.
    """

    write: bool
    touch: bool


def _closures(ops: tuple[o.Op, ...]) -> tuple[Closure, ...]:
    return tuple(map(closure_of_op, ops))


def _kinds_of(ops: tuple[o.Op, ...]) -> _Kinds:
    """Return these facts. Raises `InvalidRequest` if one of them is no operation, or an answer could not tell them
    apart.
    """
    kinds = tuple(map(type, ops))
    if not OPERATIONS.issuperset(kinds):
        _closures(ops)  # raises
    return _kinds(kinds)


@lru_cache(maxsize=1024)
def _kinds(kinds: tuple[type, ...]) -> _Kinds:
    o.check_kinds(kinds)
    return _Kinds(o.any_writes(kinds), o.Touch in kinds)


def writes(ops: tuple[o.Op, ...]) -> bool:
    """Whether any of the operations writes. Raises as `apply` where they are none."""
    return _kinds_of(ops).write


def absent(key: Key) -> NotFound:
    """Return the error for a record that is not there."""
    return NotFound(f"no record {key}: it was never created, was deleted, or has expired", key=key)


def _refused(key: Key) -> Refused:
    return Refused(f"the guard on {key} did not hold; nothing was written", key=key)


def check_guard(record: Stored, when: e.Guard | None, now: int, key: Key) -> None:
    """Raise `Refused` if the guard does not hold."""
    if when is not None and not holds(when, record.bins, now, record.updated):
        raise _refused(key)


def _written(record: Stored | None, change: Change, ttl: int) -> Stored | None:
    if not change.bins:
        return None
    expires = record.expires if record else None
    if ttl != KEEP:
        expires = None if ttl == NEVER else change.now + ttl * 1000
    generation = record.generation if record else 0
    size = change.bound if change.bound <= RECORD_SIZE_LIMIT else _measured(change.bins, change.key)
    return Stored(change.bins, next_generation(generation), change.updated, expires, size)


def next_generation(generation: int, writes: int = 1) -> int:
    """Return the generation of a record after so many writes: 16 bits, which wrap to 1."""
    return (generation - 1 + writes) % 65_535 + 1


def _measured(bins: dict[str, Any], key: Key) -> int:
    size = len(encode(bins))
    if size > RECORD_SIZE_LIMIT:
        raise RecordTooBig(
            f"the record {key} would have {size} bytes; the limit is {RECORD_SIZE_LIMIT}: store less in it", key=key
        )
    return size
