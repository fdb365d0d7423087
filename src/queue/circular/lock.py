"""The lock of a large circular queue: taking it, and ending a hold with a commit or without (docs/protocols P2, P4).

A hold is one acquisition of the lock in the metadata record, with its fence, and the state of the queue at that moment,
read in the same step. A fence commits once: the commit releases the lock. After a refusal, or in doubt, the hold is
ended first, so that none of its commits can be applied later; then the transaction map says whether it was committed.

The lock has the bins and rules of every lease. It differs from a `FencedLock` in three ways. Every step under it is
guarded by its fence, so the holder needs no clock; the acquisition reads the queue in the same step; and all bins of
the lease exist from the beginning, with a length that never changes, so guards and operations are shorter.

An attempt whose reply was lost is recognised by its grant id in the record. If it takes the lock after its caller has
given up, the lock stays unused until its lease runs out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...coord import lease as rules
from ...coord.lease import LeaseView, Observation
from ...deadline import present
from ...errors import LatchworkError, LockUnavailable, NotFound, OutcomeUnknown, Refused
from ...retry import Poll, may_pass, outlive
from ...store.model.expr import SERVER_NOW, Bin, Bound, Expr, Param, largest
from ...store.model.form import Form, plain
from ...store.model.ops import Compute, MapGet, MapPut, Op, Put, Read
from ...store.model.record import NO_PARAMS
from ...store.port import NEVER, RecordStore, Update, Values
from . import transactions
from .layout import HEAD, SHAPE, TAIL, TXNS, WATERMARK, Layout, offset_in, watermark_in

POLL = Poll(low=0.0005, high=0.005, factor=1.5, jitter=0.5)
"""The pauses while another process holds the lock: a hold takes about a millisecond."""
MOST_NAMED = 64
"""Transactions with an id of the caller's in one hold, at most."""
_TXN, _ENTRY = (tuple(f"{name}{place}" for place in range(MOST_NAMED + 1)) for name in ("txn", "entry"))
"""Names of parameters: one for each named transaction, and one that all requests without an id share."""
_NOTHING: dict[str, Any] = {}

_FREE = Bin(rules.LOCKED).eq(0) & Bin(rules.GRANT, str).ne(Param("grant", str))
_TAKE: tuple[Op, ...] = (
    Put(rules.FENCE, largest(Bin(rules.FENCE) + 1, SERVER_NOW * 1000)),
    Put(rules.LOCKED, 1),
    Put(rules.TIME, SERVER_NOW),
    Put(rules.OWNER, Param("owner", str)),
    Put(rules.GRANT, Param("grant", str)),
    # Computed, since an Aerospike server answers every operation of an update that computes something, in order.
    Compute(Bin(rules.FENCE)),
)

_HELD = rules.held(0).expr
_HEAD_MAY_MOVE = _HELD & (Param("head") <= WATERMARK)
_HEAD, _TAIL, _WATERMARK, _DUE = Read(HEAD), Read(TAIL), Compute(WATERMARK), Compute(transactions.DUE)


@lru_cache(maxsize=16)
def _both(guard: Expr, unchanged: Expr) -> Expr:
    return guard & unchanged  # one object for all queues, so that it is compiled once


@lru_cache(maxsize=512)
def _form(guard: Expr, changes: tuple[Op, ...], reads: tuple[Op, ...]) -> Form:
    return Form(*changes, *reads, when=guard, ttl=NEVER)


@lru_cache(maxsize=512)
def _reads(head_moves: bool, asks: bool, named: int) -> tuple[Op, ...]:
    """Return the operations by which an acquisition reads the queue.

    head_moves: whether head may move.
    asks: whether to read all transactions, to forget the oldest.
    named: how many transactions are looked for.
    """
    look: list[Op] = [_HEAD, _TAIL, *[_WATERMARK] * head_moves, *[_DUE] * asks]
    return (*look, *[MapGet(TXNS, Param(txn, str)) for txn in _TXN[:named]])


@lru_cache(maxsize=512)
def _committing(guard: Expr, moves: tuple[str, ...], named: int) -> Form:
    """Return a commit that moves these bins and remembers this number of transactions."""
    moving = [Put(bin, Param(bin)) for bin in moves]
    names = zip(_TXN[:named], _ENTRY, strict=False)
    remember = [MapPut(TXNS, Param(txn, str), Param(entry, list)) for txn, entry in names]
    return Form(*moving, *remember, *rules.RELEASE, when=guard, ttl=NEVER)


def never_held(lease: float, fence: int) -> tuple[Op, ...]:
    """Return the lease's bins for a new record: its length in seconds, and a fence that is below all its
    later fences.
    """
    return (
        *rules.NEVER_HELD,
        Put(rules.FENCE, fence),
        Put(rules.OWNER, ""),
        Put(rules.GRANT, ""),
        Put(rules.TIME, 0),
        Put(rules.LEASE, round(lease * 1000)),
    )


