"""The handler of a consumer: how it is checked and called; its runs, kept alive while they may continue; and the
settlement of their messages: acknowledged together, failed, or given back.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import force_setattr

from ....deadline import Deadline
from ....errors import (
    Cancelled,
    Interrupted,
    InvalidMessageHandler,
    InvalidRequest,
    LatchworkError,
    LeaseLost,
)
from ....forks import called
from ....inputs import in_a_call, is_async
from ....logs import Log
from ....plain import counted, shown
from ....retry import Poll
from ....seams import Seams
from ....store.rows import chunked
from ..delivery import Delivery, Outcome, ack_each, extend_all, record_outcomes
from ..envelope import MAX_ERROR, Reason
from ..subscription import Subscription
from ..transfer import CHUNK
from ..workers import Running
from .in_hand import Hand
from .log import AWAY

log = Log(__name__)
worker_log = Log("latchwork.worker")

EXTENSIONS = 4
"""How often a delivery is extended in one sweep duration."""
LATE = "had not begun when the consumer stopped"
AGAIN = Poll(low=1.0, high=10.0, factor=2.0, jitter=0.5)
"""Pauses before what could not be settled, as the store was away, is settled again."""

Verdict = tuple[Reason, str | None] | None
"""The outcome of a message: None = acknowledged, else why it failed."""


def check_handler(handler: Any) -> None:
    """Raise `InvalidMessageHandler` for an object that cannot be called, and for a coroutine or generator function."""
    check_called(handler, "a function")
    if is_async(handler):
        raise InvalidMessageHandler(
            "the handler is an async function, and nothing would run what it returns: use the Consumer or the Worker "
            "of latchwork.aio"
        )


def check_called(handler: Any, wanted: str) -> None:
    """Raise `InvalidMessageHandler` for an object that cannot be called, and for a generator function, whose call runs
    nothing.
    """
    if not callable(handler):
        raise InvalidMessageHandler(f"the handler is a {type(handler).__name__}; give {wanted} of one argument")
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in in_a_call(handler)):
        raise InvalidMessageHandler(
            "the handler has a `yield`, so a call of it makes a generator and runs nothing: return instead"
        )


def _accepts(answer: Any, keeps: bool) -> bool:
    """Whether the handler is done with the message. keeps: whether what it returns is kept as the result."""
    ran = not isinstance(answer, Coroutine | Generator | AsyncGenerator)  # its call ran nothing yet
    return answer is None or answer is True or (keeps and answer is not False and ran)


def _why_rejected(answer: Any) -> str | None:
    """Return the reason to store with a rejected message; None if the handler returned False, which says it all."""
    if answer is False:
        return None
    if inspect.iscoroutine(answer):
        answer.close()  # Python warns about a coroutine that is never awaited
    return f"the handler returned a {type(answer).__name__}; return True or None to acknowledge, False to reject"


def text_of(failure: BaseException) -> str:
    """Return the text of the exception. Its `__str__` is the handler's code too, and may fail."""
    try:
        return str(failure)
    except BaseException as trouble:  # noqa: BLE001 - as what a handler raises
        return f"its text cannot be shown: that raised {type(trouble).__name__}"


def exception_types(ignorable: Any) -> tuple[type[BaseException], ...]:
    """Return the exception types that were given, one or many. Raises `InvalidRequest`."""
    kinds = (ignorable,) if isinstance(ignorable, type) else ignorable
    if (
        isinstance(kinds, str)
        or not isinstance(kinds, Collection)
        or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
    ):
        raise InvalidRequest(f"ignorable is {shown(ignorable)}; it must be one or several exception types")
    return tuple(kinds)


class Counters:
    """The counts of a consumer. Safe between its workers and its supervisor."""

    def __init__(self, seams: Seams) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = seams.lock()

    def add(self, what: str, n: int = 1) -> None:
        """Add `n` to this count."""
        if n:
            with self._lock:
                self.counts[what] += n


