"""The large circular queue: producers, consumers, overwriters, and people who ask what became of a transaction."""

from __future__ import annotations

from typing import Any

from latchwork.queue.circular.queue import LargeQueue
from latchwork.store import Key

from ..checkers import circular as promises
from ..faults.kinds import ON_CALLS, Kind
from ..world import Process
from .base import Scenario, SimStore

META = Key("q", "queue-metadata")


class Circular(Scenario):
    """Several processes, some with two threads, on one small queue."""

    name = "circular"
    lease = 0.2
    horizon = 15.0
    span = 2.0
    kinds = (*ON_CALLS, Kind.ROW)
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESTART_STALE)
    styles = ("fifo", "overwrite", "group")

    def setup(self) -> None:
        self.style = self.rng.choice(self.styles)
        self.capacity = self.rng.randint(2, 6)
        self.count = 0
        slots = self.rng.choice((1, 2, 3))
        LargeQueue.create(self.operator_store, "q", self.capacity, entries_per_record=slots, lease=self.lease)
        self.changes = self.server.watch(META)
        if self.style == "group":
            LargeQueue.open(self.operator_store, "q").group("g", hold_head=True)

    def people(self) -> None:
        for number in range(self.rng.randint(2, 3)):
            self.person(f"p{number}", self._client)
        if self.style == "group":
            self.person("g", self._reader)

    def _client(self, process: Process, store: SimStore) -> None:
        queue = self._open(store)
        if queue is None:
            return
        threads = []
        if self.rng.random() < 0.4:
            threads = [process.spawn(lambda: self._some(process, queue), "second")]
        self._some(process, queue)
        for thread in threads:
            thread.join()

    def _open(self, store: SimStore) -> LargeQueue | None:
        """A handle; None where the store could not be asked."""
        entry = self.call(store.process, "open", lambda: LargeQueue.open(store, "q"))
        return entry.result if entry.ok else None

    def _some(self, process: Process, queue: LargeQueue) -> None:
        for _ in range(self.rng.randint(2, 5)):
            self._one(process, queue)
            self.idle(process, self.rng.choice((0.0, 0.01, 0.3)))

    def _one(self, process: Process, queue: LargeQueue) -> None:
        draw = self.rng.random()
        patience = self.rng.choice((0.5, 2.0))
        if draw < 0.5:
            self._enqueue(process, queue, patience)
        elif draw < 0.85:
            n = self.rng.choice((1, 1, 2, 3))
            self.call(process, "dequeue", lambda: _pairs(queue.dequeue_many(n, timeout=patience)), n)
        elif draw < 0.95:
            self.call(process, "info", lambda: _bounds(queue))
        else:
            offset = self.rng.randint(0, max(self.count, 1))
            self.call(process, "read_at", lambda: _pairs([queue.read_at(offset)]), offset)

    def _enqueue(self, process: Process, queue: LargeQueue, patience: float) -> None:
        values = []
        for _ in range(min(self.rng.choice((1, 1, 2, 3)), self.capacity)):
            self.count += 1
            values.append(f"v{self.count}")
        txn = f"t{self.count}" if self.rng.random() < 0.5 else None
        over = self.style == "overwrite" and self.rng.random() < 0.7
        options: dict[str, Any] = {"txn_id": txn, "overwrite_if_full": over, "timeout": patience}
        name = "overwrite" if over else "enqueue"
        entry = self.call(process, name, lambda: _span(queue.enqueue_many(values, **options)), tuple(values), txn)
        if txn and (entry.unknown or self.rng.random() < 0.2):
            self.call(process, "transaction", lambda: _transaction(queue, txn, patience), txn)

    def _reader(self, process: Process, store: SimStore) -> None:
        queue = self._open(store)
        if queue is None:
            return
        group = self.call(process, "join", lambda: queue.group("g", hold_head=True)).result
        for _ in range(self.rng.randint(3, 8) if group else 0):
            batch = self.call(process, "group_read", lambda: _batch(group.read(2)))
            if batch.ok and batch.result[0]:
                last = batch.result[0][-1][0]
                self.call(process, "group_commit", lambda last=last: group.commit(last), last)
            self.idle(process, 0.3)

    def settle(self) -> None:
        self.operator.seams.sleep(4.0)
        queue = LargeQueue.open(self.operator_store, "q")
        if self.style == "group":
            group = queue.group("g", hold_head=True)
            for _ in range(100):
                batch = self.call(self.operator, "group_read", lambda: _batch(group.read(3)))
                if not batch.ok or not batch.result[0]:
                    break
                last = batch.result[0][-1][0]
                self.call(self.operator, "group_commit", lambda last=last: group.commit(last), last)
        for _ in range(100):
            entry = self.call(self.operator, "dequeue", lambda: _pairs(queue.dequeue_many(2, timeout=5.0)), 2)
            if not entry.ok or not entry.result:
                break
        self.final = entry

    def check(self) -> None:
        promises.check(self)


def _pairs(entries: list[Any]) -> tuple[Any, ...]:
    return tuple((entry.offset, entry.value) for entry in entries if entry is not None)


def _span(offsets: range) -> tuple[int, int]:
    return (offsets.start, offsets.stop)


def _bounds(queue: LargeQueue) -> tuple[int, int]:
    info = queue.info()
    return (info.head_offset, info.tail_offset)


def _batch(batch: Any) -> tuple[Any, ...]:
    return (_pairs(batch), (batch.gap.start, batch.gap.stop))


def _transaction(queue: LargeQueue, txn: str, timeout: float) -> tuple[int, int] | None:
    found = queue.transaction(txn, timeout=timeout)
    return None if found is None else _span(found.offsets)
