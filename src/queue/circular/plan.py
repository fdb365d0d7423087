"""The work of one hold of a large queue's lock: write or read slots, then commit (docs/protocols P4).

The plan is made under the lock. No part of it counts before the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from ...deadline import present
from ...errors import Corrupt, LatchworkError, LeaseLost, OutcomeUnknown, QueueFull, Unavailable
from ...store.model.ops import MapRemove, Put
from ...store.port import Key
from . import transactions
from .buffer import Buffer
from .layout import HEAD, TAIL, TXNS
from .lock import Hold, QueueLock

ENQUEUE, OVERWRITE, DEQUEUE = "enqueue", "overwrite", "dequeue"
_INTERRUPTED = OutcomeUnknown("the thread that did this work was interrupted")


class Doubt(Struct, frozen=True):
    """What a request has to know of the commit that it is part of, while nobody knows whether that is made.

    txn: the id to look for.
    result: the result of the request, if the commit is made.
    """

    hold: Hold
    txn: str
    offsets: range
    result: Any

    def error(self, failure: OutcomeUnknown) -> OutcomeUnknown:
        """Return the error of the request: with the id to ask for, and the offsets."""
        return OutcomeUnknown(f"{failure}; ask transaction({self.txn!r})", txn_id=self.txn, offsets=self.offsets)


class Request(Struct, eq=False):
    """A change that one caller wants done under the lock, and its result or error.

    since: the fence of the first hold that it was part of.
    until: when its time is over; None = no limit.
    dropped: how many entries its holds have dropped to make room, or may have.
    doubt: the commit that may have been made, and that its own thread may look for; None = there is none.
    """

    kind: str
    txn: str | None
    values: Sequence[Any] = ()
    count: int = 0
    since: int = 0
    dropped: int = 0
    until: float | None = None
    doubt: Doubt | None = None
    result: Any = None
    error: LatchworkError | None = None

    @property
    def answered(self) -> bool:
        """Whether there is a result or an error."""
        return self.result is not None or self.error is not None


class CommitPlan(Struct):
    """The changes of one commit.

    moves: the bins that move.
    head: the new head, if it moves.
    parts: each request with its offsets and its result.
    declined: requests that find no room or no entries. That is true only if the requests before them are committed.
    """

    moves: dict[str, int] = {}
    head: int | None = None
    parts: list[tuple[Request, range, Any]] = []
    declined: list[tuple[Request, LatchworkError | None]] = []

    def answer(self) -> None:
        """Give each request its result: a declined one its error, or no entries."""
        for request, _, result in self.parts:
            request.result = result
        for request, error in self.declined:
            request.error, request.result = error, []


class Planner:
    """The planner of one queue: it makes a plan for each hold of the lock, and carries it out."""

    def __init__(self, lock: QueueLock, buffer: Buffer) -> None:
        self._lock, self._buffer = lock, buffer
        self._name = lock.layout.name

    def carry_out(self, hold: Hold, own_txn: str, requests: list[Request]) -> bool:
        """Do the requests under this hold, and end it. Whether each has its result or its error; False where the hold
        was lost.

        own_txn: the id that requests without one share.
        """
        try:
            plan = self._plan(hold, requests)
        except OutcomeUnknown as failure:
            self._lock.abandon(hold)
            raise nothing_done(failure) from failure
        except LatchworkError:
            self._lock.abandon(hold)
            raise
        if plan is None:
            self._lock.abandon(hold)
            return all(request.error for request in requests)
        if plan.parts:
            return self._commit(hold, own_txn, plan)
        if plan.declined:
            return self._decline(hold, plan)
        self._lock.abandon(hold)
        return True

    def _commit(self, hold: Hold, own_txn: str, plan: CommitPlan) -> bool:
        """Whether the plan is committed, and its requests are answered. False: it is not, and never will be."""
        # First and last offset of each transaction.
        spans: dict[str, tuple[int, int]] = {}
        for request, offsets, result in plan.parts:
            txn = request.txn or own_txn
            spans[txn] = (spans[txn][0] if txn in spans else offsets.start, offsets.stop - 1)
            # Noted before the commit is sent: from then on this thread may be interrupted at any point.
            request.doubt = Doubt(hold, txn, offsets, result)
        try:
            committed = self._lock.commit(hold, spans, plan.moves, head=plan.head)
        except OutcomeUnknown as failure:
            _answer_in_doubt(plan, failure)
            return True
        except LatchworkError:
            self._lock.abandon(hold)
            raise
        if committed:
            plan.answer()
        return committed

    def _decline(self, hold: Hold, plan: CommitPlan) -> bool:
        """Answer "full" or "no entries", which is true only if the hold was not lost before the release."""
        try:
            held = self._lock.release(hold)
        except OutcomeUnknown as failure:
            raise nothing_done(failure) from failure
        if held:
            plan.answer()
        return held

    def _plan(self, hold: Hold, requests: list[Request]) -> CommitPlan | None:
        """Write or read the slots; return the plan of the commit, or None if the hold was lost."""
        stale = _used_before(self._lock.layout.meta, hold, requests) if hold.known else ()
        live = [request for request in requests if request.error is None]
        for request in live:
            request.since, request.doubt = request.since or hold.fence, None
        if stale and not self._lock.change(hold, MapRemove(TXNS, stale)):
            return None
        if not live:
            return CommitPlan()
        return self._dequeue(hold, live) if live[0].kind == DEQUEUE else self._enqueue(hold, live)

    # ---- adding

    def _enqueue(self, hold: Hold, requests: list[Request]) -> CommitPlan | None:
        head, tail = hold.head, hold.tail
        values: list[Any] = []
        plan = CommitPlan()
        for request in requests:
            end = tail + len(request.values)
            lowest = end - self._lock.layout.capacity
            if lowest > head and (request.kind != OVERWRITE or lowest > hold.watermark):
                plan.declined.append((request, self._full(hold, request, tail - head)))
                continue
            head = max(head, lowest)
            offsets = range(tail, end)
            plan.parts.append((request, offsets, offsets))
            values.extend(request.values)
            tail = end
        plan.moves = {TAIL: tail}
        if head > hold.tail:
            # Several overwrites of one hold may drop each other's entries; these were never within head and tail.
            plan.moves, plan.head = {HEAD: head, TAIL: tail}, head
        between = partial(self._lock.renew, hold)
        if head > hold.head and not self._made_room(hold, plan, min(head, hold.tail)):
            return None
        if values and not self._buffer.write(hold.fence, hold.tail, values, between):
            return None
        return plan

    def _made_room(self, hold: Hold, plan: CommitPlan, head: int) -> bool | None:
        """Whether the oldest entries were dropped. Each request is given the number, in case it fails after this."""
        moved: bool | None = None  # None = in doubt
        try:
            moved = self._move_head(hold, head)
        except Unavailable:
            moved = False
            raise
        finally:
            for request, _, _ in plan.parts:
                request.dropped += 0 if moved is False else head - hold.head
        return moved

    def _move_head(self, hold: Hold, head: int) -> bool | None:
        """Move head before the slots are written, so that a crash loses only what was to be overwritten."""
        return self._lock.change(hold, Put(HEAD, head), head=head)

    def _full(self, hold: Hold, request: Request, size: int) -> QueueFull:
        capacity = self._lock.layout.capacity
        if request.kind == OVERWRITE:
            why = f"a group waits at offset {hold.watermark}: let it commit, or drop it"
        else:
            why = "dequeue some, or enqueue with overwrite_if_full=True"
        return QueueFull(
            f"queue {self._name!r} holds {size} of {capacity} entries and has no room for {len(request.values)} more; "
            f"{why}",
            size=size,
            capacity=capacity,
        )

    # ---- taking

    def _dequeue(self, hold: Hold, requests: list[Request]) -> CommitPlan | None:
        plan, head = CommitPlan(), hold.head
        for request in requests:
            count = min(request.count, min(hold.tail, hold.watermark) - head)
            if count <= 0:
                plan.declined.append((request, None))
                continue
            plan.parts.append((request, range(head, head + count), []))
            head += count
        if not plan.parts:
            return plan
        entries = self._buffer.read(hold.head, head - hold.head, partial(self._lock.renew, hold))
        if entries is None or None in entries:
            self._check_lost(hold, head)
            return None
        plan.moves, plan.head = {HEAD: head}, head
        plan.parts = [
            (request, offsets, entries[offsets.start - hold.head : offsets.stop - hold.head])
            for request, offsets, _ in plan.parts
        ]
        return plan

    def _check_lost(self, hold: Hold, head: int) -> None:
        """Raise `Corrupt` if the hold still holds: then slots with other offsets are damaged; else they were
        overwritten.
        """
        if self._lock.renew(hold):
            raise Corrupt(
                f"queue {self._name!r}: some of the offsets {hold.head} to {head - 1} are not in their slots; the "
                "buffer records are older than the metadata: restore them"
            )


def _used_before(meta: Key, hold: Hold, requests: list[Request]) -> tuple[str, ...]:
    """Return the ids that were used for an earlier transaction, whose entry must be removed before this one can be
    judged.
    """
    stale = []
    for request in requests:
        entry = hold.known.get(request.txn or "")
        if request.txn is None or entry is None:
            continue
        try:
            fence = transactions.entry_in(meta, entry)[2]
        except Corrupt as failure:
            request.error = failure
            continue
        if request.since and fence >= request.since:
            request.error = LeaseLost(
                f"transaction {request.txn!r} lost its lock and was then declared not committed, or its id was used "
                "again; it is not committed and will not be",
                txn_id=request.txn,
            )
        else:
            stale.append(request.txn)
    return tuple(stale)


def nothing_done(failure: OutcomeUnknown) -> Unavailable:
    """Return the error of requests that no commit was made for, and none will be."""
    return Unavailable(f"nothing was committed, and nothing will be: {failure}")


def interrupted(request: Request) -> LatchworkError:
    """Return the error of a request whose leader was interrupted."""
    return nothing_done(_INTERRUPTED) if request.doubt is None else request.doubt.error(_INTERRUPTED)


def _answer_in_doubt(plan: CommitPlan, failure: OutcomeUnknown) -> None:
    """Answer all requests of a hold whose commit may have been made."""
    deadline = present()
    for request, _, _ in plan.parts:
        if request.doubt is not None:
            request.error = request.doubt.error(failure)
        if deadline is None or deadline.end is None:
            request.doubt = None  # nobody in the hold has a timeout, so nobody has more time than the leader had
    for request, _ in plan.declined:
        request.error = nothing_done(failure)
