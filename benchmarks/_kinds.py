"""The cost model: what each operation asks of the server, in the terms of its request flow.

Every operation is done twice against a store in memory that looks at each request: a read or a refused guard takes the
record's lock for a moment; an update also waits for the replica; a create or a delete takes the lock of the index tree
as well. The records that both times wrote to are those on which all who do the same meet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

from benchmarks._harness import table
from latchwork.coord import CountDownLatch, FencedLock, LatchLevel
from latchwork.errors import LatchworkError
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry, Shovel, ShovelConfig, Sweeper
from latchwork.queue.sharded import stream as ranges
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.store import Exists, Key, MemoryStore, Put, Record
from latchwork.store.model.ops import writes
from latchwork.store.port import DelegatingStore, Removal, Row, Update, Values
from latchwork.testing.clock import ManualClock
from tools.growth_cases import Election

KINDS = ("read", "update", "create", "delete")


class KindStore(DelegatingStore):
    """A store in memory that counts what the server would do, row by row, and which records were written."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryStore(clock))
        self.calls, self.kinds, self.written = 0, Counter[str](), set[Key]()

    def reset(self) -> None:
        """Count from nothing again."""
        self.calls, self.kinds, self.written = 0, Counter(), set()

    def _wrote(self, kind: str, key: Key) -> None:
        self.kinds[kind] += 1
        self.written.add(key)

    def _row(self, update: Update) -> Row:
        there = self.inner.get(update.key) is not None
        try:
            values = self.inner._operate(update)
        except LatchworkError as failure:
            self.kinds["read"] += 1
            return failure
        if writes(update.ops):
            self._wrote("update" if there else "create", update.key)
        else:
            self.kinds["read"] += 1
        return values

    def _gone(self, removal: Removal) -> bool | LatchworkError:
        try:
            gone = self.inner._delete(removal)
        except LatchworkError as failure:
            self.kinds["read"] += 1
            return failure
        self._wrote("delete", removal.key)
        return gone

    def _get(self, key: Key, bins: Sequence[str]) -> Record | None:
        return self._get_many([key], bins)[0]

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        self.calls += 1
        self.kinds["read"] += len(keys)
        return self.inner._get_many(keys, bins)

    def _operate(self, update: Update) -> Values:
        return _raised(self._operate_many([update])[0])

    def _operate_many(self, updates: Sequence[Update]) -> list[Row]:
        self.calls += 1
        return [self._row(update) for update in updates]

    def _delete(self, removal: Removal) -> bool:
        return _raised(self._delete_many([removal])[0])

    def _delete_many(self, removals: Sequence[Removal]) -> list[bool | LatchworkError]:
        self.calls += 1
        return [self._gone(removal) for removal in removals]

    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        self.calls += 1
        found = self.inner._query(set, bin, equals)
        self.kinds["read"] += len(found)
        return found


def _raised(row: Any) -> Any:
    if isinstance(row, LatchworkError):
        raise row
    return row


