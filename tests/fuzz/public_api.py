"""Every public constructor and verb, with arguments that are good: what the fuzzer of the public API begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from typing import Any

import latchwork
from latchwork import AerospikeStore, observe, once, retry, testing
from latchwork.coord import (
    Barrier,
    CountDownLatch,
    CountUpDownLatch,
    FencedLock,
    GlobalElection,
    Group,
    LatchLevel,
    LeaseElection,
    OnceStep,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
    ZooKeeperElection,
)
from latchwork.queue import (
    BatchingConfig,
    Consumer,
    LargeQueue,
    Outbox,
    PagedQueue,
    Publish,
    QueueConfig,
    QueueRegistry,
    Schedule,
    Shovel,
    ShovelConfig,
    Sweeper,
    UnopenedQueue,
    Worker,
)
from latchwork.retry import Poll, RetryPolicy
from latchwork.spark import SparkBarrier, SparkLatch, once_per_batch, release
from latchwork.store import (
    KEEP,
    Add,
    Bin,
    Compute,
    Exists,
    Key,
    ListAppend,
    ListRange,
    ListSet,
    MapAdd,
    MapGet,
    MapPut,
    MapRemove,
    MapTrim,
    MemoryStore,
    Once,
    Param,
    Put,
    Read,
    Removal,
    SQLiteStore,
    Update,
    exists,
    has,
    lacks,
    missing,
)
from latchwork.testing import CountingStore, Fault, FaultyStore, ManualClock
from tests.observe.conftest import Remembering
from tests.queue.paged.recording import RecordingFiles

MAX_SLEEPS = 60
KEY = Key("fuzz", "k")


class Waits(BaseException):
    """Somebody waits for what never comes; nothing of the program under test may catch it."""


def with_place(failure: Exception) -> str:
    """The error, cut short, and the line that raised it."""
    where = failure.__traceback__
    while where.tb_next:
        where = where.tb_next
    place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}"
    return f"{type(failure).__name__}: {str(failure)[:100]} ({place})"


class _NoTask:
    def join(self, timeout=None):
        pass

    def is_alive(self):
        return False


class Clock(ManualClock):
    """Nothing runs in the background, and who waits for very long is interrupted."""

    def sleep(self, seconds):
        if len(self.slept) >= MAX_SLEEPS:
            raise Waits
        super().sleep(seconds)

    def spawn(self, run, name):
        return _NoTask()

    def event(self):
        made = super().event()
        wait = made.wait

        def bounded(timeout=None):
            if timeout is None and not made.is_set():
                raise Waits
            return wait(timeout)

        made.wait = bounded
        return made


class World:
    """A store with one of everything in it, each made when it is first asked for."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = CountingStore(MemoryStore(self.clock))

    @cached_property
    def latch(self):
        return CountDownLatch.create(self.store, "c", "latch", parties=["a", "b"])

    @cached_property
    def up_down(self):
        return CountUpDownLatch.create(self.store, "c", "up", 5)

    @cached_property
    def lock(self):
        return FencedLock(self.store, "lock")

    @cached_property
    def grant(self):
        return self.lock.acquire(timeout=0)

    @cached_property
    def semaphore(self):
        return Semaphore(self.store, "semaphore", permits=3)

    @cached_property
    def rwlock(self):
        return ReadWriteLock(self.store, "rwlock")

    @cached_property
    def limiter(self):
        return RateLimiter(self.store, "limiter", 5, timedelta(seconds=1))

    @cached_property
    def election(self):
        return LeaseElection(self.store, "election")

    @cached_property
    def group(self):
        return Group(self.store, "group")

    @cached_property
    def barrier(self):
        return Barrier(self.store, "c", "barrier", parties=["a"])

    @cached_property
    def large(self):
        queue = LargeQueue.create(self.store, "large", 20, entries_per_record=5)
        queue.enqueue_many(["a", "b", "c"])
        return queue

    @cached_property
    def consumers(self):
        return self.large.group("g")

    @cached_property
    def registry(self):
        return QueueRegistry(self.store, "c")

    @cached_property
    def queue(self):
        queue = self.registry.create(QueueConfig("q", shards=2, shovel=ShovelConfig(timedelta(seconds=10))))
        queue.publish_many(["a", "b"])
        queue.publish("later", delay=60, message_id="later")
        return queue

    @cached_property
    def answers(self):
        asked = self.registry.create(QueueConfig("asked", shards=1, results=60))
        with asked.batch("b") as batch:
            batch.publish_many(["x", "y"])
        asked.receive()[0].ack("answer")
        return batch

    @cached_property
    def batch(self):
        batch = self.queue.batch("b", then=Publish("then"))
        batch.publish_many(["x", "y"])
        return batch

    @cached_property
    def publisher(self):
        return self.queue.publisher()

    @cached_property
    def other(self):
        return self.registry.create(QueueConfig("other", shards=1))

    @cached_property
    def delivery(self):
        return self.queue.receive()[0]

    @cached_property
    def worker(self):
        return Worker(self.registry)

    @cached_property
    def paged(self):
        return PagedQueue.open("/d", "p", files=RecordingFiles(), seams=self.clock, page_size=4096)

    @cached_property
    def outbox(self):
        return Outbox(self.paged, self.queue)

    @cached_property
    def cursor(self):
        self.paged.append_many([b"a", b"b"])
        return self.paged.cursor("cursor")

    @cached_property
    def telemetry(self):
        return Remembering()

    @cached_property
    def spark_latch(self):
        return SparkLatch.create(self.store, "c", "job", 3)


