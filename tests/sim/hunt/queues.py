"""Hunters of the large queue, the work queue with its consumer and upkeep, and the outbox."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from latchwork.queue import (
    Consumer,
    LargeQueue,
    Outbox,
    PagedQueue,
    QueueConfig,
    QueueRegistry,
    ShovelConfig,
)
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.retry import RetryPolicy

from ..history.record import Entry
from .ground import PATIENCE, Ground, Hunter

SWEEP = 6.0
"""Seconds after which a message of which nothing is heard is somebody else's."""


class LargeQueues(Hunter):
    """One large queue: two producers of batches that lie over several records, two consumers."""

    name, expected = "large queue", frozenset({"QUEUE_FULL", "LOCK_UNAVAILABLE"})

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.queue = LargeQueue.create(self.store, "hunt-large", 60, entries_per_record=5)
        self.numbers = itertools.count()

    def people(self) -> Sequence[Callable[[], None]]:
        return [self._produce, self._produce, self._consume, self._consume]

    def _produce(self) -> None:
        values = [f"v{next(self.numbers)}" for _ in range(self.chance.randint(1, 9))]
        txn = values[0] if self.chance.random() < 0.5 else None
        entry = self.call("enqueue", partial(self.queue.enqueue_many, values, txn_id=txn, timeout=2.0), tuple(values))
        if txn and entry.unknown:
            entry.tag = self.call("transaction", partial(self.queue.transaction, txn, timeout=2.0), txn)

    def _consume(self, most: int = 7) -> Entry:
        n = self.chance.randint(1, most)
        return self.call("dequeue", partial(self.queue.dequeue_many, n, timeout=2.0), n)

    def settle(self) -> None:
        self.ground.until("large queue: it is emptied", lambda: (entry := self._consume(40)).ok and not entry.result)

    def check(self) -> None:
        gone = [entry for taken in self.history.named("dequeue") if taken.ok for entry in taken.result]
        at = {entry.offset: entry.value for entry in gone}
        if len(at) < len(gone) or len(set(at.values())) < len(gone):
            self.complain("nothing is given twice", str(Counter(entry.value for entry in gone).most_common(3)))
        kept, never, placed = self._fates()
        lost = {offset: value for offset, value in kept.items() if offset not in at}
        may_have = sum(taken.args[0] for taken in self.history.named("dequeue") if taken.unknown)
        if len(lost) > may_have:
            self.complain("nothing committed is lost", f"{lost}, and {may_have} may have been dequeued in doubt")
        wrong = {offset: (value, at[offset]) for offset, value in kept.items() if at.get(offset, value) != value}
        if wrong or never & set(at.values()):
            self.complain("what was not enqueued is not there", f"{wrong} {never & set(at.values())}")
        for (_, ended, last), (begun, _, first) in itertools.combinations(sorted(placed), 2):
            if ended < begun and last > first:
                self.complain("first in, first out", f"{first} after {last}")

    def _fates(self) -> tuple[dict[int, str], set[str], list[tuple[int, int, int]]]:
        """What was enqueued, by offset; what never was; and (begun, ended, first offset) of what was."""
        kept: dict[int, str] = {}
        never: set[str] = set()
        placed = []
        for entry in self.history.named("enqueue"):
            offsets = entry.result if entry.ok else None
            if entry.tag is not None and entry.tag.ok:
                offsets = entry.tag.result.offsets if entry.tag.result else ()
            if offsets:
                kept |= dict(zip(offsets, entry.args[0], strict=True))
                if entry.ok:
                    placed.append((entry.order, entry.ended, offsets[0]))
            elif offsets is not None or not entry.unknown:
                never |= set(entry.args[0])
        return kept, never, placed