class Invoker:
    """The calls of a consumer's handler. It decides from its answers which messages are done."""

    def __init__(
        self,
        queue: Subscription,
        handler: Callable[[Any], Any],
        ignorable: tuple[type[BaseException], ...],
        counters: Counters,
        ends: Callable[[], bool],
    ) -> None:
        self._queue, self._handler, self._ignorable, self._counters = queue, handler, ignorable, counters
        self._ends = ends
        self._name, self._seams = queue.name, queue.store.seams

    def verdicts(self, deliveries: Sequence[Delivery]) -> list[Verdict]:
        """Run the handler, in the trace in which its message was published; return for each delivery None =
        acknowledge, or why it failed.

        True or None is a success; in a queue that keeps results, all but False. Of a batch the handler may also
        return a list with an answer for each message.
        """
        batch, messages = self._queue.config.batching is not None, len(deliveries)
        self._counters.add("handled", messages)
        began, outcome = self._seams.monotonic(), "raised"
        try:
            try:
                origins = [delivery.headers for delivery in deliveries]
                with self._seams.span("handle", origins, queue=self._name, messages=messages):
                    # A copy: messages that the handler removes from its list are settled too.
                    answer = called(self._handler, list(deliveries) if batch else deliveries[0])
                outcome = "returned"
            finally:
                self._seams.note("handling", self._seams.monotonic() - began, queue=self._name, outcome=outcome)
            each = list(answer) if batch and isinstance(answer, list | tuple) else [answer] * messages
            verdicts: list[Verdict]
            if len(each) == messages:
                keeps = bool(self._queue.pointers.results)
                verdicts = [None if _accepts(one, keeps) else (Reason.REJECTED, _why_rejected(one)) for one in each]
                if keeps:
                    self._keep(deliveries, each)
            else:
                why = f"the handler gave {len(each)} answers for {messages} messages"
                verdicts = [(Reason.EXCEPTION, why)] * messages
            if any(verdicts):
                self._log_rejected(deliveries, verdicts)
            return verdicts
        except BaseException as failure:  # noqa: BLE001 - whatever a handler raises is the message's failure, not ours
            if isinstance(failure, Interrupted) and (self._ends() or failure.details.get("cut")):
                return [(Reason.INTERRUPTED, str(failure))] * messages
            if isinstance(failure, Cancelled) and any(delivery.cancelled for delivery in deliveries):
                return self._cancelled(deliveries, failure)
            if isinstance(failure, self._ignorable):
                return [None] * messages
            return self._raised(deliveries, failure)

    def _keep(self, deliveries: Sequence[Delivery], results: Sequence[Any]) -> None:
        """Note what the handler returned for each message. One that cannot be kept is no failure of the message."""
        for delivery, value in zip(deliveries, results, strict=True):
            if value is None or delivery.settled:
                continue
            try:
                answer: Any = self._queue.kept(value)
            except InvalidRequest as failure:
                answer = str(failure)[:MAX_ERROR]
                worker_log.warning(
                    "message %s of %r is done, and what its handler returned is not kept: %s",
                    delivery.message_id, self._name, failure,
                )  # fmt: skip
            force_setattr(delivery, "answer", answer)

    def _cancelled(self, deliveries: Sequence[Delivery], failure: Cancelled) -> list[Verdict]:
        """Delete the messages that were cancelled; others of the batch go back, uncounted."""
        ours = [delivery for delivery in deliveries if delivery.cancelled and not delivery.settled]
        rows = self._queue.drop_cancelled(ours)
        self._counters.add("cancelled", rows.count(True))
        for errors in rows.errors():
            log.warning("a message of %r that was cancelled could not be deleted: %s", self._name, errors)
            break
        return [(Reason.INTERRUPTED, str(failure))] * len(deliveries)

    def _raised(self, deliveries: Sequence[Delivery], failure: BaseException) -> list[Verdict]:
        why = f"{type(failure).__name__}: {text_of(failure)}"[:MAX_ERROR]
        first, others = deliveries[0].held.envelope, len(deliveries) - 1
        self._queue.message_log.failed(first, others, "raised at", why, failure=failure)
        return [(Reason.EXCEPTION, why)] * len(deliveries)

    def _log_rejected(self, deliveries: Sequence[Delivery], verdicts: Sequence[Verdict]) -> None:
        """Log the first message that was rejected, or rather one whose answer is not valid: its author may believe that
        it was acknowledged.
        """
        failed = [
            (delivery, why[1])
            for delivery, why in zip(deliveries, verdicts, strict=True)
            if why is not None and not delivery.settled
        ]
        if failed:
            first, why = next((one for one in failed if one[1]), failed[0])
            self._queue.message_log.failed(first.held.envelope, len(failed) - 1, "rejected", why or "")