@dataclass(frozen=True)
class Of:
    """An argument that the world has."""

    get: Callable[[World], Any]


STORE = Of(lambda world: world.store)


@dataclass(frozen=True)
class Public:
    """One constructor or verb: how it is got, good arguments, and what is done with what a constructor returns."""

    name: str
    get: Callable[[World], Callable[..., Any]]
    good: dict[str, Any] = field(default_factory=dict)
    then: Callable[[World, Any], Any] = lambda world, made: None
    asks_first: tuple[str, ...] = ()
    """Arguments that only the store can judge, as the name of a party that is none of the latch's."""

    @property
    def waits(self) -> bool:
        return any("timeout" in name or name == "grace" for name in self.good)


def add(n: int, text: str = "") -> None:
    """A task."""


def handler(delivery):
    return True


def _attempt(world, made):
    made.try_acquire()


def _operate(world, op):
    return world.store.operate(KEY, op, exists=Exists.ANY)


def _guarded(get):
    """An expression that one hostile value is put into, used as a guard."""

    def call(world):
        def run(**given):
            return world.store.operate(KEY, Put("n", 1), when=get(**given))

        return run

    return call


LATCH = {"store": STORE, "client_id": "c", "latch_id": "l", "farm_id": "f", "level": LatchLevel.DC, "ttl": 60}
LATCH |= {"set_suffix": "distributed_latch", "policy": retry.LATCH_POLICY}
CREATE = {**LATCH, "count": None, "parties": ["a", "b"], "farms": None}
LOCK = {"store": STORE, "name": "n", "owner": "o", "lease": 5.0, "poll": Poll()}
ELECTION = {"store": STORE, "name": "n", "candidate": "me", "lease": 5.0}
PUBLISH = {"key": None, "headers": None}
DELAYED = {"delay": None, "at": None, "dedup_for": None, "on_duplicate": "keep"}
LARGE = {"store": STORE, "name": "new", "capacity": 10, "entries_per_record": 5, "lease": 0.2, "buffer_store": None}
OPERATE = {"key": KEY, "op": Put("n", 1), "when": None, "exists": Exists.ANY, "or_absent": False, "ttl": KEEP}
OPERATE |= {"once": None, "repeatable": False}
SEARCH = {"reason": None, "header": None, "older_than": None, "limit": 10}
CONFIG = {
    "name": "n",
    "shards": 2,
    "message_expiry": timedelta(days=1),
    "queue_expiry": timedelta(days=1),
    "concurrency": 1,
    "handler_type": None,
    "sweep_duration": timedelta(minutes=20),
    "handler_timeout": timedelta(minutes=10),
    "max_deliveries": 5,
    "backoff": None,
    "shovel": None,
    "batching": None,
    "codec": "json",
    "unsafe_limits": False,
}
SPARK = {"store": STORE, "client_id": "c", "job": "j", "phase": None, "generation": 0, "farm_id": None}
SPARK |= {"level": LatchLevel.DC, "ttl": 60}
NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


def _operated(store, key, op, **given):
    return store.operate(key, op, **given)


