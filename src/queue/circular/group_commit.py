"""The threads of one process that change one large queue together: one leads, and commits for all (docs/protocols P4).

The leader takes the lock and does the work of all that wait. Then it passes the lead to the next thread, so no thread
works for others without end.

If a hold is lost before the commit, nothing has changed, and the work is done again under another fence. A transaction
that was declared not committed in between is never committed.

A hold lasts no longer than the shortest time of its requests. Those that have more time do not fail with it: before the
commit they go to another hold, and a commit in doubt is looked for by each of them.

A thread may be interrupted anywhere, as by Ctrl-C. Before it ends, the threads whose work it had taken are told what
became of it: nothing, or a commit in doubt, which they look for. Then the next thread leads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

from msgspec import Struct

from ...deadline import Deadline, present
from ...errors import LatchworkError, LeaseLost, LockUnavailable, OutcomeUnknown
from ...forks import reset_in_child
from ...retry import again
from ...seams import Event, Seams
from . import transactions
from .buffer import Buffer
from .lock import MOST_NAMED, QueueLock
from .plan import ENQUEUE, Planner, Request, interrupted, nothing_done

MOST = 256
"""Requests that are done under one hold of the lock."""
HOLDS = 8
"""Holds that may be lost one after another before the request fails: then the lease is too short for the work."""


class GroupCommit:
    """The changes that this process makes to one queue. Safe to share between threads."""

    def __init__(self, lock: QueueLock, buffer: Buffer) -> None:
        self._lock, self._planner = lock, Planner(lock, buffer)
        self._seams, self._name = lock.store.seams, lock.layout.name
        self.line = Tickets(self._seams)

    def submit(self, request: Request, timeout: float | None) -> Any:
        """Do the request, in this thread or in the one that leads; return its result.

        Raises the request's error, and `LockUnavailable` after `timeout` seconds (None = no limit).
        """
        request.until = None if timeout is None else self._seams.monotonic() + timeout
        self._hand_in(request, timeout)
        while isinstance(request.error, OutcomeUnknown) and self._was_not_made(request):
            self._hand_in(request, self._left([request]))
        if request.error is not None:
            raise request.error
        return request.result

    def _hand_in(self, request: Request, timeout: float | None) -> None:
        """Wait until the request has a result or an error."""
        ticket = Ticket(request)
        try:
            self.line.join(ticket, timeout)
            self._lead(ticket)
            ticket.gone = True  # the request may be handed in again, while the leader still has this ticket
        except BaseException:
            self.line.leave(ticket)
            raise

    def _was_not_made(self, request: Request) -> bool:
        """Whether a request that was left in doubt has to be done again: its commit was not made, and never will be.

        If the commit was made, the request gets its result. Otherwise, if its time is over or the store does not say,
        it keeps its error.
        """
        doubt, deadline = request.doubt, present()
        if doubt is None or (deadline is not None and deadline.left() == 0):
            return False
        try:
            # By its own id: another caller of the hold may have had an answer, and then used its id again.
            is_made = self._lock.settled(doubt.hold, doubt.txn)
        except OutcomeUnknown:
            return False
        request.result, request.error = doubt.result if is_made else None, None
        return not is_made

    def _lead(self, mine: Ticket) -> None:
        """While this thread leads, do the work of one hold, then pass the lead on: to itself if its own work goes back.

        If the lock is not to be had, or the store is unavailable, only the requests fail that had no more time than the
        hold; nothing was committed.
        """
        while mine.leads:
            mine.taken = [mine]
            try:
                self._run(mine)
            except LatchworkError as failure:
                if isinstance(failure, LockUnavailable) or again(failure):
                    self.line.put_back(mine)
                fail(mine.taken, failure)
            self.line.pass_on(mine)

    def _run(self, mine: Ticket) -> None:
        """Take the lock, do the waiting requests, commit; again under another fence if the hold was lost before the
        commit.

        Raises `LockUnavailable` once the time of one of the requests is over, `LeaseLost` after `HOLDS` lost holds.
        """
        requests: list[Request] = []
        for _ in range(HOLDS):
            own_txn = transactions.OWN + self._seams.unique()
            # The acquisition looks for the callers' ids, each once, so only requests that are here by now may have one.
            asked = requests or self.line.next(mine)
            named = list(dict.fromkeys([request.txn for request in asked if request.txn]))[:MOST_NAMED]
            first = asked[0]
            left, head_moves = self._left(requests or [first]), first.kind != ENQUEUE
            try:
                hold = self._lock.take(own_txn, named, left, owner=first.txn or "", head_moves=head_moves)
            except OutcomeUnknown as failure:  # an attempt that may have taken the lock made no commit
                raise nothing_done(failure) from failure
            # Requests without an id that came while the lock was being taken are part of the hold as well.
            requests = requests or self.line.take(mine, named)
            with Deadline(self._seams, self._left(requests)):
                if self._planner.carry_out(hold, own_txn, requests):
                    return
            requests = [request for request in requests if request.error is None]
        raise LeaseLost(
            f"queue {self._name!r} was locked {HOLDS} times, and each time the lease ran out before the "
            "commit; nothing was added or taken: create the queue with a longer lease"
        )

    def _left(self, requests: list[Request]) -> float | None:
        """Return the seconds until the time of the first request is over; None = no limit."""
        ends = [request.until for request in requests if request.until is not None]
        return max(0.0, min(ends) - self._seams.monotonic()) if ends else None


class Ticket(Struct, eq=False):
    """One request that waits in this process.

    wake: is set when there is an answer, or the lead; None for a thread that leads from the beginning.
    leads: whether its thread takes the lock for all that wait.
    gone: whether its thread does not wait any more, as it has its answer, or was interrupted: it must not be given the
        lead.
    taken: while it leads, the tickets that it answers; at first its own.
    """

    request: Request
    wake: Event | None = None
    leads: bool = False
    gone: bool = False
    taken: Sequence[Ticket] = ()


class Tickets:
    """The waiting tickets, in order, and whether one of them leads. Safe to share between threads."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Empty the line, with no leader: a forked child has none of its parent's threads."""
        self._guard = self._seams.lock()
        self.waiting: list[Ticket] = []
        self.led = False

    def join(self, mine: Ticket, timeout: float | None) -> None:
        """Add the ticket at the end, and wait for an answer or for the lead; it leads at once if no other does.

        Raises `LockUnavailable` if no leader has taken the request within `timeout` seconds (None = no limit).
        """
        with self._guard:
            self.waiting.append(mine)
            mine.leads, self.led = not self.led, True
            if not mine.leads:
                mine.wake = self._seams.event()
        if mine.wake is None or mine.wake.wait(timeout):
            return
        with self._guard:
            if mine in self.waiting and not mine.leads:
                self.waiting.remove(mine)
                raise LockUnavailable(f"other threads of this process held the queue for {timeout} s: wait longer")
        mine.wake.wait()

    def next(self, mine: Ticket) -> list[Request]:
        """Return what the leader's hold could do now: the waiting requests of its own kind, in order, its own first."""
        if len(self.waiting) == 1:
            return [mine.request]
        with self._guard:
            return [ticket.request for ticket in self._alike(mine)]

    def take(self, mine: Ticket, named: Collection[str]) -> list[Request]:
        """Remove the requests that are part of the leader's hold from the line and return them; the leader has to
        answer them.

        named: the callers' ids that the hold has looked for. A request with another one waits for another hold, and so
            does a second request with one of these.
        """
        with self._guard:
            mine.taken = self._for_one_hold(mine, named)
            self.waiting[:] = without(self.waiting, mine.taken)
        return [ticket.request for ticket in mine.taken]

    def put_back(self, mine: Ticket) -> None:
        """Put the taken requests that have more time than this hold had back to the front; they wait for another."""
        back = self._in_time(mine.taken)
        with self._guard:
            self.waiting[:0] = still_there(back)
            mine.taken = without(mine.taken, back)

    def pass_on(self, mine: Ticket) -> None:
        """Give the lead to the first that waits, and wake all that have an answer. Harmless when repeated."""
        with self._guard:
            # The old leader leads until the last line, so an interrupted step can be done again.
            if mine.leads and mine in mine.taken and mine in self.waiting:
                self.waiting.remove(mine)
            first = self.waiting[0] if self.waiting else None
            if mine.leads:
                self.led = first is not None
                if first is not None:
                    first.leads = True
                mine.leads = first is mine
        for ticket in (*mine.taken, *([first] if first is not None and first.leads else [])):
            if ticket.wake is not None:
                ticket.wake.set()
        mine.taken = ()  # it holds the ticket itself, and such a circle waits for the garbage collector

    def leave(self, mine: Ticket) -> None:
        """Take an interrupted thread out of the line. If it led, its requests fail and the next thread leads."""
        with self._guard:
            mine.gone = True
            self.waiting[:] = without(self.waiting, [mine, *mine.taken])
        for ticket in mine.taken:
            # In this order: a request whose thread has gone on may just have lost its answer, to be handed in again.
            if not ticket.request.answered and not ticket.gone:
                ticket.request.error = interrupted(ticket.request)
        self.pass_on(mine)

    def _alike(self, mine: Ticket) -> list[Ticket]:
        """Return the tickets that one hold can do together with this one, in order; the caller holds the guard."""
        return [ticket for ticket in self.waiting if ticket.request.kind == mine.request.kind][:MOST]

    def _for_one_hold(self, mine: Ticket, named: Collection[str]) -> list[Ticket]:
        """Return the tickets like this one whose ids the hold has looked for; the caller holds the guard."""
        unused, found = set(named), []
        for ticket in self._alike(mine):
            txn = ticket.request.txn
            if txn is None or txn in unused:
                unused.discard(txn)
                found.append(ticket)
        return found

    def _in_time(self, taken: Sequence[Ticket]) -> list[Ticket]:
        """Return the tickets that have time for another hold, in order; never all of them, so that the loop ends."""
        open_ones = [ticket for ticket in taken if not ticket.request.answered]
        ends = [ticket.request.until for ticket in open_ones if ticket.request.until is not None]
        if not ends:
            return []
        over = max(self._seams.monotonic(), min(ends))
        return [ticket for ticket in open_ones if ticket.request.until is None or ticket.request.until > over]


def without(tickets: Sequence[Ticket], out: Sequence[Ticket]) -> list[Ticket]:
    """Return the tickets that are not among the second ones, in order."""
    leaving = {id(ticket) for ticket in out}
    return [ticket for ticket in tickets if id(ticket) not in leaving]


def still_there(tickets: Sequence[Ticket]) -> list[Ticket]:
    """Return the tickets whose threads were not interrupted, in order."""
    return [ticket for ticket in tickets if not ticket.gone]


def fail(tickets: Sequence[Ticket], failure: LatchworkError) -> None:
    """Answer all that have no answer with the failure; each gets a copy that its caller may add details to."""
    for ticket in tickets:
        if not ticket.request.answered:
            own = copy(failure)
            own.details, own.__cause__ = dict(failure.details), failure
            ticket.request.error = own
