"""Adding to and taking from a large queue: take the lock, write or read slots, commit (docs/protocols P4).

The threads of one process share a hold of the lock: the one that leads does the work of all that wait (`Line`).

A hold that was lost on the way has changed nothing that counts, and another one follows under another fence. A
transaction that was declared not committed in between stays so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...deadline import Deadline
from ...errors import LatchworkError, LeaseLost, LockUnavailable, OutcomeUnknown, Unavailable
from . import transactions
from .buffer import Slots
from .hold import MOST_NAMED, Hold, QueueLock
from .line import Line, Ticket, fail
from .plan import ENQUEUE, Plan, Planner, Request

HOLDS = 8
"""Holds that may be lost one after another before the request fails: the lease is too short for the work."""
_INTERRUPTED = OutcomeUnknown("the thread that did this work was interrupted")


class GroupCommit:
    """The changes of one queue that this process makes. Safe to share between threads."""

    def __init__(self, lock: QueueLock, slots: Slots) -> None:
        self._lock, self._planner = lock, Planner(lock, slots)
        self._seams, self._name = lock.store.seams, lock.layout.name
        self.line = Line(self._seams)

    def submit(self, request: Request, timeout: float | None) -> Any:
        """Do the request, in this thread or in the one that leads; its result.

        Raises the request's error, and `LockUnavailable` once `timeout` seconds (None = no limit) are over.
        """
        request.until = None if timeout is None else self._seams.monotonic() + timeout
        ticket = Ticket(request)
        try:
            self.line.join(ticket)
            self.line.wait(ticket, timeout)
            while ticket.leads:
                self._lead(ticket)
        except BaseException:
            self.line.leave(ticket)
            raise
        if request.error is not None:
            raise request.error
        return request.result

    def _lead(self, mine: Ticket) -> None:
        """Do the work of one hold, then pass the lead on. Where time is over, only the requests it is over for fail."""
        mine.taken = [mine]
        try:
            self._run(mine)
        except LockUnavailable as failure:
            self.line.put_back(mine)
            fail(mine.taken, failure)
        except LatchworkError as failure:
            fail(mine.taken, failure)
        self.line.pass_on(mine)

    def _run(self, mine: Ticket) -> None:
        """Take the lock, do what waits, commit; again under another fence where the hold was lost on the way.

        Raises `LockUnavailable` once the time of one of the requests is over, `LeaseLost` after `HOLDS` lost holds.
        """
        requests: list[Request] = []
        for _ in range(HOLDS):
            own_txn = transactions.own(self._seams.unique())
            # The acquisition looks for the callers' ids, so only requests that are here by now may have one.
            asked = requests or self.line.next(mine)
            named = _named(asked)
            hold = self._take(own_txn, asked[0], named, self._left(requests or asked[:1]))
            # Requests without an id that came while the lock was being taken are part of the hold as well.
            requests = requests or self.line.take(mine, partial(_admitted, set(named)))
            with Deadline(self._seams, self._left(requests)):
                if self._done(hold, own_txn, requests):
                    return
            requests = [request for request in requests if request.error is None]
        raise LeaseLost(
            f"queue {self._name!r} was locked {HOLDS} times, and each time the lease ran out before the "
            "commit; nothing was added or taken: create the queue with a longer lease"
        )

    def _take(self, own_txn: str, first: Request, named: Sequence[str], timeout: float | None) -> Hold:
        """The lock. An attempt that may have taken it did so without a commit, so nothing was changed."""
        try:
            return self._lock.take(own_txn, named, timeout, owner=first.txn or "", head_moves=first.kind != ENQUEUE)
        except OutcomeUnknown as failure:
            raise _nothing_done(failure) from failure

    def _done(self, hold: Hold, own_txn: str, requests: list[Request]) -> bool:
        """Whether each request has its result or its error; False where the hold was lost."""
        try:
            plan = self._planner.plan(hold, requests)
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
            return self._committed(hold, own_txn, plan)
        if plan.declined:
            return self._declined(hold, plan)
        self._lock.let_go(hold)
        return True

    def _committed(self, hold: Hold, own_txn: str, plan: Plan) -> bool:
        try:
            committed = self._lock.commit(hold, _spans(plan, own_txn), plan.moves, head=plan.head)
        except OutcomeUnknown as failure:
            _doubted(plan, own_txn, failure)
            return True
        except LatchworkError:
            self._lock.let_go(hold)
            raise
        except BaseException:
            _doubted(plan, own_txn, _INTERRUPTED)
            raise
        if committed:
            for request, _, result in plan.parts:
                request.result = result
            plan.answer_declined()
        return committed

    def _declined(self, hold: Hold, plan: Plan) -> bool:
        """Answer "full" or "no entries", which is true only if the hold was not lost before the release."""
        try:
            held = self._lock.release(hold)
        except OutcomeUnknown as failure:
            raise _nothing_done(failure) from failure
        if held:
            plan.answer_declined()
        return held

    def _left(self, requests: list[Request]) -> float | None:
        """Seconds until the time of the first of them is over; None = no limit."""
        ends = [request.until for request in requests if request.until is not None]
        return max(0.0, min(ends) - self._seams.monotonic()) if ends else None


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


def _spans(plan: Plan, own_txn: str) -> Mapping[str, tuple[int, int]]:
    """First and last offset of each transaction; requests without an id of their own share one."""
    spans: dict[str, tuple[int, int]] = {}
    for request, offsets, _ in plan.parts:
        txn = request.txn or own_txn
        first = spans[txn][0] if txn in spans else offsets.start
        spans[txn] = (first, offsets.stop - 1)
    return spans


def _nothing_done(failure: OutcomeUnknown) -> Unavailable:
    return Unavailable(f"nothing was committed, and nothing will be: {failure}")


def _doubted(plan: Plan, own_txn: str, failure: OutcomeUnknown) -> None:
    """Answer all requests of a hold whose commit may have been made: with the id to ask for, and the offsets."""
    for request, offsets, _ in plan.parts:
        txn = request.txn or own_txn
        request.error = OutcomeUnknown(f"{failure}; ask transaction({txn!r})", txn_id=txn, offsets=offsets)
    for request, _ in plan.declined:
        request.error = _nothing_done(failure)
