"""How a latch is stored, and the guards of its updates (docs/design.md section 4, docs/protocols.md P8).

`count#<farm>` is byte for byte what the Java library reads and writes; the other bins are ours, and it ignores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from ...errors import Corrupt, InvalidRequest
from ...inputs import checked_store_name, checked_whole, shown
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
from ...store.once import Once
from ...store.port import KEEP, MAX_SET, MAX_TTL, Key

T = TypeVar("T")
Names: TypeAlias = "frozenset[str | int] | range"
"""The parties that a latch was created for; the whole numbers from 0 on, as partitions are, as a range."""
COUNT, DONE, OPS, ID, FARMS, NAMES = "count#", "done#", "ops#", "id#", "farms#", "names#"
MAX_FARM = 15 - len(COUNT)
MAX_PARTIES = 100_000
"""Parties that may be named: whole numbers of so many fill half of a record of 1 MiB once all have counted."""
MAX_NAMES = 400_000
"""Bytes that the parties' names may take in all: the record has them once more when they have counted."""
MAX_COUNT = 2**53
MIN_TOKENS, MAX_TOKENS = 64, 256
"""How many tokens a farm remembers: one for each count, within these. A count in doubt is resolved as long as fewer
others have come after it; beyond that it is unknown, never doubled. The server copies the map with each count."""


_LEAST: dict[type, Any] = {str: "", int: MIN_INT}
"""The kinds of parties, and what none of them is less than."""


@dataclass(frozen=True, slots=True)
class FarmBins:
    """The names of one farm's bins, and the guards and values that use them; made once a farm (`bins_of`)."""

    farm: str
    count: str
    done: str
    ops: str
    id: str
    farms: str
    names: str
    is_free: Expr  # nobody has created this farm's counter
    is_unbrought: Expr  # nor has anybody brought it, if only counts of the Java library have made it, and are waiting
    is_mine: Expr  # the latch that the parameter `nonce` names
    is_unmarked: Expr  # a latch that the Java library made
    floored: Expr  # the count less the parameter `n`, not below zero, and never more than it was
    first: Mapping[type, Expr]  # the first party that has counted, where it is of that kind


@lru_cache(maxsize=1024)
def bins_of(farm: str) -> FarmBins:
    """The bins of a farm; the same object for the same farm, so that its guards are compiled once."""
    count, ident = COUNT + farm, ID + farm
    return FarmBins(
        farm,
        count,
        DONE + farm,
        OPS + farm,
        ident,
        FARMS + farm,
        NAMES + farm,
        is_free=missing(count),
        is_unbrought=missing(count) | (missing(ident) & (Bin(count) < 0)),
        is_mine=Bin(ident, str).eq(Param("nonce", str)),
        is_unmarked=exists(count) & missing(ident),
        # A counter may be below zero already, where others count at XDC level: raising it would arm their latch again.
        floored=largest(Bin(count) - Param("n"), smallest(Bin(count), 0)),
        first={kind: MapKeyAt(DONE + farm, 0, kind) for kind in _LEAST},
    )


def kind_of(party: str | int) -> type:
    """Whether a party is named by text or by a whole number."""
    return str if isinstance(party, str) else int


@lru_cache(maxsize=4096)
def first_time(farm: str, unmarked: bool, kind: type) -> Expr:
    """The guard "the same latch, and the parameter `party`, which is of this kind, has not counted"."""
    bins = bins_of(farm)
    # The Java library cannot read a map in key order with keys of two kinds. Where the first is of this kind, all are:
    # no other has been let in. Where it is not, the comparison is unknown.
    is_new = ~MapHas(bins.done, Param("party", str)) & (bins.first[kind] >= Const(_LEAST[kind]))
    return (bins.is_unmarked if unmarked else bins.is_mine) & any_of(missing(bins.done), is_new)


class By(Enum):
    """How a count changes the counter: by the parameter `change`, with its sign, of which `n` is the opposite."""

    ADDING = "adding"
    TAKING = "taking"  # where there is enough
    FLOORED = "floored"  # what there is, at most


@lru_cache(maxsize=1024)
def counted_once(farm: str, unmarked: bool, capacity: int, ttl: int, by: By) -> Form:
    """A count that is remembered by its token. Parameters: `nonce`, and those of `By`."""
    bins = bins_of(farm)
    same = bins.is_unmarked if unmarked else bins.is_mine
    guard = all_of(same, Bin(bins.count) >= Param("n")) if by is By.TAKING else same
    # A nonce never comes back, so a refusal by it is final; the Java library has none. A count may rise again, but
    # who is refused for want of enough goes on with the same token.
    once = Once(capacity, bins.ops, answer=bins.count, monotone=not unmarked, goes_on=by is By.TAKING)
    return Form(_change(bins, by), when=guard, ttl=ttl, once=once)


@lru_cache(maxsize=1024)
def counted_by_party(farm: str, unmarked: bool, ttl: int, by: By, kind: type) -> Form:
    """A count that is remembered by its party, which is of this kind. Parameters: `nonce`, `party`, those of `By`."""
    bins = bins_of(farm)
    party = Param("party", str)
    ops = (_change(bins, by), MapPut(bins.done, party, Param("n")), Read(bins.count))
    return Form(*ops, when=first_time(farm, unmarked, kind), ttl=ttl)


def _change(bins: FarmBins, by: By) -> Op:
    return Put(bins.count, bins.floored) if by is By.FLOORED else Add(bins.count, Param("change"))


