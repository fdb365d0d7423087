"""Consumers and workers on a loop: an async handler runs for each message, hundreds at a time, in no thread.

The consumer is that of `latchwork.queue`. What is a thread there that takes messages and calls the handler is a task
here; the thread that extends their leases stays one, so a handler that keeps the loop busy loses nothing.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from .. import queue as sync
from ..errors import Interrupted, LeaseLost
from ..forks import awaited_as_called
from ..inputs import checked_number, is_async
from ..queue.sharded.consumer.handler import check_called
from ..queue.sharded.consumer.runs import HandlerCall, Runs
from ..queue.sharded.consumer.signals import SIGNAL_POLL
from ..queue.sharded.subscription import Subscription
from ..queue.sharded.tasks.signature import Signature
from ..queue.sharded.tasks.task import Upcast, checked_upcast
from ..seams import Task as Activity
from .bridge import Verb, verb_of
from .coord import RateLimiter
from .lag import LoopWatch
from .pool import Pool
from .queue import Delivery, QueueGroup, QueueRegistry, ShardedQueue, Subscribed
from .task import Task, TaskDecorator
from .twin import WAY_OUT, Twin, attribute, sync_of, sync_or_none

Handler = Callable[[Any], Awaitable[object]] | Callable[[Any], object]
H = TypeVar("H", bound=Handler)
C = TypeVar("C", bound="sync.Consumer | sync.Worker")
RS = TypeVar("RS", bound="_Runner[Any]")
EXCEPTIONS = type[BaseException] | Collection[type[BaseException]]
MOST = 1_000
"""Handlers of a consumer that run at a time, at most: a task costs less than a thread."""


class _Runs(Runs):
    """The runs of a consumer. A handler that is given up is cancelled, as a task can be ended and a thread cannot."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        """The tasks of handlers that were not given up, by the id of their first delivery."""

    def abandon(self, run: HandlerCall, why: str, *, interrupted: bool = False) -> bool:
        done = super().abandon(run, why, interrupted=interrupted)
        task = self.tasks.pop(id(run.deliveries[0]), None) if done and run.deliveries else None
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)
        return done


class _Consumer(sync.Consumer):
    """A consumer whose workers are tasks of a loop."""

    _most = MOST
    _runs_of = _Runs
    _elsewhere = "a task of its own call stop, as by asyncio.create_task(stop())"
    runs: _Runs
    checks = staticmethod(partial(check_called, wanted="an async function"))

    def __init__(self, queue: Subscription, handler: Handler, **settings: Any) -> None:
        self.checks(handler)
        self._user: Any = handler
        self._is_async = is_async(handler)
        self._loop: AbstractEventLoop | None = None
        super().__init__(queue, self._call, **settings)
        self._bridged: Any = queue.store
        self._pool = None if self._is_async else Pool(self._seams, MOST, f"{queue.name}-handler")
        self._watch: LoopWatch | None = None

    def start(self) -> _Consumer:
        """Start on the loop of the verb that calls this."""
        verb = verb_of()
        assert verb is not None  # noqa: S101 - the twin calls it
        self._refuse_second_start()
        self._loop = verb.loop
        self._watch = LoopWatch.of_this(self._seams)
        self._watch.join(self)
        super().start()
        return self

    def _end(self, timeout: float) -> None:
        super()._end(timeout)
        if self._watch is not None:
            self._watch.leave(self)
        if self._pool is not None:
            self._pool.close()

    def _spawn_worker(self, name: str) -> Activity:
        assert self._loop is not None  # noqa: S101 - it was started
        return _Worker(self, self._loop, name)

    async def work(self) -> None:
        """Take messages until it is one worker too many. It is a task; a cancel of it ends the consumer."""
        verb = Verb(self._work, self._seams, self._bridged.pool)
        try:
            await verb.live()
            if verb.cancelled is not None:
                raise verb.cancelled
        except CancelledError:
            # Its loop ends, and nobody has stopped it: no more tasks may start there, and its threads have to end.
            self._stopping.set()
            self._seams.spawn(partial(self._end, 0.0), f"{self.queue.name}-end")
            raise

    # ---- the handler

    def _call(self, given: Any) -> Any:
        """Run the user's handler for a message, or a batch; called by a worker."""
        verb = verb_of()
        assert verb is not None  # noqa: S101 - workers are verbs
        try:
            if self._pool is not None:
                return verb.offload(self._in_thread, verb, given, pool=self._pool)
            return self._in_task(verb, given)
        finally:
            if verb.cancelled is not None:  # its loop ends: the worker, which goes on to settle, takes no more messages
                self._stopping.set()

    def _in_task(self, verb: Verb, given: Any) -> Any:
        """Run a handler that is async."""
        if isinstance(given, list):
            first, work = given[0], self._user([Delivery(one, self._bridged) for one in given])
        else:
            first, work = given, self._user(Delivery(given, self._bridged))
        name = getattr(self._user, "__qualname__", type(self._user).__name__)
        with verb.outside():
            task = verb.loop.create_task(awaited_as_called(work), name=f"{name}, the handler of {self.queue.name!r}")
        self.runs.tasks[id(first)] = task
        self._inside.add(id(task))
        try:
            return verb.awaits(task)
        except CancelledError:
            if verb.cancelled is None and id(first) in self.runs.tasks:
                raise  # neither the loop nor the consumer has cancelled it: a failure as any other
            raise Interrupted("it was cancelled", cut=True) from None
        finally:
            self.runs.tasks.pop(id(first), None)
            self._inside.discard(id(task))

    def _in_thread(self, verb: Verb, given: Any) -> Any:
        """Run a handler that is not async; not if the consumer stops, or its messages were given up, while it waited
        for a thread.
        """
        first: sync.Delivery = given[0] if isinstance(given, list) else given
        try:
            first.check()
        except LeaseLost as lost:
            raise Interrupted(str(lost), cut=True) from None
        with verb.outside():
            return self._user(given)


