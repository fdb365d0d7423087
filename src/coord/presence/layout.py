"""The stored layout of a group, and the members read from it (docs/design.md section 4, docs/protocols P9)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ...errors import InvalidRequest
from ...inputs import checked_text
from ...lossless import as_json
from ...plain import shown
from ...store.decode import Counter, damaged
from ...store.model.expr import (
    SERVER_NOW,
    Bin,
    Const,
    Expr,
    If,
    ListOf,
    MapSize,
    MapValue,
    Param,
    exists,
    has,
    largest,
)  # fmt: skip
from ...store.model.form import Form
from ...store.model.ops import MapPut, MapRemove, Op, Put, Read
from ...store.port import Exists, Key
from ..farms import farms_of
from ..lease import MAX_LEASE, NOW_US

GROUPS = "latchwork_groups"
"""The set of all groups; the key is the name."""
ID, BEAT, ABOUT, GONE, FENCE = "id#", "beat#", "about#", "gone#", "fence#"
"""Maps of one farm, by member. `id#`: the id of its joining. `beat#`: its stamp, which is the server's ms of its last
heartbeat, and always larger than before. `about#`: [fence, lease in ms, server's ms when it joined, meta]. `gone#`: how
the former member of this name ended, and its id. `fence#` is the farm's last fence."""
MAX_MEMBERS = MAX_GONE = 1_000
MAX_NAME, MAX_META = 100, 200
"""Bytes."""
LEFT, LOST = "left", "lost"
Place = tuple[str, str]
"""A farm, and the name of a member in it."""
_About = tuple[Counter, Annotated[int, Meta(ge=1, le=round(MAX_LEASE * 1000))], Counter, str]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group. Times are in seconds since 1970, by the server's clock.

    meta: what it has published about itself.
    since: when it joined.
    fence: greater than that of every earlier member of its farm.
    lease: seconds.
    seen: the time of its last heartbeat.
    """

    member: str
    farm: str
    meta: Any
    since: float
    fence: int
    lease: float
    seen: float
    id: str = field(repr=False, default="")
    stamp: int = field(repr=False, default=0)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a group: a member has `joined`, `left`, or was `lost`."""

    kind: Literal["joined", "left", "lost"]
    member: Member


class FarmMembers(Struct, frozen=True):
    """The bins of one farm, with their limits."""

    ids: dict[str, str] = msgspec.field(default_factory=dict, name=ID)
    beats: dict[str, Counter] = msgspec.field(default_factory=dict, name=BEAT)
    about: dict[str, _About] = msgspec.field(default_factory=dict, name=ABOUT)
    gone: dict[str, str] = msgspec.field(default_factory=dict, name=GONE)
    fence: Counter = msgspec.field(default=0, name=FENCE)

    def members(self, key: Key, farm: str) -> Iterator[tuple[str, Member]]:
        """Yield the members by name. Raises `Corrupt` if one has no stamp, or is not described."""
        for name, id in self.ids.items():
            try:
                stamp, (fence, lease, since, meta) = self.beats[name], self.about[name]
                known = json.loads(meta)
            except KeyError:
                raise damaged(key, f"farm {shown(farm)} has a member that is not in {BEAT} or {ABOUT}") from None
            except (ValueError, RecursionError):
                raise damaged(key, f"{ABOUT}{shown(farm)} holds something else than JSON") from None
            joined = min(since, stamp)  # the server reads its clock for each of them: a millisecond may lie in between
            yield name, Member(name, farm, known, joined / 1000, fence, lease / 1000, stamp / 1000, id, stamp)

    def ends(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yield how each former member ended, and its id, by name."""
        for name, how in self.gone.items():
            kind, _, id = how.partition(":")
            yield name, (kind, id)


@dataclass(slots=True)
class Seen:
    """A group at one moment.

    members: the present members.
    gone: how each former member ended, and its id.
    """

    members: dict[Place, Member]
    gone: dict[Place, tuple[str, str]]

    @classmethod
    def of(cls, key: Key, bins: Mapping[str, Any]) -> Seen:
        """Read the group from a record's bins. Raises `Corrupt` if they cannot be read."""
        farms = farms_of(FarmMembers, key, bins)
        members = {(farm, name): one for farm, stored in farms.items() for name, one in stored.members(key, farm)}
        gone = {(farm, name): how for farm, stored in farms.items() for name, how in stored.ends()}
        return cls(members, gone)

    @property
    def lost(self) -> set[Place]:
        """The members that died and have not joined again."""
        return {place for place, (kind, _) in self.gone.items() if kind == LOST and place not in self.members}

    def without(self, one: Member) -> None:
        """Count a member as lost."""
        del self.members[one.farm, one.member]
        self.gone[one.farm, one.member] = LOST, one.id

    def changes(self, before: Seen) -> Iterator[Change]:
        """Yield the changes since `before`, by farm and name."""
        for place in sorted(before.members.keys() | self.members.keys()):
            was, now = before.members.get(place), self.members.get(place)
            if was is not None and (now is None or now.id != was.id):
                yield Change("lost" if self.gone.get(place) == (LOST, was.id) else "left", was)
            if now is not None and (was is None or now.id != was.id):
                yield Change("joined", now)


@dataclass(frozen=True, slots=True)
class PresenceBins:
    """One farm's bins, and the updates and guards that use them. Made once for each farm and time to live."""

    farm: str
    ttl: int
    join: Form  # parameters: member, id, lease, meta; before and gone, as they were read
    heartbeat: Form  # parameters: member, id
    held: Expr  # the member of this id is there
    still: Expr  # and has sent no heartbeat since it had this stamp

    def gone(self, member: str, id: str, kind: str) -> tuple[Op, ...]:
        """Return the operations that remove a member."""
        removed = (MapRemove(prefix + self.farm, (member,)) for prefix in (ID, BEAT, ABOUT))
        return (*removed, MapPut(GONE + self.farm, member, f"{kind}:{id}"))


@lru_cache(maxsize=1024)
def bins_of(farm: str, ttl: int) -> PresenceBins:
    """Return the bins of a farm. One cached object for each farm and `ttl`, so that its guards are compiled once.

    ttl: the record's time to live in seconds, set by every write.
    """
    ids, beats, fence, gone = ID + farm, BEAT + farm, FENCE + farm, GONE + farm
    member = Param("member", str)
    held = has(ids, member) & MapValue(ids, member, str).eq(Param("id", str))
    room = has(ids, member) | (If(exists(ids), MapSize(ids), Const(0)) < MAX_MEMBERS)
    unchanged = _text(ids, member).eq(Param("before", str)) & _text(gone, member).eq(Param("gone", str))
    about = ListOf((Bin(fence), Param("lease"), SERVER_NOW, Param("meta", str)))
    join = Form(
        Put(fence, If(exists(fence), largest(Bin(fence) + 1, NOW_US), NOW_US)),
        MapPut(ids, member, Param("id", str)),
        MapPut(beats, member, SERVER_NOW),
        MapPut(ABOUT + farm, member, about),
        Read(fence),
        when=unchanged & room,
        exists=Exists.ANY,
        or_absent=True,
        ttl=ttl,
    )
    heartbeat = Form(MapPut(beats, member, largest(MapValue(beats, member) + 1, SERVER_NOW)), when=held, ttl=ttl)
    return PresenceBins(farm, ttl, join, heartbeat, held, held & MapValue(beats, member).eq(Param("stamp")))


def _text(bin: str, key: Expr) -> Expr:
    """Return the text at a key of a map bin; empty if there is none."""
    return If(has(bin, key), MapValue(bin, key, str), Const(""))


def checked_member(member: str) -> str:
    """Check a member's name, and return it. Raises `InvalidRequest`."""
    size = len(checked_text("member", member).encode())
    if size > MAX_NAME:
        raise InvalidRequest(f"member {shown(member)} has {size} bytes; at most {MAX_NAME}")
    return member


def checked_meta(meta: Any) -> str:
    """Convert `meta` to the JSON that is stored. Raises `InvalidRequest`."""
    text, size = as_json("meta", meta)
    if size > MAX_META:
        raise InvalidRequest(
            f"meta has {size} bytes as JSON; at most {MAX_META}, as every look reads it: store it elsewhere"
        )
    return text