def latch_key(client_id: str, latch_id: str, set_suffix: str) -> Key:
    """The latch's key. Raises `InvalidRequest` for ids that are empty, too long or ambiguous."""
    named("client_id", client_id)
    named("latch_id", latch_id)
    if "#" in client_id:
        raise InvalidRequest(f"client_id {client_id!r} contains '#', which ends it in the stored key: leave it out")
    set_name = f"D_LTCH#{checked_store_name('set_suffix', set_suffix)}"
    if len(set_name.encode()) > MAX_SET:
        raise InvalidRequest(f"set_suffix {set_suffix!r} is too long: at most {MAX_SET - len('D_LTCH#')} bytes")
    return Key(set_name, f"D_LTCH#{client_id}#{latch_id}")


def named(what: str, value: str) -> str:
    """The value, where it is a string that is not empty. Raises `InvalidRequest`."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{what} is {value!r}; it must be a string with at least one character")
    try:
        value.encode()
    except UnicodeEncodeError as failure:
        raise InvalidRequest(f"{what} is {value!r}, which is no valid Unicode ({failure.reason}): correct it") from None
    return value


def checked_farm(farm: str) -> str:
    """The farm's id. Raises `InvalidRequest` where its bins could not be named."""
    size = len(checked_store_name("farm_id", farm).encode())
    if size > MAX_FARM:
        raise InvalidRequest(f"farm_id {farm!r} has {size} bytes; at most {MAX_FARM}, as bin names end at 15")
    if COUNT in farm:
        raise InvalidRequest(f"farm_id {farm!r} contains {COUNT!r}, at which the Java library fails: leave it out")
    return farm


def has_joined(bins: Mapping[str, Any], farm: str) -> bool:
    """Whether a farm has brought its counter. Counts of the Java library make one by themselves, below zero."""
    count = bins.get(COUNT + farm)
    return count is not None and (count >= 0 or ID + farm in bins)


def checked_farms(farms: Iterable[str] | None) -> tuple[str, ...]:
    """The farms that a cross-data-centre latch waits for, sorted; () where none are named."""
    return tuple(sorted({checked_farm(farm) for farm in listed("farms", farms or ())}))


def checked_ttl(ttl: int | None) -> int:
    """The time to live in seconds; with None, the record's is kept.

    A latch always has one, so that a forgotten latch goes away.
    """
    return KEEP if ttl is None else checked_whole("ttl", ttl, 1, MAX_TTL)


def checked_party(party: str | int) -> str | int:
    """The party's name: a string or a whole number, plain ones also where it was an enumeration's member."""
    if isinstance(party, int) and not isinstance(party, bool):
        return int(checked_whole("party", party, -(2**63), 2**63 - 1))
    name = named("party", party)  # type: ignore[arg-type]  # it says so where it is no string either
    if len(name.encode()) > 255:
        raise InvalidRequest(f"party {name[:40]!r}... is too long: at most 255 bytes")
    return str.__str__(name)


def checked_parties(parties: Iterable[str | int]) -> Names:
    """The parties' names, each once. Raises `InvalidRequest` for more than fit, and for text beside whole numbers."""
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
    """The names as their bin holds them: a list, or how many whole numbers from 0 on."""
    return len(names) if isinstance(names, range) else in_order(names)


def in_order(names: Names) -> list[str | int]:
    """The names sorted; those of other programs may be of both kinds."""
    return sorted(names, key=lambda name: (isinstance(name, str), name))


def names_in(bins: Mapping[str, Any], farm: str, key: Key) -> Names | None:
    """The parties that the farm's counter was created for; None where it was created with a count. Raises `Corrupt`."""
    held = bins.get(NAMES + farm)
    if held is None:
        return None
    if type(held) is int and 0 <= held <= MAX_PARTIES:
        return range(held)
    if type(held) is list and all(type(name) in _LEAST for name in held):
        return frozenset(held)
    raise Corrupt(f"{key}: bin {NAMES + farm!r} holds no names of parties; delete the latch, and create it again",
                  key=key, bin=NAMES + farm)  # fmt: skip


def not_named(party: str | int, names: Names, key: Key) -> InvalidRequest:
    """For a party that a latch was not created for: who may be meant."""
    if isinstance(names, range):
        near = [name for name in (str(party),) if name.isdecimal() and int(name) in names]
    else:
        near = get_close_matches(str(party), [str(name) for name in names], n=1)
    some = ", ".join(repr(name) for name in in_order(names)[:5]) + (", ..." if len(names) > 5 else "")
    meant = f"; is {near[0]!r} meant?" if near else f": these are {some or 'none'}"
    return InvalidRequest(
        f"party {shown(party)} is none of the {len(names)} that the latch {key.name!r} was created for{meant}",
        key=key,
    )


def listed(what: str, values: Iterable[T]) -> Iterable[T]:
    """The values, where they are several; a string would be taken for its letters. Raises `InvalidRequest`."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{what} is {values!r}; give a list of names")
    return values


def expected_parties(names: Iterable[str | int]) -> set[str | int]:
    """The names of parties, of those of other farms too (`farm/party`). Raises `InvalidRequest`."""
    parties = list(listed("expected", names))
    for party in parties:
        if not isinstance(party, str | int):
            raise InvalidRequest(f"expected holds {party!r}; give names of parties: text or whole numbers")
    return set(parties)


def token_capacity(nonce: str | None) -> int:
    """How many tokens a farm's `ops#` bin keeps: fixed when the latch is made, and carried by its nonce."""
    return int(nonce.rpartition("/")[2]) if nonce else MAX_TOKENS


def new_nonce(unique: str, capacity: int) -> str:
    """A name for this very latch: `<unique>/<capacity>`, unlike that of any latch before it under the same key."""
    return f"{unique}/{capacity}"
