"""Background tasks: starting and stopping them, logging their failures, and sharing work between several of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .errors import InvalidRequest, LatchworkError
from .forks import reset_in_child
from .inputs import checked_timeout
from .logs import Log
from .retry import Poll
from .seams import Event, Seams, Task

T = TypeVar("T")
R = TypeVar("R")
ERROR_BACKOFF = Poll(low=0.1, high=10.0, factor=2.0, jitter=0.5)
"""Pauses of a task after each failure in a row."""
QUIET = 60.0
"""Seconds in which a task that fails repeatedly logs one failure of each kind, and a handler a few."""


class Activity:
    """One background task, whose object exists before the task begins.

    An interrupt (Ctrl-C) may come between any two instructions, also after a task has begun and before its starter has
    a reference to it. So the starter first keeps this object, then begins the task, and can end it at any time.
    """

    def __init__(self, seams: Seams) -> None:
        self._seams, self._ended = seams, seams.event()
        self._task: Task | None = None
        self._begun = self._cancelled = False

    def begin(self, run: Callable[[], None], name: str) -> None:
        """Begin the task. `run` is not called if the task was cancelled before."""
        self._task = self._seams.spawn(lambda: self._live(run), name)

    def cancel(self) -> None:
        """Prevent the task from beginning. A task that has begun is not affected."""
        self._cancelled = True

    def is_alive(self) -> bool:
        """Whether the task has begun and not ended. If `begin` was interrupted, the task may still begin later."""
        return self._task.is_alive() if self._task is not None else self._begun and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the task has ended, for at most `timeout` seconds (None = no limit)."""
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
    """One background task that can be started and stopped repeatedly. It ends once `stopping` is set.

    An interrupt at any instruction of `start` or `stop` leaves a task that `stop` ends.
    """

    def __init__(self, seams: Seams, run: Callable[[], None], name: str) -> None:
        self._seams, self._run, self._name = seams, run, name
        self._activity: Activity | None = None
        self.stopping: Event = seams.event()

    def start(self) -> None:
        """Start the task if it is not running. Raises `InvalidRequest` if it is still ending after a `stop`."""
        if self._activity is not None and self._activity.is_alive():
            if self.stopping.is_set():
                raise InvalidRequest(f"{self._name} is still ending; start it when stop() has returned True")
            return
        if self._activity is not None:
            self._activity.cancel()  # a start was interrupted, and it is not known whether it will begin
        self.stopping.clear()
        self._activity = Activity(self._seams)
        self._activity.begin(self._run, self._name)

    def stop(self, timeout: float | None) -> bool:
        """Stop the task. True if it has ended within `timeout` seconds (None = no limit); it may then be started again.

        Several threads may stop it at a time, and so may a signal's handler.
        Raises `InvalidRequest` if `timeout` is not a length of time; the task then continues.
        """
        timeout = checked_timeout(timeout)
        activity = self._activity  # read once: another stop may end it, and a new task may have begun then
        if activity is None:
            return True
        activity.cancel()
        self.stopping.set()
        activity.join(timeout)
        if activity.is_alive():
            return False
        if self._activity is activity:  # it is kept: a `start` of another thread may replace it at any moment
            self.stopping.clear()
        return True


class LimitedLog:
    """A log with at most `most` lines a minute of each kind. The others are counted, and their number is logged: with
    the next line of the kind, or by `flush` once the minute is over. Safe to share between threads.

    kind: what lines of a kind have in common, for people.
    """

    def __init__(self, seams: Seams, log: Log, most: int = 1) -> None:
        self._seams, self._log, self._most = seams, log, most
        self._minutes: dict[str, _Minute] = {}
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may hold it."""
        self._lock = self._seams.lock()

    def log(
        self,
        kind: str,
        level: int,
        text: str,
        *,
        failure: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log a text, with the traceback of a failure, unless the kind has had its lines of this minute.

        extra: attributes of the log record.
        """
        withheld = self._withheld_before(kind, level)
        if withheld is not None:
            self._log.log(level, "%s%s", text, withheld, exc_info=failure, extra=extra)

    def flush(self, *, now: bool = False) -> None:
        """Log how many lines were not logged in minutes that are over; `now`: in all."""
        if not self._minutes:
            return
        with self._lock:
            end = float("inf") if now else self._seams.monotonic() - QUIET
            over = self._take_over(end)
        for kind, minute in over.items():
            if minute.withheld:
                self._log.log(minute.level, "%s: and %d more like it", kind, minute.withheld)

    def _take_over(self, end: float) -> dict[str, _Minute]:
        """Remove and return the minutes that began by then; the caller holds the lock."""
        over = {kind: minute for kind, minute in self._minutes.items() if minute.began <= end}
        for kind in over:
            del self._minutes[kind]
        return over

    def _withheld_before(self, kind: str, level: int) -> str | None:
        """Return the text about lines that were not logged; None if this one is not to be logged either."""
        with self._lock:
            now = self._seams.monotonic()
            minute = before = self._minutes.get(kind)
            if minute is None or now - minute.began >= QUIET:
                minute = self._minutes[kind] = _Minute(now, level)
            if minute.logged == self._most:
                minute.withheld += 1
                return None
            minute.logged += 1
        again = before is not None and before is not minute and before.withheld
        return f"; {again} more since this was logged last" if again else ""


@dataclass(slots=True)
class _Minute:
    """The lines of one kind in one minute."""

    began: float
    level: int
    logged: int = 0
    withheld: int = 0


class FailureLog:
    """The log of a task's failures: one line a minute for each of two kinds, with the number of failures in between.

    Errors of this library are one kind, as the errors of an unavailable store differ from call to call: one line at
    WARNING, the traceback at DEBUG. All other exceptions are defects: at ERROR, with the traceback. Safe to share
    between tasks.
    """

    def __init__(self, seams: Seams, log: Log) -> None:
        self._log, self._limited = log, LimitedLog(seams, log)

    def record(self, failure: Exception, what: str) -> None:
        """Log that `what` failed with this exception."""
        if isinstance(failure, LatchworkError):
            self.warn(f"{what} ({failure.code}): {failure}", code=failure.code)
            self._log.debug("%s", what, exc_info=failure)
        else:
            self._limited.log("defects", logging.ERROR, what, failure=failure)

    def warn(self, text: str, **extra: str) -> None:
        """Log a text as an error of this library."""
        self._limited.log("errors of the library", logging.WARNING, text, extra=extra)


def parallel_map(seams: Seams, work: Callable[[T], R], items: Sequence[T], at_once: int, name: str) -> list[R]:
    """Apply `work` to each item, in up to `at_once` tasks, and return the results in the order of completion.

    After the first exception no task takes another item; the exception is raised when all tasks have ended. After an
    interrupt (Ctrl-C), or where a task cannot be started, no task takes another item either, and none is waited for.
    """
    waiting = list(reversed(items))
    results: list[R] = []
    failures: list[BaseException] = []

    def take_turns() -> None:
        while not failures:
            try:
                item = waiting.pop()
            except IndexError:
                return
            try:
                results.append(work(item))
            except BaseException as failure:  # noqa: BLE001 - raised below, also what would end a thread silently
                failures.append(failure)

    tasks = min(at_once, len(items))
    if tasks <= 1:
        take_turns()
    else:
        try:
            for task in [seams.spawn(take_turns, f"{name}-{n}") for n in range(tasks)]:
                task.join()
        except BaseException as failure:
            failures.append(failure)
            raise
    if failures:
        raise failures[0]
    return results
