"""Holding a large circular queue's lock, and ending a hold: with a commit or without (docs/protocols P2, P4).

A hold is one acquisition of the lock in the metadata record, with its fence, and what the queue looked like at that
moment, read in the same step. A fence commits once: the commit gives the lock back. After a refusal, or in doubt, the
hold is ended first, so that no late commit of it can land any more; then the transaction map says whether it was
committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from ...coord import lease as rules
from ...deadline import present
from ...errors import LatchworkError, NotFound, OutcomeUnknown, Refused
from ...retry import may_pass, outlive
from ...store.model.expr import Bound, Expr, Param
from ...store.model.form import Form, plain
from ...store.model.ops import Compute, MapGet, MapPut, Op, Put, Read
from ...store.port import NEVER, RecordStore, Update, Values
from . import transactions
from .layout import HEAD, TAIL, TXNS, WAITED_FOR, Layout, offset_in
from .lock import LeaseTaker

_HEAD_MAY_MOVE = rules.held(0).expr & (Param("head") <= WAITED_FOR)
_HEAD, _TAIL, _WAITED_FOR, _DUE = Read(HEAD), Read(TAIL), Compute(WAITED_FOR), Compute(transactions.DUE)
_NOTHING: dict[str, Any] = {}
MOST_NAMED = 64
"""Transactions with an id of the caller's in one hold."""
_TXN, _ENTRY = (tuple(f"{name}{place}" for place in range(MOST_NAMED + 1)) for name in ("txn", "entry"))
"""Names of parameters: one for each named transaction, and one that all requests without an id share."""


@lru_cache(maxsize=512)
def _reads(head_moves: bool, asks: bool, named: int) -> tuple[Op, ...]:
    """What an acquisition reads: whether head may move, whether it is time to ask for all transactions, how many."""
    look: list[Op] = [_HEAD, _TAIL, *[_WAITED_FOR] * head_moves, *[_DUE] * asks]
    return (*look, *[MapGet(TXNS, Param(txn, str)) for txn in _TXN[:named]])


@lru_cache(maxsize=512)
def _committing(guard: Expr, moves: tuple[str, ...], named: int) -> Form:
    """A commit that moves these bins and remembers this number of transactions."""
    moving = [Put(bin, Param(bin)) for bin in moves]
    names = zip(_TXN[:named], _ENTRY, strict=False)
    remember = [MapPut(TXNS, Param(txn, str), Param(entry, list)) for txn, entry in names]
    return Form(*moving, *remember, *rules.RELEASE, when=guard, ttl=NEVER)


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
        self._since_asked = transactions.ASK_EVERY

    def take(
        self, grant: str, txns: Sequence[str], timeout: float | None, *, owner: str = "", head_moves: bool = False
    ) -> Hold:
        """Wait for the lock and take it; one call where it is free. Raises as `LeaseTaker.take`.

        grant: an id of this hold alone.  txns: the ids to look for; `known` has the entries found.
        head_moves: whether `waited_for` is needed.
        """
        asks = self._since_asked >= transactions.ASK_EVERY
        self._since_asked = 1 if asks else self._since_asked + 1
        reads, asked = _reads(head_moves, asks, len(txns)), dict(zip(_TXN, txns, strict=False)) if txns else _NOTHING
        fence, head, tail, *more = self._taker.take(owner or grant, grant, reads, asked, timeout)
        head, tail = offset_in(self._key, HEAD, head), offset_in(self._key, TAIL, tail)
        waited_for = more.pop(0) if head_moves else 0
        due = more.pop(0) if asks else _NOTHING
        known = {txn: entry for txn, entry in zip(txns, more, strict=True) if entry is not None} if txns else _NOTHING
        return Hold(fence, head, tail, waited_for, due, known)

    def renew(self, hold: Hold) -> bool:
        """Start the lease again; False where the hold is lost."""
        return self._taker.renew(hold.fence) is not None

    def change(self, hold: Hold, *ops: Op, head: int | None = None) -> bool | None:
        """Change the metadata and keep the lock; False where the hold is lost or a group holds head back.

        None where that is so by now, and an earlier attempt may have changed it.  For operations that are harmless when
        repeated.
        """
        try:
            self.store.repeat(Update(self._key, ops, self._guard(hold, head), ttl=NEVER))
        except Refused as failure:
            return None if failure.details.get("doubt") else False
        return True

    def commit(
        self, hold: Hold, txns: Mapping[str, tuple[int, int]], moves: Mapping[str, int], *, head: int | None = None
    ) -> bool:
        """Move head or tail, remember the transactions, give the lock back, in one step.

        txns: the first and last offset of each, at least one.  moves: the bins `HEAD` and `TAIL`, where they change.
        head: the new head, where the groups have a say in it.  False where that was not done and never will be.
        Raises `OutcomeUnknown` where it cannot be found out.
        """
        self._since_asked += len(txns) - 1  # the hold counts as one of them
        try:
            self.store.repeat(self._commit(hold, txns, moves, self._guard(hold, head)))
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

    def _commit(
        self, hold: Hold, txns: Mapping[str, tuple[int, int]], moves: Mapping[str, int], guard: Bound
    ) -> Update:
        params: dict[str, Any] = {**guard.params, **moves}
        for place, (txn, (first, last)) in enumerate(txns.items()):
            params[_TXN[place]], params[_ENTRY[place]] = txn, transactions.committed(first, last, hold.fence)
        update = _committing(guard.expr, tuple(moves), len(txns)).fill(self._key, **params)
        if not hold.due:
            return update
        update = plain(update)
        return update._replace(ops=(*transactions.trimmed(hold.due, txns), *update.ops))

    def release(self, hold: Hold, *ops: Op) -> bool:
        """Give the lock back without a commit; False where the hold was lost before. What is due is forgotten."""
        forgotten = transactions.trimmed(hold.due, ()) if hold.due else ()
        return bool(self.change(hold, *forgotten, *ops, *rules.RELEASE))

    def let_go(self, hold: Hold) -> None:
        """Give the lock back after an error; the lease ends by itself where that fails."""
        try:
            self.release(hold)
        except LatchworkError:
            return

    def _settled(self, hold: Hold, txn: str) -> bool:
        """Whether a commit in doubt was made. It cannot be made any more after this.

        Within a verb that has a timeout, a store that is away is asked again until then.
        """
        deadline = present()

        def look() -> Values:
            self.release(hold)
            return self.store.operate(self._key, MapGet(TXNS, txn), MapGet(TXNS, transactions.forgotten_of(txn)))

        try:
            if deadline is None or deadline.end is None:
                entry, forgotten = look()
            else:
                entry, forgotten = outlive(self.store.seams, deadline, look, passing=may_pass)
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
