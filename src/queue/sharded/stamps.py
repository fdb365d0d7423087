"""The stamps by which a message records its holder, a consumer of the queue or of a group (docs/protocols P5, P17).

The queue's own delivery has bins of its own; the deliveries of groups are entries of maps, so a group can take, extend
and acknowledge the message without a change for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from operator import itemgetter
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
from .envelope import Envelope, Reason, from_bins

GROUPS, ACKED, STAMPS, TRIES, SHARED = "groups", "acked", "groupStamp", "groupTries", "shared"
RESULT = "result"
"""The bin of what a handler returned, once its message is acknowledged: a list with it, or why it is not kept (P31)."""
OWN = ""
"""Stands in `acked` for the queue's own consumers."""
SEEN = "seen"
"""The delivery id that a sweep gives to a message that was never handed out: its time begins, and no consumer holds it.
"""

ALONE = missing(GROUPS)
"""No group waits for the message, nor ever has."""
LAST = MapSize(GROUPS).eq(0) & missing("data")
"""No reader waits for the message any more: neither a group nor the queue's own consumers."""
WAITING = Compute(If(exists("data"), MapSize(GROUPS) + 1, MapSize(GROUPS)))
"""How many wait for the message; the queue's own consumers count as one."""
_ME, _PAYLOAD = Param("me", str), exists("data") | exists(SHARED)
_READ = ("data", SHARED, "msgId", "enqueuedAt", "headers", "keepId")


class Taking(Enum):
    """Whose message a stamp may take.

    NEW: of a slot that was claimed for this delivery; no record can have its id yet.
    CLAIMED: of such a slot; a repeat, or alone.
    ANY: whoever holds it, as a shard that is taken over, or a slot that is tried again.
    """

    NEW = "new"
    CLAIMED = "claimed"
    ANY = "any"


@dataclass(frozen=True, eq=False)
class StampRules:
    """The guards and operations with which a reader takes a message, and checks which delivery holds it.

    mine: it is this delivery's (`me`).
    not_mine: this delivery may take it.
    claimed: this delivery may take it, as it has claimed the slot: nobody has given the message back.
    untaken: the same of a delivery whose id no record can have yet.
    stamp: takes it (`me`, `now` in ms). `count` also counts the attempt; `recount` counts it as the first, if the
        number is damaged; `uncount` takes the attempt back, as the work is interrupted: `attempts` is the number before
        it, `interrupts` how often that has happened now; `unmark` forgets which delivery was interrupted, as another
        one works on it; `renew` starts its time again.
    asked: reads who has asked that the work on it ends.
    reads: read the message, whose bins are `bins` of what was read.
    abandoned: no delivery has changed it for longer than `age` ms, at the moment of the update. This is stricter than
        comparing the delivery that was read, and saves reading it first.
    left_alone: it is as a leader has seen it (`delivery`, `stamped`): for a leader that knows, by another clock than
        the server's, that this was long ago.
    unstamped: it was never handed out.
    state: reads its delivery, the date of its last stamp, whether it is still to be done, and how many wait for it.
    """

    mine: Expr
    not_mine: Expr
    claimed: Expr
    untaken: Expr
    stamp: tuple[Op, ...]
    count: tuple[Op, ...]
    recount: tuple[Op, ...]
    uncount: tuple[Op, ...]
    unmark: tuple[Op, ...]
    renew: tuple[Op, ...]
    asked: tuple[Op, ...]
    reads: tuple[Op, ...]
    bins: Callable[[Sequence[Any]], Mapping[str, Any]]
    abandoned: Expr
    left_alone: Expr
    unstamped: Expr
    state: tuple[Op, ...]

    @cached_property
    def stamping(self) -> dict[tuple[bool, Taking], Form]:
        """The forms that take and read a message, by whether they count an attempt, and whose message it may be."""
        guards = {Taking.NEW: self.untaken, Taking.CLAIMED: self.claimed, Taking.ANY: self.not_mine}
        attempt = {
            (True, Taking.NEW): self.count,
            (True, Taking.CLAIMED): self.count,
            (True, Taking.ANY): (*self.count, *self.unmark),
        }
        return {
            (count, taking): Form(*self.stamp, *attempt.get((count, taking), ()), *self.reads, when=guard)
            for count in (True, False)
            for taking, guard in guards.items()
        }

    @cached_property
    def recounting(self) -> Form:
        """The stamp of a message whose attempts cannot be counted on from: the bin is damaged."""
        return Form(*self.stamp, *self.recount, *self.reads, when=self.not_mine)

    @cached_property
    def renewing(self) -> Form:
        """The form that reads a message which this delivery already holds, and starts its time again."""
        return Form(*self.renew, *self.reads, when=self.mine)

    @cached_property
    def extending(self) -> Form:
        """The form that starts the time of a delivery again."""
        return Form(*self.renew, *self.asked, when=self.mine)

    @cached_property
    def interrupting(self) -> Form:
        """The form that takes the attempt back of a message which this delivery holds, and goes on holding."""
        return Form(*self.uncount, when=self.mine)

    def envelope(self, row: Sequence[Any]) -> Envelope | None:
        """Return the message that was read, or None."""
        return from_bins(self.bins(row))

    def taking(self, me: str, now: int) -> tuple[Op, ...]:
        """Return the operations that take a message and read it, without a guard."""
        return plain(self.stamping[False, Taking.ANY].fill(_ANY_KEY, me=me, now=now)).ops


