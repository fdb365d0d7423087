"""A consumer: worker threads that call a handler for each message of a queue, or for each batch of messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, cast

from ....background import ERROR_BACKOFF, Activity, FailureLog
from ....coord.limiter import RateLimiter
from ....deadline import Deadline
from ....errors import InvalidRequest, NotFound
from ....inputs import checked_kind, checked_number, checked_switch
from ....logs import Log
from ....seams import Task
from ....unpicklable import Unpicklable
from ..config import MAX_CONSUMERS, check_concurrency
from ..delivery import Delivery
from ..registry import QueueRegistry
from ..subscription import Subscription, checked_subscription
from ..upkeep.reporter import reporter_of
from ..upkeep.upkeep import upkeep_of
from .handler import Counters, Invoker, Runs, Settlements, check_handler, exception_types
from .in_hand import Hand
from .log import AWAY, Life
from .ordering import ShardLocks
from .prefetch import SPAN, WAIT, Pace, Prefetched, checked_prefetch
from .rate import checked_rate
from .signals import SIGNAL_POLL, Signals
from .turn import ConsumerState, Turns

log = Log(__name__)

Handler = Callable[[Any], Any]
SUPERVISE_EVERY = 0.5
"""Seconds between two looks of the supervisor, at most."""
SUPERVISE_SOON = 0.05
"""Seconds between two looks while messages that were not begun, or acknowledgements, wait."""
FIRST_REPORT = 5.0
"""Seconds that a consumer waits for its first report before it takes messages: a process that dies with messages in
hand is known then. Where the report fails, the messages matter more.
"""
MARKING = 1.0
"""Seconds at most in which a consumer that stops says so in the messages that it works on."""


class Consumer(Unpicklable):
    """A pool of up to `concurrency` threads that call `handler(delivery)` for each message, or, if the queue has
    `batching`, `handler([delivery, ...])` for each batch.

    The handler's result decides, unless it has acknowledged or failed the delivery itself. True or None: the message is
    acknowledged. False or any other value: it is rejected, and fails with the value as its
    `last_error`. For a batch the result may also be a sequence of these, one for each message. An exception, even
    `SystemExit`, fails the message too; an `ignorable` one (a type, or several) acknowledges it. A message that failed
    comes again after the queue's backoff, and is parked after its last attempt (`QueueConfig`).

    While a handler runs, its messages are extended. After the queue's `handler_timeout` they fail as
    `timeout`, and a later result of the handler is ignored. Python cannot end the thread, so another thread takes its
    place, up to `concurrency` of them. If the handlers of these threads hang too, twice `concurrency` in all, the
    consumer is `saturated`: it logs that, and takes no more messages until a handler returns. Messages that were not
    begun go back to the queue. With `batching` and with `ordered` they fail, as `saturated`.

    concurrency: threads; None = as the queue's record says, followed at run time (0 = paused).
    ordered: take a fenced lock on a shard and work it alone, so that messages of one `key` are handled in the order in
        which they were published. Exceptions: a message that fails or is given up; and one that reaches the store more
        than 250 ms after the message behind it, for example because a row of `publish_many` was sent again. Another
        consumer of the queue that is not `ordered` breaks the order. The messages that a consumer held when it died,
        or lost its lock, are handled first by the next one, perhaps once more: after 10 s if anything is behind them,
        else after the sweep.
    grace: seconds that `stop` gives handlers to finish.
    upkeep: whether this process takes part in the upkeep of its client's queues while the consumer runs: one elected
        process sweeps what dead consumers held, and moves failed messages back.
    prefetch: the most messages that a worker claims at once, 1 (no prefetch) to 1,000; None = 16. It claims that many
        only while the queue has them and the handler is quick, about 20 ms for all, and they are acknowledged together.
        Messages that are claimed and not begun are extended; they go back to the queue after 0.1 s, or when the
        consumer stops or is paused, without counting an attempt. An `ordered` consumer takes one message at a time.
    rate: a limiter that is asked before each handler begins, over all processes that use it.
    per_key: a function from a delivery to text; then each key has the limits of `rate` for itself. A message that may
        not begin yet waits for up to a second, else it comes again later, without counting an attempt; in order it
        waits with its shard.

    `with` starts and stops the consumer. Call `start` in one thread; after that it is safe to share between threads,
    and any of them may stop it. The handler runs in several threads at a time unless `concurrency` is 1.

    Not promised: exactly once. A message whose handler outlives the sweep duration, or whose process dies, is delivered
    again; so are messages that were handled in the last 20 ms before the process died. Each message that the process
    had claimed then, begun or not, has one attempt more.
    """

    _INSTEAD = "pickle the QueueRegistry, the queue's name and the handler, and make a consumer there"
    _most = MAX_CONSUMERS
    _runs_of: type[Runs] = Runs
    checks = staticmethod(check_handler)

    def __init__(
        self,
        queue: Subscription,
        handler: Handler,
        *,
        concurrency: int | None = None,
        ignorable: type[BaseException] | Collection[type[BaseException]] = (),
        ordered: bool = False,
        grace: float = 10.0,
        upkeep: bool = True,
        prefetch: int | None = None,
        rate: RateLimiter | None = None,
        per_key: Callable[[Delivery], str] | None = None,
    ) -> None:
        checked_subscription(queue)
        self.checks(handler)
        checked_number("grace", grace)
        self.queue, self.handler, self.grace = queue, handler, grace
        self.ordered = checked_switch("ordered", ordered)
        registry = cast(QueueRegistry, queue.registry)
        self._upkeep = upkeep_of(registry) if checked_kind("upkeep", upkeep, bool) else None
        self._reporter = reporter_of(registry)
        self._counters = Counters(queue.store.seams)
        self.stats = self._counters.counts
        self._failure_log = FailureLog(queue.store.seams, log)
        wanted = None if concurrency is None else check_concurrency(concurrency, self._most)
        self._seams = queue.store.seams
        self._stopping = self._seams.event()
        self._given_up = self._hung = 0
        self._not_found = False
        self._lock = self._seams.lock()
        self._pid = 0
        self._workers = 0
        self._supervisor: Activity | None = None
        self._attention, self._dozes = self._seams.event(), False
        self._is_reported, self._begins_by = False, 0.0
        self._tasks: list[Task] = []
        most = checked_prefetch(prefetch, batching=queue.config.batching is not None, ordered=ordered)
        self._settlements = Settlements(queue, self._counters, ordered=ordered)
        self._prefetched = Prefetched(queue, self._settlements)
        self._runs = self._runs_of(queue, self._settlements, self._counters, self._ends)
        self._tells = True
        self.state = ConsumerState(
            queue,
            self._runs,
            wanted,
            self._stopping,
            Signals(self._stopping.is_set),
            Life(self._seams, f"the consumer of {queue.name!r}"),
            self._wake_supervisor,
            self._report,
            self._pause,
        )
        self._turns = Turns(
            self.state,
            self._seams,
            queue,
            Invoker(queue, handler, exception_types(ignorable), self._counters, self._ends),
            self._runs,
            self._settlements,
            self._prefetched,
            Pace(most),
            ShardLocks(queue) if ordered else None,
            checked_rate(
                rate,
                per_key,
                batching=queue.config.batching is not None,
                seams=self._seams,
                refused=partial(self._counters.add, "rate_limited"),
            ),
        )

    def __repr__(self) -> str:
        return f"Consumer({self.queue.name!r}, workers={self._workers}, stuck={self._runs.stuck})"

    @property
    def concurrency(self) -> int:
        """Workers that are wanted now."""
        return self.state.concurrency()

    def allot(self, workers: int) -> None:
        """Use this number of workers from now on, 0 to 100, whatever the queue's record says. Raises
        `TooManyConsumers`.
        """
        self.state.wanted = check_concurrency(workers, self._most)

    def belong_to_worker(self, signals: Signals, life: Life, hand: Hand | None = None) -> None:
        """Stop at the signals of a worker, and leave it to the worker to log that it starts, drains and stops.

        hand: where to note the messages in hand. It notes none of an `ordered` consumer,
            whose messages are for the next holder of the shard.
        """
        self.state.signals, self.state.life, self._tells = signals, life, False
        if hand is not None:
            self._settlements.hand = hand

    @property
    def running(self) -> int:
        """Handlers that run and were not given up."""
        return max(0, self._runs.open_runs - self._runs.stuck)

    @property
    def given_up(self) -> int:
        """Handlers that `stop` gave up."""
        return self._given_up

    @property
    def hung(self) -> int:
        """Handlers that hung, past the queue's `handler_timeout`, when `stop` gave up the others."""
        return self._hung

    @property
    def stuck(self) -> int:
        """Handlers that were given up, after the queue's `handler_timeout`, and have not returned."""
        return self._runs.stuck

    @property
    def saturated(self) -> bool:
        """Whether so many handlers hang, twice `concurrency`, that no more messages are taken."""
        return self.state.saturated()

    @property
    def busy(self) -> bool:
        """Whether messages are being handled here, or are believed to be there. No I/O."""
        return bool(self._runs.open_runs or self._prefetched.waiting or self.queue.active.believed)

    @property
    def not_found(self) -> bool:
        """Whether its last call found that the queue, as a group that was dropped, is not there."""
        return self._not_found

    # ---- life

    def start(self) -> Consumer:
        """Start in the background; itself. A consumer is started once. One whose start was interrupted has ended.

        It takes its first message once this process has reported that it works on the queue: two calls.
        """
        self._refuse_second_start()
        self._pid = os.getpid()
        self._supervisor = Activity(self._seams)
        try:
            if self._tells:
                self.state.life.started(self.queue.store.where, {self.queue.name: self.concurrency})
            self._begins_by = self._seams.monotonic() + FIRST_REPORT
            self._reporter.join(self, self._reported)
            self._supervisor.begin(self._supervise, f"{self.queue.name}-supervisor")
            if self._upkeep is not None:
                self._upkeep.join(self, self.queue.name)
        except BaseException:  # also an interrupt: its receiver may have no reference to stop this consumer
            self._end(0.0)
            raise
        return self

    def _reported(self) -> None:
        """Begin to take messages. The reporter calls this."""
        if not self._is_reported:
            self._is_reported = True
            self._attention.set()

    def _refuse_second_start(self) -> None:
        if self._supervisor:
            raise InvalidRequest(f"{self!r} was started before: make another")

    def __enter__(self) -> Consumer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, grace: float | None = None) -> bool:
        """Take no more messages, give handlers `grace` seconds to finish, then give up what is still running.

        What was claimed and not begun goes back to the queue at once, and so does what a worker that was just asking
        for messages gets after that: no handler is called any more, but for a batch that a worker had begun to
        collect. True if all had finished; False if some were cut: their messages go back, to be handed out first, and
        this attempt does not count. A handler learns of the stop from `Delivery.check`.
        If the store does not answer, messages come back through the sweeper. It ends a second after the grace at the
        latest. Called again, it returns False if any call of it gave messages up. A handler must not call it, as it
        would wait for itself. In a child that was forked since the start it does nothing: the threads are the parent's.
        """
        if self._pid not in (0, os.getpid()):
            return True
        grace = self.grace if grace is None else checked_number("grace", grace)
        end = self._seams.monotonic() + grace
        self._runs.drain()
        if self._tells:
            self.state.life.drains(self.running, grace)
        try:
            try:
                self._finish(end)
            finally:
                self._end(max(0.0, end + 2 * SUPERVISE_EVERY - self._seams.monotonic()))
        finally:
            self._end(0.0)  # again, as an interrupt may have ended the first call early
        self.queue.message_log.flush(now=True)
        if self._tells:
            self.state.life.stopped(self._given_up, self._hung)
        return not self._given_up

    def _ends(self) -> bool:
        """Whether it takes no more messages, finally."""
        return self._stopping.is_set() or self.state.ends()

    def _finish(self, end: float) -> None:
        """Take no more messages; let handlers finish until `end`, and give up the others."""
        self._stopping.set()
        self.queue.active.wake()
        with Deadline(self._seams, max(0.0, end - self._seams.monotonic())):
            self._settlements.send()
            self._settlements.settle_again(now=True)
            self._prefetched.hand_back()
        with Deadline(self._seams, min(MARKING, max(0.0, end - self._seams.monotonic()))):
            self._survive(self._runs.interrupting)
        while self._workers > self._runs.stuck and self._seams.monotonic() < end and not self.state.signals.forced:
            self._seams.sleep(0.02)
        self._hung = self._runs.stuck
        self._given_up += max(0, self._runs.open_runs - self._hung)
        with Deadline(self._seams, 0):
            self._settlements.send()
            self._settlements.settle_again(now=True)
            self._prefetched.hand_back(last=True)
            self._runs.abandon_all("was still running when the consumer had to stop")
        soon = min(end, self._seams.monotonic()) + SUPERVISE_EVERY
        for task in filter(None, (*self._tasks, self._supervisor)):
            task.join(max(0.0, soon - self._seams.monotonic()))

    def _end(self, timeout: float) -> None:
        """Take no more messages, and no part in the upkeep any more. Harmless when repeated."""
        self._stopping.set()
        self._attention.set()
        if self._supervisor is not None:
            self._supervisor.cancel()
        end = self._seams.monotonic() + timeout
        self._reporter.leave(self, timeout)
        if self._upkeep is not None:
            self._upkeep.leave(self, max(0.0, end - self._seams.monotonic()))

    def run(self) -> bool:
        """Work until SIGTERM, SIGINT, SIGHUP or `stop`; return what `stop` returned.

        In the main thread it handles these signals for as long as it runs: the first drains, a second one forces,
        except a second SIGHUP. A SIGHUP that the program ignores, or handles itself, is left alone.
        """
        self._refuse_second_start()
        with self.state.signals:
            self.start()
            while not (self.state.signals.drains or self._stopping.wait(SIGNAL_POLL)):
                pass
            return self.stop()

    # ---- the supervisor

    def _supervise(self) -> None:
        """Start workers as wanted, keep their messages alive, give up on handlers that hang."""
        config = self.queue.config
        timeout, sweep = config.handler_timeout.total_seconds(), config.sweep_duration.total_seconds()
        pause = min(SUPERVISE_EVERY, timeout / 10, sweep / 20)
        saturated = False
        while not (self._stopping.is_set() and self._workers <= self._runs.stuck):
            self._survive(self._keep_alive)
            self._survive(self._move_on)
            self._survive(self._give_up_late)
            self.queue.message_log.flush()
            if not self.state.ends():
                self._survive(self.queue.registry.refresh_if_due)
                if self._is_reported or self._seams.monotonic() >= self._begins_by:
                    self._survive(self._scale_workers)
            if self.saturated and not saturated:
                log.error("%s is saturated: %d handlers hang, no more messages are taken", self, self._runs.stuck)
            saturated = self.saturated
            self._doze(pause)

    def _keep_alive(self) -> None:
        self._runs.keep()
        self._prefetched.keep()

    def _move_on(self) -> None:
        """Acknowledge finished messages that no worker has acknowledged in time, also those of before the store was
        away, and hand back messages that wait for too long, or may not begin.
        """
        self._settlements.send(SPAN)
        self._settlements.settle_again()
        self._prefetched.hand_back(WAIT if self.state.takes() else 0.0)

    def _give_up_late(self) -> None:
        """Give up claimed slots that are empty while all workers are busy, so that what has expired is counted."""
        if self.queue.pending.entries and not self.ordered:
            with self._settlements.hand.claims() as notes:
                self.queue.give_up_late(notes)

    def _doze(self, pause: float) -> None:
        """Wait until the next look, which comes sooner while messages wait that workers may not reach in time."""
        if self._stopping.is_set():
            self._seams.sleep(pause)
            return
        self._dozes = True  # set before the check for messages: later messages then wake it
        if self._prefetched.waiting or self._settlements.collected:
            self._dozes, pause = False, min(pause, SUPERVISE_SOON)
        self._attention.wait(pause)
        self._dozes = False
        self._attention.clear()

    def _wake_supervisor(self) -> None:
        """Let the supervisor look soon at what waits: messages that were not begun, and acknowledgements."""
        if self._dozes:
            self._attention.set()

    def _survive(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as failure:  # noqa: BLE001 - the store's, a thread's that does not start, or a defect
            self._report(failure)

    def _scale_workers(self) -> None:
        """Start workers until there are as many as are wanted."""
        with self._lock:
            missing = -self._excess()
        if missing > 0:
            self._tasks = [task for task in self._tasks if task.is_alive()]
        for number in range(missing):
            self._start_worker(number)

    def _start_worker(self, number: int) -> None:
        self._count(1)
        try:
            self._tasks.append(self._spawn_worker(f"{self.queue.name}-worker-{number}"))
        except BaseException:
            self._count(-1)
            raise

    def _spawn_worker(self, name: str) -> Task:
        return self._seams.spawn(self._work, name)

    def _count(self, more: int) -> None:
        with self._lock:
            self._workers += more

    def _excess(self) -> int:
        """Return how many more workers there are than wanted: `concurrency`, and one for each that hangs, up to as many
        again.

        Workers that hang cannot leave. So if more than that hang, as after `scale`, all others are too many.
        """
        stuck, wanted = self._runs.stuck, self.concurrency
        return self._workers - max(stuck, wanted + min(stuck, wanted))

    def _should_exit(self) -> bool:
        """Whether this worker is one too many; counts it out if it is."""
        with self._lock:
            over = self._excess() > 0 or self.state.ends()
            if over:
                self._workers -= 1
            return over

    # ---- a worker

    def _work(self) -> None:
        failures, counts = 0, True
        try:
            while counts := not self._should_exit():
                try:
                    self._turns.take()
                    failures, self._not_found = 0, False
                    self.state.life.found()
                except Exception as failure:  # noqa: BLE001 - a defect, too: the next worker would meet it at once
                    failures += 1
                    self._pause(failure, failures)
        finally:  # however it ends: the supervisor starts another in its place
            if counts:
                self._count(-1)
        self._survive(self._move_on)

    def _pause(self, failure: Exception, failures: int) -> None:
        """Report a failure, and wait for as long as is due after that many failures in a row."""
        self._not_found = isinstance(failure, NotFound)
        if isinstance(failure, AWAY):
            self._counters.add("troubles")
            self.state.life.lost(failure)
        else:
            self._report(failure)
        self._stopping.wait(ERROR_BACKOFF.pause(failures, self._seams))

    def _report(self, failure: Exception) -> None:
        """Count and log a failure."""
        self._counters.add("troubles")
        self._failure_log.record(failure, f"{self!r} met an error")
