"""Group commit: the threads of one process hand their work to whichever of them holds the queue's lock.

A thread that finds nobody leading leads: it takes the lock, then collects what has been handed in meanwhile, does all
of it under the one hold, and wakes the others with their results. Then it hands the lead to the next that waits, so
that nobody works for others for ever. Work is done in the order in which it was handed in.

A thread may be interrupted anywhere, as by Ctrl-C. What it leaves undone is put right before it goes: those whose work
it had taken are told that they cannot know, and the next one leads.

Everybody's time is their own: where a hold does not come about, only those are told whose time is over, and the others
go to the front again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from ...errors import LatchworkError, LockUnavailable, OutcomeUnknown
from ...forks import renew_in_child
from ...seams import Event, Seams

MOST = 256
"""Wishes that are done under one hold."""


class Work(Protocol):
    """A request of one thread: its kind, its deadline (None = none), and its result or error."""

    kind: Any
    until: float | None
    result: Any
    error: LatchworkError | None


W = TypeVar("W", bound=Work)


Run = Callable[[Callable[[], list[W]], Callable[[Callable[[W], bool]], list[W]]], None]


class _Ticket(Struct, Generic[W], eq=False):
    """A request that waits in this process.

    gone: its thread was interrupted, and must not be given the lead.  taken: while it leads, those whose answer is due
    from it, which is at first its own.
    """

    work: W
    wake: Event | None = None
    leads: bool = False
    gone: bool = False
    taken: Sequence[_Ticket[W]] = ()

    def tell(self) -> None:
        if self.wake is not None:
            self.wake.set()


class GroupCommit(Generic[W]):
    """Work that several threads hand in and one of them does.

    `run(waiting, collect)` does the work of one hold, which is of one kind. `waiting` says what there is to do, the
    leader's own first; `collect(admitted)` takes what may be part of the hold, once it has begun; `run` leaves a result
    or an error in each. It raises `LockUnavailable` once the time of the leader, or of one that it has collected, is
    over; what has neither then is done in another hold, unless its own time is over too.
    """

    def __init__(self, seams: Seams, run: Run[W]) -> None:
        self._seams, self._run = seams, run
        self.begin_anew()
        renew_in_child(self)

    def submit(self, work: W, timeout: float | None) -> Any:
        """Do the work, here or in another thread; its result.

        Raises its error, and `LockUnavailable` where nobody came to it within `timeout` seconds.
        """
        work.until = None if timeout is None else self._seams.monotonic() + timeout
        ticket = _Ticket(work)
        try:
            self._hand_in(ticket)
            if ticket.wake is not None:
                self._wait(ticket, ticket.wake, timeout)
            while ticket.leads:
                self._lead(ticket)
        except BaseException:
            self._withdraw(ticket)
            raise
        if work.error is not None:
            raise work.error
        return work.result

    def begin_anew(self) -> None:
        """Nobody leads and nothing waits; so it is in a forked child, which has none of its parent's threads."""
        self._guard = self._seams.lock()
        self._waiting: list[_Ticket[W]] = []
        self._led = False

    def _hand_in(self, ticket: _Ticket[W]) -> None:
        """It waits, or leads where nobody does."""
        with self._guard:
            self._waiting.append(ticket)
            ticket.leads, self._led = not self._led, True
            if not ticket.leads:
                ticket.wake = self._seams.event()

    def _wait(self, ticket: _Ticket[W], wake: Event, timeout: float | None) -> None:
        if wake.wait(timeout):
            return
        with self._guard:
            if ticket in self._waiting and not ticket.leads:
                self._waiting.remove(ticket)
                raise LockUnavailable(f"other threads of this process held the queue for {timeout} s")
        wake.wait()

    def _withdraw(self, ticket: _Ticket[W]) -> None:
        """The thread of this ticket was interrupted: nobody waits for it, and if it led, the next one does."""
        with self._guard:
            ticket.gone = True
            left = [other for other in self._waiting if other is not ticket and other not in ticket.taken]
            self._waiting[:] = left
        _fail(ticket.taken, OutcomeUnknown("the thread that did this work was interrupted; read before going on"))
        self._finish(ticket)

    def _lead(self, mine: _Ticket[W]) -> None:
        """One hold, in which whoever waits has a part. The lead is another's afterwards, unless this one goes on."""
        mine.taken = [mine]

        def waiting() -> list[W]:
            if len(self._waiting) == 1:
                return [mine.work]
            with self._guard:
                return [ticket.work for ticket in self._same(mine)]

        def collect(admitted: Callable[[W], bool]) -> list[W]:
            with self._guard:
                if len(self._waiting) == 1 and admitted(mine.work):
                    self._waiting.clear()
                    return [mine.work]
                mine.taken = [ticket for ticket in self._same(mine) if admitted(ticket.work)]
                for ticket in mine.taken:
                    self._waiting.remove(ticket)
            return [ticket.work for ticket in mine.taken]

        try:
            self._run(waiting, collect)
        except LockUnavailable as failure:
            self._put_back(mine)
            _fail(mine.taken, failure)
        except LatchworkError as failure:
            _fail(mine.taken, failure)
        self._finish(mine)

    def _put_back(self, mine: _Ticket[W]) -> None:
        """Who has time left waits for another hold, before all others."""
        back = self._in_time(mine.taken)
        with self._guard:
            self._waiting[:0] = [ticket for ticket in back if not ticket.gone]
            mine.taken = [ticket for ticket in mine.taken if ticket not in back]

    def _in_time(self, taken: Sequence[_Ticket[W]]) -> list[_Ticket[W]]:
        """The requests that have time for another hold, in order; never all of them, so that the loop ends."""
        undone = [ticket for ticket in taken if not _answered(ticket)]
        ends = [ticket.work.until for ticket in undone if ticket.work.until is not None]
        if not ends:
            return []
        over = max(self._seams.monotonic(), min(ends))
        return [ticket for ticket in undone if ticket.work.until is None or ticket.work.until > over]

    def _finish(self, mine: _Ticket[W]) -> None:
        """Give the lead to the first of those that wait, and wake whoever has an answer. Harmless when repeated."""
        with self._guard:
            if mine.leads:
                self._hand_on(mine)
            heir = self._waiting[0] if self._waiting else None
        for ticket in mine.taken:
            ticket.tell()
        if heir is not None and heir.leads:
            heir.tell()
        mine.taken = ()  # which has itself in it, and would be garbage that only the collector finds

    def _hand_on(self, mine: _Ticket[W]) -> None:
        """Under the guard. The old leader counts as one to the last, so that an interrupted step is done again."""
        if mine in mine.taken and mine in self._waiting:
            self._waiting.remove(mine)
        heir = self._waiting[0] if self._waiting else None
        self._led = heir is not None
        if heir is not None:
            heir.leads = True
        mine.leads = heir is mine

    def _same(self, mine: _Ticket[W]) -> list[_Ticket[W]]:
        """What can be done together with this one, in order."""
        kind = mine.work.kind
        return [ticket for ticket in self._waiting if ticket.work.kind == kind][:MOST]


def _answered(ticket: _Ticket[W]) -> bool:
    return ticket.work.result is not None or ticket.work.error is not None


def _fail(taken: Sequence[_Ticket[W]], failure: LatchworkError) -> None:
    for ticket in taken:
        if not _answered(ticket):
            ticket.work.error = _own(failure)


def _own(failure: LatchworkError) -> LatchworkError:
    """A copy of the error for one caller, who may add to its details."""
    own = copy(failure)
    own.details, own.__cause__ = dict(failure.details), failure
    return own
