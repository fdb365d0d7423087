"""The stored layout of a barrier, and the state read from it (docs/design.md section 4, docs/protocols P11)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from ...errors import InvalidRequest
from ...inputs import checked_text
from ...lossless import as_json
from ...plain import shown
from ...store.decode import Counter, damaged
from ...store.model.expr import SERVER_NOW, Bin, MapValue, Param, lacks, largest, missing
from ...store.model.form import Form
from ...store.model.ops import MapPut, MapTrim, Put
from ...store.port import Exists, Key
from ..farms import checked_farm, farms_of

BARRIERS, PAYLOADS = "latchwork_barriers", "latchwork_barrier_payloads"
"""The sets of all barriers and of what their parties bring; the keys are `<client>#<name>` and
`<client>#<name>#<farm>/<party>`."""
TURN, ENDS, NAMES, AT, STOP, SAID = "turn#", "ends#", "names#", "at#", "stop#", "said#"
"""Of the farm that decides: the present generation; how the last ones ended, by generation; a digest of the parties. Of
each farm: the generation that each of its parties has last arrived at; the generation that it asks to end, and why. In
a party's record: what it brought, by generation.
"""
KEPT_ENDS, KEPT_PAYLOADS = 64, 8
MAX_PARTIES, MAX_NAME, MAX_PAYLOAD, MAX_REASON = 1_000, 100, 65_536, 500
"""The last three in bytes."""
MET, LOST, LATE, ABORTED = "met", "lost", "late", "aborted"
"""How a generation ends: all have arrived; parties have died; one has waited for too long; a party or a user aborted
it.
"""
Place = tuple[str, str]
"""A farm, and the name of a party in it."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a generation, with the parties or the reason."""

    kind: str
    why: tuple[str, ...] = ()

    @property
    def stored(self) -> list[str]:
        """The end as the record stores it."""
        return [self.kind, *self.why]


def end_by(dead: Sequence[str]) -> End:
    """Return the end of a generation of which these parties died: as many of their names as a reason may have bytes,
    then how many others. The record keeps many ends, and must have room for the next one.
    """
    sizes = accumulate(len(name.encode()) for name in dead)
    named = tuple(name for name, size in zip(dead, sizes, strict=True) if size <= MAX_REASON)
    others = len(dead) - len(named)
    return End(LOST, (*named, f"and {others:,} more") if others else named)


class FarmMeeting(Struct, frozen=True):
    """The bins of one farm, with their limits."""

    turn: Counter | None = field(default=None, name=TURN)
    ends: dict[Counter, Annotated[list[str], Meta(min_length=1)]] = field(default_factory=dict, name=ENDS)
    names: str | None = field(default=None, name=NAMES)
    at: dict[str, Counter] = field(default_factory=dict, name=AT)
    stop: list[Counter | str] = field(default_factory=list, name=STOP)


class Brought(Struct, frozen=True):
    """A bin of a party's own record: what it brought, by generation."""

    said: dict[Counter, str] = field(default_factory=dict, name=SAID)


@dataclass(frozen=True, slots=True)
class BarrierState:
    """A barrier at one moment. `turn` is None where the farm that decides has not been there yet."""

    turn: int | None
    ends: Mapping[int, End]
    names: str | None
    at: Mapping[Place, int]
    stops: Mapping[str, tuple[int, End]]

    @classmethod
    def of(cls, key: Key, bins: Mapping[str, Any], home: str) -> BarrierState:
        """Return the state that a record holds. Raises `Corrupt` if it is damaged."""
        farms = farms_of(FarmMeeting, key, bins)
        decided = farms.get(home, FarmMeeting())
        ends = {turn: End(kind, tuple(why)) for turn, (kind, *why) in decided.ends.items()}
        at = {(farm, party): turn for farm, stored in farms.items() for party, turn in stored.at.items()}
        stops = {farm: _asked(key, farm, stored.stop) for farm, stored in farms.items() if stored.stop}
        if decided.turn is not None and any(turn > decided.turn for turn in decided.at.values()):
            raise damaged(key, f"a party of farm {shown(home)} has arrived at a generation that has not begun")
        return cls(decided.turn, ends, decided.names, at, stops)


def _asked(key: Key, farm: str, stop: list[int | str]) -> tuple[int, End]:
    """Return which generation a farm asks to end, and how."""
    turn, *end = stop
    texts = [text for text in end if isinstance(text, str)]
    if not isinstance(turn, int) or not texts or len(texts) < len(end):
        raise damaged(key, f"{STOP}{shown(farm)} holds something else than an end")
    return turn, End(texts[0], tuple(texts[1:]))


