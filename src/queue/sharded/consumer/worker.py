"""A worker: several queues in one process, a handler for each, and the upkeep of their client.

worker = Worker(registry, weights={"high": 8, "low": 1})

@worker.handler("high")
def urgent(delivery): ...

worker.run()                                  # until SIGTERM
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ....background import Background, FailureLog, parallel_map
from ....coord.limiter import RateLimiter
from ....errors import InvalidRequest
from ....inputs import checked_kind, checked_number, checked_switch, checked_whole
from ....logs import Log
from ....plain import shown
from ....unpicklable import Unpicklable
from ..config import MAX_CONSUMERS, check_concurrency
from ..delivery import Delivery
from ..registry import QueueRegistry
from ..subscription import Subscription
from ..tasks.signature import Signature, report
from ..tasks.task import Task, TaskDecorator, Upcast, checked_for_tasks, checked_upcast
from ..workers import REPORT
from .consumer import Consumer, Handler
from .in_hand import Hand
from .log import Life
from .prefetch import checked_prefetch
from .rate import checked_rate
from .signals import SIGNAL_POLL, Signals

log = Log(__name__)

H = TypeVar("H", bound=Handler)
ALLOT_EVERY = 0.25
"""Seconds between two divisions of the threads among the queues."""
DEPTH_EVERY = 2.0
"""Seconds between two looks at the depth of a queue whose handler has thresholds."""
AGAIN_EVERY = 2.0
"""Seconds between two looks for a group that was dropped, and may have been made again."""


@dataclass(frozen=True, slots=True)
class Handled:
    """A queue of a worker, and what the worker does with its messages. settings: more of those of its `Consumer`."""

    handler: Handler
    concurrency: int | None
    start_at: int | None
    stop_at: int
    settings: Mapping[str, Any]


class Worker(Unpicklable):
    """A runner of handlers, one for each of several queues, in a process that needs nothing else beside it.

    registry: where the queues are; they must have been created when the worker starts.
    weights: for each queue an integer from 1 to 1,000. `concurrency` threads are divided among the queues that have
        messages, in proportion; a queue without messages keeps one thread, so a new message waits at most for one
        message of its own queue. None: each queue has as many threads as its handler, or its record, says.
    concurrency: threads in all, at least one for each queue; default the sum of the weights.
    A group that was dropped and made again is taken up within 15 s.
    grace: seconds that `stop` gives handlers to finish.
    upkeep: whether this process takes part in the upkeep of the client's queues.

    Register the handlers and start it in one thread; after that it is safe to share between threads, and any of them
    may stop it.
    """

    _INSTEAD = "pickle the QueueRegistry and the handlers, and make a worker there"
    _most = MAX_CONSUMERS
    _consumer_of = Consumer

    def __init__(
        self,
        registry: QueueRegistry,
        *,
        weights: Mapping[str, int] | None = None,
        concurrency: int | None = None,
        grace: float = 10.0,
        upkeep: bool = True,
    ) -> None:
        self.registry = checked_kind("registry", registry, QueueRegistry)
        self.weights = _checked_weights(weights)
        if concurrency is not None:
            checked_whole("concurrency", concurrency, 1, self._most)
        if concurrency is not None and weights is None:
            raise InvalidRequest("concurrency without weights: give weights, or a concurrency to each handler")
        self.concurrency = concurrency
        self.grace, self.upkeep = checked_number("grace", grace), checked_kind("upkeep", upkeep, bool)
        self._seams = registry.store.seams
        self._handlers: dict[str, Handled] = {}
        self.tasks: dict[str, Task[Any, Any]] = {}
        """The tasks, by their queues."""
        self.consumers: dict[str, Consumer] = {}
        self._background = Background(self._seams, self._divide_threads, f"{registry.client_id}-worker")
        self._stopping = self._background.stopping
        self._signals = Signals(self._stopping.is_set)
        self._failure_log = FailureLog(self._seams, log)
        self._life = Life(self._seams, f"the worker of {registry.client_id!r}")
        self.hand_of: Callable[[str], Hand] | None = None
        """Returns where the messages that are in hand are noted, by the name of their queue; None = nowhere."""

    def __repr__(self) -> str:
        return f"Worker({self.registry.client_id!r}, queues={sorted(self._handlers)})"

    def handler(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        ignorable: type[BaseException] | Collection[type[BaseException]] = (),
        ordered: bool = False,
        start_at: int | None = None,
        stop_at: int = 0,
        prefetch: int | None = None,
        rate: RateLimiter | None = None,
        per_key: Callable[[Delivery], str] | None = None,
    ) -> Callable[[H], H]:
        """Handle the messages of a queue by the decorated function, as `Consumer` does. One handler a queue.

        queue: its name.  concurrency: threads, where the worker has no weights; default what the queue's record says.
        ignorable, ordered, prefetch, rate, per_key: as for `Consumer`.
        start_at, stop_at: work only once so many messages are ready, and then until so few are left; for work that
            pays in bulk. The depth is looked at each 2 s, one call.

        Raises `InvalidRequest`, also if the queue has a handler.
        """
        if not isinstance(queue, str) or not queue:
            raise InvalidRequest(f"queue is {shown(queue)}; give the name of a queue")
        if queue in self._handlers:
            raise InvalidRequest(f"queue {shown(queue)} has a handler already: handle all its messages in one")
        if concurrency is not None and self.weights is not None:
            raise InvalidRequest(
                f"concurrency {shown(concurrency)} for {shown(queue)}: the weights divide this worker's threads"
            )
        if concurrency is not None:
            check_concurrency(concurrency, self._most)
        checked_switch("ordered", ordered)
        _check_thresholds(start_at, stop_at)
        checked_prefetch(prefetch, batching=False, ordered=ordered)
        checked_rate(rate, per_key, batching=False, seams=self._seams)
        settings = {"ignorable": ignorable, "ordered": ordered, "prefetch": prefetch, "rate": rate, "per_key": per_key}

        def add(handler: H) -> H:
            self._consumer_of.checks(handler)
            self._handlers[queue] = Handled(handler, concurrency, start_at, stop_at, settings)
            return handler

        return add

    def task(
        self,
        queue: str,
        *,
        upcast: Upcast | None = None,
        concurrency: int | None = None,
        ignorable: type[BaseException] | Collection[type[BaseException]] = (),
        ordered: bool = False,
        start_at: int | None = None,
        stop_at: int = 0,
        prefetch: int | None = None,
        rate: RateLimiter | None = None,
        per_key: Callable[[Delivery], str] | None = None,
    ) -> TaskDecorator:
        """Make the decorated function the handler of a queue whose messages are calls of it: a `Task`, which publishes
        them.

        upcast: given a payload that does not fit, as of a program from before a deploy, it returns one that does.
        The others are as for `handler`.

        Raises `InvalidRequest`, as `handler`; also for a function whose parameters JSON cannot hold, or that takes
        `*args`, `**kwargs` or parameters without a name.
        """
        checked_upcast(upcast)
        add = self.handler(
            queue, concurrency=concurrency, ignorable=ignorable, ordered=ordered, start_at=start_at, stop_at=stop_at,
            prefetch=prefetch, rate=rate, per_key=per_key,
        )  # fmt: skip

        def made(function: Callable[..., Any]) -> Task[Any, Any]:
            self._consumer_of.checks(function)
            task: Task[Any, Any] = Task(self.registry, queue, function, Signature(function), upcast)
            add(task.handle)
            self.tasks[queue] = task
            return task

        return made

    # ---- life

    def start(self) -> Worker:
        """Start in the background; itself. A worker is started once.

        Raises `NotFound` for a queue that was not created, `InvalidRequest` where the weights do not fit the handlers,
        and the store's errors; then nothing runs.
        """
        if self.consumers:
            raise InvalidRequest(f"{self!r} was started before: make another")
        self._check_shares()
        queues = {name: self.registry.get(name) for name in self._handlers}
        for name in self.tasks:  # before a message can come that it would not understand
            report(checked_for_tasks(queues[name]), self.tasks[name].stored_signature)
        self.consumers = {name: self._consumer(queues[name], handled) for name, handled in self._handlers.items()}
        try:
            threads = {name: consumer.concurrency for name, consumer in self.consumers.items()}
            self._life.started(self.registry.store.where, threads)
            for consumer in self.consumers.values():
                consumer.start()
            self._background.start()
        except BaseException:  # also an interrupt: its receiver may have no reference to stop this worker
            self.stop(0)
            raise
        return self

    def _consumer(self, queue: Subscription, handled: Handled) -> Consumer:
        threads = 0 if handled.start_at is not None else 1 if self.weights is not None else handled.concurrency
        consumer = self._consumer_of(
            queue, handled.handler, concurrency=threads, grace=self.grace, upkeep=self.upkeep, **handled.settings
        )
        hand = None if self.hand_of is None else self.hand_of(queue.name)
        consumer.belong_to_worker(self._signals, self._life, hand)  # one signal stops all consumers
        return consumer

    def stop(self, grace: float | None = None) -> bool:
        """Take no more messages, give handlers `grace` seconds to finish; whether all have (see `Consumer.stop`).

        Raises `InvalidRequest` in a handler of its own, for which it would wait: a handler lets another thread call it.
        """
        grace = self.grace if grace is None else checked_number("grace", grace)
        for consumer in self.consumers.values():
            consumer.refuse_own_handler()
        self._signals.drains = True
        self._stopping.set()
        end, consumers = self._seams.monotonic() + grace, list(self.consumers.values())
        self._life.drains(sum(consumer.running for consumer in consumers), grace)
        try:
            done = parallel_map(
                self._seams,
                lambda consumer: consumer.stop(max(0.0, end - self._seams.monotonic())),
                consumers,
                len(consumers),  # all at once: one that hangs must not delay the others
                f"{self.registry.client_id}-stop",
            )
            self._background.stop(SIGNAL_POLL)
        except BaseException:  # an interrupt: do not wait any more, but stop all consumers
            for consumer in consumers:
                consumer.stop(0)
            raise
        given_up, hang = (sum(getattr(one, of) for one in consumers) for of in ("given_up", "hung"))
        self._life.stopped(given_up, hang)
        return all(done)

    def run(self) -> bool:
        """Work until SIGTERM, SIGINT, SIGHUP or `stop`; return what `stop` returned.

        In the main thread it handles these signals for as long as it runs: the first drains, a second one forces,
        except a second SIGHUP. A SIGHUP that the program ignores, or handles itself, is left alone.
        """
        with self._signals:
            try:
                self.start()
                while not (self._signals.drains or self._stopping.wait(SIGNAL_POLL)):
                    pass
            finally:
                done = self.stop()
        return done

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def queues(self) -> list[str]:
        """The names of the queues that have a handler, sorted."""
        return sorted(self._handlers)

    @property
    def running(self) -> bool:
        """Whether it was started and not yet asked to end."""
        return bool(self.consumers) and not self._signals.drains

    # ---- threads for each queue

    def _check_shares(self) -> None:
        if not self._handlers:
            raise InvalidRequest(f"{self!r} has no handlers: decorate a function with @worker.handler(QUEUE)")
        if self.weights is None:
            return
        wrong = sorted(self._handlers.keys() ^ self.weights.keys())
        if wrong:
            raise InvalidRequest(f"{shown(wrong[0])} is not in both: give each queue that has a handler a weight")
        total = self._threads()
        if not len(self._handlers) <= total <= self._most:
            raise InvalidRequest(
                f"{total} threads for {len(self._handlers)} queues: give a concurrency from one for each queue to "
                f"{self._most}"
            )

    def _threads(self) -> int:
        return sum((self.weights or {}).values()) if self.concurrency is None else self.concurrency

    def _divide_threads(self) -> None:
        looked: dict[str, float] = {}
        asked = told = self._seams.monotonic()
        opened = {name: handled.start_at is None for name, handled in self._handlers.items()}
        while not self._signals.drains:
            for name, handled in self._handlers.items():
                now = self._seams.monotonic()
                if handled.start_at is not None and now >= looked.get(name, now):
                    looked[name] = now + DEPTH_EVERY
                    opened[name] = self._opens(name, handled, is_open=opened[name])
            try:
                if self._seams.monotonic() >= asked + AGAIN_EVERY:
                    asked = self._seams.monotonic()
                    self._take_up_again()
                if self.tasks and self._seams.monotonic() >= told + REPORT:
                    told = self._seams.monotonic()
                    for name, task in self.tasks.items():
                        report(self.consumers[name].queue, task.stored_signature)
                self._allot(opened)
            except Exception as failure:  # noqa: BLE001 - a defect must not end a task that nothing would start again
                self._failure_log.record(
                    failure, f"{self!r} could not divide its threads, find a group again, or report"
                )
            if self._stopping.wait(ALLOT_EVERY):
                return

    def _take_up_again(self) -> None:
        """Put a new consumer in the place of one whose group was dropped, where the group was made again."""
        for name, consumer in self.consumers.items():
            again = consumer.queue.made_again() if consumer.not_found else None
            if again is None:
                continue
            log.info("%s takes up %s, which was dropped and made again", self, name)
            successor = self._consumer(again, self._handlers[name])
            successor.start()  # where that fails, it is tried again
            self.consumers = {**self.consumers, name: successor}
            consumer.stop(0)
            if self._stopping.is_set():  # `stop` may have seen the former consumer
                successor.stop(0)

    def _allot(self, opened: Mapping[str, bool]) -> None:
        """Give each queue its threads for the next moment."""
        if self.weights is None:
            for name, handled in self._handlers.items():
                if handled.start_at is not None:
                    queue = self.consumers[name].queue
                    wanted = queue.concurrency if handled.concurrency is None else handled.concurrency
                    self.consumers[name].allot(wanted if opened[name] else 0)
            return
        busy = {name for name, consumer in self.consumers.items() if opened[name] and consumer.busy}
        given = divided(self._threads(), self.weights, busy)
        for name, consumer in self.consumers.items():
            paused = not opened[name] or consumer.queue.concurrency == 0
            consumer.allot(0 if paused else given[name])

    def _opens(self, name: str, handled: Handled, *, is_open: bool) -> bool:
        """Whether the queue is to be worked: from `start_at` ready messages on, until `stop_at` are left."""
        try:
            states = self.consumers[name].queue.pointers.states()
        except Exception as failure:  # noqa: BLE001 - a defect, too
            self._failure_log.record(failure, f"the depth of {name} is unknown")
            return is_open
        ready = sum(state.waiting for state in states)
        return ready > handled.stop_at if is_open else ready >= (handled.start_at or 0)


def divided(threads: int, weights: Mapping[str, int], busy: Collection[str]) -> dict[str, int]:
    """Return the threads of each queue: one each, and the rest for the queues that are busy, in proportion to their
    weights.

    Largest remainders first, and by name if they are equal, so that the sum is `threads`. If no queue is busy, all
    count as busy.
    """
    chosen = {name: weights[name] for name in sorted(busy or weights)}
    shares = {name: threads * weight / sum(chosen.values()) for name, weight in chosen.items()}
    given = dict.fromkeys(weights, 1)
    left = threads - len(weights)
    while left > 0:
        name = max(chosen, key=lambda one: shares[one] - given[one])
        given[name] += 1
        left -= 1
    return given


def _checked_weights(weights: Mapping[str, int] | None) -> dict[str, int] | None:
    if weights is None:
        return None
    if not isinstance(weights, Mapping) or not weights:
        raise InvalidRequest(f"weights is {shown(weights)}; give a mapping of queue names to whole numbers")
    for name, weight in weights.items():
        if not isinstance(name, str):
            raise InvalidRequest(f"weights has a weight for {shown(name)}; give it for the name of a queue")
        checked_whole(f"the weight of {shown(name)}", weight, 1, 1000)
    return dict(weights)


def _check_thresholds(start_at: Any, stop_at: Any) -> None:
    if start_at is None:
        if stop_at != 0:
            raise InvalidRequest(f"stop_at is {shown(stop_at)} without start_at: give both")
        return
    checked_whole("start_at", start_at, 1, 1_000_000_000)
    checked_whole("stop_at", stop_at, 0, start_at - 1)
