"""One round of a large circular queue: take the lock, write or read slots, commit (docs/protocols P4).

A round whose hold was lost on the way has changed nothing that counts, and another one follows under another fence. A
transaction that was declared not committed in between stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from ...deadline import Deadline
from ...errors import Corrupt, LatchworkError, LeaseLost, OutcomeUnknown, QueueFull, Unavailable
from ...store.model.ops import MapRemove, Put
from . import transactions
from .buffer import Slots
from .hold import MOST_NAMED, Hold, QueueLock
from .layout import HEAD, TAIL, TXNS

ROUNDS = 8
"""Holds that may be lost in a row before it is given up: the lease is too short for the work."""
_INTERRUPTED = OutcomeUnknown("the thread that did this work was interrupted")
ENQUEUE, OVERWRITE, DEQUEUE = "enqueue", "overwrite", "dequeue"


class Request(Struct, eq=False):
    """What one caller wants of a hold, and its result or error.

    since: the fence of the first hold it was part of.  until: when its time is over; None = never.
    dropped: how many entries its holds have dropped to make room, or may have.
    """

    kind: str
    txn: str | None
    values: Sequence[Any] = ()
    count: int = 0
    since: int = 0
    dropped: int = 0
    until: float | None = None
    result: Any = None
    error: LatchworkError | None = None


class _Plan(Struct):
    """The changes of one commit: which bins move, the head if it does, and each request's offsets and result.

    told: requests that find no room or no entries left, which is so only if what comes before them is committed.
    """

    moves: dict[str, int] = {}
    head: int | None = None
    parts: list[tuple[Request, range, Any]] = []
    told: list[tuple[Request, LatchworkError | None]] = []

    def tell(self) -> None:
        """Answer those for whom nothing is done: with their error, or with "no entries"."""
        for request, error in self.told:
            request.result, request.error = [], error


class Rounds:
    """Runs requests of one kind, for as many rounds as it takes."""

    def __init__(self, lock: QueueLock, slots: Slots) -> None:
        self._lock, self._slots = lock, slots
        self._name = lock.layout.name

    def run(
        self,
        waiting: Callable[[], list[Request]],
        collect: Callable[[Callable[[Request], bool]], list[Request]],
    ) -> None:
        """Take the lock, then do all that `collect` gives. `waiting`: what can be collected now, the leader's first.

        Raises `LockUnavailable` once the time of the leader, or of one that was collected, is over.
        """
        requests: list[Request] = []
        for _ in range(ROUNDS):
            shared = transactions.own(self._lock.store.seams.unique())
            asked = requests or waiting()
            named = _named(asked)
            hold = self._take(shared, asked[0], named, self._left(requests or asked[:1]))
            if not requests:
                requests = collect(partial(_admitted, set(named)))
            with Deadline(self._lock.store.seams, self._left(requests)):
                if self._done(hold, shared, requests):
                    return
            requests = [request for request in requests if request.error is None]
        raise LeaseLost(
            f"queue {self._name!r} was locked {ROUNDS} times, and each time the lease ran out before the "
            "commit; nothing was added or taken: create the queue with a longer lease"
        )

    def _left(self, requests: list[Request]) -> float | None:
        """Seconds until the time of one of them is over."""
        ends = [request.until for request in requests if request.until is not None]
        return max(0.0, min(ends) - self._lock.store.seams.monotonic()) if ends else None

    def _take(self, shared: str, leader: Request, named: Sequence[str], timeout: float | None) -> Hold:
        """The lock. An attempt that may have taken it does so for nobody, so nothing can come of it."""
        head_moves = leader.kind != ENQUEUE
        try:
            return self._lock.take(shared, named, timeout, owner=leader.txn or "", head_moves=head_moves)
        except OutcomeUnknown as failure:
            raise _nothing_done(failure) from failure

    def _done(self, hold: Hold, shared: str, requests: list[Request]) -> bool:
        """Whether every request has its result or its error; False where the hold was lost."""
        try:
            plan = self._planned(hold, requests)
        except OutcomeUnknown as failure:
            self._lock.let_go(hold)
            raise _nothing_done(failure) from failure
        except LatchworkError:
            self._lock.let_go(hold)
            raise
        except BaseException:
            for request in requests:
                request.error = request.error or _nothing_done(_INTERRUPTED)
            raise
        if plan is None:
            self._lock.let_go(hold)
            return all(request.error for request in requests)
        if plan.parts:
            return self._committed(hold, shared, plan)
        if plan.told:
            return self._told(hold, plan)
        self._lock.let_go(hold)
        return True

    def _told(self, hold: Hold, plan: _Plan) -> bool:
        """What is full, or has no entries, is so only if the hold still was: some may have asked after it was lost."""
        try:
            held = self._lock.release(hold)
        except OutcomeUnknown as failure:
            raise _nothing_done(failure) from failure
        if held:
            plan.tell()
        return held

    def _committed(self, hold: Hold, shared: str, plan: _Plan) -> bool:
        try:
            committed = self._lock.commit(hold, _spans(plan, shared), plan.moves, head=plan.head)
        except OutcomeUnknown as failure:
            _doubted(plan, shared, failure)
            return True
        except LatchworkError:
            self._lock.let_go(hold)
            raise
        except BaseException:
            _doubted(plan, shared, _INTERRUPTED)
            raise
        if committed:
            for request, _, result in plan.parts:
                request.result = result
            plan.tell()
        return committed

    def _planned(self, hold: Hold, requests: list[Request]) -> _Plan | None:
        """The slots written or read, and what is left to commit; None where the hold was lost."""
        stale = _used_before(hold, requests) if hold.known else ()
        live = [request for request in requests if request.error is None]
        for request in live:
            request.since = request.since or hold.fence
        if stale and not self._lock.change(hold, MapRemove(TXNS, stale)):
            return None
        if not live:
            return _Plan()
        return self._taken(hold, live) if live[0].kind == DEQUEUE else self._added(hold, live)

    # ---- adding

    def _added(self, hold: Hold, requests: list[Request]) -> _Plan | None:
        head, tail = hold.head, hold.tail
        values: list[Any] = []
        plan = _Plan()
        for request in requests:
            end = tail + len(request.values)
            lowest = end - self._lock.layout.capacity
            if lowest > head and (request.kind != OVERWRITE or lowest > hold.waited_for):
                plan.told.append((request, self._full(hold, request, tail - head)))
                continue
            head = max(head, lowest)
            offsets = range(tail, end)
            plan.parts.append((request, offsets, offsets))
            values.extend(request.values)
            tail = end
        plan.moves = {TAIL: tail}
        if head > hold.tail:
            # Several overwrites of one hold may drop each other's entries; those have no tail to be dropped from yet.
            plan.moves, plan.head = {HEAD: head, TAIL: tail}, head
        between = partial(self._lock.renew, hold)
        if head > hold.head and not self._made_room(hold, plan, min(head, hold.tail)):
            return None
        if values and not self._slots.write(hold.fence, hold.tail, values, between):
            return None
        return plan

    def _made_room(self, hold: Hold, plan: _Plan, head: int) -> bool | None:
        """Whether the oldest entries were dropped; each request knows how many, should it fail after this."""
        moved: bool | None = None  # None = in doubt
        try:
            moved = self._overwritten(hold, head)
        except Unavailable:
            moved = False
            raise
        finally:
            for request, _, _ in plan.parts:
                request.dropped += 0 if moved is False else head - hold.head
        return moved

    def _overwritten(self, hold: Hold, head: int) -> bool | None:
        """Head moved on first, so that a crash from here on loses nothing but what was to be overwritten."""
        return self._lock.change(hold, Put(HEAD, head), head=head)

    def _full(self, hold: Hold, request: Request, size: int) -> QueueFull:
        capacity = self._lock.layout.capacity
        if request.kind == OVERWRITE:
            why = f"a group waits at offset {hold.waited_for}: let it commit, or drop it"
        else:
            why = "dequeue some, or enqueue with overwrite_if_full=True"
        return QueueFull(
            f"queue {self._name!r} holds {size} of {capacity} entries and has no room for {len(request.values)} more; "
            f"{why}",
            size=size,
            capacity=capacity,
        )

    # ---- taking

    def _taken(self, hold: Hold, requests: list[Request]) -> _Plan | None:
        plan, head = _Plan(), hold.head
        for request in requests:
            count = min(request.count, min(hold.tail, hold.waited_for) - head)
            if count <= 0:
                plan.told.append((request, None))
                continue
            plan.parts.append((request, range(head, head + count), []))
            head += count
        if not plan.parts:
            return plan
        entries = self._slots.read(hold.head, head - hold.head, partial(self._lock.renew, hold))
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
        """Slots that hold other offsets: the hold was lost, and they were overwritten; otherwise they are damaged."""
        if self._lock.renew(hold):
            raise Corrupt(
                f"queue {self._name!r}: some of the offsets {hold.head} to {head - 1} are not in their slots; the "
                "buffer records are older than the metadata: restore them"
            )


def _named(requests: list[Request]) -> list[str]:
    """The callers' ids that a hold looks for, each once."""
    named = [request.txn for request in requests if request.txn]
    return list(dict.fromkeys(named))[:MOST_NAMED] if named else named


