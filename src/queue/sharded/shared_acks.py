"""Acknowledging a message for which others may wait: the last one deletes it (docs/protocols P17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import NotFound, Refused
from ...store import Key, Param, Put, RecordStore, Removal, Update, missing
from ...store.model.expr import Bound, Const, MapValue
from ...store.model.ops import Op
from ...store.model.record import Row
from ...store.rows import Rows
from .envelope import CONTENT
from .stamps import ACKED, GROUPS, LAST, RESULT, SHARED, STAMPS, TRIES, WAITING

_DROP = tuple(Put(bin, None) for bin in (*CONTENT, SHARED, GROUPS, ACKED, STAMPS, TRIES))
_BY_ME = Param("me", str)
_NOTHING_LEFT = LAST & missing(RESULT)
"""A group that took the message before the queue's own consumers were done with it does not know of their result."""


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
    if not isinstance(row, NotFound | Refused) or not row.details.get("doubt"):
        return row
    if isinstance(row, NotFound):
        return ()
    guard = Bound(MapValue(ACKED, Const(who), str).eq(_BY_ME), {"me": ack.me})
    (found,) = store.repeat_many([Update(ack.update.key, (WAITING,), guard)])
    return () if isinstance(found, NotFound) else found


def finish(store: RecordStore, done: Sequence[tuple[Key, int]]) -> None:
    """Delete messages for which no reader waits, each with the seconds to keep its id. No call, one, or two.

    A message that could not be deleted stays for the sweep of the last reader.
    """
    ops: tuple[Op, ...] = _DROP
    kept = [Update(key, ops, LAST, ttl=keep) for key, keep in done if keep]
    gone = [Removal(key, _NOTHING_LEFT) for key, keep in done if not keep]
    store.repeat_many(kept)
    store.delete_many(gone, repeatable=True)