class WorkQueues(Hunter):
    """One work queue with two publishers, a consumer that also does the upkeep, and somebody who receives by hand."""

    name, expected = "work queue", frozenset({"LEASE_LOST"})

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.queue = _made(self, "work")
        self.numbers = itertools.count()
        self.handled: list[str] = []
        self.consumer = Consumer(self.queue, self._handle, concurrency=2)
        self.workers = 0

    def people(self) -> Sequence[Callable[[], None]]:
        self.consumer.start()
        return [self._publish, self._publish, self._receive]

    def _handle(self, delivery: Any) -> bool:
        self.handled.append(delivery.payload)
        return self.chance.random() < 0.95

    def _publish(self) -> None:
        payloads = [f"m{next(self.numbers)}" for _ in range(self.chance.choice((1, 1, 3, 10)))]
        self.call("publish", partial(self.queue.publish_many, payloads), tuple(payloads))
        self.ground.over.wait(0.05)

    def _receive(self) -> None:
        found = self.call("receive", partial(self.queue.receive, 10, timeout=0.3))
        if found.ok and found.result:
            self.handled += [delivery.payload for delivery in found.result]
            self.call("ack", partial(self.queue.ack_many, found.result), _slots(found.result))

    def _published(self) -> set[str]:
        return {payload for entry in self.history.named("publish") if entry.ok for payload in entry.args[0]}

    def settle(self) -> None:
        self.ground.until(
            "work queue: every acknowledged publish is delivered",
            lambda: self._published() <= set(self.handled) and self._empty(),
            lambda: f"{sorted(self._published() - set(self.handled))[:9]} {self.queue.depth()}",
        )
        if self.consumer._workers != 2:
            self.complain("no worker ends", f"{self.consumer!r}")
        if not self.consumer.stop(PATIENCE):
            self.complain("a consumer ends when it is told to", repr(self.consumer))

    def _empty(self) -> bool:
        depth = self.queue.depth()
        return depth.ready == depth.sideline == 0

    def check(self) -> None:
        single = [entry for entry in self.history.named("publish") if len(entry.args[0]) == 1]
        never = {entry.args[0][0] for entry in single if not entry.ok and not entry.unknown}
        if never & set(self.handled):
            self.complain("what was not published is not delivered", str(sorted(never & set(self.handled))[:9]))
        receipts = self.history.named("receive")
        for ack in self.history.named("ack"):
            # Of a slot, not of a payload: a move in doubt may leave a second copy, as at least once allows.
            later = {slot for got in receipts if got.ok and got.order > ack.ended for slot in _slots(got.result)}
            if self.ground.deletes_last and ack.ok and later & set(ack.args[0]):
                self.complain("what was acknowledged does not come again", str(sorted(later & set(ack.args[0]))))


class Outboxes(Hunter):
    """An outbox that forwards in the background to a queue of its own."""

    name = "outbox"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.queue = _made(self, "forwarded")
        self.pages = PagedQueue.open(ground.folder, "outbox", page_size=8192)
        self.outbox = Outbox(self.pages, self.queue)
        self.numbers = itertools.count()

    def people(self) -> Sequence[Callable[[], None]]:
        self.outbox.start()
        return [self._put]

    def _put(self) -> None:
        rows = [(self.chance.choice("abc"), next(self.numbers)) for _ in range(self.chance.choice((1, 5)))]
        keys = [key for key, _ in rows]
        self.call("put", partial(self.outbox.put_many, rows, keys=keys), tuple(rows))
        self.ground.over.wait(0.05)

    def settle(self) -> None:
        self.ground.until("outbox: what was put is forwarded", lambda: not self.outbox.lag().messages)
        if not self.outbox.stop(PATIENCE):
            self.complain("an outbox ends when it is told to", repr(self.outbox.failure))
        self.pages.close()

    def check(self) -> None:
        found: list[tuple[str, int]] = []
        self.ground.until("outbox: its queue is emptied", lambda: not self._drained(found))
        put = [row for entry in self.history.named("put") if entry.ok for row in entry.args[0]]
        if Counter(found) != Counter(put):
            lost, more = Counter(put) - Counter(found), Counter(found) - Counter(put)
            self.complain("each message once", f"lost {sorted(lost)[:9]}, too often {sorted(more)[:9]}")
        for key in "abc":
            numbers = [number for k, number in found if k == key]
            if numbers != sorted(numbers):
                self.complain("messages of one key keep their order", f"{key}: {numbers}")

    def _drained(self, found: list[tuple[str, int]]) -> bool:
        """Whether there was something; it is in `found` now."""
        deliveries = self.queue.receive(1000)
        found += [(key, number) for key, number in (delivery.payload for delivery in deliveries)]
        self.queue.ack_many(deliveries)
        return bool(deliveries)


def _slots(deliveries: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    return tuple((delivery.shard, delivery.pointer) for delivery in deliveries)


def _made(hunter: Hunter, name: str) -> ShardedQueue:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig(
            name, shards=2, sweep_duration=SWEEP, handler_timeout=SWEEP / 2, max_deliveries=1000, unsafe_limits=True,
            shovel=ShovelConfig(1),
        )  # fmt: skip
        # A cluster may take seconds for an index, and the client of a hunt is impatient.
        patient = hunter.store.with_policy(RetryPolicy(attempts=60, wait=0.2, max_wait=0.5))
        QueueRegistry(patient, "hunt").create(config)
        return QueueRegistry(hunter.store, "hunt").get(name)
