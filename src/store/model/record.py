"""The values of the record-store port: keys, records, updates and their limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct

from ...errors import InvalidRequest, LatchworkError
from ...inputs import checked_many, checked_store_name, checked_switch
from ...plain import shown
from .expr import EXPRESSIONS, Bound, Expr, Guard
from .ops import Op
from .values import MAX_KEPT, NO_BIN, checked_bin, known_bins

KEEP = -2
"""Leave the time to live as it is; a record that is made so never expires, whatever the namespace's default is.

In a namespace that has one, a write with `Exists.ANY` that makes the record takes two calls. A default of a set alone
is not seen by such writes: name a time to live, or `NEVER`.
"""
NEVER = -1
"""The time to live of a record that never expires, whatever the namespace's default is."""
MAX_TTL = 10 * 365 * 86_400
"""Seconds; the server's own limit."""

MAX_SET = 63
"""Bytes in the name of a set, the server's limit."""


class Key(NamedTuple):
    """The name of a record: its set and its key within the set."""

    set: str
    name: str


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read. `generation` is 16 bits and wraps: for comparing for equality only, never a fence."""

    key: Key
    bins: dict[str, Any]
    generation: int = 0
    ttl: int = NEVER


class Exists(Enum):
    """The condition on the record's existence for a write."""

    UPDATE = "update"  # the record must be there
    CREATE = "create"  # it must not be there
    ANY = "any"


NO_PARAMS: dict[str, Any] = {}


class Update(Struct, frozen=True, gc=False):
    """One row of `operate_many`; the fields are the arguments of `operate`.

    form, params: of an update that was made by a form (`form.py`): the form, and the values of its parameters.
    """

    # gc=False: nothing refers back to an update, and a batch makes thousands: Python's collector need not see them.
    key: Key
    ops: tuple[Op, ...]
    when: Guard | None = None
    exists: Exists = Exists.UPDATE
    or_absent: bool = False
    ttl: int = KEEP
    form: Any = None  # a `Form`; that is above this module
    params: dict[str, Any] = NO_PARAMS


class Removal(Struct, frozen=True):
    """One row of `delete_many`."""

    key: Key
    when: Guard | None = None


@dataclass(frozen=True, slots=True)
class Once:
    """The way in which one kind of update on one kind of record is remembered: `store/once.py` applies it once.

    capacity: how many tokens the map keeps; constant for the record's whole life.
    bin: the map bin.
    result: what to remember, a value or an expression evaluated after the update.
    monotone: once false, the update's guard stays false (a fence, an epoch), so that a refusal is final even
        after doubt (P0.6). It has `details["doubt"]` then: the record may have been deleted and made again since.
    goes_on: the caller continues with the token of a refusal (`details["token"]`), so a refusal decides nothing yet; if
        the record cannot be read after a refusal, the outcome is unknown, as the request may arrive again.
    answer: instead of `result`, a bin whose value after the update is the result. It is read again if the update turns
        out to have been applied before: cheaper if a later value is good enough.
    token: a token minted before, to continue an update that was begun earlier; minted when None.
    is_new: no attempt with this token was sent yet.

    Raises `InvalidRequest` if one of them is not accepted by every backend.
    """

    capacity: int
    bin: str = "ops"
    result: Any | Expr | Bound = None
    monotone: bool = False
    goes_on: bool = False
    answer: str | None = None
    token: bytes | None = None
    is_new: bool = False

    def __post_init__(self) -> None:
        checked_switch("monotone", self.monotone)
        checked_switch("goes_on", self.goes_on)
        if not isinstance(self.capacity, int) or not 1 <= self.capacity <= MAX_KEPT:
            raise InvalidRequest(f"a memory of {shown(self.capacity)} tokens: give a whole number, 1 to {MAX_KEPT:,}")
        checked_bins((self.bin,) if self.answer is None else (self.bin, self.answer))
        if self.token is not None and not (isinstance(self.token, bytes) and self.token):
            raise InvalidRequest(f"token {shown(self.token)}: give the bytes of one that was minted before, or None")


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The facts about a store and its guarantees. Times in seconds, sizes in bytes; None = the backend cannot say."""

    backend: str
    edition: str
    strong_consistency: bool
    nsup_period: int | None
    default_ttl: int
    replication_factor: int
    record_size_limit: int
    extra: dict[str, Any] = field(default_factory=dict)


Values = tuple[Any, ...]
"""The results of the reading operations of one update, in order."""
Row = Values | LatchworkError
"""The outcome of one row of a batch: what it read, or the error that the single verb would have raised."""


_known_sets: set[str] = set()
"""Names that have been checked before; a namespace has at most 4,095 sets."""
_BIN = attrgetter("bin")


def checked_key(key: Key) -> Key:
    """Return the key, once its set and name are within the server's limits. Raises `InvalidRequest`."""
    try:
        set_name, name = key
    except (TypeError, ValueError):
        raise InvalidRequest(f"{shown(key)} is not a key: give Key(set, name)") from None
    plain = type(key) is Key and type(set_name) is str and type(name) is str and name and name.isascii()
    if plain and set_name in _known_sets and "\0" not in name:
        return key
    if not isinstance(key, tuple) or not isinstance(set_name, str) or not isinstance(name, str):
        raise InvalidRequest(f"{shown(key)}: the set and the name of a record are text")
    try:
        name.encode()
        size = len(set_name.encode())
    except UnicodeEncodeError as failure:
        raise InvalidRequest(f"{shown(key)} is not valid Unicode ({failure.reason}): correct it") from None
    if "\0" in set_name or "\0" in name:
        raise InvalidRequest(f"{shown(key)}: text with a NUL cannot be stored, and a name is text: leave the NUL out")
    if not 0 < size <= MAX_SET:
        raise InvalidRequest(
            f"set name {shown(set_name)} has {size} bytes; it must have 1 to {MAX_SET}: use shorter ids"
        )
    checked_store_name("set name", set_name)
    if not name:
        raise InvalidRequest(f"empty key in set {shown(set_name)}: give the record a name")
    _known_sets.add(set_name)
    return key if type(key) is Key else Key(set_name, name)


