"""The rules by which a message is taken, held and given up: which delivery's it is (docs/protocols P5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from operator import itemgetter
from typing import Any

from ...store import Add, Bin, Compute, Key, Param, Put, Read, exists, missing
from ...store.model.expr import SINCE_UPDATE, Expr, If, MapSize
from ...store.model.form import Form, plain
from ...store.model.ops import Op, ReadAll
from .envelope import Envelope, Reason, from_bins

GROUPS = "groups"
"""The bin of a message with the other readers that wait for it, and of a shard's pointers with those that have joined
it. `hooks.Readers` keeps it; the way of a message asks only whether it is there."""
RESULT = "result"
"""The bin of what a handler returned, once its message is acknowledged: a list with it, or why it is not kept (P31)."""
SEEN = "seen"
"""The delivery id that a sweep gives to a message that was never handed out: its time begins, and no consumer holds it.
"""

ALONE = missing(GROUPS)
"""No other reader waits for the message, nor ever has."""
WAITING = Compute(If(exists("data"), MapSize(GROUPS) + 1, MapSize(GROUPS)))
"""How many wait for the message; the queue's own consumers count as one."""
_ME = Param("me", str)


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