class Bench:
    """Does operations twice and writes down what they came to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = KindStore(self.clock)
        self.rows: list[tuple[object, ...]] = []

    def section(self, primitive: str) -> None:
        """The operations that follow are those of this primitive."""
        self.primitive = primitive

    def measure(self, what: str, run: Callable[[], object], before: Callable[[], object] | None = None) -> None:
        """Once for what is made at the first use, then twice for the figures."""
        seen = []
        for _ in range(3):
            if before:
                before()
            self.store.reset()
            run()
            seen.append(set(self.store.written))
        kinds = [f"{self.store.kinds[kind]:,}" if self.store.kinds[kind] else "" for kind in KINDS]
        self.rows.append((self.primitive, what, self.store.calls, *kinds, self._meeting(seen)))

    @staticmethod
    def _meeting(seen: list[set[Key]]) -> str:
        names = sorted({re.sub(r"\d+", "N", key.name) for key in seen[-1] & seen[-2]})
        return ", ".join(f"`{name}`" for name in names) or "none"


def markdown() -> str:
    """The table of all primitives."""
    bench = Bench()
    for primitive in (latch, lock, circular, sharded, housekeeping, exactly_once):
        primitive(bench)
    head = ("primitive", "operation", "calls", "reads", "updates", "creates", "deletes", "meet on")
    return table(head, bench.rows)


# ---- the primitives


def latch(bench: Bench) -> None:
    numbers = count()
    bench.section("latch")
    bench.measure("`create`", lambda: CountDownLatch.create(bench.store, "c", f"made-{next(numbers)}", 9))
    one = CountDownLatch.create(bench.store, "c", "latch", 10**6, farm_id="dc1", level=LatchLevel.XDC)
    bench.measure("`count_down(party=)`", lambda: one.count_down(party=next(numbers)))
    bench.measure("`count_down(party=)`, repeated", lambda: one.count_down(party=3))
    bench.measure("`count_down()`", one.count_down)
    bench.measure("`count()`, a look of `wait`", one.count)


def lock(bench: Bench) -> None:
    one, resource, held = FencedLock(bench.store, "lock"), Key("accounts", "resource"), list[Any]()
    bench.store.operate(resource, Put("n", 0), exists=Exists.ANY)

    def renew() -> None:
        held[-1].renew()

    bench.section("lock, election")
    bench.measure("`acquire`, free", lambda: held.append(one.acquire()), lambda: held and held.pop().release())
    bench.measure("`renew`, three times a lease", renew)
    bench.measure("`grant.operate`, `leadership.operate`", lambda: held[-1].operate(resource, Put("n", 1)))
    bench.measure("`release`", lambda: held.pop().release(), lambda: held or held.append(one.acquire()))


def circular(bench: Bench) -> None:
    ring = LargeQueue.create(bench.store, "ring", 10_000)
    ring.enqueue_many(range(5_000))
    group = ring.group("audit")
    bench.section("circular queue")
    bench.measure("`enqueue`", lambda: ring.enqueue(1))
    bench.measure("`enqueue_many(1000)`", lambda: ring.enqueue_many(range(1000)))
    bench.measure("`dequeue`", ring.dequeue)
    bench.measure("`dequeue_many(1000)`", lambda: ring.dequeue_many(1000))
    middle = ring.info().head_offset + 100
    bench.measure("`read_at`", lambda: ring.read_at(middle))
    bench.measure("`group.read(100)` and `commit`", lambda: group.commit(group.read(100)[-1].offset))


def sharded(bench: Bench) -> None:
    queue = QueueRegistry(bench.store, "c").create(QueueConfig("q", shards=1))
    held: list[Any] = []

    def fill(n: int) -> None:
        queue.publish_many(range(n))

    def take(n: int) -> None:
        held[:] = queue.receive(n)

    def ready(n: int) -> None:
        fill(n)
        take(n)

    def ack() -> None:
        held.pop().ack()

    def nack() -> None:
        held.pop().nack()

    bench.section("sharded queue")
    bench.measure("`publish`", lambda: queue.publish(1))
    bench.measure("`publish_many(1000)`", lambda: queue.publish_many(range(1000)))
    bench.measure("`receive`", lambda: take(1), lambda: fill(1))
    bench.measure("`receive(1000)`", lambda: take(1000), lambda: fill(1000))
    bench.measure("`ack`", ack, lambda: ready(1))
    bench.measure("`ack_many` of 1,000", lambda: queue.ack_many(held), lambda: ready(1000))
    bench.measure("`nack`", nack, lambda: ready(1))
    bench.measure("a look for messages, 1 shard", lambda: queue.active.candidates(look=True))
    bench.measure("`registry.refresh`, 1 queue", queue.registry.refresh)


def housekeeping(bench: Bench) -> None:
    registry = QueueRegistry(bench.store, "h")
    queue = registry.create(QueueConfig("q", shards=1, shovel=ShovelConfig(timedelta(0), 1)))
    sweeper, shovel = Sweeper(registry, Election(), parallelism=1), Shovel(queue)

    def abandon() -> None:
        queue.publish_many(range(1000))
        queue.receive(1000)
        bench.clock.advance(1201)

    def fail() -> None:
        queue.publish_many(range(1000))
        for delivery in queue.receive(1000):
            delivery.nack()
        bench.clock.advance(3600)

    def acknowledge() -> None:
        queue.publish_many(range(1000))
        queue.ack_many(queue.receive(1000))
        sweeper.run_once()  # it notes what was fired by now; only what is older is passed
        bench.clock.advance(1201)

    bench.section("sweep, shovel")
    bench.measure("sweep, nothing to do, 1 queue", sweeper.run_once)
    bench.measure("sweep, 1,000 acknowledged", sweeper.run_once, acknowledge)
    bench.measure("sweep, 1,000 abandoned", sweeper.run_once, abandon)
    while deliveries := queue.sideline.receive(1000):
        queue.sideline.ack_many(deliveries)
    bench.measure("shovel, 1,000 due", shovel.run_once, fail)


def exactly_once(bench: Bench) -> None:
    queue = QueueRegistry(bench.store, "e").create(QueueConfig("q", shards=1))
    scopes = count()
    messages = [Outgoing(number) for number in range(1000)]
    bench.section("Spark")
    bench.measure("sink, 1,000 rows of a partition", lambda: Ledger(queue, f"job-{next(scopes)}").publish(0, messages))
    bench.measure("the same attempt again", lambda: Ledger(queue, "job-0").publish(0, messages))
    pointers, state = queue.pointers, queue.pointers.states()[0]
    owner = ranges.take(pointers, "stream")
    ends = count(state.fired, 1000)
    bench.measure("stream, 1,000 read", lambda: list(ranges.read(pointers, 0, state.fired, state.fired + 1000)))
    bench.measure("stream, 1,000 of the sink acknowledged", lambda: ranges.acknowledge(pointers, owner, 0, next(ends)))
