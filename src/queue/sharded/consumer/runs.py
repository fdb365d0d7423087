"""The calls of a consumer's handler, kept alive while they may continue (docs/protocols P5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....errors import Interrupted, LatchworkError, LeaseLost
from ..delivery import Delivery, stop_by
from ..envelope import Reason
from ..subscription import Subscription
from ..workers import Running
from .settlements import EXTENSIONS, Settlements, extend
from .state import ConsumerState

LATE = "had not begun when the consumer stopped"


@dataclass(slots=True, eq=False)
class HandlerCall:
    """One call of the handler, with the deliveries that it was given. Times in seconds, monotonic.

    received, extended: when the deliveries came, and when their time began again.
    started: when the handler was called; None = not yet.
    ends: whether the consumer takes no more messages.
    abandoned, cut: whether it was given up; and that as the consumer stopped.
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
    cut: bool = False

    def why_end(self) -> LatchworkError | None:
        """Return why the handler should end its work now, as `Delivery.check` raises it; None if it may go on."""
        if self.abandoned:
            return LeaseLost("this call of the handler was given up: its messages are handled elsewhere")
        if self.ends():
            return Interrupted("the worker stops: end the work on the message, and it goes on elsewhere")
        return None


class Runs:
    """The runs of one consumer. Safe between its workers and its supervisor."""

    def __init__(self, queue: Subscription, settlements: Settlements, state: ConsumerState) -> None:
        self._queue, self._settlements, self._state, self._seams = queue, settlements, state, queue.store.seams
        self._sweep = queue.config.sweep_duration.total_seconds()
        self._timeout = queue.config.handler_timeout.total_seconds()
        self._lock = self._seams.lock()
        self._runs: list[HandlerCall] = []
        self._over = False
        self._drains_from: float | None = None
        self.stuck = self.cut = 0
        """Handlers that were given up and have not returned; and those of them that were given up as it stopped."""

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

    def saturated(self) -> bool:
        """Whether so many handlers hang that no more messages are taken."""
        return 0 < 2 * self._state.concurrency() <= self.stuck

    def takes(self) -> bool:
        """Whether handlers may begin: not while it is paused or saturated, nor once it ends."""
        paused = self._queue.live.concurrency == 0
        return not paused and self.stuck < 2 * self._state.concurrency() and not self._state.ends()

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

    def begin(self, delivery: Delivery) -> HandlerCall | None:
        """Return a run of one message, whose handler begins now; None if nothing may begin any more."""
        now = self._seams.monotonic()
        run = HandlerCall([delivery], now, now, self._state.ends, started=now)
        with self._lock:
            if self._over:
                return None
            self._runs.append(run)
        stop_by(run.deliveries, run.why_end)
        self._state.hand.began(run.deliveries)
        return run

    def open(self, deliveries: Sequence[Delivery], on_given_up: Callable[[bool], object] | None = None) -> HandlerCall:
        """Keep these deliveries alive from now on; their handler starts with `start`."""
        now = self._seams.monotonic()
        run = HandlerCall(list(deliveries), now, now, self._state.ends, on_given_up=on_given_up)
        stop_by(deliveries, run.why_end)
        with self._lock:
            self._runs.append(run)
        return run

    def add(self, run: HandlerCall, deliveries: Sequence[Delivery]) -> None:
        """Add messages to a run whose handler has not begun; if the run was given up, they are given up too."""
        with self._lock:
            if not run.abandoned:
                run.deliveries.extend(deliveries)
                stop_by(deliveries, run.why_end)
                return
        self._give_up(run, deliveries, LATE)

    def start(self, run: HandlerCall) -> bool:
        """Whether the handler may begin: not if this run, or all later ones, were given up.

        Its time runs from here.
        """
        with self._lock:
            if not (self._over or run.abandoned):
                run.started = self._seams.monotonic()
                self._state.hand.began(run.deliveries)
                return True
        self.abandon(run, LATE, interrupted=True)
        return False

    def close(self, run: HandlerCall) -> bool:
        """Note that the handler has returned; return whether the worker still has to settle its deliveries."""
        with self._lock:
            self._runs.remove(run)
            self.stuck -= run.abandoned
            self.cut -= run.cut
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
            run.abandoned, run.cut = True, interrupted
            self.stuck += 1
            self.cut += interrupted
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
        self._state.add("timed_out", len(left))
        self._queue.message_log.failed(left[0].held.envelope, len(left) - 1, "was given up at", f"it {why}")
        return self._settlements.fail(left, [(Reason.TIMEOUT, why)] * len(left))

    def _open_runs(self) -> list[HandlerCall]:
        with self._lock:
            runs = tuple(self._runs)
        return [run for run in runs if not run.abandoned]


def _open(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Return the deliveries that their handler has neither acknowledged nor failed itself."""
    return [delivery for delivery in deliveries if not delivery.settled]
