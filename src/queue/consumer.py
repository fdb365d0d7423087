"""A consumer: worker threads that call a handler for each message of a queue, or for each batch of messages."""

from __future__ import annotations

import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..errors import InvalidMessageHandler, InvalidRequest, LatchworkError
from ..retry import Poll
from ..seams import Task
from .config import check_concurrency
from .delivery import Delivery
from .envelope import Reason
from .ordered import ShardLocks
from .runs import Run, Runs, Verdict, judged, raised
from .sharded import ShardedQueue
from .view import MAX_RECEIVE

log = logging.getLogger(__name__)

Handler = Callable[[Any], Any]
ASK = 1.0
"""Seconds for which an idle worker waits for a message before it looks around."""
KEEP = 0.5
"""Seconds at the most between two looks of the keeper."""
TROUBLE = Poll(low=0.1, high=10.0, factor=2.0, jitter=0.5)
"""Pauses after errors of the store."""


class Consumer:
    """Calls `handler(delivery)` for each message, in up to `concurrency` threads; with the queue's `batching`, calls
    `handler([delivery, ...])` for each batch.

    What the handler returns decides: True or None = done, acknowledged; False = rejected, into the sideline; for a
    batch also a sequence of these, one for each. An exception, even `SystemExit`, puts it into the sideline too, one of
    `ignorable` acknowledges it. While a handler runs its messages are extended; after the queue's `handler_timeout`
    they go to the sideline as `timeout`, and what the handler returns later counts for nothing. Python cannot end the
    thread, so its place is taken by another, up to `concurrency` of them. Once those hang too, twice `concurrency` in
    all, the consumer is `saturated`: it says so in the log, and takes no more messages until one returns; what it still
    had goes to the sideline as `saturated`.

    concurrency: None = what the queue's record says, followed at run time (0 = paused).  ordered: takes a fenced lock
    on a shard and works it alone, so that messages of one `key` are handled in the order in which they were published,
    unless one fails, or is given up, which leaves the shard to others at once; a consumer of the same queue that is not
    ordered breaks that.  grace: seconds that `stop` gives handlers to finish.

    Not promised: exactly once. A message whose handler outlives the sweep duration, or whose process dies, comes again.
    """

    def __init__(
        self,
        queue: ShardedQueue,
        handler: Handler,
        *,
        concurrency: int | None = None,
        ignorable: Sequence[type[BaseException]] = (),
        ordered: bool = False,
        grace: float = 10.0,
    ) -> None:
        if not isinstance(queue, ShardedQueue):
            raise InvalidRequest(f"queue is a {type(queue).__name__}; give what QueueRegistry.create or .get returns")
        if not callable(handler):
            raise InvalidMessageHandler(f"the handler is a {type(handler).__name__}; give a function of one argument")
        if not isinstance(ignorable, list | tuple) or not all(_is_exception(kind) for kind in ignorable):
            raise InvalidRequest(f"ignorable is {ignorable!r}; it must be a list or tuple of exception types")
        if not isinstance(grace, int | float) or not grace >= 0:
            raise InvalidRequest(f"grace is {grace!r}; it must be seconds, 0 or more")
        self.queue, self.handler, self.ordered, self.grace = queue, handler, ordered, grace
        self.stats: Counter[str] = Counter()
        self._wanted = None if concurrency is None else check_concurrency(concurrency)
        self._ignorable = tuple(ignorable)
        self._seams = queue.store.seams
        config = queue.config
        self._runs = Runs(
            self._seams,
            sweep=config.sweep_duration.total_seconds(),
            timeout=config.handler_timeout.total_seconds(),
            stats=self.stats,
        )
        self._stopping = self._seams.event()
        self._forced = self._seams.event()
        self._lock = self._seams.lock()
        self._workers = 0
        self._keeper: Task | None = None
        self._tasks: list[Task] = []
        self._locks = ShardLocks(queue) if ordered else None

    def __repr__(self) -> str:
        return f"Consumer({self.queue.name!r}, workers={self._workers}, stuck={self._runs.stuck})"

    @property
    def concurrency(self) -> int:
        """Workers that are wanted now."""
        return self.queue.concurrency if self._wanted is None else self._wanted

    @property
    def saturated(self) -> bool:
        """Whether so many handlers hang, twice `concurrency`, that no more messages are taken."""
        return 0 < 2 * self.concurrency <= self._runs.stuck

    # ---- life

    def start(self) -> Consumer:
        """Start in the background; itself. A consumer is started once."""
        if self._keeper:
            raise InvalidRequest(f"{self!r} was started before: make another")
        self._keeper = self._seams.spawn(self._keep, f"{self.queue.name}-keeper")
        return self

    def stop(self, grace: float | None = None) -> bool:
        """Take no more messages, give handlers `grace` seconds to finish, then hand back what is still running.

        True where all had finished; False where some were given up: their messages are in the sideline as `timeout`.
        Not to be called by a handler, which it would wait for.
        """
        self._stopping.set()
        self.queue.active.loaded(())  # wakes those that wait for messages
        end = self._seams.monotonic() + (self.grace if grace is None else grace)
        while self._workers > self._runs.stuck and self._seams.monotonic() < end and not self._forced.is_set():
            self._forced.wait(0.02)
        done = self._workers <= self._runs.stuck
        self._runs.abandon_all("was still running when the consumer's grace period ended")
        end = self._seams.monotonic() + KEEP
        for task in filter(None, (*self._tasks, self._keeper)):
            task.join(max(0.0, end - self._seams.monotonic()))
        return done

    def run(self) -> bool:
        """Work until SIGTERM, SIGINT or `stop`; then what `stop` returned.

        In the main thread it handles both signals for as long as it runs: the first drains, a second one forces.
        """
        before = self._on_signals(self._signalled)
        try:
            self.start()
            while not self._stopping.wait(KEEP):
                pass
            return self.stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signals(self, handler: Callable[[int, Any], None]) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}

    def _signalled(self, _number: int, _frame: Any) -> None:
        if self._stopping.is_set():
            self._forced.set()
        self._stopping.set()

    # ---- the keeper

    def _keep(self) -> None:
        """Start workers as wanted, keep their messages alive, give up on handlers that hang."""
        config = self.queue.config
        pause = min(KEEP, config.handler_timeout.total_seconds() / 10, config.sweep_duration.total_seconds() / 20)
        saturated = False
        while not (self._stopping.is_set() and self._workers <= self._runs.stuck):
            try:
                self._runs.keep()
                if not self._stopping.is_set():
                    self.queue.registry.refresh_if_due()
                    self._staff()
                if self.saturated and not saturated:
                    log.error("%s is saturated: %d handlers hang, no more messages are taken", self, self._runs.stuck)
                saturated = self.saturated
            except LatchworkError as failure:
                self._troubled(failure)
            except Exception:  # a thread that could not be started, or a defect: neither may end the keeper
                self.stats["troubles"] += 1
                log.exception("%r met trouble", self)
            self._seams.sleep(pause) if self._stopping.is_set() else self._stopping.wait(pause)

    def _staff(self) -> None:
        """As many workers as are wanted."""
        with self._lock:
            missing = -self._surplus()
        if missing > 0:
            self._tasks = [task for task in self._tasks if task.is_alive()]
        for number in range(missing):
            self._hire(number)

    def _hire(self, number: int) -> None:
        self._count(1)
        try:
            self._tasks.append(self._seams.spawn(self._work, f"{self.queue.name}-worker-{number}"))
        except BaseException:
            self._count(-1)
            raise

    def _count(self, more: int) -> None:
        with self._lock:
            self._workers += more

    def _surplus(self) -> int:
        """Workers that there are beyond those wanted: `concurrency`, and one for each that hangs, up to as many again.

        Those that hang cannot leave, so where more do than that, as after `scale`, all others are too many.
        """
        stuck, wanted = self._runs.stuck, self.concurrency
        return self._workers - max(stuck, wanted + min(stuck, wanted))

    def _retires(self) -> bool:
        """Whether this worker is one too many; counts it out if it is."""
        with self._lock:
            over = self._surplus() > 0 or self._stopping.is_set()
            if over:
                self._workers -= 1
            return over

    # ---- a worker

    def _work(self) -> None:
        troubles = 0
        while not self._retires():
            try:
                self._once()
                troubles = 0
            except LatchworkError as failure:
                troubles += 1
                self._troubled(failure)
                self._stopping.wait(TROUBLE.pause(troubles, self._seams))
            except BaseException:
                self._count(-1)
                raise

    def _once(self) -> None:
        if self._locks is None:
            self._handle(self._gather(None))
            return
        with self._locks.hold_one(self._stopping) as held:
            while held is not None and held.mine() and not (self._stopping.is_set() or self.saturated):
                run = self._gather({held.shard}, held.end)
                if run is None and not held.awaits():
                    return
                self._handle(run)

    def _gather(self, shards: Collection[int] | None, given_up: Callable[[], object] | None = None) -> Run | None:
        """The next message, or the next batch: as many as come within `max_wait` of the first, up to `max_size`."""
        batching = self.queue.config.batching
        wait = 0.0 if self._locks else ASK
        first = self.queue.receive(
            1 if batching is None else min(batching.max_size, MAX_RECEIVE), timeout=wait, shards=shards
        )
        if not first:
            return None
        run = self._runs.open(first, given_up)
        if batching is not None:
            self._fill(run, batching.max_size, batching.max_wait.total_seconds(), shards)
        return run

    def _fill(self, run: Run, size: int, wait: float, shards: Collection[int] | None) -> None:
        while len(run.deliveries) < size and not (self._stopping.is_set() or self.saturated):
            left = run.received + wait - self._seams.monotonic()
            if left <= 0:
                return
            wanted = min(size - len(run.deliveries), MAX_RECEIVE)
            try:
                run.deliveries.extend(self.queue.receive(wanted, timeout=min(left, ASK), shards=shards))
            except LatchworkError as failure:
                self._troubled(failure)
                return  # what has come is handled; the next look meets the same trouble

    def _handle(self, run: Run | None) -> None:
        if run is None:
            return
        if self.saturated:
            self._runs.close(run)
            for delivery in run.deliveries:
                self._runs.fail(delivery, Reason.SATURATED, f"{self._runs.stuck} handlers hang")
            return
        self._runs.start(run)
        try:
            verdicts = self._verdicts(run)
        finally:  # a run that nobody closes counts as a handler that hangs, for ever
            ours = self._runs.close(run)
        if ours:
            self._runs.settle(self.queue, run.deliveries, verdicts)

    def _verdicts(self, run: Run) -> list[Verdict]:
        """For each delivery None = acknowledge, or why it failed."""
        batch, messages = self.queue.config.batching is not None, len(run.deliveries)
        self.stats["handled"] += messages
        try:
            return judged(self._call(run.deliveries), messages, batch=batch)
        except self._ignorable:
            return [None] * messages
        except BaseException as failure:  # noqa: BLE001 - whatever a handler raises is the message's failure, not ours
            log.warning("the handler of %r raised %s", self.queue.name, type(failure).__name__)
            return raised(failure, messages)

    def _call(self, deliveries: list[Delivery]) -> Any:
        """The handler's answer; it runs in the trace in which its message was published."""
        name, began, outcome = self.queue.name, self._seams.monotonic(), "raised"
        try:
            origins = [delivery.headers for delivery in deliveries]
            with self._seams.span("handle", origins, queue=name, messages=len(deliveries)):
                answer = self.handler(deliveries[0] if self.queue.config.batching is None else deliveries)
            outcome = "returned"
            return answer
        finally:
            self._seams.note("handling", self._seams.monotonic() - began, queue=name, outcome=outcome)

    def _troubled(self, failure: LatchworkError) -> None:
        self.stats["troubles"] += 1
        log.warning("%r met trouble (%s): %s", self, failure.code, failure)


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
