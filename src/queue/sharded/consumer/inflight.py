"""Handler runs under way: kept alive while they may go on, given up when their time is over."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ....errors import InvalidMessageHandler, InvalidRequest, LatchworkError
from ....plain import shown
from ....seams import Seams
from ..delivery import Delivery, extend_all
from ..envelope import MAX_ERROR, Reason
from ..queue import ShardedQueue
from ..settlement import Outcome, acknowledged, remember, tell
from ..transfer import CHUNK

log = logging.getLogger(__name__)

EXTENSIONS = 4
"""How often per sweep duration a delivery is extended."""
LATE = "had not begun when the consumer stopped"

Verdict = tuple[Reason, str | None] | None
"""What becomes of a message: None = acknowledged, else why it failed."""


def check_handler(handler: Any) -> None:
    """Raises `InvalidMessageHandler` for what cannot be called, and for a coroutine function."""
    if not callable(handler):
        raise InvalidMessageHandler(f"the handler is a {type(handler).__name__}; give a function of one argument")
    if any(map(inspect.iscoroutinefunction, (handler, getattr(handler, "__call__", None)))):  # noqa: B004 - of an object
        raise InvalidMessageHandler(
            "the handler is an async function, and nothing would run what it returns; give a function that calls "
            "asyncio.run(...) on it"
        )


def judged(answer: Any, messages: int, *, batch: bool) -> list[Verdict]:
    """A verdict for each message, by what the handler returned: True or None is a success, for a batch also in each."""
    each = list(answer) if batch and isinstance(answer, list | tuple) else [answer] * messages
    if len(each) != messages:
        return [(Reason.EXCEPTION, f"the handler gave {len(each)} answers for {messages} messages")] * messages
    return [None if one in (True, None) else (Reason.REJECTED, _why_rejected(one)) for one in each]


def _why_rejected(answer: Any) -> str | None:
    """The reason to store with a rejected message; None where the handler returned False, which says it all."""
    if answer is False:
        return None
    if inspect.iscoroutine(answer):
        answer.close()  # it is never awaited, which Python would complain of
    return f"the handler returned a {type(answer).__name__}; return True or None to acknowledge, False to reject"


def _text(failure: BaseException) -> str:
    """What the exception says; to say it is code of the handler's too, which may fail."""
    try:
        return str(failure)
    except BaseException as trouble:  # noqa: BLE001 - as what a handler raises
        return f"it cannot be shown, that raised {type(trouble).__name__}"


def kinds_of(ignorable: Any) -> tuple[type[BaseException], ...]:
    """The exception types that were given, one or many. Raises `InvalidRequest`."""
    kinds = (ignorable,) if isinstance(ignorable, type) else ignorable
    if (
        isinstance(kinds, str)
        or not isinstance(kinds, Collection)
        or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
    ):
        raise InvalidRequest(f"ignorable is {shown(ignorable)}; it must be one or several exception types")
    return tuple(kinds)


class Tally:
    """What a consumer counts. Safe between its workers and its keeper."""

    def __init__(self, seams: Seams) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = seams.lock()

    def add(self, what: str, n: int = 1) -> None:
        """So many more of these."""
        if n:
            with self._lock:
                self.counts[what] += n


class Calls:
    """Calls of a consumer's handler, and what they mean for its messages."""

    def __init__(
        self,
        queue: ShardedQueue,
        handler: Callable[[Any], Any],
        ignorable: tuple[type[BaseException], ...],
        tally: Tally,
    ) -> None:
        self._queue, self._handler, self._ignorable, self._tally = queue, handler, ignorable, tally
        self._seams = queue.store.seams

    def verdicts(self, deliveries: Sequence[Delivery]) -> list[Verdict]:
        """For each delivery None = acknowledge, or why it failed."""
        batch, messages = self._queue.config.batching is not None, len(deliveries)
        self._tally.add("handled", messages)
        try:
            return judged(self._call(deliveries), messages, batch=batch)
        except self._ignorable:
            return [None] * messages
        except BaseException as failure:  # noqa: BLE001 - whatever a handler raises is the message's failure, not ours
            why = f"{type(failure).__name__}: {_text(failure)}"[:MAX_ERROR]
            self._log(deliveries, why, failure)
            return [(Reason.EXCEPTION, why)] * messages

    def _log(self, deliveries: Sequence[Delivery], why: str, failure: BaseException) -> None:
        """What is needed to find the failure: message and attempt, the exception, and at DEBUG where it was raised.

        A message's payload is never logged; an exception that quotes it is the handler's.
        """
        first, others = deliveries[0], f" and {len(deliveries) - 1} others" if len(deliveries) > 1 else ""
        log.warning(
            "the handler of %r raised at message %s%s, attempt %d: %s",
            self._queue.name,
            first.message_id,
            others,
            first.attempts,
            why,
        )
        log.debug("where the handler of %r raised", self._queue.name, exc_info=failure)

    def _call(self, deliveries: Sequence[Delivery]) -> Any:
        """The handler's answer; it runs in the trace in which its message was published."""
        name, began, outcome = self._queue.name, self._seams.monotonic(), "raised"
        try:
            origins = [delivery.headers for delivery in deliveries]
            with self._seams.span("handle", origins, queue=name, messages=len(deliveries)):
                # A list of its own: what the handler takes out of it is settled all the same.
                answer = self._handler(deliveries[0] if self._queue.config.batching is None else list(deliveries))
            outcome = "returned"
            return answer
        finally:
            self._seams.note("handling", self._seams.monotonic() - began, queue=name, outcome=outcome)