def coordination() -> Iterator[Public]:
    """`latchwork.coord`."""
    for kind in (CountDownLatch, CountUpDownLatch):
        name = kind.__name__
        yield Public(f"{name}.create", lambda _, kind=kind: kind.create, CREATE, lambda _, latch: latch.count())
        yield Public(f"{name}.get", lambda _, kind=kind: kind.get, LATCH, lambda _, latch: latch.count_down())
        yield Public(
            f"{name}.get_or_create", lambda _, kind=kind: kind.get_or_create, CREATE, lambda _, latch: latch.counts()
        )
    yield Public(
        "CountDownLatch.count_down", lambda w: w.latch.count_down, {"n": 1, "party": "a"}, asks_first=("party",)
    )
    yield Public(
        "CountUpDownLatch.count_down", lambda w: w.up_down.count_down, {"n": 1, "party": None}, asks_first=("party",)
    )
    yield Public("CountUpDownLatch.count_up", lambda w: w.up_down.count_up, {"n": 1})
    yield Public("CountDownLatch.missing", lambda w: w.latch.missing, {"expected": None, "lost_in": None})
    yield Public(
        "CountDownLatch.wait",
        lambda w: w.latch.wait,
        {"timeout": 0, "progress": None, "create_timeout": 0, "alive": None},
    )
    yield Public("FencedLock", lambda _: FencedLock, LOCK, _attempt)
    yield Public("FencedLock.acquire", lambda w: w.lock.acquire, {"timeout": 0, "keep_alive": False})
    yield Public("FencedLock.break_lease", lambda w: w.lock.break_lease, {"fence": 1, "at_once": False})
    yield Public("FencedLock.try_acquire", lambda w: w.lock.try_acquire, {"keep_alive": False})
    yield Public(
        "Fenced.operate",
        lambda w: partial(_operated, w.grant),
        {**OPERATE, "bin": "fence", "exists": None, "key": KEY, "op": Put("n", 1)},
    )
    yield Public("Fenced.seal", lambda w: w.grant.seal, {"key": KEY, "bin": "fence"})
    yield Public(
        "once",
        lambda _: once,
        {"store": STORE, "key": "k", "keep": 60, "timeout": 0, "lease": 10.0},
        lambda _, step: step.run(int) if isinstance(step, OnceStep) else step(add),  # a function as key: a decorator
    )
    yield Public(
        "Delivery.once",
        lambda w: w.delivery.once,
        {"name": "mail", "keep": 60, "timeout": 0, "lease": 10.0},
        lambda _, step: step.run(int),
    )
    yield Public(
        "Delivery.operate",
        lambda w: partial(_operated, w.delivery),
        {"key": KEY, "op": Put("n", 1), "name": "", "when": None, "exists": None, "or_absent": False, "ttl": KEEP,
         "result": 1, "bin": "effects", "keep": None},
        asks_first=("op", "result"),
    )  # fmt: skip
    yield Public("Semaphore", lambda _: Semaphore, {**LOCK, "permits": 2}, _attempt)
    yield Public("Semaphore.acquire", lambda w: w.semaphore.acquire, {"n": 1, "timeout": 0, "keep_alive": False})
    yield Public("Semaphore.try_acquire", lambda w: w.semaphore.try_acquire, {"n": 1, "keep_alive": False})
    yield Public("Semaphore.resize", lambda w: w.semaphore.resize, {"permits": 4})
    yield Public("ReadWriteLock", lambda _: ReadWriteLock, LOCK, lambda _, lock: lock.try_read())
    yield Public("ReadWriteLock.read", lambda w: w.rwlock.read, {"timeout": 0, "keep_alive": False})
    yield Public("ReadWriteLock.write", lambda w: w.rwlock.write, {"timeout": 0, "keep_alive": False})
    yield Public("ReadWriteLock.try_read", lambda w: w.rwlock.try_read, {"keep_alive": False})
    yield Public("ReadWriteLock.try_write", lambda w: w.rwlock.try_write, {"keep_alive": False})
    yield Public(
        "RateLimiter",
        lambda _: RateLimiter,
        {"store": STORE, "name": "n", "limit": 5, "per": 1.0, "also": ()},
        _attempt,
    )
    yield Public("RateLimiter.acquire", lambda w: w.limiter.acquire, {"timeout": 0, "n": 1})
    yield Public("RateLimiter.try_acquire", lambda w: w.limiter.try_acquire, {"n": 1})
    yield Public("LeaseElection", lambda _: LeaseElection, {**ELECTION, "poll": None})
    yield Public("LeaseElection.run", lambda w: w.election.run, {"fn": lambda _: 1, "timeout": 0})
    yield Public("LeaseElection.start", lambda w: w.election.start, {"lead": None})
    yield Public("LeaseElection.stop", lambda w: w.election.stop, {"timeout": 0})
    yield Public(
        "ZooKeeperElection", lambda _: ZooKeeperElection, {**ELECTION, "client_or_hosts": "localhost:1", "path": "/a"}
    )
    yield Public(
        "GlobalElection",
        lambda _: GlobalElection,
        {
            "store_of_each_farm": Of(lambda w: {"f": w.store}),
            "name": "n",
            "zookeeper": "localhost:1",
            "prefer": (),
            "farm_id": "f",
            "resources": (),
            "all_farms": False,
            "candidate": "me",
            "path": "/a",
            "lease": None,
        },
    )
    yield Public(
        "Group",
        lambda _: Group,
        {"store": STORE, "name": "n", "farm_id": None, "ttl": 60},
        lambda _, group: group.join("m"),
    )
    yield Public(
        "Group.join", lambda w: w.group.join, {"member": "m", "meta": None, "lease": 10.0, "keep_alive": False}
    )
    yield Public("Group.watch", lambda w: w.group.watch, {"timeout": 0})
    yield Public(
        "Barrier",
        lambda _: Barrier,
        {
            "store": STORE,
            "client_id": "c",
            "name": "n",
            "parties": ["a"],
            "farm_id": None,
            "level": LatchLevel.DC,
            "ttl": 60,
        },
        lambda _, barrier: barrier.progress(),
    )
    yield Public("Barrier.wait", lambda w: w.barrier.wait, {"party": "a", "payload": None, "timeout": 0, "alive": None})
    yield Public("Barrier.abort", lambda w: w.barrier.abort, {"reason": "r"})


