"""Handler runs under way: kept alive while they may go on, given up when their time is over."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import LatchworkError, LeaseLost
from ..seams import Seams
from .delivery import Delivery
from .envelope import MAX_ERROR, Reason
from .view import QueueView

log = logging.getLogger(__name__)

EXTENSIONS = 4
"""How often per sweep duration a delivery is extended."""


Verdict = tuple[Reason, str | None] | None
"""What becomes of a message: None = acknowledged, else why it failed."""


def judged(answer: Any, messages: int, *, batch: bool) -> list[Verdict]:
    """A verdict for each message, by what the handler returned: True or None is a success, for a batch also in each."""
    each = list(answer) if batch and isinstance(answer, list | tuple) else [answer] * messages
    if len(each) != messages:
        return [(Reason.EXCEPTION, f"the handler gave {len(each)} answers for {messages} messages")] * messages
    return [None if one in (True, None) else (Reason.REJECTED, None) for one in each]


def raised(failure: BaseException, messages: int) -> list[Verdict]:
    """The verdicts where the handler raised."""
    return [(Reason.EXCEPTION, f"{type(failure).__name__}: {_text(failure)}"[:MAX_ERROR])] * messages


def _text(failure: BaseException) -> str:
    """What the exception says; to say it is code of the handler's too, which may fail."""
    try:
        return str(failure)
    except BaseException as trouble:  # noqa: BLE001 - as what a handler raises
        return f"it cannot be shown, that raised {type(trouble).__name__}"


def _outcome(row: bool | LatchworkError) -> str:
    return "unsettled" if isinstance(row, LatchworkError) else "acked" if row else "lost"


class Run:
    """One call of the handler, with the deliveries that it was given. Times in seconds, monotonic.

    given_up: called once its messages are in the sideline, where the run is given up.
    """

    def __init__(
        self, deliveries: Sequence[Delivery], received: float, given_up: Callable[[], object] | None = None
    ) -> None:
        self.deliveries, self.given_up = list(deliveries), given_up
        self.received = self.extended = received
        self.started: float | None = None
        self.abandoned = False


class Runs:
    """The runs of one consumer. Safe between its workers and its keeper."""

    def __init__(self, seams: Seams, *, sweep: float, timeout: float, stats: Counter[str]) -> None:
        self._seams, self._sweep, self._timeout, self._stats = seams, sweep, timeout, stats
        self._lock = seams.lock()
        self._runs: list[Run] = []

    @property
    def stuck(self) -> int:
        """Handlers that were given up and have not returned."""
        with self._lock:
            return sum(run.abandoned for run in self._runs)

    def open(self, deliveries: Sequence[Delivery], given_up: Callable[[], object] | None = None) -> Run:
        """Keep these deliveries alive from now on; their handler starts with `start`."""
        run = Run(deliveries, self._seams.monotonic(), given_up)
        with self._lock:
            self._runs.append(run)
        return run

    def start(self, run: Run) -> None:
        """The handler begins: its time runs from here."""
        run.started = self._seams.monotonic()

    def close(self, run: Run) -> bool:
        """The handler has returned; whether its deliveries are still the worker's to settle."""
        with self._lock:
            self._runs.remove(run)
            return not run.abandoned

    def keep(self) -> int:
        """Extend what is due, give up what has run too long; how many runs were given up just now."""
        now, given_up = self._seams.monotonic(), 0
        for run in self._open_runs():
            if run.started is not None and now - run.started > self._timeout:
                given_up += self.abandon(run, f"ran longer than {self._timeout:g} s")
            elif now - run.extended > self._sweep / EXTENSIONS:
                run.extended = now
                self._extend(run)
        return given_up

    def abandon_all(self, why: str) -> None:
        """Hand back whatever is still running."""
        for run in self._open_runs():
            self.abandon(run, why)

    def abandon(self, run: Run, why: str) -> bool:
        """Give a run up: its messages go to the sideline; what its handler returns later counts for nothing."""
        with self._lock:
            if run.abandoned or run not in self._runs:
                return False
            run.abandoned = True
        self._stats["timed_out"] += len(run.deliveries)
        log.warning("a handler was given up: it %s; %d messages go to the sideline", why, len(run.deliveries))
        for delivery in run.deliveries:
            self.fail(delivery, Reason.TIMEOUT, why)
        if run.given_up is not None:
            run.given_up()
        return True

    def settle(self, queue: QueueView, deliveries: Sequence[Delivery], verdicts: Sequence[Verdict]) -> None:
        """Acknowledge the messages, or put them into the sideline, by their verdicts."""
        done = [delivery for delivery, verdict in zip(deliveries, verdicts, strict=True) if verdict is None]
        try:
            if done:
                self._acknowledge(queue, done)
        except LatchworkError as failure:
            self.note(failure)
        for delivery, verdict in zip(deliveries, verdicts, strict=True):
            if verdict is not None:
                self.fail(delivery, *verdict)

    def _acknowledge(self, queue: QueueView, done: Sequence[Delivery]) -> None:
        """Each message counts by itself, while `ack_many` says of a batch only what came first."""
        rows = queue.pointers.remove([delivery.held for delivery in done])
        for outcome, n in Counter(map(_outcome, rows)).items():
            self._seams.note("handled", n, queue=queue.name, outcome=outcome)
            self._stats[outcome] += n
        failed = [row for row in rows if row is not True]
        if failed:
            first = failed[0] or "somebody else has it by now, or it is gone"
            log.warning("%d messages could not be acknowledged; the first: %s", len(failed), first)

    def fail(self, delivery: Delivery, reason: Reason, error: str | None) -> None:
        """Put a message into the sideline; where that fails it stays for the sweeper."""
        self._stats["failed"] += 1
        try:
            delivery.nack(reason.value, error=error)
        except LatchworkError as failure:
            self.note(failure)

    def note(self, failure: LatchworkError) -> None:
        """Count what kept a message from being settled; the sweeper, or whoever has it now, sees to it."""
        self._stats["lost" if isinstance(failure, LeaseLost) else "unsettled"] += 1
        log.warning("a message could not be settled (%s): %s", failure.code, failure)

    def _extend(self, run: Run) -> None:
        for delivery in run.deliveries:
            try:
                delivery.extend()
            except LatchworkError as failure:
                log.warning("a delivery could not be extended (%s): %s", failure.code, failure)

    def _open_runs(self) -> list[Run]:
        with self._lock:
            return [run for run in self._runs if not run.abandoned]
