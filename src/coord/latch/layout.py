"""The stored layout of a latch, and the guards of its updates (docs/design.md section 4, docs/protocols P8).

`count#<farm>` is byte for byte what the Java library reads and writes; it ignores the other bins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from ...errors import Corrupt, InvalidRequest
from ...inputs import checked_store_name, checked_whole
from ...plain import shown
from ...store.model.expr import (
    Bin,
    Const,
    Expr,
    MapHas,
    MapKeyAt,
    Param,
    all_of,
    any_of,
    exists,
    largest,
    missing,
    smallest,
)  # fmt: skip
from ...store.model.form import Form
from ...store.model.ops import Add, MapPut, Op, Put, Read
from ...store.model.values import MIN_INT
from ...store.port import MAX_SET, Key, Once, Record, RecordStore
from ..farms import FARM_COUNT, checked_farm

T = TypeVar("T")
Names: TypeAlias = "frozenset[str | int] | range"
"""The parties that a latch was created with; a range if they are the whole numbers from 0 on (partitions)."""
COUNT, DONE, OPS, ID, FARMS, NAMES = FARM_COUNT, "done#", "ops#", "id#", "farms#", "names#"
SET_SUFFIX = "distributed_latch"
"""The last part of the name of the set of latches that were made without another one."""
MAX_PARTIES = 100_000
"""Most parties that may be named. As whole numbers they fill half of a record of 1 MiB when all have counted."""
MAX_NAMES = 400_000
"""Most bytes of all names of parties: the record holds each name a second time when the party has counted."""
MAX_COUNT = 2**53
MIN_TOKENS, MAX_TOKENS = 64, 256
"""Limits of the number of tokens that a farm remembers: one for each count, within these limits. A count in doubt can
be resolved while fewer counts than that came after it; later its outcome is unknown, but it is never applied twice. The
server copies the map with each count, so it must be small."""
_NONCE = re.compile(".+/[0-9]{1,4}", re.DOTALL)

_LEAST: dict[type, Any] = {str: "", int: MIN_INT}
"""The kinds of names of parties, and the least value of each kind."""


@dataclass(frozen=True, slots=True)
class LatchBins:
    """The names of one farm's bins, with the guards and values that use them. Made once for each farm (`bins_of`)."""

    farm: str
    count: str
    done: str
    ops: str
    id: str
    farms: str
    names: str
    is_free: Expr  # this farm's counter was not created
    is_uncreated: Expr  # it was not created, though early counts of the Java library may have made its bin
    is_mine: Expr  # the latch that the parameter `nonce` names
    made_by_java: Expr  # a latch that the Java library made
    floored: Expr  # the count less the parameter `n`, not below zero, and never more than it was
    first: Mapping[type, Expr]  # the first party that has counted, where it is of that kind


@lru_cache(maxsize=1024)
def bins_of(farm: str) -> LatchBins:
    """Return the bins of a farm. One cached object for each farm, so that its guards are compiled once."""
    count, ident = COUNT + farm, ID + farm
    return LatchBins(
        farm,
        count,
        DONE + farm,
        OPS + farm,
        ident,
        FARMS + farm,
        NAMES + farm,
        is_free=missing(count),
        is_uncreated=missing(count) | (missing(ident) & (Bin(count) < 0)),
        is_mine=Bin(ident, str).eq(Param("nonce", str)),
        made_by_java=exists(count) & missing(ident),
        # The counter may be below zero if others count at XDC level: raising it would close their latch again.
        floored=largest(Bin(count) - Param("n"), smallest(Bin(count), 0)),
        first={kind: MapKeyAt(DONE + farm, 0, kind) for kind in _LEAST},
    )


def kind_of(party: str | int) -> type:
    """Return the kind of a party's name: `str` or `int`."""
    return str if isinstance(party, str) else int


@lru_cache(maxsize=4096)
def not_counted(farm: str, by_java: bool, kind: type) -> Expr:
    """Return the guard "it is this latch, and the parameter `party`, of this kind, has not counted"."""
    bins = bins_of(farm)
    # The Java library cannot read a map in key order with keys of two kinds. If the first key is of this kind, all are:
    # this guard has refused the others. If it is not, the comparison is unknown, and the guard refuses.
    is_new = ~MapHas(bins.done, Param("party", str)) & (bins.first[kind] >= Const(_LEAST[kind]))
    return (bins.made_by_java if by_java else bins.is_mine) & any_of(missing(bins.done), is_new)