def circular() -> Iterator[Public]:
    """The large queue."""
    txn = {"txn_id": None, "timeout": 0}
    yield Public("LargeQueue.create", lambda _: LargeQueue.create, LARGE, lambda _, queue: queue.enqueue("x"))
    yield Public(
        "LargeQueue.open_or_create", lambda _: LargeQueue.open_or_create, LARGE, lambda _, queue: queue.enqueue("x")
    )
    yield Public("LargeQueue.open", lambda _: LargeQueue.open, {"store": STORE, "name": "large", "buffer_store": None})
    yield Public("LargeQueue.enqueue", lambda w: w.large.enqueue, {**txn, "value": "v", "overwrite_if_full": False})
    yield Public(
        "LargeQueue.enqueue_many", lambda w: w.large.enqueue_many, {**txn, "values": ["v"], "overwrite_if_full": False}
    )
    yield Public("LargeQueue.dequeue", lambda w: w.large.dequeue, txn)
    yield Public("LargeQueue.dequeue_many", lambda w: w.large.dequeue_many, {**txn, "n": 2})
    yield Public("LargeQueue.read_at", lambda w: w.large.read_at, {"offset": 1})
    yield Public("LargeQueue.group", lambda w: w.large.group, {"name": "g", "hold_head": False})
    yield Public("LargeQueue.transaction", lambda w: w.large.transaction, {"txn_id": "t", "timeout": 0})
    yield Public("ConsumerGroup.read", lambda w: w.consumers.read, {"n": 2})
    yield Public("ConsumerGroup.commit", lambda w: w.consumers.commit, {"offset": 1}, asks_first=("offset",))
    yield Public("ConsumerGroup.rewind", lambda w: w.consumers.rewind, {"offset": 1}, asks_first=("offset",))


