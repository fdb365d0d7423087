"""Acknowledging a message for which others may wait: the last one deletes it (docs/protocols P17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....errors import LatchworkError, NotFound, Refused
from ....store import Key, Param, Put, RecordStore, Removal, Update
from ....store.model.expr import Bound, Const, MapValue
from ....store.model.ops import Op
from ...rows import delete_rows, settle
from ..envelope import CONTENT
from ..hands import ACKED, GROUPS, LAST, SHARED, STAMPS, TRIES, WAITING

_DROP = tuple(Put(bin, None) for bin in (*CONTENT, SHARED, GROUPS, ACKED, STAMPS, TRIES))
_BY_ME = Param("me", str)


class Parting(NamedTuple):
    """The acknowledgement of one message: its update, which ends in `WAITING`.  keep_id: seconds to keep its id."""

    update: Update
    me: str
    keep_id: int


def part(store: RecordStore, partings: Sequence[Parting], who: str) -> list[bool | LatchworkError]:
    """Acknowledge messages for `who`; those that nobody waits for any more go. One call, or two.

    For each: True = done; False = it was somebody else's or gone.
    """
    rows = settle(store, [parting.update for parting in partings]) if partings else []
    waiting = [
        _in_doubt(store, parting, who, row) if isinstance(row, LatchworkError) else row[0]
        for parting, row in zip(partings, rows, strict=True)
    ]
    finish(store, [(one.update.key, one.keep_id) for one, n in zip(partings, waiting, strict=True) if _none(n)])
    return [n if isinstance(n, bool | LatchworkError) else True for n in waiting]


def _none(waiting: int | bool | LatchworkError) -> bool:
    return waiting == 0 and not isinstance(waiting, bool)


def _in_doubt(store: RecordStore, parting: Parting, who: str, row: LatchworkError) -> int | bool | LatchworkError:
    """What an acknowledgement that failed came to: how many wait, where an attempt before has done it."""
    doubt = bool(row.details.get("doubt"))
    if isinstance(row, NotFound):
        return doubt
    if not isinstance(row, Refused):
        return row
    if not doubt:
        return False
    guard = Bound(MapValue(ACKED, Const(who), str).eq(_BY_ME), {"me": parting.me})
    (found,) = settle(store, [Update(parting.update.key, (WAITING,), guard)])
    if isinstance(found, LatchworkError):
        return isinstance(found, NotFound) or (False if isinstance(found, Refused) else found)
    return int(found[0])


def finish(store: RecordStore, done: Sequence[tuple[Key, int]]) -> None:
    """Delete messages that nobody waits for, each with the seconds to keep its id. No call, or one or two.

    What fails stays for the sweep of who was the last.
    """
    ops: tuple[Op, ...] = _DROP
    kept = [Update(key, ops, LAST, ttl=keep) for key, keep in done if keep]
    gone = [Removal(key, LAST) for key, keep in done if not keep]
    if kept:
        settle(store, kept)
    if gone:
        delete_rows(store, gone)
