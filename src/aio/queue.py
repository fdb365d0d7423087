"""The sharded work queue of `latchwork.queue` on a loop. Each verb does what the sync verb of its name does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from .. import queue as sync
from ..coord.effects.step import LEASE, PATIENCE
from ..errors import LatchworkError, WaitTimeout
from ..inputs import Span, checked_timeout, checked_whole
from ..queue.sharded.active import IDLE_LOOK
from ..queue.sharded.delayed.view import DelayedView as SyncDelayed
from ..queue.sharded.publishing.batch_results import BatchResults
from ..queue.sharded.publishing.publisher import LINGER, WAITING, WAITING_BYTES
from ..queue.sharded.registry import AnyQueue
from ..queue.sharded.selection import Outcome
from ..queue.sharded.sideline import SideView as SyncSide
from ..queue.sharded.subqueue import MAX_RECEIVE, Subqueue
from ..queue.sharded.subscription import Subscription
from .bridge import Gate
from .bridged import BridgedStore
from .step import OnceStep
from .store import Store, bridged_of
from .twin import Twin, attribute, listed, sync_of, verb, verb_as

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W")
Q = TypeVar("Q", bound=Subqueue)
S = TypeVar("S", bound=Subscription)


class Delivery(Twin[sync.Delivery]):
    """A message that was handed to this consumer: see `latchwork.queue.Delivery`.

    A cancel in `ack` or `nack` comes once it is settled, or is known not to be: `ended(error)` says which.
    """

    __slots__ = ()

    payload = attribute[Any]()
    message_id = attribute[str]()
    headers = attribute[Mapping[str, str]]()
    attempts = attribute[int]()
    enqueued_at = attribute[datetime]()
    shard = attribute[int]()
    pointer = attribute[int]()
    reason = attribute[str | None]()
    last_error = attribute[str | None]()
    settled = attribute[bool]()
    received = attribute[float]()
    extended = attribute[float]()
    ack = verb(sync.Delivery.ack, way_out=True)
    nack = verb(sync.Delivery.nack, way_out=True)
    extend = verb(sync.Delivery.extend)
    operate = verb(sync.Delivery.operate)

    def once(
        self, name: str, *, keep: Span | None = None, timeout: float | None = PATIENCE, lease: float = LEASE
    ) -> OnceStep:
        """Return a step of the work on this message, with any effect, that is done once: its result is kept, and handed
        to later deliveries.

            async with delivery.once("mail") as step:
                if not step.done:
                    step.result = await mailer.send(mail, idempotency_key=step.token)

        or `await delivery.once("mail").run(send, mail)`, as `latchwork.queue.Delivery.once`. No call by itself.
        """
        return OnceStep(self.of.once(name, keep=keep, timeout=timeout, lease=lease), self._store)

    def check(self) -> None:
        """Raise if the work on the message is to end now; call it at points where it is safe to stop. No I/O."""
        self.of.check()

    def progress(self, fraction: float | None = None, note: str | None = None) -> None:
        """Say how far the work on the message is; the next extension takes it along. No I/O."""
        self.of.progress(fraction, note)


class _Subqueue(Twin[Q]):
    """What can be received from: a queue, its sideline, its parked messages."""

    name = attribute[str]()
    peek = verb(Subqueue.peek)
    peek_all = verb(Subqueue.peek_all)

    async def receive(
        self, max_messages: int = 1, *, timeout: float | None = 0, shards: Iterable[int] | None = None
    ) -> list[Delivery]:
        """Return up to `max_messages` messages, at least one if there is any within `timeout` seconds (None = no
        limit).

        As `latchwork.queue.ShardedQueue.receive`. Messages that come as the task is cancelled go back, uncounted.
        """
        some = None if shards is None else list(shards)
        receive = partial(self.of.receive, max_messages, timeout=timeout, shards=some)
        return listed(Delivery)(await self._run(receive, self._hand_back), self._store)

    def consume(
        self, *, limit: int | None = None, timeout: float | None = None, prefetch: int = 1
    ) -> AsyncGenerator[Delivery, None]:
        """Yield messages as they come; acknowledge each: `async for delivery in queue.consume(): ...`.

        limit: messages in all; None = no limit.
        timeout: seconds to wait for the next one, after which it ends; None = no limit.
        prefetch: messages that are claimed at once, 1 to 1,000. Messages that were not yielded go back uncounted when
            the generator is closed: use `contextlib.aclosing` where the loop may be left early.

        Three calls for each message, or for `prefetch` of them. A message that was yielded and is neither acknowledged
        nor failed is handed out again by the sweep. Nothing extends it meanwhile: a `Consumer` does that.
        """
        checked_whole("prefetch", prefetch, 1, MAX_RECEIVE)
        most = None if limit is None else checked_whole("limit", limit, 1, 2**63)
        return self._consume(most, checked_timeout(timeout), prefetch)

    async def _consume(self, left: int | None, timeout: float | None, prefetch: int) -> AsyncGenerator[Delivery, None]:
        while left is None or left > 0:
            waiting = await self.receive(prefetch if left is None else min(prefetch, left), timeout=timeout)
            if not waiting:
                return
            left = None if left is None else left - len(waiting)
            try:
                while waiting:
                    yield waiting.pop(0)
            finally:
                if waiting:
                    await self._leave(partial(self._hand_back, [one.of for one in waiting]))

    async def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge deliveries together. One call per 1,000. As `latchwork.queue.ShardedQueue.ack_many`."""
        await self._leave(partial(self.of.ack_many, [sync_of("a delivery", one, Delivery) for one in deliveries]))

    def _hand_back(self, deliveries: list[sync.Delivery]) -> None:
        for outcome in self.of.hand_back(deliveries) if deliveries else ():
            if isinstance(outcome, LatchworkError):
                raise outcome