def sharded() -> Iterator[Public]:
    """The work queue."""
    yield Public("QueueConfig", lambda _: QueueConfig, CONFIG, lambda w, config: w.registry.create(config))
    yield Public("ShovelConfig", lambda _: ShovelConfig, {"interval": timedelta(seconds=10), "concurrency": 1})
    yield Public("BatchingConfig", lambda _: BatchingConfig, {"max_size": 10, "max_wait": timedelta(seconds=1)})
    yield Public(
        "QueueRegistry",
        lambda _: QueueRegistry,
        {"store": STORE, "client_id": "c", "farm_id": None, "idle_look": 9.0},
        lambda _, registry: registry.queues(),
    )
    yield Public("QueueRegistry.create", lambda w: w.registry.create, {"config": QueueConfig("n", shards=1)})
    for verb in ("get", "deactivate", "activate", "unschedule", "last_sweep", "resume_schedule", "trigger_schedule"):
        yield Public(f"QueueRegistry.{verb}", lambda w, verb=verb: getattr(w.registry, verb), {"name": "n"})
    yield Public("QueueRegistry.pause_schedule", lambda w: w.registry.pause_schedule, {"name": "n", "by": "anna"})
    yield Public("QueueRegistry.queues", lambda w: w.registry.queues, {"active": True})
    yield Public(
        "QueueRegistry.schedule", lambda w: w.registry.schedule, {"schedule": Schedule("s", "q", cron="0 3 * * *")}
    )
    yield Public(
        "Schedule",
        lambda _: Schedule,
        {
            "name": "s",
            "queue": "q",
            "payload": None,
            "every": timedelta(seconds=60),
            "cron": None,
            "tz": "UTC",
            "missed": "last",
        },
        lambda w, schedule: (w.queue, w.registry.schedule(schedule)),
        asks_first=("queue", "payload"),
    )
    yield Public("Schedule(cron)", lambda _: Schedule, {"name": "s", "queue": "q", "cron": "0 3 * * *", "tz": "UTC"})
    yield Public("Schedule.ticks", lambda _: Schedule("s", "q", cron="0 3 * * *").ticks, {"after": NOON})
    yield Public("Schedule.due", lambda _: Schedule("s", "q", cron="0 3 * * *").due, {"last": NOON, "now": NOON})
    yield Public(
        "ShardedQueue.publish",
        lambda w: w.queue.publish,
        {**PUBLISH, **DELAYED, "payload": "p", "message_id": None, "dedup": None, "unique": None},
    )
    yield Public(
        "ShardedQueue.publish(unique)",
        lambda w: w.queue.publish,
        {"payload": "p", "unique": "k", "on_duplicate": "replace"},
        asks_first=("unique", "on_duplicate"),
    )
    yield Public(
        "ShardedQueue.publish_many",
        lambda w: w.queue.publish_many,
        {**PUBLISH, **DELAYED, "payloads": ["p", "q"], "keys": None, "message_ids": None, "dedups": None},
    )
    yield Public(
        "ShardedQueue.publish_many(dedup)",
        lambda w: w.queue.publish_many,
        {
            "payloads": ["p", "q"],
            "keys": ["k", None],
            "message_ids": ["m", "n"],
            "dedups": ["a", "b"],
            "dedup_for": timedelta(seconds=60),
            "on_duplicate": "raise",
        },
        asks_first=("dedups",),
    )
    yield Public("ShardedQueue.cancel", lambda w: w.queue.cancel, {"message_id": "later"})
    yield Public("ShardedQueue.receive", lambda w: w.queue.receive, {"max_messages": 2, "timeout": 0, "shards": None})
    yield Public("ShardedQueue.ack_many", lambda w: w.queue.ack_many, {"deliveries": Of(lambda w: [w.delivery])})
    yield Public("ShardedQueue.peek", lambda w: w.queue.peek, {"limit": 2})
    yield Public("ShardedQueue.scale", lambda w: w.queue.scale, {"n": 2})
    yield Public("ShardedQueue.redrive", lambda w: w.queue.redrive, {"limit": 2, "reason": None, "dry_run": False})
    yield Public("ShardedQueue.shard_of", lambda w: w.queue.shard_of, {"key": "k"})
    yield Public(
        "ShardedQueue.group",
        lambda w: w.queue.group,
        {
            "name": "g",
            "start": "now",
            "concurrency": 2,
            "max_deliveries": 3,
            "backoff": None,
            "handler_timeout": timedelta(minutes=5),
        },
    )
    for side in ("sideline", "parked", "delayed"):
        at = {"within": 60} if side == "delayed" else {"key": None}
        yield Public(f"{side}.search", lambda w, side=side: getattr(w.queue, side).search, {**SEARCH, **at})
        yield Public(f"{side}.discard", lambda w, side=side: getattr(w.queue, side).discard, {"ids": ["later"]})
        yield Public(f"{side}.redrive", lambda w, side=side: getattr(w.queue, side).redrive, {"ids": ["later"]})
        yield Public(
            f"{side}.move",
            lambda w, side=side: getattr(w.queue, side).move,
            {"ids": ["later"], "queue": Of(lambda w: w.other)},
        )
        if side != "delayed":
            yield Public(f"{side}.receive", lambda w, side=side: getattr(w.queue, side).receive, {"max_messages": 1})
            yield Public(f"{side}.peek", lambda w, side=side: getattr(w.queue, side).peek, {"limit": 1})
    yield Public("Delivery.nack", lambda w: w.delivery.nack, {"reason": "rejected", "error": None, "delay": None})
    yield Public(
        "Consumer",
        lambda _: Consumer,
        {
            "queue": Of(lambda w: w.queue),
            "handler": handler,
            "concurrency": 1,
            "ignorable": (),
            "ordered": False,
            "grace": 1.0,
            "upkeep": False,
        },
    )
    yield Public("Consumer.stop", lambda w: Consumer(w.queue, handler).stop, {"grace": 0})
    yield Public(
        "Worker",
        lambda _: Worker,
        {"registry": Of(lambda w: w.registry), "weights": None, "concurrency": 2, "grace": 1.0, "upkeep": False},
    )
    yield Public(
        "Worker.handler",
        lambda w: lambda **given: w.worker.handler(**given)(handler),
        {"queue": "q", "concurrency": 1, "ignorable": (), "ordered": False, "start_at": 10, "stop_at": 0},
    )
    yield Public("Worker.handler()", lambda w: w.worker.handler("q"), {"handler": handler})
    yield Public(
        "Worker.task",
        lambda w: lambda **given: w.worker.task(**given)(add),
        {
            "queue": "q",
            "upcast": None,
            "concurrency": 1,
            "ignorable": (),
            "ordered": False,
            "start_at": 10,
            "stop_at": 0,
        },
    )
    yield Public("Worker.task()", lambda w: w.worker.task("q"), {"function": add})
    yield Public("Task.publish", lambda w: w.worker.task("q")(add).publish, {"n": 1, "text": "t"})
    yield Public("Task.payload", lambda w: w.worker.task("q")(add).payload, {"n": 1, "text": "t"})
    yield Public(
        "Task.options",
        lambda w: lambda **given: w.worker.task("q")(add).options(**given).publish(1),
        {
            "key": "k",
            "headers": {"h": "v"},
            "message_id": "i",
            "delay": None,
            "dedup": None,
            "unique": None,
            "on_duplicate": "keep",
        },
    )
    yield Public("Worker.stop", lambda w: w.worker.stop, {"grace": 0})
    yield Public("Shovel", lambda _: Shovel, {"queue": Of(lambda w: w.queue)}, lambda _, shovel: shovel.run_once())
    yield Public("Shovel.stop", lambda w: Shovel(w.queue).stop, {"timeout": 0})
    yield Public(
        "Sweeper",
        lambda _: Sweeper,
        {
            "registry": Of(lambda w: w.registry),
            "election": Of(lambda w: w.election),
            "parallelism": 2,
            "initial_delay": 1.0,
            "interval": 60.0,
        },
    )
    yield Public("Sweeper.stop", lambda w: Sweeper(w.registry, w.election).stop, {"timeout": 0})


