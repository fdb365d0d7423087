"""Holding a large circular queue's lock, and ending a hold: with a commit or without (docs/protocols.md P2, P4).

A hold is one acquisition of the lock in the metadata record, with its fence, and what the queue looked like at that
moment, read in the same step. A fence commits once: the commit gives the lock back. After a refusal, or in doubt, the
hold is ended first, so that no late commit of it can land any more; then the transaction map says what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..coord import lease as rules
from ..errors import LatchworkError, NotFound, OutcomeUnknown, Refused
from ..store.expr import Bound, Param
from ..store.ops import Compute, MapGet, MapPut, Op, Read
from ..store.port import NEVER, RecordStore, Update
from . import transactions
from .circular_layout import HEAD, TAIL, TXNS, WAITED_FOR, Layout
from .circular_lock import LeaseTaker

_HEAD_MAY_MOVE = rules.held(0).expr & (Param("head") <= WAITED_FOR)
_HEAD, _TAIL, _WAITED_FOR, _DUE = Read(HEAD), Read(TAIL), Compute(WAITED_FOR), Compute(transactions.DUE)
_LOOKS: dict[tuple[bool, bool], tuple[Op, ...]] = {
    (False, False): (_HEAD, _TAIL),
    (True, False): (_HEAD, _TAIL, _WAITED_FOR),
    (False, True): (_HEAD, _TAIL, _DUE),
    (True, True): (_HEAD, _TAIL, _WAITED_FOR, _DUE),
}
"""What an acquisition reads: whether head may move, whether it is time to ask for all transactions."""
_NOTHING: Mapping[str, Any] = {}


class Hold(Struct, frozen=True):
    """One hold of the lock, and the queue when it began.

    waited_for: head must not pass it.  due: all transactions, when it is time to forget the oldest.
    known: what the transactions that were asked for have left in the map.
    """

    fence: int
    head: int
    tail: int
    waited_for: int
    due: Mapping[str, Any]
    known: Mapping[str, Any]


class QueueLock:
    """The lock of one queue, as one process sees it. Safe to share between threads."""

    def __init__(self, store: RecordStore, layout: Layout) -> None:
        self.store, self.layout = store, layout
        self._key = layout.meta
        self._taker = LeaseTaker(store, self._key)
        self._holds = 0

    def take(
        self, grant: str, txns: Sequence[str], timeout: float | None, *, owner: str = "", head_moves: bool = False
    ) -> Hold:
        """Wait for the lock and take it; one call where it is free. Raises as `LeaseTaker.take`.

        grant: an id of this hold alone.  txns: those that `known` is to tell about.  head_moves: whether `waited_for`
        is needed.
        """
        asks = self._holds % transactions.ASK_EVERY == 0
        self._holds += 1
        look = _LOOKS[head_moves, asks]
        reads = (*look, *[MapGet(TXNS, txn) for txn in txns]) if txns else look
        fence, head, tail, *more = self._taker.take(owner or grant, grant, reads, timeout)
        waited_for = more.pop(0) if head_moves else 0
        due = more.pop(0) if asks else _NOTHING
        known = {txn: entry for txn, entry in zip(txns, more, strict=True) if entry is not None} if txns else _NOTHING
        return Hold(fence, head, tail, waited_for, due, known)

    def renew(self, hold: Hold) -> bool:
        """Start the lease again; False where the hold is lost."""
        return self._taker.renew(hold.fence) is not None

    def change(self, hold: Hold, *ops: Op, head: int | None = None) -> bool:
        """Change the metadata and keep the lock; False where the hold is lost or a group holds head back.

        For operations that are harmless when repeated.
        """
        try:
            self.store.repeat(Update(self._key, ops, self._guard(hold, head), ttl=NEVER))
        except Refused:
            return False
        return True

    def commit(self, hold: Hold, txns: Mapping[str, tuple[int, int]], *ops: Op, head: int | None = None) -> bool:
        """Apply the operations, remember the transactions, give the lock back, in one step.

        txns: the first and last offset of each, at least one.  head: the new head, where it moves.  False where that
        was not done and never will be. Raises `OutcomeUnknown` where it cannot be told.
        """
        fence = hold.fence
        remember = [MapPut(TXNS, txn, transactions.committed(*span, fence)) for txn, span in txns.items()]
        forget = transactions.trimmed(hold.due, txns) if hold.due else ()
        ops = (*ops, *forget, *remember, *rules.RELEASE)
        try:
            self.store.repeat(Update(self._key, ops, self._guard(hold, head), ttl=NEVER))
            return True
        except Refused as refusal:
            if not refusal.details["doubt"]:
                self.let_go(hold)
                return False
        except NotFound as absence:
            if not absence.details["doubt"]:
                raise
        except OutcomeUnknown:
            pass
        return self._settled(hold, next(iter(txns)))

    def release(self, hold: Hold, *ops: Op) -> bool:
        """Give the lock back without a commit; False where the hold was lost before."""
        return self.change(hold, *ops, *rules.RELEASE)

    def let_go(self, hold: Hold) -> None:
        """The same after an error; the lease ends by itself where it cannot be given back."""
        try:
            self.release(hold)
        except LatchworkError:
            return

    def _settled(self, hold: Hold, txn: str) -> bool:
        """Whether a commit in doubt was made. It cannot be made any more after this."""
        try:
            self.release(hold)
            reads = (MapGet(TXNS, txn), MapGet(TXNS, transactions.forgotten_of(txn)))
            entry, forgotten = self.store.operate(self._key, *reads)
        except LatchworkError as failure:
            raise OutcomeUnknown(f"a commit to queue {self.layout.name!r} may have been made: {failure}") from failure
        if entry is not None and entry[2] == hold.fence:
            return True
        if forgotten >= hold.fence:
            raise OutcomeUnknown(
                f"a commit to queue {self.layout.name!r} may have been made, so long ago that it is forgotten"
            )
        return False

    def _guard(self, hold: Hold, head: int | None) -> Bound:
        return rules.held(hold.fence) if head is None else _HEAD_MAY_MOVE.bind(fence=hold.fence, head=head)