class SideView(_Subqueue[SyncSide]):
    """The sideline, or the parked messages, of a queue. Safe to share between threads."""

    search = verb(SyncSide.search)
    discard = verb(SyncSide.discard)
    redrive = verb(SyncSide.redrive)

    async def move(self, ids: Iterable[str | sync.Message], queue: ShardedQueue | QueueGroup) -> dict[str, Outcome]:
        """Move the messages that are named to another queue; return the outcome of each."""
        return await self._run(partial(self.of.move, ids, sync_of("queue", queue, Subscribed)))


class DelayedView(Twin[SyncDelayed]):
    """The delayed messages of a queue. Safe to share between threads."""

    search = verb(SyncDelayed.search)
    discard = verb(SyncDelayed.discard)
    redrive = verb(SyncDelayed.redrive)

    async def move(self, ids: Iterable[str | sync.Message], queue: ShardedQueue | QueueGroup) -> dict[str, Outcome]:
        """Move the messages that are named to another queue; return the outcome of each."""
        return await self._run(partial(self.of.move, ids, sync_of("queue", queue, Subscribed)))


class Publication(Twin[sync.Publication]):
    """The outcome of one message: see `latchwork.queue.Publication`. Await it, or its `result`.

    A cancel ends the wait, not the publishing: a message that a publisher has is published.
    """

    __slots__ = ()

    message_id = attribute[str]()

    def done(self) -> bool:
        """Whether the outcome of the message is known."""
        return self.of.done()

    async def result(self, timeout: float | None = None) -> str:
        """Return the message's id, once it is safe. As `latchwork.queue.Publication.result`."""
        await self._known(timeout)
        return self.of.result(0)

    async def exception(self, timeout: float | None = None) -> LatchworkError | None:
        """Return the error that `result` raises; None where the message is safe. Raises `WaitTimeout`."""
        await self._known(timeout)
        return self.of.exception(0)

    def __await__(self) -> Generator[Any, Any, str]:
        return self.result().__await__()

    async def _known(self, timeout: float | None) -> None:
        """Wait without a greenlet: there is no store call, and hundreds wait at a time."""
        limit = checked_timeout(timeout)
        if self.of.done():
            return
        loop = asyncio.get_running_loop()
        gate = Gate(loop)
        self.of.add_done_callback(lambda _: gate.release())
        timer = None if limit is None else loop.call_later(limit, gate.expire)
        try:
            await gate.passed()
        finally:
            if timer is not None:
                timer.cancel()