def batches() -> Iterator[Public]:
    """Batches that end, and the publisher of a service."""
    yield Public(
        "Publish",
        lambda w: (w.queue, Publish)[1],
        {"payload": "p", "queue": None, "key": None, "headers": None},
        lambda w, then: w.queue.batch("n", then=then),
        asks_first=("queue",),
    )
    yield Public(
        "ShardedQueue.batch",
        lambda w: w.queue.batch,
        {"name": "n", "then": Publish("p"), "on_parked": Publish("p"), "life": 600, "create": True},
    )
    yield Public(
        "QueueBatch.publish",
        lambda w: w.batch.publish,
        {**PUBLISH, **DELAYED, "payload": "p", "message_id": None, "dedup": None, "unique": None},
    )
    yield Public(
        "QueueBatch.publish_many",
        lambda w: w.batch.publish_many,
        {**PUBLISH, **DELAYED, "payloads": ["p", "q"], "keys": None, "message_ids": None, "dedups": None},
    )
    yield Public("QueueBatch.wait", lambda w: w.batch.wait, {"timeout": 0})
    yield Public("QueueBatch.results", lambda w: w.answers.results, {"timeout": 0})
    yield Public(
        "Publisher",
        lambda w: w.queue.publisher,
        {"linger": 0.005, "waiting": 10, "waiting_bytes": 1_000},
        lambda _, publisher: publisher.publish("p"),
    )
    yield Public(
        "Publisher.publish",
        lambda w: w.publisher.publish,
        {**PUBLISH, **DELAYED, "payload": "p", "message_id": None, "dedup": None, "unique": None, "timeout": 0},
    )
    yield Public("Publisher.flush", lambda w: w.publisher.flush, {"timeout": 0})
    yield Public("Publisher.close", lambda w: w.publisher.close, {"timeout": 0})
    yield Public("Publication.result", lambda w: published(w).result, {"timeout": None})
    yield Public("Publication.exception", lambda w: published(w).exception, {"timeout": None})
    yield Public("Publication.add_done_callback", lambda w: published(w).add_done_callback, {"callback": len})


def published(world):
    """A publication that is done, as nothing runs in the background: its answer is there."""
    publication = world.publisher.publish("p")
    publication._resolve("id")
    return publication


def local() -> Iterator[Public]:
    """The paged queue and the outbox."""
    yield Public(
        "PagedQueue.open",
        lambda w: lambda **given: PagedQueue.open(**given, files=RecordingFiles(), seams=w.clock),
        {
            "directory": "/d",
            "prefix": "p",
            "page_size": 4096,
            "force_every": 0,
            "lifetime": None,
            "codec": bytes,
        },
        lambda _, queue: queue.append(b"x"),
    )
    yield Public("PagedQueue.append", lambda w: w.paged.append, {"data": b"x"})
    yield Public("PagedQueue.append_many", lambda w: w.paged.append_many, {"datas": [b"x"]})
    yield Public("PagedQueue.cursor", lambda w: w.paged.cursor, {"name": "c"})
    yield Public(
        "PagedQueue.read", lambda w: w.paged.read, {"since": None, "follow": False, "timeout": 0, "skip_corrupt": False}
    )
    yield Public("Cursor.read", lambda w: w.cursor.read, {"n": 1, "skip_corrupt": False})
    yield Public(
        "Outbox",
        lambda _: Outbox,
        {
            "pq": Of(lambda w: w.paged),
            "queue": Of(lambda w: w.queue),
            "name": "outbox",
            "disk_budget": None,
            "ledger_ttl": 60,
        },
        lambda _, outbox: outbox.put("x"),
    )
    yield Public("Outbox.put", lambda w: w.outbox.put, {**PUBLISH, "payload": "p"})
    yield Public("Outbox.put_many", lambda w: w.outbox.put_many, {**PUBLISH, "payloads": ["p"], "keys": None})
    yield Public("Outbox.forward", lambda w: w.outbox.forward, {"skip_corrupt": False})
    yield Public("Outbox.stop", lambda w: w.outbox.stop, {"timeout": 0})
    yield Public(
        "UnopenedQueue",
        lambda _: UnopenedQueue,
        {"registry": Of(lambda w: w.registry), "config": QueueConfig("n", shards=1)},
    )


