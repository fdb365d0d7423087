"""What must not grow: each case makes its world at a size and says what is done in it."""

from __future__ import annotations

from itertools import count, cycle

from benchmarks._growth import Case, Step
from latchwork.coord import CountDownLatch, FencedLock, LatchLevel
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry, Sweeper
from latchwork.queue.sharded import ShardedQueue
from latchwork.store import MapPut, RecordStore

FARMS = ("dc1", "dc2")
MANY = 10**6


class Leading:
    """A leadership that lasts."""

    epoch = 1

    def check(self) -> None:
        """It leads."""


class Election:
    """An election that was won."""

    leadership = Leading()


def name_of(store: RecordStore) -> str:
    """A name that nobody else has used on this store."""
    return f"s{store.seams.unique()[:10]}"


# ---- latches


def counted(store: RecordStore, parties: int, **options) -> CountDownLatch:
    """A latch in which so many parties have counted, and many more will."""
    latch = CountDownLatch.create(store, "bench", name_of(store), parties + MANY, farm_id="dc1", **options)
    for start in range(0, parties, 1000):
        done = (MapPut("done#dc1", party, 1) for party in range(start, min(start + 1000, parties)))
        store.operate(latch._key, *done)
    return latch


def count_party(store: RecordStore, parties: int) -> Step:
    latch, next_party = counted(store, parties), count(parties)
    return Step(lambda: latch.count_down(party=next(next_party)))


def count_call(store: RecordStore, counts: int) -> Step:
    latch = CountDownLatch.create(store, "bench", name_of(store), MANY, farm_id="dc1")
    for _ in range(counts):
        latch.count_down()
    return Step(latch.count_down)


def look_dc(store: RecordStore, parties: int) -> Step:
    latch = counted(store, parties)
    return Step(lambda: latch.wait(0))


def look_xdc(store: RecordStore, parties: int) -> Step:
    """By a handle that was not told the farms: one of a driver that only waits."""
    made = counted(store, parties, farms=FARMS, level=LatchLevel.XDC)
    latch = CountDownLatch.get(
        store, "bench", made._key.name.rpartition("#")[2], farm_id="dc1", level=LatchLevel.XDC
    )
    return Step(lambda: latch.wait(0))


def missing(store: RecordStore, parties: int) -> Step:
    latch = counted(store, parties)
    return Step(latch.missing)


# ---- locks


def lock(store: RecordStore, fences: int) -> Step:
    held = FencedLock(store, name_of(store))
    for _ in range(fences):
        held.acquire().release()
    return Step(lambda: held.acquire().release())


# ---- circular queues


def ring(store: RecordStore, entries: int) -> LargeQueue:
    """A full queue of so many entries."""
    queue = LargeQueue.create(store, name_of(store), entries)
    for start in range(0, entries, 10_000):
        queue.enqueue_many(range(start, min(start + 10_000, entries)))
    return queue


def ring_single(store: RecordStore, entries: int) -> Step:
    queue = ring(store, entries)
    return Step(lambda: (queue.dequeue(), queue.enqueue(7)))


def ring_many(store: RecordStore, entries: int) -> Step:
    queue = ring(store, entries)
    return Step(lambda: queue.enqueue_many([entry.value for entry in queue.dequeue_many(100)]))