class CountMode(Enum):
    """The way in which a count changes the counter. Parameters: `change`, with its sign, and `n`, which is
    `-change`.
    """

    ADD = "add"
    TAKE_IF_ENOUGH = "take if enough"  # only if at least `n` remain
    FLOOR = "floor"  # not below zero


@lru_cache(maxsize=1024)
def counted_once(farm: str, by_java: bool, capacity: int, ttl: int, mode: CountMode) -> Form:
    """Return the update of a count that is remembered by its token. Parameters: `nonce`, and what `CountMode` names."""
    bins = bins_of(farm)
    same = bins.made_by_java if by_java else bins.is_mine
    guard = all_of(same, Bin(bins.count) >= Param("n")) if mode is CountMode.TAKE_IF_ENOUGH else same
    # A nonce is never used again, so a refusal by it is final; the Java library has no nonces. A count may rise again,
    # but a count that was refused as too few remained continues under its own token.
    once = Once(capacity, bins.ops, answer=bins.count, monotone=not by_java, goes_on=mode is CountMode.TAKE_IF_ENOUGH)
    return Form(_change(bins, mode), when=guard, ttl=ttl, once=once)


@lru_cache(maxsize=1024)
def counted_by_party(farm: str, by_java: bool, ttl: int, mode: CountMode, kind: type) -> Form:
    """Return the update of a count that is remembered by its party.

    Parameters: `nonce`, `party`, and what `CountMode` names.

    kind: the kind of the party's name, `str` or `int`.
    """
    bins = bins_of(farm)
    party = Param("party", str)
    ops = (_change(bins, mode), MapPut(bins.done, party, Param("n")), Read(bins.count))
    return Form(*ops, when=not_counted(farm, by_java, kind), ttl=ttl)


def _change(bins: LatchBins, mode: CountMode) -> Op:
    return Put(bins.count, bins.floored) if mode is CountMode.FLOOR else Add(bins.count, Param("change"))


def latch_key(client_id: str, latch_id: str, set_suffix: str) -> Key:
    """Return the latch's key. Raises `InvalidRequest` for ids that are empty, too long or ambiguous."""
    named("client_id", client_id)
    named("latch_id", latch_id)
    if "#" in client_id:
        raise InvalidRequest(
            f"client_id {shown(client_id)} contains '#', which ends it in the stored key: leave it out"
        )
    set_name = f"D_LTCH#{checked_store_name('set_suffix', set_suffix)}"
    if len(set_name.encode()) > MAX_SET:
        raise InvalidRequest(f"set_suffix {shown(set_suffix)} is too long: at most {MAX_SET - len('D_LTCH#')} bytes")
    return Key(set_name, f"D_LTCH#{client_id}#{latch_id}")


def latches_in(store: RecordStore, client_id: str, set_suffix: str) -> dict[str, Record]:
    """Return the records of a client's latches, by the latches' ids. It reads the whole set: for people."""
    any_key = latch_key(client_id, "any", set_suffix)
    begin = any_key.name.removesuffix("any")
    return {
        str(record.key.name).removeprefix(begin): record
        for record in store.scan(any_key.set)
        if str(record.key.name).startswith(begin)
    }


def has_joined(bins: Mapping[str, Any], farm: str) -> bool:
    """Whether a farm has created its counter. Early counts of the Java library make one by themselves, below zero."""
    count = bins.get(COUNT + farm)
    return count is not None and (count >= 0 or ID + farm in bins)


def named(what: str, value: str) -> str:
    """Check that a value is a string and not empty, and return it. Raises `InvalidRequest`."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{what} is {shown(value)}; it must be a string with at least one character")
    try:
        value.encode()
    except UnicodeEncodeError as failure:
        raise InvalidRequest(
            f"{what} is {shown(value)}, which is not valid Unicode ({failure.reason}): correct it"
        ) from None
    return value


def checked_farms(farms: Iterable[str] | None) -> tuple[str, ...]:
    """Check the farms that a cross-data-centre latch waits for, and return them sorted; () if none are named."""
    return tuple(sorted({checked_farm(farm) for farm in listed("farms", () if farms is None else farms)}))


def checked_party(party: str | int) -> str | int:
    """Check a party's name, and return it as a plain string or whole number, also if it was a member of an enum."""
    if isinstance(party, int) and not isinstance(party, bool):
        return int(checked_whole("party", party, -(2**63), 2**63 - 1))
    if not isinstance(party, str):
        raise InvalidRequest(f"party is {shown(party)}, a {type(party).__name__}; it must be text, or Python's own int")
    name = named("party", party)
    if len(name.encode()) > 255:
        raise InvalidRequest(f"party {shown(name)} is too long: at most 255 bytes")
    return str.__str__(name)