class Run:
    """One call of the handler, with the deliveries that it was given. Times in seconds, monotonic.

    given_up: called where the run is given up, with whether its messages are in the sideline.
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

    def __init__(self, queue: ShardedQueue, tally: Tally) -> None:
        self._queue, self._seams, self._tally = queue, queue.store.seams, tally
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
        self._give_up(deliveries, LATE)

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
                self._extend(_open(run.deliveries))

    def abandon_all(self, why: str) -> None:
        """Hand back whatever is still running, and from now on whatever would start."""
        with self._lock:
            self._over = True
        for run in self._open_runs():
            self.abandon(run, why)

    def abandon(self, run: Run, why: str) -> bool:
        """Give a run up: its messages go to the sideline; what its handler returns later counts for nothing."""
        with self._lock:
            if run.abandoned or run not in self._runs:
                return False
            run.abandoned = True
        moved = False
        try:
            moved = self._give_up(run.deliveries, why)
        finally:
            if run.given_up is not None:
                run.given_up(moved)
        return True

    def _give_up(self, deliveries: Sequence[Delivery], why: str) -> bool:
        """Whether nothing is left of them here."""
        left = _open(deliveries)
        if not left:
            return True
        self._tally.add("timed_out", len(left))
        log.warning("a handler was given up: it %s; %d messages go to the sideline", why, len(left))
        return self._fail(left, [(Reason.TIMEOUT, why)] * len(left))

    def settle(self, deliveries: Sequence[Delivery], verdicts: Sequence[Verdict]) -> None:
        """Acknowledge the messages, or put them into the sideline, by their verdicts.

        Those that the handler has acknowledged or failed by itself are settled; its answer changes nothing for them.
        """
        done: list[Delivery] = []
        failed: list[Delivery] = []
        why: list[tuple[Reason, str | None]] = []
        for delivery, verdict in zip(deliveries, verdicts, strict=True):
            if delivery.settled:
                continue
            if verdict is None:
                done.append(delivery)
            else:
                failed.append(delivery)
                why.append(verdict)
        if done:
            self._acknowledge(done)
        if failed:
            self._fail(failed, why)

    def _acknowledge(self, done: Sequence[Delivery]) -> None:
        """Each message counts by itself, while `ack_many` says of a batch only what came first."""
        rows: list[Outcome]
        try:
            rows = acknowledged(self._queue.pointers, [delivery.held for delivery in done])
        except LatchworkError as failure:
            rows = [failure] * len(done)
        remember(done, rows)
        tell(self._queue.pointers, rows, "acked")
        self._tally.add("acked", rows.count(True))
        self._unsettled(rows, "acknowledged")

    def _fail(self, deliveries: Sequence[Delivery], why: Sequence[tuple[Reason, str | None]]) -> bool:
        """Put messages into the sideline, a thousand at once; whether none of them stays for the sweeper."""
        self._tally.add("failed", len(deliveries))
        rows = self._queue.fail_many(deliveries, why)
        self._unsettled(rows, "put into the sideline")
        return not any(isinstance(row, LatchworkError) for row in rows)

    def _unsettled(self, rows: Sequence[Outcome], done: str) -> None:
        """Count what could not be settled; the sweeper, or whoever has it now, sees to it."""
        failed = [row for row in rows if row is not True]
        if failed:
            gone = failed.count(False)
            self._tally.add("lost", gone)
            self._tally.add("unsettled", len(failed) - gone)
            first = failed[0] or "somebody else has it by now, or it is gone"
            log.warning("%d messages could not be %s; the first: %s", len(failed), done, first)

    def _extend(self, deliveries: Sequence[Delivery]) -> None:
        """A thousand at once."""
        failures: list[LatchworkError] = []
        for begin in range(0, len(deliveries), CHUNK):
            try:
                failures += extend_all(deliveries[begin : begin + CHUNK])
            except LatchworkError as failure:
                failures.append(failure)
        if failures:
            first = failures[0]
            log.warning("%d deliveries could not be extended; the first (%s): %s", len(failures), first.code, first)

    def _open_runs(self) -> list[Run]:
        with self._lock:
            return [run for run in self._runs if not run.abandoned]


def _open(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Return the deliveries that their handler has neither acknowledged nor failed itself."""
    return [delivery for delivery in deliveries if not delivery.settled]
