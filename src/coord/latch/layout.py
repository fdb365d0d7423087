"""How a latch is stored, and the guards of its updates (docs/design.md section 4, docs/protocols.md P8).

`count#<farm>` is byte for byte what the Java library reads and writes; the other bins are ours, and it ignores them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeVar

from ...errors import InvalidRequest
from ...inputs import checked_store_name, checked_whole
from ...store.model.expr import Bin, Expr, Param, all_of, exists, lacks, largest, missing, smallest
from ...store.model.form import Form
from ...store.model.ops import Add, MapPut, Op, Put, Read
from ...store.once import Once
from ...store.port import MAX_SET, MAX_TTL, Key

T = TypeVar("T")
COUNT, DONE, OPS, ID, FARMS = "count#", "done#", "ops#", "id#", "farms#"
MAX_FARM = 15 - len(COUNT)
MAX_COUNT = 2**53
MIN_TOKENS, MAX_TOKENS = 64, 256
"""How many tokens a farm remembers: one for each count, within these. A count in doubt is resolved as long as fewer
others have come after it; beyond that it is unknown, never doubled. The server copies the map with each count."""


@dataclass(frozen=True, slots=True)
class FarmBins:
    """The names of one farm's bins, and the guards and values that use them; made once a farm (`bins_of`)."""

    farm: str
    count: str
    done: str
    ops: str
    id: str
    farms: str
    is_free: Expr  # nobody has created this farm's counter
    is_mine: Expr  # the latch that the parameter `nonce` names
    is_unmarked: Expr  # a latch that the Java library made
    floored: Expr  # the count less the parameter `n`, not below zero, and never more than it was


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
        is_free=missing(count),
        is_mine=Bin(ident, str).eq(Param("nonce", str)),
        is_unmarked=exists(count) & missing(ident),
        # A counter may be below zero already, where others count at XDC level: raising it would arm their latch again.
        floored=largest(Bin(count) - Param("n"), smallest(Bin(count), 0)),
    )


@lru_cache(maxsize=4096)
def first_time(farm: str, unmarked: bool) -> Expr:
    """The guard "the same latch, and the parameter `party` has not counted"; `party` may be a str or an int."""
    bins = bins_of(farm)
    return (bins.is_unmarked if unmarked else bins.is_mine) & lacks(bins.done, Param("party", str))


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
def counted_by_party(farm: str, unmarked: bool, ttl: int, by: By) -> Form:
    """A count that is remembered by its party. Parameters: `nonce`, `party`, and those of `By`."""
    bins = bins_of(farm)
    party = Param("party", str)
    ops = (_change(bins, by), MapPut(bins.done, party, Param("n")), Read(bins.count))
    return Form(*ops, when=first_time(farm, unmarked), ttl=ttl)


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
    return farm


def checked_farms(farms: Iterable[str] | None) -> tuple[str, ...]:
    """The farms that a cross-data-centre latch waits for, sorted; () where none are named."""
    return tuple(sorted({checked_farm(farm) for farm in listed("farms", farms or ())}))


def checked_ttl(ttl: int) -> int:
    """The time to live in seconds. A latch always has one, so that a forgotten latch goes away."""
    return checked_whole("ttl", ttl, 1, MAX_TTL)


def checked_party(party: str | int) -> str | int:
    """The party's name: a string or a whole number, plain ones also where it was an enumeration's member."""
    if isinstance(party, int) and not isinstance(party, bool):
        return int(checked_whole("party", party, -(2**63), 2**63 - 1))
    name = named("party", party)  # type: ignore[arg-type]  # it says so where it is no string either
    if len(name.encode()) > 255:
        raise InvalidRequest(f"party {name[:40]!r}... is too long: at most 255 bytes")
    return str.__str__(name)


def checked_parties(parties: Iterable[str | int]) -> tuple[str | int, ...]:
    """The parties' names, each once."""
    return tuple(dict.fromkeys(checked_party(party) for party in listed("parties", parties)))


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