class _Worker:
    """A worker: a task that another thread asks for. It is alive until it has ended, or its loop has."""

    def __init__(self, consumer: _Consumer, loop: AbstractEventLoop, name: str) -> None:
        self._loop, self._over = loop, consumer.queue.store.seams.event()
        self._task: asyncio.Task[None] | None = None

        def begin() -> None:
            self._task = loop.create_task(consumer.work(), name=name)
            self._task.add_done_callback(self._ended)

        loop.call_soon_threadsafe(begin)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._over.set()
        if not task.cancelled():
            task.exception()  # it was counted and logged

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not (self._over.is_set() or self._loop.is_closed())


class _Runner(Twin[C]):
    """The life of a consumer, or of a worker, on a loop."""

    async def start(self: RS) -> RS:
        """Start on this loop; itself. It is started once. Raises what its sync twin raises."""
        await self._run(self.of.start, lambda started: started.stop(0))
        return self

    async def stop(self, grace: float | None = None) -> bool:
        """Take no more messages, let handlers finish for `grace` seconds, then cancel them; whether all finished.

        Raises `InvalidRequest` in a handler of its own, for which it would wait: a handler lets another task await it.
        """
        patience = self.of.grace if grace is None else checked_number("grace", grace)
        return await self._leave(partial(self.of.stop, grace), patience + WAY_OUT)

    async def run(self) -> bool:
        """Work until SIGTERM, SIGINT, SIGHUP or `stop`; return what `stop` returned. A cancel of its task drains it.

        In the main thread it handles these signals for as long as it runs, as `latchwork.queue.Worker.run` says.
        """
        try:
            return await self._run(self.of.run)
        except CancelledError:
            await self.stop()
            raise

    async def __aenter__(self: RS) -> RS:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class Consumer(_Runner[_Consumer]):
    """Up to `concurrency` tasks that await `handler(delivery)` for each message: see `latchwork.queue.Consumer`.

    handler: an async function of an `aio.Delivery`, or of a list of them where the queue has `batching`. One that is
        not async runs in a thread, with a delivery of the sync surface.
    concurrency: handlers at a time, 0 to 1,000; None = as the queue's record says.

    A handler that is cancelled at the end of the grace, or where its loop ends, gives its message back, uncounted. One
    that runs longer than the queue's `handler_timeout` is cancelled, and its message fails. So does that of a handler
    that raises a `CancelledError` of its own, as for any exception. A thread extends the messages. A handler that keeps
    the loop busy for over a second is named in the log.
    """

    concurrency = attribute[int]()
    running = attribute[int]()
    given_up = attribute[int]()
    hung = attribute[int]()
    stuck = attribute[int]()
    saturated = attribute[bool]()
    busy = attribute[bool]()
    not_found = attribute[bool]()
    stats = attribute[Mapping[str, int]]()

    def __init__(
        self,
        queue: ShardedQueue | QueueGroup,
        handler: Handler,
        *,
        concurrency: int | None = None,
        ignorable: EXCEPTIONS = (),
        ordered: bool = False,
        grace: float = 10.0,
        upkeep: bool = True,
        prefetch: int | None = None,
        rate: RateLimiter | None = None,
        per_key: Callable[[sync.Delivery], str] | None = None,
    ) -> None:
        made = _Consumer(
            sync_of("queue", queue, Subscribed), handler, concurrency=concurrency, ignorable=ignorable,
            ordered=ordered, grace=grace, upkeep=upkeep, prefetch=prefetch,
            rate=sync_or_none("rate", rate, RateLimiter), per_key=per_key,
        )  # fmt: skip
        super().__init__(made, queue.bridged)
        self.queue, self.handler = queue, handler


