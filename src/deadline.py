"""The time of a public verb, for all that is done in it.

A verb with a `timeout` calls the store in many places: a look, a retry of it, another look after a doubt, a refresh of
what is known. Each of these could wait for seconds for a server that does not answer. So the verb says once how much
time there is, and every store call of its thread keeps to that, however deep it is made:

    with Deadline(seams, timeout) as deadline:
        ...

It belongs to the thread, as the context of `decimal` does, and not to the store, because a call that somebody forgot to
hand it to would hang as long as before. Work for others, in other threads, takes its own.
"""

from __future__ import annotations

from contextvars import ContextVar

from .seams import Seams

LATE = 0.7
"""Seconds after its end by which what a verb does is over: the last look begins at the end, and takes its time."""
SPARE = 0.25
"""Seconds more, once, for a call that begins later: to clear up, or as the process was paused meanwhile."""
LEAST = 0.01
"""Seconds for any call after that."""


class Deadline:
    """The time of one verb, which begins now. `with` makes it that of every store call of this thread.

    timeout: seconds, None = no limit.  end: when it is over (monotonic), None = never; one within another ends no later
    than that.  said: when trouble was last written to the log (monotonic).
    """

    __slots__ = ("_before", "_last", "_seams", "_spare", "end", "said")

    def __init__(self, seams: Seams, timeout: float | None) -> None:
        self._seams, self._spare = seams, SPARE
        self.end = None if timeout is None else seams.monotonic() + timeout
        self._last = None if self.end is None else self.end + LATE
        self.said: float | None = None

    def __enter__(self) -> Deadline:
        around = _present.get()
        if around is not None and around.end is not None and (self.end is None or around.end < self.end):
            self.end, self._last = around.end, around.end + LATE
        self._before = _present.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _present.reset(self._before)

    def left(self) -> float | None:
        """Seconds until it is over, 0 from then on; None = it has no end."""
        return None if self.end is None else max(0.0, self.end - self._seams.monotonic())

    def for_a_call(self) -> float | None:
        """Seconds that a store call which begins now may take; None = as long as the store allows."""
        if self._last is None:
            return None
        now = self._seams.monotonic()
        if now >= self._last and self._spare:
            self._last, self._spare = now + self._spare, 0.0
        return max(LEAST, self._last - now)

    def too_late(self, pause: float) -> bool:
        """Whether a call is not to be tried again after so many seconds."""
        return self._last is not None and self._seams.monotonic() + pause >= self._last


def present() -> Deadline | None:
    """That of the verb which this thread is in; None where it is in none."""
    return _present.get()


def call_time() -> float | None:
    """Seconds that a store call of this thread may take; None = as long as the store allows."""
    deadline = _present.get()
    return None if deadline is None else deadline.for_a_call()


_present: ContextVar[Deadline | None] = ContextVar("latchwork_deadline", default=None)
