"""The sharded queue with its sweeper and its shovel: producers, good and bad consumers, and leaders who do not know."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from latchwork.queue.sharded.config import QueueConfig, ShovelConfig
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.registry import QueueRegistry
from latchwork.queue.sharded.upkeep.shovel import Shovel
from latchwork.queue.sharded.upkeep.sweeper import Sweeper

from ..checkers import sharded as promises
from ..faults.kinds import ON_CALLS, Kind
from ..faults.network import Change
from ..world import Process
from .base import Scenario, SimStore

SWEEP = 4.0
"""Seconds of the sweep duration."""


@dataclass
class Term:
    """A leadership that is believed for ever, as by a leader who was cut off: only the epoch stands in its way."""

    epoch: int

    def check(self) -> None:
        """It never knows better."""


@dataclass
class Office:
    """An election that has such a leader."""

    leadership: Term


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CONFIGS = [
        QueueConfig(
            "q", shards=shards, sweep_duration=SWEEP, handler_timeout=1, max_deliveries=most, unsafe_limits=True,
            shovel=ShovelConfig(1),
        )
        for shards in (1, 2)
        for most in (2, 5)
    ]  # fmt: skip


class Sharded(Scenario):
    """Everybody who has to do with one sharded queue, at once."""

    name = "sharded"
    lease = SWEEP
    horizon = 25.0
    span = 15.0
    patience = 5000.0
    kinds = (*ON_CALLS, Kind.ROW, Kind.SLOW_PRODUCER)
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESURRECT)
    rare = (Kind.RESTART_EMPTY,)
    most_messages: ClassVar[int] = 4
    configs: ClassVar[list[QueueConfig]] = CONFIGS

    def setup(self) -> None:
        self.config = self.rng.choice(self.configs)
        self.epoch = 0
        self.published = 0
        self.visible: set[str] = set()
        self.drained = False
        self.sweepers: set[int] = set()
        self.writes: list[tuple[Any, Change]] = []
        self.deletes: list[tuple[float, str, str, str | None]] = []
        self.stampers: dict[str, str] = {}
        self._queue(self.operator_store)
        self.server.observer = self

    def _queue(self, store: SimStore) -> ShardedQueue:
        return QueueRegistry(store, "c", farm_id="f").create(self.config)

    def _opened(self, process: Process, store: SimStore) -> ShardedQueue | None:
        entry = self.call(process, "open", lambda: self._queue(store))
        return entry.result if entry.ok else None

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written."""
        if key.set == "c_data_set":
            mine = change.after.get("delivery")
            if mine is not None and mine != change.before.get("delivery"):
                self.stampers[mine] = change.who
        else:
            self.writes.append((key, change))

    def removed(self, key: Any, who: str, bins: dict[str, Any]) -> None:
        """A record was deleted."""
        if key.set == "c_data_set":
            self.deletes.append((self.world.now, who, key.name, bins.get("delivery")))

    # ---- people

    def people(self) -> None:
        for number in range(self.rng.randint(1, 2)):
            self.person(f"pub{number}", self._producer)
        for number in range(self.rng.randint(1, 2)):
            self.person(f"con{number}", self._consumer)
        for number in range(self.rng.randint(1, 2)):
            self.person(f"sweep{number}", self._sweeper)
        if self.rng.random() < 0.5:
            self.person("shovel", self._shovel)

    def _producer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(1, self.most_messages) if queue else 0):
            payloads = []
            for _ in range(self.rng.choice((1, 1, 3))):
                self.published += 1
                payloads.append(f"m{self.published}")
            self.call(process, "publish", partial(queue.publish_many, payloads), tuple(payloads))
            self.idle(process, self.rng.choice((0.01, 0.5, 3.0)))

    def _consumer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(2, 6) if queue else 0):
            n = self.rng.choice((1, 3))
            found = self.call(process, "receive", partial(queue.receive, n, timeout=self.rng.choice((0, 0.5, 2.0))), n)
            if found.ok:
                found.tag = tuple(delivery.payload for delivery in found.result)
                self._handle(process, found.result, found.called)
            self.idle(process, self.rng.choice((0.01, 0.5, 3.0)))

    def _handle(self, process: Process, deliveries: list[Any], since: float) -> None:
        """Most are acknowledged; some are rejected, extended, held too long, or forgotten."""
        for delivery in deliveries:
            draw = self.rng.random()
            if draw < 0.1:
                continue
            if draw < 0.3:
                self.idle(process, self.rng.choice((1.0, 2.0)) * SWEEP)
            if draw < 0.2:
                self.call(process, "extend", delivery.extend, delivery.payload)
            if 0.3 < draw < 0.45:
                self.call(process, "nack", lambda delivery=delivery: delivery.nack(), delivery.payload)
            else:
                self.call(process, "ack", self.ack(delivery), delivery.payload).tag = since

    def ack(self, delivery: Any) -> Callable[[], None]:
        """How a delivery is acknowledged."""
        return delivery.ack  # type: ignore[no-any-return]

    def _sweeper(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        if queue is None:
            return
        self.epoch += 1
        sweeper = Sweeper(queue.registry, Office(Term(self.epoch)))
        self.sweepers.add(self.epoch)
        for _ in range(self.rng.randint(2, 6)):
            self.call(process, "sweep", sweeper.run_once, self.epoch)
            self.idle(process, SWEEP)

    def _shovel(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(1, 4) if queue else 0):
            self.idle(process, SWEEP)
            self.call(process, "shovel", Shovel(queue).run_once)

    # ---- the end

    def settle(self) -> None:
        if len(self.sweepers) > 1:
            self.plan.fire(Kind.TWO_LEADERS)
        self.operator.seams.sleep(4 * SWEEP)
        queue = self._queue(self.operator_store)
        self._again(queue)
        sweeper = Sweeper(queue.registry, Office(Term(1000)))
        for _ in range(12):
            self._drain(queue)
            report = sweeper.run_once()
            if queue.config.shovel:
                Shovel(queue).run_once()
            depth = queue.depth()
            self.drained = not report.shards and depth.ready == depth.sideline == 0
            if self.drained:
                break
            self.operator.seams.sleep(SWEEP + 0.5)
        for view in (queue, queue.sideline, queue.parked):
            self.visible |= {message.payload for message in view.peek_all()}

    def _again(self, queue: ShardedQueue) -> None:
        """What producers do once more when faults have stopped: nothing."""

    def _drain(self, queue: ShardedQueue) -> None:
        while True:
            found = self.call(self.operator, "receive", lambda: queue.receive(100), 100)
            found.tag = tuple(delivery.payload for delivery in found.result)
            if not found.result:
                return
            for delivery in found.result:
                self.call(self.operator, "ack", self.ack(delivery), delivery.payload)

    def check(self) -> None:
        promises.check(self)