class _LoopWorker(sync.Worker):
    """A worker whose consumers run on a loop."""

    _most = MOST
    _consumer_of = _Consumer

    def run(self) -> bool:
        """As in a thread; but a cancel only ends it: `_Runner.run` then stops it, as a verb that is cancelled waits for
        no handler.
        """
        with self._signals:
            self.start()
            while not (self._signals.drains or self._stopping.wait(SIGNAL_POLL)):
                pass
            return self.stop()


class Worker(_Runner[_LoopWorker]):
    """Async handlers, one for each of several queues: see `latchwork.queue.Worker`, and `Consumer` for the handlers."""

    weights = attribute[Mapping[str, int] | None]()
    concurrency = attribute[int | None]()
    running = attribute[bool]()
    queues = attribute[list[str]]()

    def __init__(
        self,
        registry: QueueRegistry,
        *,
        weights: Mapping[str, int] | None = None,
        concurrency: int | None = None,
        grace: float = 10.0,
        upkeep: bool = True,
    ) -> None:
        of = sync_of("registry", registry, QueueRegistry)
        made = _LoopWorker(of, weights=weights, concurrency=concurrency, grace=grace, upkeep=upkeep)
        super().__init__(made, registry.bridged)
        self.registry = registry

    def handler(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        ignorable: EXCEPTIONS = (),
        ordered: bool = False,
        start_at: int | None = None,
        stop_at: int = 0,
        prefetch: int | None = None,
        rate: RateLimiter | None = None,
        per_key: Callable[[sync.Delivery], str] | None = None,
    ) -> Callable[[H], H]:
        """Handle the messages of a queue by the decorated function, async or not. One handler a queue.

        As `latchwork.queue.Worker.handler`.
        """
        return self.of.handler(
            queue, concurrency=concurrency, ignorable=ignorable, ordered=ordered, start_at=start_at, stop_at=stop_at,
            prefetch=prefetch, rate=sync_or_none("rate", rate, RateLimiter), per_key=per_key,
        )  # fmt: skip

    def task(
        self,
        queue: str,
        *,
        upcast: Upcast | None = None,
        concurrency: int | None = None,
        ignorable: EXCEPTIONS = (),
        ordered: bool = False,
        start_at: int | None = None,
        stop_at: int = 0,
        prefetch: int | None = None,
        rate: RateLimiter | None = None,
        per_key: Callable[[sync.Delivery], str] | None = None,
    ) -> TaskDecorator:
        """Make the decorated function, async or not, the handler of a queue whose messages are calls of it.

        As `latchwork.queue.Worker.task`.
        """
        checked_upcast(upcast)
        add = self.handler(
            queue, concurrency=concurrency, ignorable=ignorable, ordered=ordered, start_at=start_at, stop_at=stop_at,
            prefetch=prefetch, rate=rate, per_key=per_key,
        )  # fmt: skip

        def made(function: Callable[..., Any]) -> Task[Any, Any]:
            _Consumer.checks(function)
            task: sync.Task[Any, Any] = sync.Task(
                self.registry.of, queue, function, Signature(function, (Delivery, sync.Delivery)), upcast
            )

            async def awaited(delivery: Any) -> object:
                return await task.handle(delivery)

            add(awaited if is_async(function) else task.handle)
            self.of.tasks[queue] = task
            return Task(task, self.bridged)

        return made


def run_on_own_loop(worker: Worker, call: Callable[[], bool]) -> bool:
    """Run a blocking call that starts and stops the worker's `of`, such as `of.run`, on a loop made for it; return what
    it returns.
    """
    return asyncio.run(worker._run(call))  # noqa: SLF001 - a part of it