_ANY_KEY = Key("set", "name")
_DELIVERY = Bin("delivery", str)

QUEUE_STAMP_RULES = StampRules(
    mine=_DELIVERY.eq(_ME) & exists("data"),
    not_mine=exists("data") & (missing("delivery") | _DELIVERY.ne(_ME)),
    claimed=exists("data") & missing("interrupted") & (missing("delivery") | _DELIVERY.ne(_ME)),
    untaken=exists("data") & missing("interrupted"),
    stamp=(Put("delivery", _ME), Put("fireTS", Param("now"))),
    count=(Add("attempts", 1),),
    recount=(Put("attempts", 1),),
    uncount=(
        Put("attempts", Param("attempts")),
        Put("reason", Reason.INTERRUPTED.value),
        Put("lastError", None),
        Put("interrupts", Param("interrupts")),
        Put("interrupted", _ME),
    ),
    unmark=(Put("interrupted", None),),
    renew=(Put("fireTS", Param("now")),),
    asked=(Read("cancel"),),
    reads=(ReadAll(),),
    bins=itemgetter(0),
    abandoned=exists("data") & exists("delivery") & (Param("age") < SINCE_UPDATE),
    left_alone=exists("data") & _DELIVERY.eq(Param("delivery", str)) & Bin("fireTS").eq(Param("stamped")),
    unstamped=missing("delivery") & exists("data"),
    state=(Read("delivery"), Read("fireTS"), Compute(exists("data")), WAITING),
)