def checked_removal(removal: Removal) -> Removal:
    """Return the removal, once it is one that every backend takes. Raises `InvalidRequest`."""
    if not isinstance(removal, Removal):
        raise InvalidRequest(f"{shown(removal)} is not a removal: give Removal(key, when)")
    check_guard(removal.when)
    key = checked_key(removal.key)
    return removal if key is removal.key else Removal(key, removal.when)


def _check_bins(ops: tuple[Op, ...]) -> None:
    try:
        if known_bins.issuperset(map(_BIN, ops)):
            return
    except (AttributeError, TypeError):  # of something that is no operation, or a name that is no text
        pass
    for op in checked_many("ops", ops):
        if not isinstance(op, Op):
            raise InvalidRequest(f"{shown(op)} is not an operation: use one of latchwork.store.model.ops")
        if op.bin is not NO_BIN:
            checked_bin(op.bin)


def checked_bins(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of bins to be read, once each is one that a bin can have. Raises `InvalidRequest`."""
    for name in names:
        if type(name) is not str or name not in known_bins:
            checked_bin(name)
    return names


def check_guard(when: Any) -> None:
    """Raise `InvalidRequest` for a guard that no store can evaluate."""
    if when is not None and not isinstance(when, EXPRESSIONS):
        raise InvalidRequest(f"when is {shown(when)}; it must be an expression of latchwork.store.model.expr")


def checked_rows(updates: Iterable[Update]) -> list[Update]:
    """Return the updates, once all are such that every backend takes them. Raises `InvalidRequest`."""
    rows = checked_many("updates", updates)
    ops: tuple[Op, ...] | None = None
    for update in rows:
        checked(update, known_ops=ops is not None and getattr(update, "ops", None) is ops)
        ops = update.ops
    return rows


def checked(update: Update, *, known_ops: bool = False) -> Update:
    """Return the update, once it is one that every backend takes. Raises `InvalidRequest`.

    known_ops: its operations were checked before.
    """
    if type(update) is not Update:
        raise InvalidRequest(f"{shown(update)} is not an update: give Update(key, ops), or the result of a form's fill")
    if update.form is not None:  # which was checked when it was made
        checked_key(update.key)
        return update
    key, ops, when, exists, ttl = update.key, update.ops, update.when, update.exists, update.ttl
    checked_key(key)
    if not known_ops and not checked_many("ops", ops):
        raise InvalidRequest(f"no operation for {key}: name at least one")
    if not known_ops:
        _check_bins(ops)
    if type(exists) is not Exists:
        raise InvalidRequest(f"exists is {shown(exists)}; it must be Exists.UPDATE, CREATE or ANY")
    checked_switch("or_absent", update.or_absent)
    check_guard(when)
    if when is not None and exists is not Exists.UPDATE and not update.or_absent:
        raise InvalidRequest(
            f"a guard on {key} with exists={exists.value}: the server skips guards where there is no record; use "
            "exists=UPDATE, or say or_absent=True"
        )
    if type(ttl) is not int or (not 1 <= ttl <= MAX_TTL and ttl not in (KEEP, NEVER)):
        raise InvalidRequest(f"ttl is {shown(ttl)} s; it must be 1 to {MAX_TTL}, KEEP or NEVER")
    return update
