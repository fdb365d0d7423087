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
from .seams import Seams, Task

T = TypeVar("T")
R = TypeVar("R")
TROUBLE = Poll(low=0.1, high=10.0, factor=2.0, jitter=0.5)
"""Pauses of a task after each failure in a row."""
QUIET = 60.0
"""Seconds for which a task that goes on failing says so once."""


class Background:
    """One task in the background, started and stopped as often as wanted. It ends once `stopping` is set."""

    def __init__(self, seams: Seams, run: Callable[[], None], name: str) -> None:
        self._seams, self._run, self._name = seams, run, name
        self._task: Task | None = None
        self.stopping = seams.event()

    def start(self) -> None:
        """Start it, unless it runs. `InvalidRequest`: it was asked to end and has not yet."""
        if self._task is not None and self._task.is_alive():
            if self.stopping.is_set():
                raise InvalidRequest(f"{self._name} still does its last work; start it when stop() has returned True")
            return
        self.stopping.clear()
        self._task = self._seams.spawn(self._run, self._name)

    def stop(self, timeout: float | None) -> bool:
        """Ask it to end; whether it has within `timeout` seconds (None: for ever). It may be started again then.

        `InvalidRequest` for what is no length of time; then it goes on.
        """
        timeout = checked_timeout(timeout)
        if self._task is None:
            return True
        self.stopping.set()
        self._task.join(timeout)
        if self._task.is_alive():
            return False
        self._task = None
        self.stopping.clear()
        return True


class Troubles:
    """What a task says of its failures in the log: each kind at most once a minute, with how many came in between.

    The errors of ours are one kind, at WARNING, as those of a store that is away differ from call to call. Everything
    else is a defect, at ERROR with its traceback. Safe to share between tasks.
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