class _taken(verb_as[P, R, W]):  # noqa: N801 - read as `property` is
    """`publish` of a publisher: it waits only for room, and without that costs no greenlet."""

    async def _call(self, twin: Twin[Any], *given: P.args, **named: P.kwargs) -> W:
        checked_timeout(named.get("timeout"))  # type: ignore[arg-type] # it is checked here
        try:
            return self._wrap(twin.of.publish(*given, **{**named, "timeout": 0}), twin.bridged)
        except WaitTimeout:
            return await super()._call(twin, *given, **named)


class Publisher(Twin[sync.Publisher]):
    """A publisher that stores the messages of all tasks together: see `latchwork.queue.Publisher`."""

    publish = _taken(sync.Publisher.publish, Publication)
    flush = verb(sync.Publisher.flush)
    close = verb(sync.Publisher.close, way_out=True)

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class QueueBatch(Twin[sync.QueueBatch]):
    """Messages that are counted as they are done: see `latchwork.queue.QueueBatch`."""

    name = attribute[str]()
    publish = verb(sync.QueueBatch.publish)
    publish_many = verb(sync.QueueBatch.publish_many)
    close = verb(sync.QueueBatch.close, way_out=True)
    cancel = verb(sync.QueueBatch.cancel)
    wait = verb(sync.QueueBatch.wait)
    progress = verb(sync.QueueBatch.progress)
    missing = verb(sync.QueueBatch.missing)

    def results(self, timeout: float | None = None) -> AsyncGenerator[sync.BatchResult, None]:
        """Yield what came out of each message, in the order in which they were published, one by one as they are done:
        `async for one in batch.results(timeout=60): ...`.

        As `latchwork.queue.QueueBatch.results`; after an error it yields no more.
        """
        found = self.of.results(timeout)
        assert isinstance(found, BatchResults)  # noqa: S101 - so it can be asked for many at once
        return self._each(found)

    async def _each(self, found: BatchResults) -> AsyncGenerator[sync.BatchResult, None]:
        while some := await self._run(found.more):
            for one in some:
                yield one

    async def __aenter__(self) -> QueueBatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()


class Subscribed(_Subqueue[S]):
    """What a consumer works on: a queue, or a group of one."""

    config = attribute[sync.QueueConfig]()
    queue_name = attribute[str]()
    concurrency = attribute[int]()
    depth = verb(Subscription.depth)
    redrive = verb(Subscription.redrive)
    pause = verb(Subscription.pause)
    resume = verb(Subscription.resume)
    scale = verb(Subscription.scale)
    workers = verb(Subscription.workers)

    def shard_of(self, key: str) -> int:
        """Return the shard that messages of this key go to. No I/O."""
        return self.of.shard_of(key)

    @property
    def sideline(self) -> SideView:
        """The failed messages of a queue that does not retry, or has a shovel."""
        return SideView(self.of.sideline, self._store)

    @property
    def parked(self) -> SideView:
        """The messages that had their last attempt."""
        return SideView(self.of.parked, self._store)

    @property
    def delayed(self) -> DelayedView:
        """The messages that come later."""
        return DelayedView(self.of.delayed, self._store)


