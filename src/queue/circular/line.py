"""The threads of one process that wait for the queue's lock, in order; one of them leads (docs/protocols P4).

The leader takes the lock and does the work of all that wait. Then it passes the lead to the next thread, so no thread
works for others without end.

A thread may be interrupted anywhere, as by Ctrl-C. Before it goes, the others whose work it had taken hear that the
outcome is unknown, and the next thread leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from msgspec import Struct

from ...errors import LatchworkError, LockUnavailable, OutcomeUnknown
from ...forks import renew_in_child
from ...seams import Event, Seams
from .plan import Request

MOST = 256
"""Requests that are done under one hold of the lock."""


class Ticket(Struct, eq=False):
    """One request that waits in this process.

    wake: is set when there is an answer, or the lead; None for a thread that leads from the beginning.
    leads: whether its thread takes the lock for all that wait.
    gone: its thread was interrupted, and must not be given the lead.
    taken: while it leads, the tickets that get their answer from it; its own at first.
    """

    request: Request
    wake: Event | None = None
    leads: bool = False
    gone: bool = False
    taken: Sequence[Ticket] = ()


class Line:
    """Who waits, in order, and whether one of them leads. Safe to share between threads."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """Empty the line, with no leader: a forked child has none of its parent's threads."""
        self._guard = self._seams.lock()
        self.waiting: list[Ticket] = []
        self.led = False

    def join(self, mine: Ticket) -> None:
        """Go to the end of the line; the ticket leads where no other does."""
        with self._guard:
            self.waiting.append(mine)
            mine.leads, self.led = not self.led, True
            if not mine.leads:
                mine.wake = self._seams.event()

    def wait(self, mine: Ticket, timeout: float | None) -> None:
        """Wait for an answer or for the lead; at once where the ticket leads.

        Raises `LockUnavailable` where no leader has taken the request within `timeout` seconds (None = no limit).
        """
        if mine.wake is None or mine.wake.wait(timeout):
            return
        with self._guard:
            if mine in self.waiting and not mine.leads:
                self.waiting.remove(mine)
                raise LockUnavailable(f"other threads of this process held the queue for {timeout} s")
        mine.wake.wait()

    def next(self, mine: Ticket) -> list[Request]:
        """What the leader's hold could do now: the waiting requests of its own kind, in order, its own first."""
        if len(self.waiting) == 1:
            return [mine.request]
        with self._guard:
            return [ticket.request for ticket in self._alike(mine)]

    def take(self, mine: Ticket, admitted: Callable[[Request], bool]) -> list[Request]:
        """Take the requests that are part of the leader's hold out of the line; their answers are due from it."""
        with self._guard:
            if len(self.waiting) == 1 and admitted(mine.request):
                self.waiting.clear()
                return [mine.request]
            mine.taken = [ticket for ticket in self._alike(mine) if admitted(ticket.request)]
            for ticket in mine.taken:
                self.waiting.remove(ticket)
        return [ticket.request for ticket in mine.taken]

    def put_back(self, mine: Ticket) -> None:
        """Put the taken requests that have time left back to the front; they wait for another hold."""
        back = self._in_time(mine.taken)
        with self._guard:
            self.waiting[:0] = [ticket for ticket in back if not ticket.gone]
            mine.taken = [ticket for ticket in mine.taken if ticket not in back]

    def pass_on(self, mine: Ticket) -> None:
        """Give the lead to the first that waits, and wake all that have an answer. Harmless when repeated."""
        with self._guard:
            if mine.leads:
                self._name_next(mine)
            first = self.waiting[0] if self.waiting else None
        for ticket in (*mine.taken, *([first] if first is not None and first.leads else [])):
            if ticket.wake is not None:
                ticket.wake.set()
        mine.taken = ()  # it holds the ticket itself, and such a circle waits for the garbage collector

    def leave(self, mine: Ticket) -> None:
        """Take an interrupted thread out of the line. If it led, its requests fail and the next thread leads."""
        with self._guard:
            mine.gone = True
            self.waiting[:] = [other for other in self.waiting if other is not mine and other not in mine.taken]
        fail(mine.taken, OutcomeUnknown("the thread that did this work was interrupted; read before going on"))
        self.pass_on(mine)

    def _name_next(self, mine: Ticket) -> None:
        """Under the guard. The old leader leads until the last line, so an interrupted step can be done again."""
        if mine in mine.taken and mine in self.waiting:
            self.waiting.remove(mine)
        first = self.waiting[0] if self.waiting else None
        self.led = first is not None
        if first is not None:
            first.leads = True
        mine.leads = first is mine

    def _alike(self, mine: Ticket) -> list[Ticket]:
        """Under the guard: what one hold can do together with this ticket, in order."""
        return [ticket for ticket in self.waiting if ticket.request.kind == mine.request.kind][:MOST]

    def _in_time(self, taken: Sequence[Ticket]) -> list[Ticket]:
        """The tickets that have time for another hold, in order; never all of them, so that the loop ends."""
        open_ones = [ticket for ticket in taken if not ticket.request.answered]
        ends = [ticket.request.until for ticket in open_ones if ticket.request.until is not None]
        if not ends:
            return []
        over = max(self._seams.monotonic(), min(ends))
        return [ticket for ticket in open_ones if ticket.request.until is None or ticket.request.until > over]


def fail(tickets: Sequence[Ticket], failure: LatchworkError) -> None:
    """Answer all that have no answer with the failure, each with a copy that its caller may add details to."""
    for ticket in tickets:
        if not ticket.request.answered:
            own = copy(failure)
            own.details, own.__cause__ = dict(failure.details), failure
            ticket.request.error = own