class Hold(Struct, frozen=True):
    """One hold of the lock, and the state of the queue when it began.

    watermark: head must not pass it.
    due: all transactions, if it is time to forget the oldest.
    known: the entries of the transactions that were looked for.
    """

    fence: int
    head: int
    tail: int
    watermark: int
    due: Mapping[str, Any]
    known: Mapping[str, Any]


class QueueLock:
    """The lock of one queue, as one process sees it. Safe to share between threads."""

    def __init__(self, store: RecordStore, layout: Layout) -> None:
        self.store, self.layout = store, layout
        self.key = layout.meta
        # A handle from before the queue was made again with another layout must not write to its places (P4.11).
        self.shape, self.unchanged = layout.shape, layout.unchanged
        self.free = _both(_FREE, self.unchanged)
        self._observed: Observation | None = None
        self._since_asked = transactions.ASK_EVERY

    def take(
        self, grant: str, txns: Sequence[str], timeout: float | None, *, owner: str = "", head_moves: bool = False
    ) -> Hold:
        """Wait for the lock and take it; one call if it is free.

        grant: an id of this hold alone.
        txns: the ids to look for; `known` has the entries found.
        timeout: seconds; None = no limit.
        owner: for people.
        head_moves: whether `watermark` is needed.

        Raises `LockUnavailable` after the timeout, `NotFound` if there is no queue or it has another layout by now,
        `OutcomeUnknown` if an attempt may have taken the lock: then it stays unused until its lease runs out.
        """
        asks = self._since_asked >= transactions.ASK_EVERY
        self._since_asked = 1 if asks else self._since_asked + 1
        reads, asked = _reads(head_moves, asks, len(txns)), dict(zip(_TXN, txns, strict=False)) if txns else _NOTHING
        # Mostly the lock is free. Else look until it is, or until it has been unchanged for a whole lease.
        acquisition = _Acquisition(self, owner or grant, grant, reads, asked)
        values = acquisition.attempt(self.free) or POLL.until(self.store.seams, acquisition.look, timeout=timeout)
        if values is None:
            raise LockUnavailable(
                f"queue {self.key.set!r} was locked by others for {timeout:.3g} s: wait longer", key=self.key
            )
        # The queue as it was when the lock was taken, in the order of `_reads`.
        fence, head, tail, *more = values
        head, tail = offset_in(self.key, HEAD, head), offset_in(self.key, TAIL, tail)
        watermark = watermark_in(self.key, more.pop(0)) if head_moves else 0
        due = more.pop(0) if asks else _NOTHING
        known = {txn: entry for txn, entry in zip(txns, more, strict=True) if entry is not None} if txns else _NOTHING
        return Hold(fence, head, tail, watermark, due, known)

    def observe(self) -> Observation:
        """Read the lease; return it, and since when it has been seen unchanged. Raises `NotFound` as `take`."""
        record = self.store.get(self.key, *rules.BINS, *SHAPE)
        if record is None:
            raise NotFound(f"the queue {self.key.set!r} is gone; make it with LargeQueue.create", key=self.key)
        self.layout.check(record.bins)
        view, now = LeaseView.of(self.key, record.bins), self.store.seams.monotonic()
        before = self._observed  # read once: another thread may replace it
        seen = before.then(view, now) if before else Observation(view, now)
        self._observed = seen
        return seen

    def renew(self, hold: Hold) -> bool:
        """Start the lease again; False if the hold is lost."""
        return self.renew_and_read(hold.fence) is not None

    def renew_and_read(
        self, fence: int, reads: tuple[Op, ...] = (), asked: Mapping[str, str] = NO_PARAMS
    ) -> tuple[Any, ...] | None:
        """Start the lease again; return what `reads` returned, or None if it is not held under this fence any more."""
        try:
            return self.store.repeat(_form(_HELD, rules.RENEW, reads).fill(self.key, fence=fence, **asked))
        except Refused:
            return None

    def change(self, hold: Hold, *ops: Op, head: int | None = None) -> bool | None:
        """Change the metadata and keep the lock; False if the hold is lost or a group holds head back.

        Returns None if that is so now, but an earlier attempt may have been applied. Only for operations that are
        harmless when repeated.
        """
        try:
            self.store.repeat(Update(self.key, ops, self._guard(hold, head), ttl=NEVER))
        except Refused as failure:
            return None if failure.details.get("doubt") else False
        return True

    def commit(
        self, hold: Hold, txns: Mapping[str, tuple[int, int]], moves: Mapping[str, int], *, head: int | None = None
    ) -> bool:
        """Move head or tail, remember the transactions, and release the lock, in one step.

        txns: the first and last offset of each, at least one.
        moves: the bins `HEAD` and `TAIL` that change.
        head: the new head, if groups may hold it back.

        Returns False if that was not done and never will be. Raises `OutcomeUnknown` if it is not known.
        """
        self._since_asked += len(txns) - 1  # the hold counts as one of them
        guard = self._guard(hold, head)
        params: dict[str, Any] = {**guard.params, **moves}
        for place, (txn, (first, last)) in enumerate(txns.items()):
            params[_TXN[place]], params[_ENTRY[place]] = txn, [first, last, hold.fence]
        update = _committing(guard.expr, tuple(moves), len(txns)).fill(self.key, **params)
        if hold.due:
            update = plain(update)
            update = replace(update, ops=(*transactions.trimmed(hold.due, txns), *update.ops))
        try:
            self.store.repeat(update)
            return True
        except Refused as refusal:
            if not refusal.details["doubt"]:
                self.abandon(hold)
                return False
        except NotFound as absence:
            if not absence.details["doubt"]:
                raise
        except OutcomeUnknown:
            pass
        return self.settled(hold, next(iter(txns)))

    def release(self, hold: Hold, *ops: Op) -> bool:
        """Release the lock without a commit; False if the hold was lost before. The transactions that are due are
        forgotten.
        """
        forgotten = transactions.trimmed(hold.due, ()) if hold.due else ()
        return bool(self.change(hold, *forgotten, *ops, *rules.RELEASE))

    def abandon(self, hold: Hold) -> None:
        """Release the lock after an error; if that fails, the lease runs out."""
        try:
            self.release(hold)
        except LatchworkError:
            return

    def settled(self, hold: Hold, txn: str) -> bool:
        """Whether a commit in doubt was made. After this it cannot be made any more.

        Within a call that has a timeout, an unavailable store is asked again until then. Raises `OutcomeUnknown` if the
        store does not say.
        """
        deadline = present()

        def look() -> Values:
            self.release(hold)
            return self.store.operate(self.key, MapGet(TXNS, txn), MapGet(TXNS, transactions.forgotten_of(txn)))

        try:
            if deadline is None or deadline.end is None:
                entry, forgotten = look()
            else:
                entry, forgotten = outlive(self.store.seams, deadline, look, passing=may_pass)
            if entry is not None and transactions.entry_in(self.key, entry)[2] == hold.fence:
                return True
            is_forgotten = transactions.forgotten_in(self.key, forgotten) >= hold.fence
        except LatchworkError as failure:
            raise OutcomeUnknown(f"a commit to queue {self.layout.name!r} may have been made: {failure}") from failure
        if is_forgotten:
            raise OutcomeUnknown(
                f"a commit to queue {self.layout.name!r} may have been made, so long ago that it is forgotten"
            )
        return False

    def _guard(self, hold: Hold, head: int | None) -> Bound:
        return _HELD.bind(fence=hold.fence) if head is None else _HEAD_MAY_MOVE.bind(fence=hold.fence, head=head)