@dataclass(frozen=True, slots=True)
class BarrierUpdates:
    """The updates of one farm, with the names of its bins and of the deciding farm's; made once (`updates_of`)."""

    open: Form  # parameters: names, turn (the newest generation that any party has brought something to)
    arrive: Form  # parameters: party, turn
    decide: Form  # parameters: turn, end
    request_end: Form  # parameter: stop
    put_payload: Form  # parameters: turn, payload; of a party's own record


@lru_cache(maxsize=1024)
def updates_of(farm: str, home: str, ttl: int) -> BarrierUpdates:
    """Return the updates of a farm where `home` decides. Each sets the record's time to live, `ttl` seconds."""
    turn, ends, at, said = TURN + home, ENDS + home, AT + farm, SAID + farm
    party, mine = Param("party", str), Param("turn")
    after = lacks(at, party) | (MapValue(at, party) < mine)
    return BarrierUpdates(
        open=Form(
            Put(turn, largest(mine + 1, SERVER_NOW)), Put(NAMES + home, Param("names", str)),
            when=missing(turn), exists=Exists.ANY, or_absent=True, ttl=ttl,
        ),
        arrive=Form(MapPut(at, party, mine), when=Bin(turn).eq(mine) & after, ttl=ttl),
        decide=Form(
            MapPut(ends, mine, Param("end", list)), MapTrim(ends, KEPT_ENDS), Put(turn, largest(mine + 1, SERVER_NOW)),
            when=Bin(turn).eq(mine), ttl=ttl,
        ),
        request_end=Form(Put(STOP + farm, Param("stop", list)), ttl=ttl),
        put_payload=Form(
            MapPut(said, mine, Param("payload", str)), MapTrim(said, KEPT_PAYLOADS),
            when=lacks(said, mine), exists=Exists.ANY, or_absent=True, ttl=ttl,
        ),
    )  # fmt: skip


def barrier_key(client_id: str, name: str) -> Key:
    """Return the key of a barrier. Raises `InvalidRequest`."""
    if "#" in checked_text("client_id", client_id):
        raise InvalidRequest(
            f"client_id {shown(client_id)} contains '#', which ends it in the stored key: leave it out"
        )
    return Key(BARRIERS, f"{client_id}#{checked_text('name', name)}")


def payload_key(barrier: Key, place: Place) -> Key:
    """Return the key of the record with a party's payload."""
    return Key(PAYLOADS, f"{barrier.name}#{place[0]}/{place[1]}")


def checked_parties(parties: Iterable[str], farm: str, *, farms: bool) -> dict[str, Place]:
    """Return the parties by name, with where each is; farms: the names are `"farm/party"`. Raises `InvalidRequest`."""
    if isinstance(parties, str | bytes) or not isinstance(parties, Iterable):
        raise InvalidRequest(f"parties is {shown(parties)}; give a list of names")
    found: dict[str, Place] = {}
    for name in parties:
        text = checked_text("party", name)
        where, slash, party = text.partition("/") if farms else (farm, "/", text)
        if not slash or not party:
            raise InvalidRequest(f"party {shown(name)} is in no farm: at XDC level name it 'farm/party'")
        if len(party.encode()) > MAX_NAME:
            raise InvalidRequest(f"party {shown(party)} has {len(party.encode())} bytes; at most {MAX_NAME}")
        found[name] = checked_farm(where), party
        if len(found) > MAX_PARTIES:
            raise InvalidRequest(f"parties names more than {MAX_PARTIES:,}: use a latch")
    if not found:
        raise InvalidRequest("parties is empty: name the parties that meet")
    return found


def digest(places: Iterable[Place]) -> str:
    """Return the digest of a set of parties."""
    return hashlib.sha256(json.dumps(sorted(places)).encode()).hexdigest()[:16]


def checked_payload(payload: Any) -> str:
    """Return the payload of a party as it is stored. Raises `InvalidRequest`."""
    text, size = as_json("payload", payload)
    if size > MAX_PAYLOAD:
        raise InvalidRequest(f"payload has {size} bytes as JSON; at most {MAX_PAYLOAD}: store it, and bring its key")
    return text


def checked_reason(reason: str) -> str:
    """Return why it is aborted. Raises `InvalidRequest`."""
    size = len(checked_text("reason", reason).encode())
    if size > MAX_REASON:
        raise InvalidRequest(f"reason has {size} bytes; at most {MAX_REASON}")
    return reason
