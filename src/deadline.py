"""The time limit of a public call, for everything that is done in it.

A call with a `timeout` uses the store in many places: a look, a retry of it, another look after a doubt, a refresh.
Each of these could wait for seconds for a server that does not answer. So the call says once how much time there is,
and every store call of its thread keeps to that, however deep it is made:

    with Deadline(seams, timeout) as deadline:
        ...

The limit belongs to the thread, as the context of `decimal` does, and not to the store: a store call to which the limit
was not passed would hang as long as before. A function of the caller's that is called within keeps to it too; a thread
that is started within does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from .errors import Unavailable
from .seams import Lock, Seams

LATE = 0.6
"""Seconds after the end for which a call may last, as the last look begins at the end."""
AGAIN = 0.4
"""Seconds after the end until which a call that failed at once may be tried again."""
SPARE = 0.2
"""Seconds for the call after one that took all its time: to clear up."""
LEAST = 0.01
"""Seconds for each further call that gets no answer."""


class Deadline:
    """The time limit of one call, which begins now. `with` makes it the limit of every store call of this thread.

    A server that does not answer delays the call by a second at most. A server that answers does not cut it short: work
    of many calls continues for as long as these are answered.

    timeout: seconds, None = no limit.
    end: when it is over (monotonic), None = never; one within another ends no later than the outer one.
    logged: when a failure was last logged (monotonic).
    is_cut: whether it was ended early.
    """

    __slots__ = ("_around", "_before", "_over", "_seams", "_was_silent", "end", "is_cut", "logged")

    def __init__(self, seams: Seams, timeout: float | None) -> None:
        self._seams, self._was_silent = seams, False
        self.end = None if timeout is None else seams.monotonic() + timeout
        self._over = 0.0 if self.end is None else self.end + LATE  # when the call before is over, at the latest
        self.logged: float | None = None
        self.is_cut = False

    def __enter__(self) -> Deadline:
        self._around = around = _present.get()
        if around is not None and around.end is not None and (self.end is None or around.end < self.end):
            self.end, self._over = around.end, around.end + LATE
        self._before = _present.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _present.reset(self._before)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Let what begins within have the limit from before this one: a task, or a function, of the user's, which has
        to clean up also after this call was cut.
        """
        before = _present.set(self._around)
        try:
            yield
        finally:
            _present.reset(before)

    def left(self) -> float | None:
        """Return seconds until it is over, 0 from then on; None = it has no end."""
        return None if self.end is None else max(0.0, self.end - self._seams.monotonic())

    def for_a_call(self) -> float | None:
        """Return seconds that a store call which begins now may take; None = as long as the store allows."""
        if self.end is None:
            return None
        now = self._seams.monotonic()
        if now < self._over:
            self._was_silent, time = False, max(0.0, self.end - now) + LATE
        else:  # the call before took all its time, or the process was paused
            self._was_silent, time = True, LEAST if self._was_silent else SPARE
        self._over = now + time
        return time

    def too_late(self, pause: float) -> bool:
        """Whether it is too late to try a call again after `pause` seconds."""
        return self.end is not None and (self.is_cut or self._seams.monotonic() + pause >= self.end + AGAIN)

    def cut(self, outermost: Deadline) -> None:
        """Let this one, and those around it up to the `outermost`, be over now, as nobody waits for the call any more.

        A store call that begins later has little time, and none is tried again.
        """
        now, deadline = self._seams.monotonic(), self
        while True:
            if deadline.end is None or now < deadline.end:
                deadline.end, deadline._over = now, now + LATE
            deadline.is_cut = True
            if deadline is outermost or deadline._around is None:
                return
            deadline = deadline._around


def present() -> Deadline | None:
    """Return the time limit of the call that this thread is in; None if it has none."""
    return _present.get()


def call_time() -> float | None:
    """Return seconds that a store call of this thread may take; None = as long as the store allows."""
    deadline = _present.get()
    return None if deadline is None else deadline.for_a_call()


def within_call(lock: Lock, what: str) -> AbstractContextManager[object]:
    """Return a lock that another thread may hold during a store call: the present verb waits for it as for a call.

    what: is named by `Unavailable`, which `with` raises if that takes too long.
    """
    time = call_time()
    return lock if time is None else _Within(lock, time, what)


class _Within:
    """A lock that is waited for no longer than this number of seconds."""

    __slots__ = ("_lock", "_time", "_what")

    def __init__(self, lock: Lock, time: float, what: str) -> None:
        self._lock, self._time, self._what = lock, time, what

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._time):
            raise Unavailable(f"{self._what}: another thread of this process waits for the store; try again")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_present: ContextVar[Deadline | None] = ContextVar("latchwork_deadline", default=None)
