"""Consumers that prefetch: workers that are quick and slow, stop, are paused and die with messages in hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from latchwork.queue import Consumer
from latchwork.queue.sharded.queue import ShardedQueue

from ..checkers import consumer as promises
from ..faults.kinds import Kind
from ..faults.network import Change
from ..world import Process
from .base import SimStore
from .sharded import Sharded

LATER = 2.0
"""Seconds after a stop by which a worker that was just asking for messages has handed back what it got."""


HARMLESS = (Kind.WRAP, Kind.CLIENT_CLOCK)
"""Faults that leave no message in the hands of who has stopped."""
MENDED = (*HARMLESS, Kind.DEFECT, Kind.TWO_LEADERS)
"""Faults that leave none to the sweep, as long as its consumer lives."""


class Prefetching(Sharded):
    """Everybody who has to do with one sharded queue, where consumers claim ahead and acknowledge together."""

    name = "consumer"
    kinds = (*Sharded.kinds, Kind.DEFECT)
    most_messages: ClassVar[int] = 3
    at_once: ClassVar[tuple[int, ...]] = (1, 12, 40)

    def setup(self) -> None:
        self.done: set[str] = set()
        self.consumers: list[Consumer] = []
        self.begun: Counter[str] = Counter()
        self.swept: Counter[str] = Counter()
        self.gone: list[tuple[float, str, str]] = []
        self.kept: list[tuple[float, str, tuple[str, ...]]] = []
        self.uncounted: list[tuple[float, str, int, int]] = []
        self.left: list[tuple[float, str, str]] = []
        super().setup()

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written; what a sweep brings into the sideline has an attempt that nobody began."""
        super().wrote(key, change)
        if key.set == "c_data_set" and change.after.get("reason") == "swept" and "reason" not in change.before:
            self.swept[change.after["data"].strip('"')] += 1
            self._swept(change.after["data"])

    def _swept(self, data: str) -> None:
        """A message was swept, which is right where its consumer does not live."""
        if any(n for kind, n in self.plan.fired.items() if kind not in MENDED):
            return
        alive = {process.name for process in self.world.processes if not process.dead}
        holders = {
            self.stampers.get(bins.get("delivery") or "") for bins in self._messages() if bins.get("data") == data
        }
        self.left += [(self.world.now, name, data) for name in holders & alive if name.startswith("con")]

    def removed(self, key: Any, who: str, bins: dict[str, Any]) -> None:
        """A record was deleted, which is right once its handler has ended, or while a copy is there."""
        super().removed(key, who, bins)
        data = bins.get("data")
        if key.set != "c_data_set" or data is None or data.strip('"') in self.done:
            return
        if not any(other.get("data") == data for other in self._messages()):
            self.gone.append((self.world.now, who, data))

    def _messages(self) -> Iterator[dict[str, Any]]:
        return (stored.bins for key, stored in self.server._records.items() if key.set == "c_data_set")

    # ---- people

    def _producer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(1, self.most_messages) if queue else 0):
            payloads = []
            for _ in range(self.rng.choice(self.at_once)):
                self.published += 1
                payloads.append(f"m{self.published}")
            self.call(process, "publish", partial(queue.publish_many, payloads), tuple(payloads))
            self.idle(process, self.rng.choice((0.01, 0.5, 3.0)))

    def _consumer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        if queue is None:
            return
        slow = self.rng.choice((0.0, 0.0, 0.05, 0.3))
        handle = partial(self._handled, process, slow)
        self.consumers.append(consumer := Consumer(queue, handle, concurrency=self.rng.choice((1, 1, 2)), upkeep=False))
        consumer.start()
        self.idle(process, self.rng.choice((0.1, 1.0, 10.0)))
        if self.rng.random() < 0.6:
            consumer.stop(self.rng.choice((0.0, 0.5, 5.0)))
            process.seams.sleep(LATER)
            if not any(n for kind, n in self.plan.fired.items() if kind not in HARMLESS):
                self.kept.append((self.world.now, process.name, tuple(self._in_hands_of(process))))

    def _in_hands_of(self, process: Process) -> Iterator[str]:
        for bins in self._messages():
            if bins.get("data") is not None and self.stampers.get(bins.get("delivery") or "") == process.name:
                yield bins["data"]

    def _handled(self, process: Process, slow: float, delivery: Any) -> bool:
        payload = delivery.payload
        if delivery.attempts > 1 + self.begun[payload] + self.swept[payload]:
            self.uncounted.append((self.world.now, payload, delivery.attempts, self.begun[payload]))
        self.begun[payload] += 1
        draw = self.rng.random()
        pause = 0.0 if draw < 0.95 else slow if draw < 0.995 else 3.0
        self.call(process, "handle", lambda: process.seams.sleep(pause), payload)
        accepted = self.rng.random() < 0.95
        if accepted:
            self.done.add(payload)
        return accepted

    def _drain(self, queue: ShardedQueue) -> None:
        while found := queue.receive(100):
            for delivery in found:
                self.done.add(delivery.payload)
                self.call(self.operator, "ack", delivery.ack, delivery.payload)

    def check(self) -> None:
        promises.check(self)