def _admitted(named: set[str], request: Request) -> bool:
    """Whether a request can be part of a hold that looked for these transactions; each of them once."""
    if request.txn is None:
        return True
    if request.txn not in named:
        return False
    named.remove(request.txn)
    return True


def _used_before(hold: Hold, requests: list[Request]) -> tuple[str, ...]:
    """The ids that have been used for an earlier transaction, whose record must go before this one can be judged."""
    stale = []
    for request in requests:
        entry = hold.known.get(request.txn or "")
        if request.txn is None or entry is None:
            continue
        if request.since and entry[2] >= request.since:
            request.error = LeaseLost(
                f"transaction {request.txn!r} lost its lock and was then declared not committed, or its id was used "
                "again; it is not committed and will not be",
                txn_id=request.txn,
            )
        else:
            stale.append(request.txn)
    return tuple(stale)


def _spans(plan: _Plan, shared: str) -> Mapping[str, tuple[int, int]]:
    """First and last offset of each transaction; requests without an id of their own share one."""
    spans: dict[str, tuple[int, int]] = {}
    for request, offsets, _ in plan.parts:
        txn = request.txn or shared
        first = spans[txn][0] if txn in spans else offsets.start
        spans[txn] = (first, offsets.stop - 1)
    return spans


def _nothing_done(failure: OutcomeUnknown) -> Unavailable:
    return Unavailable(f"nothing was committed, and nothing will be: {failure}")


def _doubted(plan: _Plan, shared: str, failure: OutcomeUnknown) -> None:
    """Answer all requests of a hold whose commit may have been made: with the id to ask for, and the offsets."""
    for request, offsets, _ in plan.parts:
        txn = request.txn or shared
        request.error = OutcomeUnknown(f"{failure}; ask transaction({txn!r})", txn_id=txn, offsets=offsets)
    for request, _ in plan.told:
        request.error = _nothing_done(failure)
