"""Handler runs under way: kept alive while they may go on, given up when their time is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ....errors import LatchworkError
from ..delivery import Delivery, extend_all
from ..envelope import Reason
from ..queue import ShardedQueue
from ..transfer import CHUNK
from .settlements import Settlements, Tally

log = logging.getLogger(__name__)

EXTENSIONS = 4
"""How often per sweep duration a delivery is extended."""
LATE = "had not begun when the consumer stopped"


class Run:
    """One call of the handler, with the deliveries that it was given. Times in seconds, monotonic.

    given_up: called where the run is given up, with whether its messages are in the sideline; a run that has one is of
    an ordered consumer.
    """

    def __init__(
        self, deliveries: Sequence[Delivery], received: float, given_up: Callable[[bool], object] | None = None
    ) -> None:
        self.deliveries, self.given_up = list(deliveries), given_up
        self.received = self.extended = received
        self.started: float | None = None
        self.abandoned = False


class Runs:
    """The runs of one consumer. Safe between its workers and its keeper."""

    def __init__(self, queue: ShardedQueue, settlements: Settlements, tally: Tally) -> None:
        self._settlements, self._seams, self._tally = settlements, queue.store.seams, tally
        self._sweep = queue.config.sweep_duration.total_seconds()
        self._timeout = queue.config.handler_timeout.total_seconds()
        self._lock = self._seams.lock()
        self._runs: list[Run] = []
        self._over = False

    @property
    def stuck(self) -> int:
        """Handlers that were given up and have not returned."""
        with self._lock:
            return sum(run.abandoned for run in self._runs)

    @property
    def open_runs(self) -> int:
        """Calls of the handler that have not ended, or not begun."""
        return len(self._runs)

    def now(self) -> float:
        """The time by which runs are measured, in seconds."""
        return self._seams.monotonic()

    def patience(self, seconds: float) -> float:
        """So many seconds, or less where a message has to be extended before they are over."""
        return min(seconds, self._sweep / EXTENSIONS)

    def begin(self, delivery: Delivery) -> Run | None:
        """A run of one message, whose handler begins now; None where nothing may begin any more."""
        now = self._seams.monotonic()
        run = Run((delivery,), now)
        run.started = now
        with self._lock:
            if self._over:
                return None
            self._runs.append(run)
        return run

    def open(self, deliveries: Sequence[Delivery], given_up: Callable[[bool], object] | None = None) -> Run:
        """Keep these deliveries alive from now on; their handler starts with `start`."""
        run = Run(deliveries, self._seams.monotonic(), given_up)
        with self._lock:
            self._runs.append(run)
        return run

    def add(self, run: Run, deliveries: Sequence[Delivery]) -> None:
        """More messages for a run whose handler has not begun; where it was given up, they are too."""
        with self._lock:
            if not run.abandoned:
                run.deliveries.extend(deliveries)
                return
        self._give_up(run, deliveries, LATE)

    def start(self, run: Run) -> bool:
        """Whether the handler may begin: not where the run, or whatever would still start, was given up.

        Its time runs from here.
        """
        with self._lock:
            if not (self._over or run.abandoned):
                run.started = self._seams.monotonic()
                return True
        self.abandon(run, LATE)
        return False

    def close(self, run: Run) -> bool:
        """The handler has returned; whether its deliveries are still the worker's to settle."""
        with self._lock:
            self._runs.remove(run)
            return not run.abandoned

    def keep(self) -> None:
        """Extend what is due, give up what has run too long."""
        now = self._seams.monotonic()
        for run in self._open_runs():
            if run.started is not None and now - run.started > self._timeout:
                self.abandon(run, f"ran longer than {self._timeout:g} s")
            elif now - run.extended > self._sweep / EXTENSIONS:
                run.extended = now
                extend(_open(run.deliveries))

    def abandon_all(self, why: str) -> None:
        """Hand back whatever is still running, and from now on whatever would start."""
        with self._lock:
            self._over = True
        for run in self._open_runs():
            self.abandon(run, why)

    def abandon(self, run: Run, why: str) -> bool:
        """Give a run up: its messages go to the sideline; what its handler returns later counts for nothing.

        Messages whose handler has not begun are handed back; those of an ordered consumer would come out of order.
        """
        with self._lock:
            if run.abandoned or run not in self._runs:
                return False
            run.abandoned = True
        moved = False
        try:
            moved = self._give_up(run, run.deliveries, why)
        finally:
            if run.given_up is not None:
                run.given_up(moved)
        return True

    def _give_up(self, run: Run, deliveries: Sequence[Delivery], why: str) -> bool:
        """Whether nothing is left of them here."""
        left = _open(deliveries)
        if not left:
            return True
        if run.started is None and run.given_up is None:
            return not self._settlements.hand_back(left)
        self._tally.add("timed_out", len(left))
        log.warning("a handler was given up: it %s; %d messages go to the sideline", why, len(left))
        return self._settlements.fail(left, [(Reason.TIMEOUT, why)] * len(left))

    def _open_runs(self) -> list[Run]:
        with self._lock:
            return [run for run in self._runs if not run.abandoned]


def extend(deliveries: Sequence[Delivery]) -> None:
    """Start the sweep durations of deliveries again, a thousand at once; what cannot be extended is logged."""
    failures: list[LatchworkError] = []
    for begin in range(0, len(deliveries), CHUNK):
        try:
            failures += extend_all(deliveries[begin : begin + CHUNK])
        except LatchworkError as failure:
            failures.append(failure)
    if failures:
        first = failures[0]
        log.warning("%d deliveries could not be extended; the first (%s): %s", len(failures), first.code, first)


def _open(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Return the deliveries that their handler has neither acknowledged nor failed itself."""
    return [delivery for delivery in deliveries if not delivery.settled]