class _Acquisition(Struct):
    """One acquisition, with all its attempts, under one id.

    asked: the values of the parameters in `reads`.
    """

    lock: QueueLock
    owner: str
    grant: str
    reads: tuple[Op, ...]
    asked: Mapping[str, str]

    def attempt(self, guard: Expr, seen: Mapping[str, Any] = NO_PARAMS) -> tuple[Any, ...] | None:
        """Take the lock if the guard holds; return the fence and what was read, or None.

        seen: the guard's parameters, besides the id of this acquisition.
        """
        lock = self.lock
        params = {**seen, **self.asked, **lock.shape, "owner": self.owner, "grant": self.grant}
        try:
            return lock.store.repeat(_form(guard, _TAKE, self.reads).fill(lock.key, **params))
        except Refused as refusal:
            return self._recognised(lock.observe()) if refusal.details["doubt"] else None
        except OutcomeUnknown:
            return self._recognised(lock.observe())

    def look(self) -> tuple[Any, ...] | None:
        """Look, and take the lock if it is free, or if it has been unchanged for its whole length."""
        seen = self.lock.observe()
        if seen.view.grant == self.grant:
            return self._recognised(seen)
        if not seen.view.locked:
            return self.attempt(self.lock.free)
        if seen.ran_out(self.lock.store.seams.monotonic()):
            broken = rules.broken(seen.view, self.grant)
            return self.attempt(_both(broken.expr, self.lock.unchanged), broken.params)
        return None

    def _recognised(self, seen: Observation) -> tuple[Any, ...] | None:
        """Return the lock if an attempt in doubt has taken it and still has it, else None."""
        if seen.view.grant != self.grant:
            return None
        fence, held = seen.view.fence, seen.view.locked
        values = self.lock.renew_and_read(fence, self.reads, self.asked) if held else None
        if values is None:
            self.grant = self.lock.store.seams.unique()  # it was lost again: another acquisition, another id
            return None
        return (fence, *values)