class ShardedQueue(Subscribed[sync.ShardedQueue]):
    """A work queue: see `latchwork.queue.ShardedQueue`. Made by `QueueRegistry`.

    A `publish` whose task is cancelled is finished: `ended(error).result` has the id of the message.
    """

    publish = verb(sync.ShardedQueue.publish)
    publish_many = verb(sync.ShardedQueue.publish_many)
    batch = verb_as(sync.ShardedQueue.batch, QueueBatch)
    list_batches = verb_as(sync.ShardedQueue.list_batches, listed(QueueBatch))
    cancel = verb(sync.ShardedQueue.cancel)
    status = verb(sync.ShardedQueue.status)
    result = verb(sync.ShardedQueue.result)

    async def group(self, name: str, *, start: str | datetime = "now", **settings: Any) -> QueueGroup:
        """Return the group of this name, made if it does not exist, as `latchwork.queue.ShardedQueue.group`."""
        return QueueGroup(await self._run(partial(self.of.group, name, start=start, **settings)), self._store)

    async def groups(self) -> list[QueueGroup]:
        """Return the groups of this queue, by name. Two calls."""
        return [QueueGroup(group, self._store) for group in await self._run(self.of.groups)]

    def publisher(
        self, *, linger: Span = LINGER, waiting: int = WAITING, waiting_bytes: int = WAITING_BYTES
    ) -> Publisher:
        """Return a publisher for the tasks of a service, as `latchwork.queue.ShardedQueue.publisher`. No I/O."""
        made = self.of.publisher(linger=linger, waiting=waiting, waiting_bytes=waiting_bytes)
        return Publisher(made, self._store)


class QueueGroup(Subscribed[sync.QueueGroup]):
    """A durable subscription of a queue: see `latchwork.queue.QueueGroup`."""

    group_name = attribute[str]()
    drop = verb(sync.QueueGroup.drop)
    cancel = verb(sync.QueueGroup.cancel)
    groups = verb(sync.QueueGroup.groups)
    list_batches = verb(sync.QueueGroup.list_batches)
    publish = verb(sync.QueueGroup.publish)
    publish_many = verb(sync.QueueGroup.publish_many)
    batch = verb(sync.QueueGroup.batch)
    group = verb(sync.QueueGroup.group)
    status = verb(sync.QueueGroup.status)
    result = verb(sync.QueueGroup.result)

    def publisher(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: publish to the queue, and it gets the messages."""
        self.of.publisher()


def _queue(queue: AnyQueue, store: BridgedStore) -> ShardedQueue | Any:
    return QueueGroup(cast(sync.QueueGroup, queue), store) if queue.reader else ShardedQueue(queue, store)


class QueueRegistry(Twin[sync.QueueRegistry]):
    """The queues of one client: see `latchwork.queue.QueueRegistry`."""

    client_id = attribute[str]()
    farm_id = attribute[str]()
    create = verb_as(sync.QueueRegistry.create, _queue)
    get = verb_as(sync.QueueRegistry.get, _queue)
    queues = verb_as(sync.QueueRegistry.queues, listed(_queue))
    deactivate = verb(sync.QueueRegistry.deactivate)
    activate = verb(sync.QueueRegistry.activate)
    set_retry = verb_as(sync.QueueRegistry.set_retry, _queue)
    refresh = verb(sync.QueueRegistry.refresh)
    schedule = verb(sync.QueueRegistry.schedule)
    unschedule = verb(sync.QueueRegistry.unschedule)
    schedules = verb(sync.QueueRegistry.schedules)
    schedule_states = verb(sync.QueueRegistry.schedule_states)
    pause_schedule = verb(sync.QueueRegistry.pause_schedule)
    resume_schedule = verb(sync.QueueRegistry.resume_schedule)
    trigger_schedule = verb(sync.QueueRegistry.trigger_schedule)
    last_sweep = verb(sync.QueueRegistry.last_sweep)

    def __init__(
        self, store: Store, client_id: str, *, farm_id: str | None = None, idle_look: float = IDLE_LOOK
    ) -> None:
        bridged = bridged_of(store)
        super().__init__(sync.QueueRegistry(bridged, client_id, farm_id=farm_id, idle_look=idle_look), bridged)
