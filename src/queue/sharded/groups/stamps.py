"""The stamps of groups: a group takes, extends and acknowledges a message without a change for the others, as its bins
are entries of maps. The last reader that acknowledges a message deletes it (docs/protocols P17).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from ....errors import BinMismatch, NotFound, Refused
from ....store import (
    Bin,
    Key,
    MapAdd,
    MapGet,
    MapPut,
    MapRemove,
    Param,
    Put,
    Read,
    Record,
    RecordStore,
    Removal,
    Update,
    exists,
    has,
    lacks,
    missing,
)
from ....store.model.expr import SERVER_NOW, Bound, Const, Expr, If, MapSize, MapValue, largest
from ....store.model.form import Form, plain
from ....store.model.ops import Compute, Op
from ....store.model.record import Row
from ....store.rows import Rows
from ...rows import read_each
from ..envelope import CONTENT
from ..rules import GROUPS, QUEUE_STAMP_RULES, RESULT, WAITING, StampRules

ACKED, STAMPS, TRIES, SHARED = "acked", "groupStamp", "groupTries", "shared"
OWN = ""
"""Stands in `acked` for the queue's own consumers."""
LAST = MapSize(GROUPS).eq(0) & missing("data")
"""No reader waits for the message any more: neither a group nor the queue's own consumers."""
_ME, _PAYLOAD = Param("me", str), exists("data") | exists(SHARED)
_READ = ("data", SHARED, "msgId", "enqueuedAt", "headers", "keepId")


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
        state=(Compute(delivery), MapGet(STAMPS, tag), Compute(_PAYLOAD & lacks(ACKED, tag)), WAITING),
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


# ---- acknowledging

_DROP = tuple(Put(bin, None) for bin in (*CONTENT, SHARED, GROUPS, ACKED, STAMPS, TRIES))
_NOTHING_LEFT = LAST & missing(RESULT)
_IS_LONG_ENOUGH = LAST & (missing(RESULT) | (Bin("keepId") <= Param("keep")))
"""A group that took the message before the queue's own consumers were done with it does not know of their result, nor
for how long that is kept.
"""


class SharedAck(NamedTuple):
    """The acknowledgement of one message: its update, which ends in `WAITING`.
    keep_id: seconds to keep its id.
    """

    update: Update
    me: str
    keep_id: int


def acknowledge_shared(store: RecordStore, acks: Sequence[SharedAck], who: str) -> Rows[bool]:
    """Acknowledge messages for `who`, and delete each for which no reader waits any more. One call, or two.

    For each: True = done; False = it was another delivery's, or does not exist.
    """
    rows = store.repeat_many([ack.update for ack in acks])
    rows.merge(range(len(acks)), [_resolved(store, ack, who, row) for ack, row in zip(acks, rows, strict=True)])
    finish(store, [(ack.update.key, ack.keep_id) for ack, row in zip(acks, rows, strict=True) if _none_wait(row)])
    return rows.settled()


def _none_wait(row: Row) -> bool:
    return row == (0,)


def _resolved(store: RecordStore, ack: SharedAck, who: str, row: Row) -> Row:
    """Return the outcome of an acknowledgement; where an attempt was in doubt, whether that was applied."""
    if isinstance(row, BinMismatch):
        row = _mended(store, ack, row)
    if not isinstance(row, NotFound | Refused) or not row.details.get("doubt"):
        return row
    if isinstance(row, NotFound):
        return ()
    guard = Bound(MapValue(ACKED, Const(who), str).eq(_ME), {"me": ack.me})
    (found,) = store.repeat_many([Update(ack.update.key, (WAITING,), guard)])
    return () if isinstance(found, NotFound) else found


def _mended(store: RecordStore, ack: SharedAck, row: BinMismatch) -> Row:
    """Acknowledge a message without its bins of groups that are damaged: it would be copied by each sweep, and handed
    out again and again. Two calls.
    """
    key = ack.update.key
    (record,) = read_each(store, [key], ACKED, STAMPS, TRIES)
    bins = record.bins if isinstance(record, Record) else {}
    without = [Put(bin, None) for bin, value in bins.items() if not isinstance(value, dict)]
    if not without:
        return row
    (mended,) = store.repeat_many([replace(plain(ack.update), ops=(*without, *plain(ack.update).ops))])
    return mended


def finish(store: RecordStore, done: Sequence[tuple[Key, int]]) -> None:
    """Delete messages for which no reader waits, each with the seconds to keep its id. No call, one, or two.

    A message that could not be deleted stays for the sweep of the last reader.
    """
    ops: tuple[Op, ...] = _DROP
    kept = [Update(key, ops, Bound(_IS_LONG_ENOUGH, {"keep": keep}), ttl=keep) for key, keep in done if keep]
    gone = [Removal(key, _NOTHING_LEFT) for key, keep in done if not keep]
    store.repeat_many(kept)
    store.delete_many(gone, repeatable=True)
