"""How a message says in whose hands it is: the queue's own consumers', and each group's (docs/protocols P5, P17).

The queue's own delivery has bins for itself; the deliveries of groups are entries of maps, so that a group can take,
extend and acknowledge the message without any other noticing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ...store import (
    Add,
    Bin,
    Compute,
    Key,
    MapAdd,
    MapGet,
    MapPut,
    MapRemove,
    Param,
    Put,
    Read,
    Update,
    exists,
    has,
    lacks,
    missing,
)
from ...store.model.expr import SERVER_NOW, SINCE_UPDATE, Const, Expr, If, MapSize, MapValue, largest
from ...store.model.form import Form, plain
from ...store.model.ops import Op, ReadAll
from .envelope import Envelope, from_bins

GROUPS, ACKED, STAMPS, TRIES, SHARED = "groups", "acked", "groupStamp", "groupTries", "shared"
OWN = ""
"""Stands in `acked` for the queue's own consumers."""
SEEN = "seen"
"""The delivery id that a sweep gives to a message nobody was ever given: its time begins, and it is nobody's."""

ALONE = missing(GROUPS)
"""No group waits for it, nor has."""
LAST = MapSize(GROUPS).eq(0) & missing("data")
"""Nobody waits for it any more: neither a group nor the queue's own consumers."""
WAITING = Compute(If(exists("data"), MapSize(GROUPS) + 1, MapSize(GROUPS)))
"""How many wait for it, the queue's own consumers counting as one."""
_ME, _PAYLOAD = Param("me", str), exists("data") | exists(SHARED)
_READ = ("data", SHARED, "msgId", "enqueuedAt", "headers", "keepId")


@dataclass(frozen=True, eq=False)
class Hands:
    """What takes a message, and asks in whose hands it is.

    mine: it is this delivery's (`me`).  not_mine: it may be taken by it.
    stamp: takes it (`me`, `now` in ms), `count` also counts the attempt, `anew` counts it as the first where the number
    is damaged; `renew` begins its time again.  reads, envelope: read the message.
    abandoned: nobody has touched it for longer than `age` ms, at the very moment of the update: stricter than that its
    delivery is as it was read, and it saves reading it first.
    left_alone: it is as a leader has seen it (`delivery`, `stamped`): for who knows, by another clock than the
    server's, that this was long ago.  unstamped: nobody was ever given it.
    state: reads its delivery, the date of its last stamp, whether it is still to be done, and how many wait for it.
    """

    mine: Expr
    not_mine: Expr
    stamp: tuple[Op, ...]
    count: tuple[Op, ...]
    anew: tuple[Op, ...]
    renew: tuple[Op, ...]
    reads: tuple[Op, ...]
    envelope: Callable[[Sequence[Any]], Envelope | None]
    abandoned: Expr
    left_alone: Expr
    unstamped: Expr
    state: tuple[Op, ...]

    @cached_property
    def stamping(self) -> dict[bool, Form]:
        """What takes and reads a message; whether it counts an attempt."""
        return {
            count: Form(*self.stamp, *(self.count if count else ()), *self.reads, when=self.not_mine)
            for count in (True, False)
        }

    @cached_property
    def counting_anew(self) -> Form:
        """The stamp of a message whose attempts cannot be counted on from: the bin is damaged."""
        return Form(*self.stamp, *self.anew, *self.reads, when=self.not_mine)

    @cached_property
    def renewing(self) -> Form:
        """What reads a message that is this delivery's already; its time begins again."""
        return Form(*self.renew, *self.reads, when=self.mine)

    @cached_property
    def extending(self) -> Form:
        """What begins the time of a delivery again."""
        return Form(*self.renew, when=self.mine)

    def taking(self, me: str, now: int) -> tuple[Op, ...]:
        """The operations that take a message and read it, without a guard."""
        return plain(self.stamping[False].fill(_ANY_KEY, me=me, now=now)).ops


_ANY_KEY = Key("set", "name")
_DELIVERY = Bin("delivery", str)

THE_QUEUES_OWN = Hands(
    mine=_DELIVERY.eq(_ME) & exists("data"),
    not_mine=exists("data") & (missing("delivery") | _DELIVERY.ne(_ME)),
    stamp=(Put("delivery", _ME), Put("fireTS", Param("now"))),
    count=(Add("attempts", 1),),
    anew=(Put("attempts", 1),),
    renew=(Put("fireTS", Param("now")),),
    reads=(ReadAll(),),
    envelope=lambda row: from_bins(row[0]),
    abandoned=exists("data") & exists("delivery") & (Param("age") < SINCE_UPDATE),
    left_alone=exists("data") & _DELIVERY.eq(Param("delivery", str)) & Bin("fireTS").eq(Param("stamped")),
    unstamped=missing("delivery") & exists("data"),
    state=(Read("delivery"), Read("fireTS"), Compute(exists("data")), WAITING),
)