def checked_parties(parties: Iterable[str | int]) -> Names:
    """Check names of parties, and return each once. Raises `InvalidRequest` for too many, and for mixed kinds."""
    few = islice(listed("parties", parties), MAX_PARTIES + 1)
    names = frozenset(checked_party(party) for party in few)
    if len(names) > MAX_PARTIES:
        raise InvalidRequest(f"parties names more than {MAX_PARTIES:,}: give a count, or take several latches")
    if len({kind_of(name) for name in names}) > 1:
        raise InvalidRequest(
            "parties names some by text and some by whole numbers, which the Java library cannot read in one farm: "
            "name all by text"
        )
    if names == frozenset(range(len(names))):
        return range(len(names))
    size = sum(len(str(name).encode()) + 5 for name in names)
    if size > MAX_NAMES:
        raise InvalidRequest(
            f"the names of parties take {size:,} bytes; at most {MAX_NAMES:,}: use shorter ones, or numbers from 0 on"
        )
    return names


def stored_names(names: Names) -> list[str | int] | int:
    """Return the names as their bin holds them: a list, or for the whole numbers from 0 on how many there are."""
    return len(names) if isinstance(names, range) else in_order(names)


def in_order(names: Names) -> list[str | int]:
    """Sort names, whole numbers first: names written by other programs may be of both kinds."""
    return sorted(names, key=lambda name: (isinstance(name, str), name))


def names_in(bins: Mapping[str, Any], farm: str, key: Key) -> Names | None:
    """Return the parties that the farm's counter was created with; None if it has none. Raises `Corrupt`."""
    held = bins.get(NAMES + farm)
    if held is None:
        return None
    if type(held) is int and 0 <= held <= MAX_PARTIES:
        return range(held)
    if type(held) is list and {type(name) for name in held} in ({str}, {int}, set()):
        return frozenset(held)
    raise Corrupt(f"{key}: bin {NAMES + farm!r} holds no names of parties; delete the latch, and create it again",
                  key=key, bin=NAMES + farm)  # fmt: skip


def not_named(party: str | int, names: Names, key: Key, title: str) -> InvalidRequest:
    """Return the error for a party that the latch was not created with; it names a similar party, if there is one.

    title: the latch, for people.
    """
    if isinstance(names, range):
        near = [name for name in (str(party),) if name.isdecimal() and int(name) in names]
    else:
        near = get_close_matches(str(party), [str(name) for name in names], n=1)
    some = ", ".join(repr(name) for name in in_order(names)[:5]) + (", ..." if len(names) > 5 else "")
    meant = f"; is {near[0]!r} meant?" if near else f": these are {some or 'none'}"
    return InvalidRequest(
        f"party {shown(party)} is not among the {len(names)} that the {title} was created for{meant}", key=key
    )


def listed(what: str, values: Iterable[T]) -> Iterable[T]:
    """Check that names come as a collection: a string would be read as its letters. Raises `InvalidRequest`."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{what} is {shown(values)}; give a list of names")
    return values


def expected_parties(names: Iterable[str | int]) -> set[str | int]:
    """Check names of parties, also of other farms (`farm/party`), and return them. Raises `InvalidRequest`."""
    parties = list(listed("expected", names))
    for party in parties:
        if not isinstance(party, str | int):
            raise InvalidRequest(f"expected holds {shown(party)}; give names of parties: text or whole numbers")
    return set(parties)


def nonce_in(bins: Mapping[str, Any], farm: str, key: Key) -> str | None:
    """Return the nonce of the farm's latch; None of one that the Java library made. Raises `Corrupt`."""
    nonce = bins.get(ID + farm)
    if nonce is None or (isinstance(nonce, str) and _NONCE.fullmatch(nonce)):
        return nonce
    raise Corrupt(f"{key}: bin {ID + farm!r} names no latch; delete the latch, and create it again", key=key)


@lru_cache(maxsize=1024)
def token_capacity(nonce: str | None) -> int:
    """Return how many tokens a farm's `ops#` bin keeps: fixed at creation, and part of the nonce."""
    return int(nonce.rpartition("/")[2]) if nonce else MAX_TOKENS


def new_nonce(unique: str, capacity: int) -> str:
    """Return a name for one latch, `<unique>/<capacity>`: no other latch under its key ever has it."""
    return f"{unique}/{capacity}"