class Settlements:
    """Settlement of the messages of one consumer. Safe between its workers and its supervisor.

    What could not be settled, as the store was away, is settled once it is back (P5): for as long as the delivery may
    have the message, which is for the sweep duration.

    ordered: of a consumer that works its shards in order. A message of it that could not be stored for later is left to
        the next holder of the shard, and an acknowledgement alone is sent again.
    hand: where the messages that the consumer has in hand are noted, until they are settled.
    """

    def __init__(self, queue: Subscription, counters: Counters, *, ordered: bool = False) -> None:
        self.hand = Hand()
        self._queue, self._seams, self._counters = queue, queue.store.seams, counters
        self._ordered = ordered
        self._lock = self._seams.lock()
        self.collected: list[Delivery] = []
        """The messages that are done and not acknowledged yet."""
        self._since = 0.0
        self._owed: dict[Delivery, Verdict] = {}
        self._again_at, self._tries = 0.0, 0

    def settle(self, deliveries: Sequence[Delivery], verdicts: Sequence[Verdict], *, in_order: bool = False) -> None:
        """Fail messages, give back the interrupted ones, and collect the others until `send` acknowledges them.

        Messages that the handler has acknowledged or failed itself are settled; its result changes nothing for them.
        """
        done: list[Delivery] = []
        failed: list[Delivery] = []
        cut: list[Delivery] = []
        why: list[tuple[Reason, str | None]] = []
        for delivery, verdict in zip(deliveries, verdicts, strict=True):
            if delivery.settled:
                self.hand.let_go((delivery,))
                continue
            if verdict is None:
                done.append(delivery)
            elif verdict[0] is Reason.INTERRUPTED:
                cut.append(delivery)
            else:
                failed.append(delivery)
                why.append(verdict)
        if done:
            self.hand.done(done)
            with self._lock:
                if not self.collected:
                    self._since = self._seams.monotonic()
                self.collected += done
        if failed:
            self.fail(failed, why)
        if cut:
            self.give_back(cut, "ended as the worker stops", in_order=in_order)

    # ---- acknowledged

    def send(self, age: float = 0.0) -> None:
        """Acknowledge what was collected, in one call, if the first of it has waited for `age` seconds.

        Each message counts by itself, while `ack_many` says of a batch only what came first.
        """
        if not self.collected:
            return
        with self._lock:
            if self._seams.monotonic() - self._since < age:
                return
            done, self.collected = self.collected, []
        if not done:
            return
        rows = self._acked(done)
        acked = rows.count(True)
        self._counters.add("acked", acked)
        if acked < len(rows):
            self._count_unsettled(rows, "acknowledged")
        self._let_go(done, rows, [None] * len(done))

    def _acked(self, done: Sequence[Delivery], *, again: bool = True) -> list[Outcome]:
        try:
            return ack_each(done)
        except LatchworkError as failure:
            kept: LatchworkError = failure
        except Exception as defect:  # noqa: BLE001 - one message, or one moment, must not cost the others
            if again:
                return [row for one in done for row in self._acked([one], again=False)]
            kept = LatchworkError(f"it could not be acknowledged: {shown(defect)}")
        rows: list[Outcome] = [kept] * len(done)
        record_outcomes(self._queue.pointers, rows, "acked")
        return rows

    # ---- failed, or not begun

    def fail(self, deliveries: Sequence[Delivery], why: Sequence[tuple[Reason, str | None]]) -> bool:
        """Fail messages, a thousand at once; whether none of them stays for the sweeper."""
        rows = self._queue.fail_many(deliveries, why)
        self._counters.add("failed", len(deliveries))
        for reason, n in Counter(reason for reason, _ in why).items():
            self._counters.add(f"failed_{reason.value}", n)
        self._count_unsettled(rows, "stored for later")
        self._let_go(deliveries, rows, why)
        return not rows.errors()

    def give_back(self, deliveries: Sequence[Delivery], why: str, *, in_order: bool) -> bool:
        """Return messages whose work was interrupted, uncounted; whether none of them stays here.

        in_order: they stay in hand, for the next holder of the shard's lock, who hands them out first.
        """
        self._counters.add("interrupted", len(deliveries))
        others = f" and {counted(len(deliveries) - 1, 'other')}" if len(deliveries) > 1 else ""
        worker_log.warning(
            "the handler of %r was cut at message %s%s, which goes back uncounted: it %s",
            self._queue.name, deliveries[0].message_id, others, why,
        )  # fmt: skip
        if in_order:
            self.leave(deliveries)
            return False
        rows = self._queue.give_back(deliveries)
        self.hand.let_go(deliveries)
        self._count_unsettled(rows, "given back")
        return not rows.errors()

    def leave(self, deliveries: Sequence[Delivery], *, begun: bool = True) -> None:
        """Leave messages, uncounted, to the next holder of the shard's lock."""
        try:
            self._queue.interrupting(deliveries, begun=begun)
        except LatchworkError as failure:
            log.warning(
                "the attempts of %d messages count, though they were not handled (%s)", len(deliveries), failure
            )

    def hand_back(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return messages that were not begun to the queue; return the messages for which that failed."""
        rows = self._queue.hand_back(deliveries)
        self._counters.add("handed_back", rows.count(True))
        self._count_unsettled(rows, "handed back")
        back, left = rows.sift(deliveries)
        self.hand.let_go(back)
        return list(left)

    def put_off(self, delivery: Delivery, delay: float) -> None:
        """Let a message that was not begun come again later; if it also stays here, it is left to the sweeper.

        Raises the store's errors where it was not stored for later, or perhaps: then it is still in hand.
        """
        self._count_unsettled([self._queue.put_off(delivery, delay)], "deleted, though stored for later")
        self.hand.let_go((delivery,))

    # ---- what could not be settled, as the store was away

    def _let_go(self, deliveries: Sequence[Delivery], rows: Sequence[Outcome], verdicts: Sequence[Verdict]) -> None:
        """Forget these messages, but for those that are to be settled again."""
        each = zip(deliveries, rows, verdicts, strict=True)
        owed = {one: verdict for one, row, verdict in each if isinstance(row, AWAY) and not (self._ordered and verdict)}
        self.hand.let_go([one for one in deliveries if one not in owed])
        if owed:
            with self._lock:
                if not self._owed:
                    self._tries, self._again_at = 0, self._seams.monotonic() + AGAIN.pause(1, self._seams)
                self._owed |= owed

    def settle_again(self, *, now: bool = False) -> None:
        """Settle what could not be settled, if its pause is over; what this delivery may have no more is left to the
        sweep. One attempt. now: the consumer stops, and there may be no other time.
        """
        if not self._owed:
            return
        with self._lock:
            at = self._seams.monotonic()
            if at < self._again_at and not now:
                return
            self._tries += 1
            self._again_at = at + AGAIN.pause(self._tries + 1, self._seams)
            owed, self._owed = self._owed, {}
        over = [one for one in owed if not self._may_have(one)]
        self._leave_to_sweep(over)
        rest = {one: verdict for one, verdict in owed.items() if one not in over}
        try:
            with Deadline(self._seams, 0):
                # The first shows whether the store is back.
                for some in (list(rest)[:1], *chunked(list(rest)[1:], CHUNK)):
                    rows = self._settled_again(some, owed)
                    known = [one for one, row in rows.items() if not isinstance(row, AWAY)]
                    self.hand.let_go(known)
                    for one in known:
                        del rest[one]
                    if len(known) < len(some):
                        return
        finally:
            with self._lock:
                self._owed = rest | self._owed

    def _leave_to_sweep(self, deliveries: Sequence[Delivery]) -> None:
        self.hand.let_go(deliveries)
        if deliveries:
            log.warning(
                "%s of %r could not be settled in time, as the store was away: left to the sweep; the first: %s",
                counted(len(deliveries), "message"), self._queue.name, deliveries[0].message_id,
            )  # fmt: skip

    def _may_have(self, delivery: Delivery) -> bool:
        """Whether no sweep can have taken the message of this delivery, by this process's clock."""
        sweep = self._queue.config.sweep_duration.total_seconds()
        return self._seams.monotonic() < max(delivery.received, delivery.extended) + sweep

    def _settled_again(
        self, deliveries: Sequence[Delivery], owed: Mapping[Delivery, Verdict]
    ) -> dict[Delivery, Outcome]:
        """Settle these; return the outcomes."""
        rows: dict[Delivery, Outcome] = {}
        # 1. An acknowledgement is guarded by its delivery, so it may be sent at any time.
        if done := [one for one in deliveries if owed[one] is None]:
            rows |= zip(done, self._acked(done), strict=True)
            self._counters.add("acked", sum(row is True for row in rows.values()))
        # 2. A message that failed is stored for later before it is removed here: only while it is known to be ours.
        for one in deliveries:
            verdict = owed[one]
            if verdict is not None:
                held = _still_ours(one)
                rows[one] = self._queue.fail_many([one], [verdict])[0] if held is True else held
        settled, gone = (sum(row is of for row in rows.values()) for of in (True, False))
        self._counters.add("unsettled", -settled - gone)
        self._counters.add("lost", gone)
        if settled:
            worker_log.info(
                "%s of %r that could not be settled, as the store was away: settled now",
                counted(settled, "message"), self._queue.name,
            )  # fmt: skip
        return rows

    def _count_unsettled(self, rows: Sequence[Outcome], done: str) -> None:
        """Count messages that could not be settled; the sweeper, or another consumer that has them now,
        settles them.
        """
        failed = [row for row in rows if row is not True]
        if failed:
            gone = failed.count(False)
            self._counters.add("lost", gone)
            self._counters.add("unsettled", len(failed) - gone)
            first = failed[0] or "another consumer has it by now, or it was deleted"
            log.warning("%d messages could not be %s; the first: %s", len(failed), done, first)


@dataclass(slots=True, eq=False)
class HandlerCall:
    """One call of the handler, with the deliveries that it was given. Times in seconds, monotonic.

    received, extended: when the deliveries came, and when their time began again.
    started: when the handler was called; None = not yet.
    ends: whether the consumer takes no more messages.
    on_given_up: called if the run is given up, with whether nothing is left of its messages here; only a run of an
        ordered consumer has one.
    """

    deliveries: list[Delivery]
    received: float
    extended: float
    ends: Callable[[], bool]
    started: float | None = None
    on_given_up: Callable[[bool], object] | None = None
    abandoned: bool = False

    def why_end(self) -> LatchworkError | None:
        """Return why the handler should end its work now, as `Delivery.check` raises it; None if it may go on."""
        if self.abandoned:
            return LeaseLost("this call of the handler was given up: its messages are handled elsewhere")
        if self.ends():
            return Interrupted("the worker stops: end the work on the message, and it goes on elsewhere")
        return None


class Runs:
    """The runs of one consumer. Safe between its workers and its supervisor."""

    def __init__(
        self, queue: Subscription, settlements: Settlements, counters: Counters, ends: Callable[[], bool]
    ) -> None:
        self._queue, self._settlements, self._seams, self._counters = queue, settlements, queue.store.seams, counters
        self._ends = ends
        self._message_log = queue.message_log
        self._sweep = queue.config.sweep_duration.total_seconds()
        self._timeout = queue.config.handler_timeout.total_seconds()
        self._lock = self._seams.lock()
        self._runs: list[HandlerCall] = []
        self._over = False
        self._drains_from: float | None = None
        self.stuck = 0
        """Handlers that were given up and have not returned."""

    @property
    def open_runs(self) -> int:
        """Calls of the handler that have not ended, or not begun."""
        return len(self._runs)

    def drain(self) -> None:
        """Note that the consumer takes no more messages from now on, finally. Harmless when repeated."""
        if self._drains_from is None:
            self._drains_from = self._seams.monotonic()

    def drains(self) -> float | None:
        """Return the seconds since the consumer was asked to stop; None = it was not."""
        return None if self._drains_from is None else self._seams.monotonic() - self._drains_from

    def running(self) -> list[Running]:
        """Return the calls of the handler that have begun and not ended, each with the first of its messages that is
        not settled, and of those that were given up the first.
        """
        with self._lock:
            runs = list(self._runs)
        found = []
        for run in runs:
            deliveries, started = list(run.deliveries) if run.abandoned else _open(run.deliveries), run.started
            if deliveries and started is not None:
                found.append(Running(deliveries[0].message_id, self._seams.monotonic() - started, run.abandoned))
        return found

    def patience(self, seconds: float) -> float:
        """Return `seconds`, or less if a message has to be extended before they are over."""
        return min(seconds, self._sweep / EXTENSIONS)

    def begin(self, delivery: Delivery) -> HandlerCall | None:
        """Return a run of one message, whose handler begins now; None if nothing may begin any more."""
        now = self._seams.monotonic()
        run = HandlerCall([delivery], now, now, self._ends, started=now)
        with self._lock:
            if self._over:
                return None
            self._runs.append(run)
        force_setattr(delivery, "stop", run.why_end)
        self._settlements.hand.began(run.deliveries)
        return run

    def open(self, deliveries: Sequence[Delivery], on_given_up: Callable[[bool], object] | None = None) -> HandlerCall:
        """Keep these deliveries alive from now on; their handler starts with `start`."""
        now = self._seams.monotonic()
        run = HandlerCall(list(deliveries), now, now, self._ends, on_given_up=on_given_up)
        _may_stop(run, deliveries)
        with self._lock:
            self._runs.append(run)
        return run

    def add(self, run: HandlerCall, deliveries: Sequence[Delivery]) -> None:
        """Add messages to a run whose handler has not begun; if the run was given up, they are given up too."""
        with self._lock:
            if not run.abandoned:
                run.deliveries.extend(deliveries)
                _may_stop(run, deliveries)
                return
        self._give_up(run, deliveries, LATE)

    def start(self, run: HandlerCall) -> bool:
        """Whether the handler may begin: not if this run, or all later ones, were given up.

        Its time runs from here.
        """
        with self._lock:
            if not (self._over or run.abandoned):
                run.started = self._seams.monotonic()
                self._settlements.hand.began(run.deliveries)
                return True
        self.abandon(run, LATE, interrupted=True)
        return False

    def close(self, run: HandlerCall) -> bool:
        """Note that the handler has returned; return whether the worker still has to settle its deliveries."""
        with self._lock:
            self._runs.remove(run)
            self.stuck -= run.abandoned
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
        """Give back whatever is still running, and from now on whatever would start."""
        with self._lock:
            self._over = True
        for run in self._open_runs():
            self.abandon(run, why, interrupted=True)

    def interrupting(self) -> None:
        """Take the attempts of all running messages back: the consumer stops, and its process may be killed before they
        are given back. One call per 1,000; none where nothing runs.
        """
        running = [delivery for run in self._open_runs() for delivery in _open(run.deliveries)]
        if running:
            self._queue.interrupting(running)

    def abandon(self, run: HandlerCall, why: str, *, interrupted: bool = False) -> bool:
        """Give a run up: its messages have failed, and a later result of its handler is ignored.

        interrupted: the consumer stops. Then they go back uncounted; in order they stay, for the next holder of the
            shard's lock. Messages whose handler has not begun are handed back, except in order.
        """
        with self._lock:
            if run.abandoned or run not in self._runs:
                return False
            run.abandoned = True
            self.stuck += 1
        moved = False
        try:
            moved = self._give_up(run, run.deliveries, why, interrupted=interrupted)
        finally:
            if run.on_given_up is not None:
                run.on_given_up(moved)
        return True

    def _give_up(self, run: HandlerCall, deliveries: Sequence[Delivery], why: str, *, interrupted: bool = True) -> bool:
        """Whether nothing is left of them here."""
        left = _open(deliveries)
        if not left:
            return True
        if run.started is None and run.on_given_up is None:
            return not self._settlements.hand_back(left)
        if interrupted:
            return self._settlements.give_back(left, why, in_order=run.on_given_up is not None)
        self._counters.add("timed_out", len(left))
        self._message_log.failed(left[0].held.envelope, len(left) - 1, "was given up at", f"it {why}")
        return self._settlements.fail(left, [(Reason.TIMEOUT, why)] * len(left))

    def _open_runs(self) -> list[HandlerCall]:
        with self._lock:
            runs = tuple(self._runs)
        return [run for run in runs if not run.abandoned]


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


def _still_ours(delivery: Delivery) -> Outcome:
    """Extend a delivery: True = it is still ours; False = it is not; or why this is not known. One call."""
    try:
        failures = extend_all([delivery])
    except LatchworkError as failure:
        return failure
    if failures and isinstance(failures[0], AWAY):
        return failures[0]
    return not failures


def _may_stop(run: HandlerCall, deliveries: Sequence[Delivery]) -> None:
    """Let the handler learn from its deliveries when to end."""
    for delivery in deliveries:
        force_setattr(delivery, "stop", run.why_end)


def _open(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Return the deliveries that their handler has neither acknowledged nor failed itself."""
    return [delivery for delivery in deliveries if not delivery.settled]