def ring_read(store: RecordStore, entries: int) -> Step:
    queue = ring(store, entries)
    offsets = cycle(range(0, entries, max(1, entries // 97)))
    return Step(lambda: queue.read_at(next(offsets)))


def ring_transactions(store: RecordStore, transactions: int) -> Step:
    queue, ids = LargeQueue.create(store, name_of(store), 100), count()
    for _ in range(transactions):
        queue.enqueue(7, txn_id=next(ids), overwrite_if_full=True)
    return Step(lambda: queue.enqueue(7, txn_id=next(ids), overwrite_if_full=True))


def ring_groups(store: RecordStore, groups: int) -> Step:
    queue = LargeQueue.create(store, name_of(store), 100)
    for number in range(groups):
        queue.group(f"group-{number}")
    return Step(lambda: (queue.enqueue(7), queue.dequeue()))


# ---- sharded queues


def sharded(store: RecordStore, shards: int = 8, name: str = "q", client: str | None = None) -> ShardedQueue:
    """A new queue."""
    return QueueRegistry(store, client or name_of(store)).create(QueueConfig(name, shards=shards))


def one_message(queue: ShardedQueue) -> None:
    """Through the queue with one message."""
    queue.publish({"n": 1})
    for delivery in queue.receive():
        delivery.ack()


def waiting(store: RecordStore, messages: int) -> Step:
    queue = sharded(store)
    for start in range(0, messages, 10_000):
        queue.publish_many(list(range(start, min(start + 10_000, messages))))
    return Step(lambda: one_message(queue))


def through_shards(store: RecordStore, shards: int) -> Step:
    queue = sharded(store, shards)
    return Step(lambda: one_message(queue))


def drain_blocks(store: RecordStore, shards: int) -> Step:
    """1,000 messages that were published at once, which puts 100 into a shard."""
    queue = sharded(store, shards)
    return Step(lambda: drain(queue), lambda: queue.publish_many(range(1000)))


def drain_scattered(store: RecordStore, shards: int) -> Step:
    """1,000 messages that were published one by one: they are in as many shards as there are."""
    queue = sharded(store, shards)
    keys = [str(number) for number in range(1000)]
    return Step(lambda: drain(queue), lambda: queue.publish_many(range(1000), keys=keys))


def drain(queue: ShardedQueue) -> None:
    """Receive and acknowledge everything."""
    while deliveries := queue.receive(1000):
        queue.ack_many(deliveries)


def depth(store: RecordStore, shards: int) -> Step:
    return Step(sharded(store, shards).depth)


def sweep_nothing(store: RecordStore, shards: int) -> Step:
    return Step(Sweeper(sharded(store, shards).registry, Election(), parallelism=1).run_once)


# ---- registries


def queues(store: RecordStore, number: int) -> QueueRegistry:
    """A registry with so many queues of 4 shards."""
    registry = QueueRegistry(store, name_of(store))
    for place in range(number):
        registry.create(QueueConfig(f"q{place}", shards=4))
    return registry


def registry_message(store: RecordStore, number: int) -> Step:
    registry, names = queues(store, number), cycle(range(number))
    return Step(lambda: one_message(registry.get(f"q{next(names)}")))


def registry_get(store: RecordStore, number: int) -> Step:
    """In a process that does not know the queue yet."""
    made, names = queues(store, number), cycle(range(number))
    return Step(lambda: QueueRegistry(store, made.client_id).get(f"q{next(names)}"))


def registry_refresh(store: RecordStore, number: int) -> Step:
    return Step(queues(store, number).refresh)


def registry_sweep(store: RecordStore, number: int) -> Step:
    return Step(Sweeper(queues(store, number), Election(), parallelism=1).run_once)


PARTIES, SHARDS, ENTRIES, QUEUES = (100, 1_000, 10_000), (8, 64, 512), (10_000, 100_000, 1_000_000), (10, 100, 1_000)
CASES = (
    Case("latch: `count_down(party=)`", "parties", PARTIES, count_party),
    Case("latch: `count_down()`", "counts before", PARTIES, count_call),
    Case("latch: a look of a waiter, DC", "parties", PARTIES, look_dc),
    Case("latch: a look of a waiter, XDC", "parties", PARTIES, look_xdc),
    Case("latch: `missing()`", "parties", PARTIES, missing),
    Case("lock: acquire and release", "fences before", (10, 100, 1_000), lock),
    Case("circular queue: `enqueue` / `dequeue`", "entries", ENTRIES, ring_single, units=2),
    Case("circular queue: 100 at once, an entry", "entries", ENTRIES, ring_many, units=200),
    Case("circular queue: `read_at`", "entries", ENTRIES, ring_read),
    Case("circular queue: `enqueue(txn_id=)`", "transactions before", (50, 500, 5_000), ring_transactions),
    Case("circular queue: `enqueue` / `dequeue`", "groups", (1, 10, 100), ring_groups, units=2),
    Case("queue: publish, receive, ack", "messages waiting", (1_000, 10_000, 100_000), waiting),
    Case("queue: publish, receive, ack", "shards", SHARDS, through_shards),
    Case("queue: drain 1,000 of one publish, a message", "shards", SHARDS, drain_blocks, units=1000),
    Case("queue: drain 1,000 scattered, a message", "shards", SHARDS, drain_scattered, units=1000),
    Case("queue: `depth()`", "shards", SHARDS, depth),
    Case("sweep with nothing to do", "shards", SHARDS, sweep_nothing),
    Case("registry: publish, receive, ack", "queues", QUEUES, registry_message),
    Case("registry: `get` in a new process", "queues", QUEUES, registry_get),
    Case("registry: `refresh()`", "queues", QUEUES, registry_refresh),
    Case("registry: sweep with nothing to do", "queues", QUEUES, registry_sweep),
)