def stores() -> Iterator[Public]:
    """`latchwork.store`, `connect` and what an update is made of."""
    yield Public("connect", lambda _: latchwork.connect, {"url": "memory:"})
    for scheme in (
        "sqlite:",
        "sqlite:x?busy_timeout=",
        "aerospike://",
        "aerospike://localhost:",
        "aerospike://h/n?max_conns_per_node=",
    ):
        yield Public(
            f"connect({scheme})",
            lambda _, scheme=scheme: lambda rest: latchwork.connect(scheme + rest if type(rest) is str else rest),
            {"rest": "1"},
        )
    yield Public(
        "AerospikeStore",
        lambda _: AerospikeStore,
        {"client": Of(lambda w: _Client()), "namespace": "test", "require_sc": False},
    )
    yield Public("AerospikeStore.from_url", lambda _: AerospikeStore.from_url, {"url": "aerospike://h/n"})
    yield Public("SQLiteStore", lambda _: SQLiteStore, {"path": "x.db", "synchronous": "full", "busy_timeout": 5.0})
    yield Public("MemoryStore", lambda _: MemoryStore, {"seams": Of(lambda w: w.clock)})
    yield Public("RecordStore.get", lambda w: lambda key, bin: w.store.get(*(key, bin)), {"key": KEY, "bin": "n"})
    yield Public(
        "RecordStore.get_many", lambda w: lambda keys, bin: w.store.get_many(*(keys, bin)), {"keys": [KEY], "bin": "n"}
    )
    yield Public("RecordStore.get_many(key)", lambda w: lambda key: w.store.get_many([KEY, key]), {"key": KEY})
    yield Public("RecordStore.operate", lambda w: partial(_operated, w.store), OPERATE)
    yield Public("RecordStore.operate_many", lambda w: w.store.operate_many, {"updates": [Update(KEY, (Put("n", 1),))]})
    yield Public(
        "RecordStore.operate_many(row)",
        lambda w: lambda row: w.store.operate_many([row]),
        {"row": Update(KEY, (Put("n", 1),))},
    )
    yield Public(
        "RecordStore.operate_many(update)",
        lambda w: lambda **given: w.store.operate_many([Update(**given)]),
        {"key": KEY, "ops": (Put("n", 1),), "when": None, "exists": Exists.ANY, "or_absent": False, "ttl": KEEP},
    )
    yield Public("RecordStore.once", lambda w: w.store.once, {"update": Update(KEY, (Put("n", 1),)), "token": None})
    yield Public("RecordStore.repeat", lambda w: w.store.repeat, {"update": Update(KEY, (Put("n", 1),))})
    yield Public(
        "RecordStore.repeat_many",
        lambda w: w.store.repeat_many,
        {"updates": [Update(KEY, (Put("n", 1),))], "instead": None},
    )
    yield Public(
        "RecordStore.repeat_many(row)",
        lambda w: lambda row: w.store.repeat_many([row]),
        {"row": Update(KEY, (Put("n", 1),))},
    )
    yield Public("RecordStore.delete", lambda w: w.store.delete, {"key": KEY, "when": None, "repeatable": False})
    yield Public(
        "RecordStore.delete_many", lambda w: w.store.delete_many, {"removals": [Removal(KEY)], "repeatable": False}
    )
    yield Public(
        "RecordStore.delete_many(row)", lambda w: lambda row: w.store.delete_many([row]), {"row": Removal(KEY)}
    )
    yield Public(
        "Removal", lambda w: lambda **given: w.store.delete_many([Removal(**given)]), {"key": KEY, "when": None}
    )
    yield Public("RecordStore.query", lambda w: w.store.query, {"set": "fuzz", "bin": "n", "equals": 1})
    yield Public("RecordStore.ensure_index", lambda w: w.store.ensure_index, {"set": "fuzz", "bin": "n", "kind": int})
    yield Public(
        "RecordStore.with_policy",
        lambda w: w.store.with_policy,
        {"policy": RetryPolicy()},
        lambda _, store: store.get(KEY),
    )
    yield Public(
        "Once",
        lambda _: Once,
        {
            "capacity": 4,
            "bin": "ops",
            "result": None,
            "monotone": False,
            "goes_on": False,
            "answer": None,
            "token": None,
        },
        lambda w, once: w.store.operate(KEY, Put("n", 1), exists=Exists.ANY, once=once),
        asks_first=("result",),
    )
    yield Public("Key", lambda _: Key, {"set": "fuzz", "name": "k"}, lambda w, key: w.store.get(key))
    for op, good in (
        (Put, {"bin": "n", "value": 1}),
        (Add, {"bin": "n", "amount": 1}),
        (Read, {"bin": "n"}),
        (Compute, {"expr": Bin("n")}),
        (ListAppend, {"bin": "l", "value": 1}),
        (ListSet, {"bin": "l", "index": 0, "value": 1}),
        (ListRange, {"bin": "l", "index": 0, "count": 1}),
        (MapAdd, {"bin": "m", "key": "k", "amount": 1}),
        (MapGet, {"bin": "m", "key": "k"}),
        (MapPut, {"bin": "m", "key": "k", "value": 1, "new": False}),
        (MapRemove, {"bin": "m", "keys": ("k",)}),
        (MapTrim, {"bin": "m", "keep": 1}),
    ):
        yield Public(
            op.__name__, lambda _, op=op: op, good, _operate, asks_first=tuple(good)
        )  # the backend looks at values
    for name, good, get in (
        ("Bin", {"name": "n", "kind": int}, lambda name, kind: Bin(name, kind) > 1),
        ("Bin.eq", {"other": 1}, lambda other: Bin("n").eq(other)),
        ("Bin.ne", {"other": 1}, lambda other: Bin("n").ne(other)),
        ("Bin >", {"other": 1}, lambda other: Bin("n") > other),
        ("Bin +", {"other": 1}, lambda other: Bin("n") + other > 0),
        ("Bin &", {"other": exists("n")}, lambda other: exists("n") & other),
        ("Param", {"name": "p", "kind": int}, lambda name, kind: Bin("n").eq(Param(name, kind)).bind(p=1)),
        ("Bin.bind", {"p": 1}, lambda p: Bin("n").eq(Param("p")).bind(p=p)),
        ("exists", {"bin": "n"}, exists),
        ("missing", {"bin": "n"}, missing),
        ("has", {"bin": "m", "key": "k"}, has),
        ("lacks", {"bin": "m", "key": "k"}, lacks),
    ):
        yield Public(name, _guarded(get), good)


