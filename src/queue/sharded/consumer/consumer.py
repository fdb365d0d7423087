"""A consumer: worker threads that call a handler for each message of a queue, or for each batch of messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, cast

from ....background import Activity
from ....coord.limiter import RateLimiter
from ....deadline import Deadline
from ....errors import InvalidRequest
from ....inputs import checked_kind, checked_number, checked_switch
from ....logs import Log
from ....plain import shown
from ....seams import Task
from ....unpicklable import Unpicklable
from ..config import MAX_CONSUMERS, check_concurrency
from ..delivery import Delivery
from ..registry import QueueRegistry
from ..subscription import Subscription, checked_subscription
from ..upkeep.reporter import reporter_of
from ..upkeep.upkeep import upkeep_of
from .handler import check_handler, exception_types
from .in_hand import Hand
from .log import Life
from .ordering import ShardLocks
from .prefetch import SPAN, WAIT, Pace, Prefetched, checked_prefetch
from .rate import checked_rate
from .runs import Runs
from .settlements import Settlements
from .signals import SIGNAL_POLL, Signals
from .state import ConsumerState
from .turn import Turns

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
    _elsewhere = "a thread of its own call stop, as by Thread(target=stop).start()"
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
        self.queue, self.handler, self.grace, self._seams = queue, handler, grace, queue.store.seams
        self.ordered = checked_switch("ordered", ordered)
        registry = cast(QueueRegistry, queue.registry)
        self._upkeep = upkeep_of(registry) if checked_kind("upkeep", upkeep, bool) else None
        self._reporter = reporter_of(registry)
        wanted = None if concurrency is None else check_concurrency(concurrency, self._most)
        batching = queue.config.batching is not None
        most = checked_prefetch(prefetch, batching=batching, ordered=ordered)
        # The parts that work on messages.
        state = self._state = ConsumerState(self, queue, wanted)
        self.stats, self._stopping = state.counts, state.stopping
        self._settlements = Settlements(queue, state, ordered=ordered)
        self._prefetched = Prefetched(queue, self._settlements)
        self.runs = self._runs_of(queue, self._settlements, state)
        self._turns = Turns(
            state, self._seams, queue, handler, exception_types(ignorable), self.runs, self._settlements,
            self._prefetched, Pace(most), ShardLocks(queue) if ordered else None,
            checked_rate(
                rate, per_key, batching=batching, seams=self._seams, refused=partial(state.add, "rate_limited")
            ),
        )  # fmt: skip
        # Its life.
        self._given_up = self._hung = self._pid = self._workers = 0
        self._lock = self._seams.lock()
        self._supervisor: Activity | None = None
        self._tasks: list[Task] = []
        self._inside: set[int] = set()
        """The threads, on a loop the tasks, in which handlers run."""
        self._is_reported, self._begins_by = False, 0.0

    def __repr__(self) -> str:
        return f"Consumer({self.queue.name!r}, workers={self._workers}, stuck={self.runs.stuck})"

    @property
    def concurrency(self) -> int:
        """Workers that are wanted now."""
        return self._state.concurrency()

    def allot(self, workers: int) -> None:
        """Use this number of workers from now on, 0 to 100, whatever the queue's record says. Raises
        `TooManyConsumers`.
        """
        self._state.allot(check_concurrency(workers, self._most))

    def belong_to_worker(self, signals: Signals, life: Life, hand: Hand | None = None) -> None:
        """Stop at the signals of a worker, and leave it to the worker to log that it starts, drains and stops.

        hand: where to note the messages in hand. It notes none of an `ordered` consumer,
            whose messages are for the next holder of the shard.
        """
        self._state.belong_to_worker(signals, life, hand)

    @property
    def running(self) -> int:
        """Handlers that run and were not given up."""
        return max(0, self.runs.open_runs - self.runs.stuck)

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
        return self.runs.stuck

    @property
    def saturated(self) -> bool:
        """Whether so many handlers hang, twice `concurrency`, that no more messages are taken."""
        return self.runs.saturated()

    @property
    def busy(self) -> bool:
        """Whether messages are being handled here, or are believed to be there. No I/O."""
        return bool(self.runs.open_runs or self._prefetched.waiting or self.queue.active.believed)

    @property
    def not_found(self) -> bool:
        """Whether its last call found that the queue, as a group that was dropped, is not there."""
        return self._state.not_found

    # ---- life

    def start(self) -> Consumer:
        """Start in the background; itself. A consumer is started once. One whose start was interrupted has ended.

        It takes its first message once this process has reported that it works on the queue: two calls.
        """
        self._refuse_second_start()
        self._pid = os.getpid()
        self._supervisor = Activity(self._seams)
        try:
            if self._state.is_alone:
                self._state.life.started(self.queue.store.where, {self.queue.name: self.concurrency})
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
            self._state.wake()

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
        latest. Called again, it returns False if any call of it gave messages up. In a child that was forked since the
        start it does nothing: the threads are the parent's.

        Raises `InvalidRequest` in a handler of its own, for which it would wait: a handler lets another thread call it.
        """
        if self._pid not in (0, os.getpid()):
            return True
        self.refuse_own_handler()
        grace = self.grace if grace is None else checked_number("grace", grace)
        end = self._seams.monotonic() + grace
        self.runs.drain()
        if self._state.is_alone:
            self._state.life.drains(self.running, grace)
        try:
            try:
                self._finish(end)
            finally:
                self._end(max(0.0, end + 2 * SUPERVISE_EVERY - self._seams.monotonic()))
        finally:
            self._end(0.0)  # again, as an interrupt may have ended the first call early
        self.queue.message_log.flush(now=True)
        if self._state.is_alone:
            self._state.life.stopped(self._given_up, self._hung)
        return not self._given_up

    def refuse_own_handler(self) -> None:
        """Raise `InvalidRequest` if this is called by a handler of this consumer, for which a stop would wait."""
        if self._seams.thread() in self._inside:
            raise InvalidRequest(
                f"a handler of {shown(self.queue.name)} stops its own consumer, which would wait for it: let "
                f"{self._elsewhere}"
            )

    def _finish(self, end: float) -> None:
        """Take no more messages; let handlers finish until `end`, and give up the others."""
        self._stopping.set()
        self.queue.active.wake()
        with Deadline(self._seams, max(0.0, end - self._seams.monotonic())):
            self._settlements.send()
            self._settlements.settle_again(now=True)
            self._prefetched.hand_back()
        with Deadline(self._seams, min(MARKING, max(0.0, end - self._seams.monotonic()))):
            self._survive(self.runs.interrupting)
        while self._workers > self.runs.stuck and self._seams.monotonic() < end and not self._state.signals.forced:
            self._seams.sleep(0.02)
        stuck = self.runs.stuck
        self._hung = stuck - self.runs.cut
        self._given_up += max(0, self.runs.open_runs - stuck)
        with Deadline(self._seams, 0):
            self._settlements.send()
            self._settlements.settle_again(now=True)
            self._prefetched.hand_back(last=True)
            self.runs.abandon_all("was still running when the consumer had to stop")
        soon = min(end, self._seams.monotonic()) + SUPERVISE_EVERY
        for task in filter(None, (*self._tasks, self._supervisor)):
            task.join(max(0.0, soon - self._seams.monotonic()))

    def _end(self, timeout: float) -> None:
        """Take no more messages, and no part in the upkeep any more. Harmless when repeated."""
        self._stopping.set()
        self._state.wake()
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
        with self._state.signals:
            self.start()
            while not (self._state.signals.drains or self._stopping.wait(SIGNAL_POLL)):
                pass
            return self.stop()

    # ---- the supervisor

    def _supervise(self) -> None:
        """Start workers as wanted, keep their messages alive, give up on handlers that hang."""
        config = self.queue.config
        timeout, sweep = config.handler_timeout.total_seconds(), config.sweep_duration.total_seconds()
        pause = min(SUPERVISE_EVERY, timeout / 10, sweep / 20)
        saturated = False
        while not (self._stopping.is_set() and self._are_over()):
            self._survive(self._keep_alive)
            self._survive(self._move_on)
            self._survive(self._give_up_late)
            self.queue.message_log.flush()
            if not self._state.ends():
                self._survive(self.queue.registry.refresh_if_due)
                if self._is_reported or self._seams.monotonic() >= self._begins_by:
                    self._survive(self._scale_workers)
            if self.saturated and not saturated:
                log.error("%s is saturated: %d handlers hang, no more messages are taken", self, self.runs.stuck)
            saturated = self.saturated
            self._state.doze(pause, SUPERVISE_SOON, lambda: self._prefetched.waiting or self._settlements.collected)

    def _are_over(self) -> bool:
        """Whether no worker has anything left to do: those that hang have not, nor those that ended without a word, as
        a task whose loop ended before it began.
        """
        return self._workers <= self.runs.stuck or not any(task.is_alive() for task in self._tasks)

    def _keep_alive(self) -> None:
        self.runs.keep()
        self._prefetched.keep()

    def _move_on(self) -> None:
        """Acknowledge finished messages that no worker has acknowledged in time, also those of before the store was
        away, and hand back messages that wait for too long, or may not begin.
        """
        self._settlements.send(SPAN)
        self._settlements.settle_again()
        self._prefetched.hand_back(WAIT if self.runs.takes() else 0.0)

    def _give_up_late(self) -> None:
        """Give up claimed slots that are empty while all workers are busy, so that what has expired is counted."""
        if self.queue.pending.entries and not self.ordered:
            with self._state.hand.claims() as notes:
                self.queue.give_up_late(notes)

    def _survive(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as failure:  # noqa: BLE001 - the store's, a thread's that does not start, or a defect
            self._state.report(failure)

    def _scale_workers(self) -> None:
        """Start workers until there are as many as are wanted."""
        with self._lock:
            missing = -self._excess()
        if missing > 0:
            self._tasks = [task for task in self._tasks if task.is_alive()]
        for number in range(missing):
            with self._lock:
                self._workers += 1
            try:
                self._tasks.append(self._spawn_worker(f"{self.queue.name}-worker-{number}"))
            except BaseException:
                with self._lock:
                    self._workers -= 1
                raise

    def _spawn_worker(self, name: str) -> Task:
        return self._seams.spawn(self._work, name)

    def _excess(self) -> int:
        """Return how many more workers there are than wanted: `concurrency`, and one for each that hangs, up to as many
        again.

        Workers that hang cannot leave. So if more than that hang, as after `scale`, all others are too many.
        """
        stuck, wanted = self.runs.stuck, self.concurrency
        return self._workers - max(stuck, wanted + min(stuck, wanted))

    def _should_exit(self) -> bool:
        """Whether this worker is one too many; counts it out if it is."""
        with self._lock:
            over = self._excess() > 0 or self._state.ends()
            if over:
                self._workers -= 1
            return over

    # ---- a worker

    def _work(self) -> None:
        failures, counts, thread = 0, True, self._seams.thread()
        self._inside.add(thread)
        try:
            while counts := not self._should_exit():
                try:
                    self._turns.take()
                    failures = 0
                    self._state.succeeded()
                except Exception as failure:  # noqa: BLE001 - a defect, too: the next worker would meet it at once
                    failures += 1
                    self._state.pause(failure, failures)
        finally:  # however it ends: the supervisor starts another in its place
            self._inside.discard(thread)
            if counts:
                with self._lock:
                    self._workers -= 1
        self._survive(self._move_on)
