"""Holding a large circular queue's lock, and ending a hold: with a commit or without (docs/protocols.md P2, P4).

A hold is one acquisition of the lock in the metadata record, with its fence, and what the queue looked like at that
moment, read in the same step. A fence commits once: the commit gives the lock back. After a refusal, or in doubt, the
hold is ended first, so that no late commit of it can land any more; then the transaction map says what became of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..coord import lease as rules
from ..coord.contender import Acquisition, Contender
from ..coord.lease import Observation
from ..errors import LatchworkError, LockUnavailable, NotFound, OutcomeUnknown, Refused
from ..retry import Poll
from ..store.expr import Bound, Param
from ..store.ops import Compute, MapGet, MapPut, MapRemove, Op, Put, Read
from ..store.port import NEVER, RecordStore
from .circular_layout import DUE, FORGOTTEN, HEAD, REMEMBERED, TAIL, TXNS, WAITED_FOR, Layout

POLL = Poll(low=0.0005, high=0.01, factor=1.5, jitter=0.5)
"""How to wait for another process: a hold takes about a millisecond."""

_HEAD_MAY_MOVE = rules.held(0).expr & (Param("head") <= WAITED_FOR)
_LOOK: tuple[Op, ...] = (Read(HEAD), Read(TAIL), Compute(WAITED_FOR), MapGet(TXNS, FORGOTTEN), Compute(DUE))


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold of the lock, and the queue when it began.

    waited_for: head must not pass it.  forgotten: the highest fence whose transactions may have been forgotten.
    due: all transactions, when it is time to forget the oldest.  known: what those asked for have left in the map.
    """

    fence: int
    head: int
    tail: int
    waited_for: int
    forgotten: int
    due: Mapping[str, Any]
    known: Mapping[str, list[int]]


class QueueLock:
    """The lock of one queue, as one process sees it. Safe to share between threads."""

    def __init__(self, store: RecordStore, layout: Layout, lease: float) -> None:
        self.store, self.layout, self.lease = store, layout, lease
        self._observed: Observation | None = None

    def take(self, owner: str, txns: Sequence[str], timeout: float | None) -> Hold:
        """Wait for the lock and take it; one call where it is free.

        Raises `LockUnavailable` after `timeout` seconds, `NotFound` where the queue is gone.
        """
        reads = (*_LOOK, *[MapGet(TXNS, txn) for txn in txns])
        party = self._party(owner, reads)
        acquisition = Acquisition(party)
        try:
            claim = acquisition.take() or acquisition.wait(POLL, timeout=timeout)
        finally:
            self._observed = party.observed
        if claim is None:
            raise LockUnavailable(f"the queue {self.layout.name!r} was locked by others for {timeout} s")
        head, tail, waited_for, forgotten, due = claim.values[: len(_LOOK)]
        known = {txn: entry for txn, entry in zip(txns, claim.values[len(_LOOK) :], strict=True) if entry is not None}
        return Hold(claim.fence, head, tail, waited_for, forgotten, due, known)

    def renew(self, hold: Hold) -> bool:
        """Start the lease again; False where the hold is lost."""
        try:
            self._party("", ()).renew(hold.fence)
        except Refused:
            return False
        return True

    def change(self, hold: Hold, *ops: Op, head: int | None = None) -> bool:
        """Change the metadata and keep the lock; False where the hold is lost or a group holds head back.

        For operations that are harmless when repeated.
        """
        try:
            self.store.operate(self.layout.meta, *ops, when=self._guard(hold, head), ttl=NEVER, repeatable=True)
        except Refused:
            return False
        return True

    def commit(self, hold: Hold, txns: Mapping[str, Sequence[int]], *ops: Op, head: int | None = None) -> bool:
        """Apply the operations, remember the transactions, give the lock back, in one step.

        txns: the first and last offset of each, at least one.  head: the new head, where it moves.  False where that
        was not done and never will be. Raises `OutcomeUnknown` where it cannot be told.
        """
        remember = [MapPut(TXNS, txn, [*span, hold.fence]) for txn, span in txns.items()]
        ops = (*ops, *_forget(hold.due, txns), *remember, *rules.RELEASE)
        try:
            self.store.operate(self.layout.meta, *ops, when=self._guard(hold, head), ttl=NEVER, repeatable=True)
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
            entry, forgotten = self.store.operate(self.layout.meta, MapGet(TXNS, txn), MapGet(TXNS, FORGOTTEN))
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

    def _party(self, owner: str, reads: tuple[Op, ...]) -> Contender:
        party = Contender(self.store, self.layout.meta, owner, self.lease, reads=reads)
        party.observed = self._observed
        return party


def _forget(due: Mapping[str, Any], kept: Collection[str]) -> list[Op]:
    """Operations that forget all but the newest transactions, and keep down to which fence that was done."""
    others = [(entry[2], txn) for txn, entry in due.items() if txn != FORGOTTEN and txn not in kept]
    oldest = sorted(others)[:-REMEMBERED]
    if not oldest:
        return []
    forgotten = max(oldest[-1][0], due[FORGOTTEN])
    return [MapRemove(TXNS, tuple(txn for _, txn in oldest)), MapPut(TXNS, FORGOTTEN, forgotten)]


def head_to(offset: int) -> Op:
    """Head stands at this offset."""
    return Put(HEAD, offset)


def tail_to(offset: int) -> Op:
    """Tail stands at this offset."""
    return Put(TAIL, offset)
