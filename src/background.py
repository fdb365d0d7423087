"""What runs beside the caller: a task that is started and stopped, what it says of its failures, and work that several
tasks share.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from .errors import InvalidRequest, LatchworkError
from .inputs import checked_timeout
from .retry import Poll
from .seams import Event, Seams, Task

T = TypeVar("T")
R = TypeVar("R")
TROUBLE = Poll(low=0.1, high=10.0, factor=2.0, jitter=0.5)
"""Pauses of a task after each failure in a row."""
QUIET = 60.0
"""Seconds for which a task that goes on failing says so once."""


class Activity:
    """One task in the background, which is known before it begins.

    An interrupt, as Ctrl-C, may come between any two instructions: also when a task has begun and whoever began it does
    not have it yet. So it is kept first, then begun, and from then on it can be ended, whether it has begun or not.
    """

    def __init__(self, seams: Seams) -> None:
        self._seams, self._ended = seams, seams.event()
        self._task: Task | None = None
        self._begun = self._cancelled = False

    def begin(self, run: Callable[[], None], name: str) -> None:
        """Begin it; `run` is not called any more where it was cancelled before."""
        self._task = self._seams.spawn(lambda: self._live(run), name)

    def cancel(self) -> None:
        """Let it not begin any more. What has begun ends by its own means."""
        self._cancelled = True

    def is_alive(self) -> bool:
        """Whether it has begun and not ended. One whose `begin` was interrupted may begin a moment later."""
        return self._task.is_alive() if self._task is not None else self._begun and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for so many seconds, None = for ever."""
        if self._task is not None:
            self._task.join(timeout)
        elif self._begun:
            self._ended.wait(timeout)

    def _live(self, run: Callable[[], None]) -> None:
        self._begun = True
        try:
            if not self._cancelled:
                run()
        finally:
            self._ended.set()


class Background:
    """One task in the background, started and stopped as often as wanted. It ends once `stopping` is set.

    Whichever instruction of `start` or `stop` is interrupted: `stop` ends it.
    """

    def __init__(self, seams: Seams, run: Callable[[], None], name: str) -> None:
        self._seams, self._run, self._name = seams, run, name
        self._activity: Activity | None = None
        self.stopping: Event = seams.event()

    def start(self) -> None:
        """Start it, unless it runs. `InvalidRequest`: it was asked to end and has not yet."""
        if self._activity is not None and self._activity.is_alive():
            if self.stopping.is_set():
                raise InvalidRequest(f"{self._name} still does its last work; start it when stop() has returned True")
            return
        if self._activity is not None:
            self._activity.cancel()  # a start was interrupted, and nobody knows whether it begins yet
        self.stopping.clear()
        self._activity = Activity(self._seams)
        self._activity.begin(self._run, self._name)

    def stop(self, timeout: float | None) -> bool:
        """Ask it to end; whether it has within `timeout` seconds (None: for ever). It may be started again then.

        `InvalidRequest` for what is no length of time; then it goes on.
        """
        timeout = checked_timeout(timeout)
        if self._activity is None:
            return True
        self._activity.cancel()
        self.stopping.set()
        self._activity.join(timeout)
        if self._activity.is_alive():
            return False
        self._activity = None
        self.stopping.clear()
        return True


class Troubles:
    """What a task says of its failures in the log: each kind at most once a minute, with how many came in between.

    The errors of ours are one kind, in one line at WARNING, as those of a store that is away differ from call to call;
    their traceback is at DEBUG. Everything else is a defect, at ERROR with its traceback. Safe to share between tasks.
    """

    def __init__(self, seams: Seams, log: logging.Logger) -> None:
        self._seams, self._log = seams, log
        self._lock = seams.lock()
        self._said: dict[int, float] = {}
        self._unsaid: Counter[int] = Counter()

    def tell(self, failure: Exception, what: str) -> None:
        """Say that `what` failed so."""
        if isinstance(failure, LatchworkError):
            self.warn(f"{what} ({failure.code}): {failure}", code=failure.code)
            self._log.debug("%s", what, exc_info=failure)
            return
        unsaid = self._unsaid_before(logging.ERROR)
        if unsaid is not None:
            self._log.error("%s%s", what, unsaid, exc_info=failure)

    def warn(self, text: str, **extra: str) -> None:
        """Say this, as one of the errors of ours."""
        unsaid = self._unsaid_before(logging.WARNING)
        if unsaid is not None:
            self._log.warning("%s%s", text, unsaid, extra=extra)

    def _unsaid_before(self, level: int) -> str | None:
        """What to add about the failures that were not said; None where this one is not said either."""
        with self._lock:
            now = self._seams.monotonic()
            if now - self._said.get(level, float("-inf")) < QUIET:
                self._unsaid[level] += 1
                return None
            self._said[level] = now
            unsaid = self._unsaid.pop(level, 0)
        return f"; {unsaid} more since this was said last" if unsaid else ""


def shared(seams: Seams, work: Callable[[T], R], items: Sequence[T], at_once: int, name: str) -> list[R]:
    """What `work` made of each item, in the order in which they were done, by up to `at_once` tasks.

    The first exception ends it for all of them, once each has done what it is at, and is raised.
    """
    waiting = list(reversed(items))
    results: list[R] = []
    failures: list[Exception] = []

    def take_turns() -> None:
        while not failures:
            try:
                item = waiting.pop()
            except IndexError:
                return
            try:
                results.append(work(item))
            except Exception as failure:  # noqa: BLE001 - raised below
                failures.append(failure)

    tasks = min(at_once, len(items))
    if tasks <= 1:
        take_turns()
    else:
        for task in [seams.spawn(take_turns, f"{name}-{n}") for n in range(tasks)]:
            task.join()
    if failures:
        raise failures[0]
    return results
