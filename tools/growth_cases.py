"""What must not grow: each case makes its world at a size and says what is done in it."""

from __future__ import annotations

from itertools import count, cycle

import aerospike

from latchwork.coord import CountDownLatch, FencedLock, LatchLevel
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry, Sweeper
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.store import Put, RecordStore
from latchwork.store.aerospike.store import AerospikeStore
from tools.growth import Case, Step

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
    done, inner = dict.fromkeys(range(parties), 1), getattr(store, "inner", store)
    if isinstance(inner, AerospikeStore):  # `Put` makes a map without an order; the latch's own is ordered by key
        ordered = {"done#dc1": aerospike.KeyOrderedDict(done)}
        inner._link.connect().put((inner.namespace, *latch._key), ordered)
    else:
        store.operate(latch._key, Put("done#dc1", done))
    return latch


def latches(store: RecordStore, parties: int) -> list[Step]:
    latch, numbers = counted(store, parties), count(parties)
    across = counted(store, parties, farms=FARMS, level=LatchLevel.XDC)
    look = across._reads(every=False)  # of one that waits: the whole record once a second
    return [
        Step("latch: `count_down(party=)`", lambda: latch.count_down(party=next(numbers))),
        Step("latch: a look of a waiter, DC", latch.count),
        Step("latch: a look of a waiter, XDC", look),
        Step("latch: `missing()`, the whole record", latch.missing),
    ]


def counts(store: RecordStore, number: int) -> list[Step]:
    latch = CountDownLatch.create(store, "bench", name_of(store), MANY, farm_id="dc1")
    for _ in range(number):
        latch.count_down()
    return [Step("latch: `count_down()`", latch.count_down)]


def fences(store: RecordStore, number: int) -> list[Step]:
    lock = FencedLock(store, name_of(store))
    for _ in range(number):
        lock.acquire().release()
    return [Step("lock: `acquire` and `release`", lambda: lock.acquire().release())]


# ---- circular queues


def ring(store: RecordStore, entries: int) -> list[Step]:
    """A full queue of so many entries."""
    queue = LargeQueue.create(store, name_of(store), entries)
    for start in range(0, entries, 10_000):
        queue.enqueue_many(range(start, min(start + 10_000, entries)))
    head = queue.info().head_offset + 1_000
    offsets = cycle(range(head, entries, max(1, entries // 97)))

    def hundred() -> None:
        queue.enqueue_many([entry.value for entry in queue.dequeue_many(100)])

    return [
        Step("circular queue: `read_at`", lambda: queue.read_at(next(offsets))),
        Step("circular queue: `dequeue`, `enqueue`", lambda: (queue.dequeue(), queue.enqueue(7)), 2),
        Step("circular queue: 100 at once, an entry", hundred, 200),
    ]


def transactions(store: RecordStore, number: int) -> list[Step]:
    queue, ids = LargeQueue.create(store, name_of(store), 100), count()

    def enqueue() -> None:
        queue.enqueue(7, txn_id=next(ids), overwrite_if_full=True)

    queue.enqueue_many(range(100))
    for _ in range(number):
        enqueue()
    return [Step("circular queue: `enqueue(txn_id=)`, full", enqueue)]


def groups(store: RecordStore, number: int) -> list[Step]:
    queue = LargeQueue.create(store, name_of(store), 100)
    for place in range(number):
        queue.group(f"group-{place}")
    return [Step("circular queue: `enqueue`, `dequeue`", lambda: (queue.enqueue(7), queue.dequeue()), 2)]


# ---- sharded queues


def one_message(queue: ShardedQueue) -> None:
    """Through the queue with one message."""
    queue.publish({"n": 1})
    for delivery in queue.receive():
        delivery.ack()


def drain(queue: ShardedQueue) -> None:
    """Receive and acknowledge everything."""
    while deliveries := queue.receive(1000):
        queue.ack_many(deliveries)


def backlog(store: RecordStore, messages: int) -> list[Step]:
    queue = QueueRegistry(store, name_of(store)).create(QueueConfig("q", shards=8))
    for start in range(0, messages, 10_000):
        queue.publish_many(range(start, min(start + 10_000, messages)))
    return [Step("queue: publish, receive, ack", lambda: one_message(queue))]


def shards(store: RecordStore, number: int) -> list[Step]:
    """Messages published at once go to a shard by hundreds, those published one by one to as many as there are."""
    queue = QueueRegistry(store, name_of(store)).create(QueueConfig("q", shards=number))
    keys = [str(place) for place in range(1000)]
    return [
        Step("sweep with nothing to do", Sweeper(queue.registry, Election(), parallelism=1).run_once),
        Step("queue: `depth()`", queue.depth),
        Step("queue: publish, receive, ack", lambda: one_message(queue)),
        Step("queue: publish 1,000 at once, a message", lambda: queue.publish_many(range(1000)), 1000,
             lambda: drain(queue)),
        Step("queue: drain 1,000 of one publish, a message", lambda: drain(queue), 1000,
             lambda: queue.publish_many(range(1000))),
        Step("queue: drain 1,000 scattered, a message", lambda: drain(queue), 1000,
             lambda: queue.publish_many(range(1000), keys=keys)),
    ]  # fmt: skip


def queues(store: RecordStore, number: int) -> list[Step]:
    """A registry with so many queues of 4 shards."""
    registry = QueueRegistry(store, name_of(store))
    for place in range(number):
        registry.create(QueueConfig(f"q{place}", shards=4))
    names = cycle(f"q{place}" for place in range(number))
    return [
        Step("registry: sweep with nothing to do, a queue",
             Sweeper(registry, Election(), parallelism=1).run_once, number),
        Step("registry: publish, receive, ack", lambda: one_message(registry.get(next(names)))),
        Step("registry: `get` in a new process",
             lambda: QueueRegistry(store, registry.client_id).get(next(names))),
        Step("registry: `refresh()`", registry.refresh),
    ]  # fmt: skip


CASES = (
    Case("parties", (100, 1_000, 10_000), latches),
    Case("counts before", (100, 1_000, 10_000), counts),
    Case("fences before", (10, 100, 1_000), fences),
    Case("entries", (10_000, 100_000, 1_000_000), ring),
    Case("transactions before", (50, 500, 5_000), transactions),
    Case("groups", (1, 10, 100), groups),
    Case("messages waiting", (1_000, 10_000, 100_000), backlog),
    Case("shards", (8, 64, 512), shards),
    Case("queues", (10, 100, 1_000), queues),
)