@lru_cache(maxsize=256)
def hands_of(tag: str) -> Hands:
    """The hands of one group."""
    delivery, stamped = MapValue(GROUPS, Const(tag), str), MapValue(STAMPS, Const(tag))
    waits = has(GROUPS, tag)
    # Later than the one before, also where the server's clock stands still: who watches sees that it has changed.
    now = If(has(STAMPS, tag), largest(stamped + 1, SERVER_NOW), SERVER_NOW)
    renew = MapPut(STAMPS, tag, now)
    return Hands(
        mine=waits & delivery.eq(_ME),
        not_mine=_PAYLOAD & lacks(ACKED, tag) & (lacks(GROUPS, tag) | delivery.ne(_ME)),
        stamp=(MapPut(GROUPS, tag, _ME), renew),
        count=(MapAdd(TRIES, tag, 1),),
        anew=(Put(TRIES, {tag: 1}),),
        renew=(renew,),
        reads=(*map(Read, _READ), MapGet(TRIES, tag)),
        envelope=_shared,
        abandoned=waits & delivery.ne("") & has(STAMPS, tag) & (stamped + Param("age") < SERVER_NOW),
        left_alone=waits & delivery.eq(Param("delivery", str)) & stamped.eq(Param("stamped")),
        unstamped=_PAYLOAD & lacks(ACKED, tag) & (lacks(GROUPS, tag) | delivery.eq("")),
        state=(
            Compute(delivery),
            MapGet(STAMPS, tag),
            Compute(_PAYLOAD & lacks(ACKED, tag)),
            WAITING,
        ),
    )


def _shared(row: Sequence[Any]) -> Envelope | None:
    """The message as a group gets it: with the group's own attempts, and without what befell it elsewhere."""
    bins = {bin: value for bin, value in zip((*_READ, "attempts"), row, strict=True) if value is not None}
    if SHARED in bins:
        bins["data"] = bins.pop(SHARED)
    return from_bins(bins)


def _parting(tag: str, me: Any) -> tuple[Op, ...]:
    forget = tuple(MapRemove(bin, (tag,)) for bin in (GROUPS, STAMPS, TRIES))
    return (*forget, MapPut(ACKED, tag, me), WAITING)


@lru_cache(maxsize=256)
def parting_of(tag: str) -> Form:
    """What a group does with a message that it is done with; how many wait for it then."""
    return Form(*_parting(tag, _ME), when=hands_of(tag).mine)


@lru_cache(maxsize=256)
def adopting(tag: str) -> Form:
    """What names a group in a message that does not, so that nobody deletes it before the group is done with it."""
    return Form(MapPut(GROUPS, tag, ""), when=_PAYLOAD & lacks(ACKED, tag) & lacks(GROUPS, tag))


@lru_cache(maxsize=256)
def passing(tag: str) -> Form:
    """What a group's stream, which stamps nothing, does with a message that it is done with; how many wait for it."""
    named = MapPut(GROUPS, tag, _ME)  # so that there is something to take it out of
    return Form(named, *_parting(tag, _ME), when=_PAYLOAD & lacks(ACKED, tag))


@lru_cache(maxsize=256)
def releasing(tag: str) -> tuple[Op, ...]:
    """What takes a group that was dropped out of a message; how many wait for it then."""
    return _parting(tag, "")


_DONE_HERE = tuple(
    Put(bin, None) for bin in ("attempts", "notBefore", "reason", "lastError", "fireTS", "delivery", "batch")
)


def _letting_go(payload: Any, guard: Expr) -> Form:
    kept: tuple[Op, ...] = (Put(SHARED, payload), Put("data", None), *_DONE_HERE, MapPut(ACKED, OWN, _ME), WAITING)
    return Form(*kept, when=guard & exists(GROUPS))


_LETTING_GO: dict[type, Form] = {kind: _letting_go(Bin("data", kind), THE_QUEUES_OWN.mine) for kind in (str, bytes)}
_LETTING_GO_OF_OTHERS = _letting_go(Param("data"), THE_QUEUES_OWN.mine)
_LETTING_GO_OF_ANY = _letting_go(Param("data"), exists("data"))


def letting_go(key: Key, data: object, me: str, *, whoever: bool = False) -> Update:
    """What the queue's own consumers do with a message that they are done with and groups may wait for.

    whoever: whatever delivery it has, as for a stream, which stamps nothing.
    """
    form = _LETTING_GO_OF_ANY if whoever else _LETTING_GO.get(type(data), _LETTING_GO_OF_OTHERS)
    return plain(form.fill(key, me=me, data=data))


@lru_cache(maxsize=256)
def naming(bin: str, tags: tuple[str, ...]) -> Put:
    """One object for each set of groups, so that the rows of a batch share it and it is compiled once."""
    return Put(bin, dict.fromkeys(tags, ""))
