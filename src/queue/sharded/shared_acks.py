"""Acknowledging a message for which others may wait: the last one deletes it (docs/protocols P17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import LatchworkError, NotFound, Refused
from ...store import Key, Param, Put, RecordStore, Removal, Update
from ...store.model.expr import Bound, Const, MapValue
from ...store.model.ops import Op
from .envelope import CONTENT
from .stamps import ACKED, GROUPS, LAST, SHARED, STAMPS, TRIES, WAITING

_DROP = tuple(Put(bin, None) for bin in (*CONTENT, SHARED, GROUPS, ACKED, STAMPS, TRIES))
_BY_ME = Param("me", str)


class SharedAck(NamedTuple):
    """The acknowledgement of one message: its update, which ends in `WAITING`.
    keep_id: seconds to keep its id.
    """

    update: Update
    me: str
    keep_id: int


def acknowledge_shared(store: RecordStore, acks: Sequence[SharedAck], who: str) -> list[bool | LatchworkError]:
    """Acknowledge messages for `who`, and delete each for which no reader waits any more. One call, or two.

    For each: True = done; False = it was another delivery's, or does not exist.
    """
    rows = store.repeat_many([ack.update for ack in acks]) if acks else []
    waiting = [
        _in_doubt(store, ack, who, row) if isinstance(row, LatchworkError) else row[0]
        for ack, row in zip(acks, rows, strict=True)
    ]
    finish(store, [(one.update.key, one.keep_id) for one, n in zip(acks, waiting, strict=True) if _none(n)])
    return [n if isinstance(n, bool | LatchworkError) else True for n in waiting]


def _none(waiting: int | bool | LatchworkError) -> bool:
    return waiting == 0 and not isinstance(waiting, bool)


def _in_doubt(store: RecordStore, ack: SharedAck, who: str, row: LatchworkError) -> int | bool | LatchworkError:
    """Return the outcome of an acknowledgement that failed: how many still wait, if an earlier attempt was applied."""
    doubt = bool(row.details.get("doubt"))
    if isinstance(row, NotFound):
        return doubt
    if not isinstance(row, Refused):
        return row
    if not doubt:
        return False
    guard = Bound(MapValue(ACKED, Const(who), str).eq(_BY_ME), {"me": ack.me})
    (found,) = store.repeat_many([Update(ack.update.key, (WAITING,), guard)])
    if isinstance(found, LatchworkError):
        return isinstance(found, NotFound) or (False if isinstance(found, Refused) else found)
    return int(found[0])


def finish(store: RecordStore, done: Sequence[tuple[Key, int]]) -> None:
    """Delete messages for which no reader waits, each with the seconds to keep its id. No call, one, or two.

    A message that could not be deleted stays for the sweep of the last reader.
    """
    ops: tuple[Op, ...] = _DROP
    kept = [Update(key, ops, LAST, ttl=keep) for key, keep in done if keep]
    gone = [Removal(key, LAST) for key, keep in done if not keep]
    if kept:
        store.repeat_many(kept)
    if gone:
        store.delete_many(gone, repeatable=True)
