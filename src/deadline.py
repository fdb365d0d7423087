"""The time of a public verb, for all that is done in it.

A verb with a `timeout` calls the store in many places: a look, a retry of it, another look after a doubt, a refresh of
what is known. Each of these could wait for seconds for a server that does not answer. So the verb says once how much
time there is, and every store call of its thread keeps to that, however deep it is made:

    with Deadline(seams, timeout) as deadline:
        ...

It belongs to the thread, as the context of `decimal` does, and not to the store, because a call that somebody forgot to
hand it to would hang as long as before. A function of the caller's that is called within keeps to it too, a thread
that is started within does not.
"""

from __future__ import annotations

from contextvars import ContextVar

from .seams import Seams

LATE = 0.6
"""Seconds after the end for which a call may last, as the last look begins at the end."""
AGAIN = 0.4
"""Seconds after the end until which a call that failed at once may be tried again."""
SPARE = 0.2
"""Seconds for the call after one that took all its time: to clear up."""
LEAST = 0.01
"""Seconds for each further one that comes to nothing."""


class Deadline:
    """The time of one verb, which begins now. `with` makes it that of every store call of this thread.

    A server that does not answer delays the verb by a second at most. One that answers does not cut it short: what
    takes many calls goes on for as long as these are answered.

    timeout: seconds, None = no limit.  end: when it is over (monotonic), None = never; one within another ends no later
    than that.  said: when trouble was last written to the log (monotonic).
    """

    __slots__ = ("_before", "_over", "_seams", "_silences", "end", "said")

    def __init__(self, seams: Seams, timeout: float | None) -> None:
        self._seams, self._silences = seams, 0
        self.end = None if timeout is None else seams.monotonic() + timeout
        self._over = 0.0 if self.end is None else self.end + LATE  # when the call before is over, at the latest
        self.said: float | None = None

    def __enter__(self) -> Deadline:
        around = _present.get()
        if around is not None and around.end is not None and (self.end is None or around.end < self.end):
            self.end, self._over = around.end, around.end + LATE
        self._before = _present.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _present.reset(self._before)

    def left(self) -> float | None:
        """Seconds until it is over, 0 from then on; None = it has no end."""
        return None if self.end is None else max(0.0, self.end - self._seams.monotonic())

    def for_a_call(self) -> float | None:
        """Seconds that a store call which begins now may take; None = as long as the store allows."""
        if self.end is None:
            return None
        now = self._seams.monotonic()
        if now < self._over:
            self._silences, time = 0, max(0.0, self.end - now) + LATE
        else:  # the call before took all its time, or the process was paused
            self._silences, time = self._silences + 1, LEAST if self._silences else SPARE
        self._over = now + time
        return time

    def too_late(self, pause: float) -> bool:
        """Whether a call is not to be tried again after so many seconds."""
        return self.end is not None and self._seams.monotonic() + pause >= self.end + AGAIN


def present() -> Deadline | None:
    """That of the verb which this thread is in; None where it is in none."""
    return _present.get()


def call_time() -> float | None:
    """Seconds that a store call of this thread may take; None = as long as the store allows."""
    deadline = _present.get()
    return None if deadline is None else deadline.for_a_call()


_present: ContextVar[Deadline | None] = ContextVar("latchwork_deadline", default=None)