class _Client:
    """Stands for a client of Aerospike that is never asked."""


def tools() -> Iterator[Public]:
    """`latchwork.retry`, `.observe`, `.testing` and what of `.spark` needs no Spark."""
    yield Public(
        "RetryPolicy",
        lambda _: RetryPolicy,
        {
            "attempts": 3,
            "wait": 0.1,
            "max_wait": 2.0,
            "jitter": 0.5,
            "deadline": None,
        },
        lambda w, policy: policy.pause(5, w.clock),
    )
    yield Public(
        "Poll",
        lambda _: Poll,
        {"low": 0.005, "high": 0.1, "factor": 1.5, "jitter": 0.1},
        lambda w, poll: [poll.pause(n, w.clock) for n in (1, 5, 63, 100)],
    )
    yield Public("observe", lambda _: observe.observe, {"store": STORE, "telemetry": Of(lambda w: w.telemetry)})
    yield Public(
        "watch_queues",
        lambda _: observe.watch_queues,
        {"registry": Of(lambda w: w.registry), "telemetry": Of(lambda w: w.telemetry), "max_age": 15.0},
    )
    yield Public(
        "snapshot",
        lambda _: observe.snapshot,
        {"stores": STORE, "clients": "c", "max_age": 1.0, "timeout": 2.5},
    )
    yield Public("history", lambda _: observe.history, {"queue": Of(lambda w: w.queue), "days": 1.0})
    yield Public(
        "ManualClock",
        lambda _: testing.ManualClock,
        {"seed": None, "max_sleeps": 100},
        lambda _, clock: clock.uniform(0, 1),
    )
    yield Public("InlineClock", lambda _: testing.InlineClock, {"seed": None, "max_sleeps": 100})
    yield Public("ManualClock.advance", lambda _: ManualClock().advance, {"seconds": 1.0})
    yield Public("ManualClock.step", lambda _: ManualClock().step, {"seconds": 1.0})
    yield Public("ManualClock.skewed", lambda _: ManualClock().skewed, {"seconds": 1.0})
    yield Public("ManualClock.at", lambda _: ManualClock().at, {"seconds": 1.0, "action": len})
    yield Public("CountingStore", lambda _: CountingStore, {"inner": STORE, "seams": None})
    yield Public(
        "FaultyStore",
        lambda _: FaultyStore,
        {"inner": STORE, "plan": None, "seed": None, "rate": 0.1, "kinds": ("dropped",), "seams": None},
    )
    yield Public("FaultyStore.next", lambda w: FaultyStore(w.store).next, {"fault": "dropped"})
    yield Public("Fault", lambda _: Fault, {"kind": "slow", "rows": None, "after": None, "seconds": 1.0})
    yield Public(
        "Outage",
        lambda _: testing.Outage,
        {"seams": Of(lambda w: w.clock), "begin": 0.0, "end": 1.0, "fault": "dropped"},
    )
    yield Public(
        "inject_everywhere",
        lambda _: testing.inject_everywhere,
        {
            "work": lambda *_: [],
            "prepare": None,
            "recover": None,
            "expected": (),
            "check": None,
            "faults": ("dropped",),
            "make_store": None,
        },
    )
    yield Public("bring_back", lambda _: testing.bring_back, {"queue": Of(lambda w: w.queue)})
    latch = {name: good for name, good in SPARK.items() if name != "phase"} | {"phase": "p"}
    yield Public("SparkLatch.create", lambda _: SparkLatch.create, {**latch, "partitions": 3, "farms": None})
    yield Public(
        "SparkLatch.get_or_create", lambda _: SparkLatch.get_or_create, {**latch, "partitions": 3, "farms": None}
    )
    yield Public("SparkLatch.get", lambda _: SparkLatch.get, latch)
    yield Public(
        "SparkLatch.preflight", lambda w: w.spark_latch.preflight, {"partitions": 3}, asks_first=("partitions",)
    )
    yield Public(
        "SparkLatch.wait", lambda w: w.spark_latch.wait, {"timeout": 0, "progress": False, "create_timeout": 0}
    )
    yield Public(
        "SparkBarrier",
        lambda _: SparkBarrier,
        {**{name: good for name, good in SPARK.items() if name != "ttl"}, "drivers": ["a"], "me": "a", "lease": 10.0},
    )
    yield Public(
        "once_per_batch",
        lambda _: once_per_batch,
        {"store": STORE, "query_id": "q", "batch_id": 1, "checkpoint": None, "run_id": None},
    )
    yield Public("release", lambda _: release, {"queue": Of(lambda w: w.queue), "stream_id": "s"})


PUBLIC = [one for part in (coordination, circular, sharded, batches, local, stores, tools) for one in part()]