@lru_cache(maxsize=256)
def stamp_rules_of(tag: str) -> StampRules:
    """Return the rules of one group."""
    delivery, stamped = MapValue(GROUPS, Const(tag), str), MapValue(STAMPS, Const(tag))
    waits = has(GROUPS, tag)
    # Later than the one before, even if the server's clock stands still, so that an observer sees the change.
    now = If(has(STAMPS, tag), largest(stamped + 1, SERVER_NOW), SERVER_NOW)
    renew = MapPut(STAMPS, tag, now)
    return StampRules(
        mine=waits & delivery.eq(_ME),
        not_mine=_PAYLOAD & lacks(ACKED, tag) & (lacks(GROUPS, tag) | delivery.ne(_ME)),
        claimed=_PAYLOAD & lacks(ACKED, tag) & (lacks(GROUPS, tag) | delivery.ne(_ME)),
        untaken=_PAYLOAD & lacks(ACKED, tag),
        stamp=(MapPut(GROUPS, tag, _ME), renew),
        count=(MapAdd(TRIES, tag, 1),),
        recount=(Put(TRIES, {tag: 1}),),
        uncount=(MapPut(TRIES, tag, Param("attempts")),),
        unmark=(),
        renew=(renew,),
        asked=(),
        reads=(*map(Read, _READ), MapGet(TRIES, tag)),
        bins=_shared,
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


def _shared(row: Sequence[Any]) -> dict[str, Any]:
    """Return the bins of a message as a group gets it: with the group's own attempts, and without the bins of other
    readers.
    """
    bins = {bin: value for bin, value in zip((*_READ, "attempts"), row, strict=True) if value is not None}
    if SHARED in bins:
        bins["data"] = bins.pop(SHARED)
    return bins


def _leave(tag: str, me: Any) -> tuple[Op, ...]:
    forget = tuple(MapRemove(bin, (tag,)) for bin in (GROUPS, STAMPS, TRIES))
    return (*forget, MapPut(ACKED, tag, me), WAITING)


@lru_cache(maxsize=256)
def group_ack_of(tag: str) -> Form:
    """Return the form by which a group acknowledges a message; it returns how many still wait."""
    return Form(*_leave(tag, _ME), when=stamp_rules_of(tag).mine)


@lru_cache(maxsize=256)
def adopting(tag: str) -> Form:
    """Return the form that names a group in a message that does not name it, so that the message is kept until the
    group is done with it.
    """
    return Form(MapPut(GROUPS, tag, ""), when=_PAYLOAD & lacks(ACKED, tag) & lacks(GROUPS, tag))


@lru_cache(maxsize=256)
def passing(tag: str) -> Form:
    """Return the form by which a group's stream, which stamps nothing, acknowledges a message; it returns how many
    still wait.
    """
    named = MapPut(GROUPS, tag, _ME)  # so that there is something to take it out of
    return Form(named, *_leave(tag, _ME), when=_PAYLOAD & lacks(ACKED, tag))


@lru_cache(maxsize=256)
def releasing(tag: str) -> tuple[Op, ...]:
    """Return the operations that remove a dropped group from a message; they return how many still wait."""
    return _leave(tag, "")


_BINS_OF_OWN = "attempts notBefore reason lastError fireTS delivery batch interrupts interrupted"
_DONE_HERE = tuple(Put(bin, None) for bin in _BINS_OF_OWN.split())


def _own_ack(payload: Any, guard: Expr) -> Form:
    kept: tuple[Op, ...] = (Put(SHARED, payload), Put("data", None), *_DONE_HERE, MapPut(ACKED, OWN, _ME), WAITING)
    return Form(*kept, when=guard & exists(GROUPS))


_OWN_ACK: dict[type, Form] = {kind: _own_ack(Bin("data", kind), QUEUE_STAMP_RULES.mine) for kind in (str, bytes)}
_OWN_ACK_OF_OTHERS = _own_ack(Param("data"), QUEUE_STAMP_RULES.mine)
_OWN_ACK_OF_ANY = _own_ack(Param("data"), exists("data"))


def own_ack(key: Key, data: object, me: str, *, any_delivery: bool = False) -> Update:
    """Return the update by which the queue's own consumers acknowledge a message that groups may wait for.

    any_delivery: accept any delivery, as for a stream, which stamps nothing.
    """
    form = _OWN_ACK_OF_ANY if any_delivery else _OWN_ACK.get(type(data), _OWN_ACK_OF_OTHERS)
    return plain(form.fill(key, me=me, data=data))


@lru_cache(maxsize=256)
def naming(bin: str, tags: tuple[str, ...]) -> Put:
    """Return one object for each set of groups, so that the rows of a batch share it and it is compiled once."""
    return Put(bin, dict.fromkeys(tags, ""))
