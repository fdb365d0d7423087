"""A batch that ends (P18): publishers who die, workers who die between mark and delete, and leaders who do not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar
from unittest import mock

from latchwork.background import FailureLog
from latchwork.logs import Log
from latchwork.queue import Publish, QueueConfig
from latchwork.queue.sharded.batches import blocks, counting, records
from latchwork.queue.sharded.publishing import batch_results as results
from latchwork.queue.sharded.publishing.batch import QueueBatch
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.upkeep.ending import AGAIN, Ending
from latchwork.queue.sharded.upkeep.shovel import Shovel
from latchwork.queue.sharded.upkeep.sweeper import Sweeper

from ..checkers import batches as promises
from ..faults.kinds import ON_CALLS, Kind
from ..faults.network import Change
from ..world import Process
from .base import SimStore
from .results import keeping
from .sharded import CONFIGS, SWEEP, Office, Sharded, Term

NEXT, PARKED = "next", "parked"


class _OneQueue:
    """What the upkeep of a process knows of."""

    def __init__(self, queue: ShardedQueue) -> None:
        self._queue = queue

    def queues(self) -> list[ShardedQueue]:
        return [self._queue]

    def failure_log(self) -> FailureLog:
        return FailureLog(self._queue.store.seams, Log(__name__))


class Batches(Sharded):
    """Publishers into one batch, some with keys, workers, who closes or cancels it, sweepers, and who publishes what
    follows.
    """

    name = "batches"
    kinds = (*ON_CALLS, Kind.ROW, Kind.SLOW_PRODUCER)
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND)
    configs: ClassVar[list[QueueConfig]] = [*CONFIGS, *map(keeping, CONFIGS)]
    rare = ()  # a batch whose records the store has lost does not end

    @classmethod
    @contextmanager
    def sizes(cls, seed: int) -> Iterator[None]:
        """In half of the runs a batch has several blocks."""
        size = blocks.BLOCK if seed % 2 else 3
        with ExitStack() as stack:
            for module in (blocks, counting, records, results):
                stack.enter_context(mock.patch.object(module, "BLOCK", size))
            yield

    def setup(self) -> None:
        super().setup()
        self.followed: dict[str, float] = {}
        """When each message that follows was written first, by its id."""
        self.told: set[str] = set()
        """The ids of the messages that say that one was parked."""
        self._batch(self._queue(self.operator_store))

    def wrote(self, key: Any, change: Change) -> None:
        """Note what follows."""
        super().wrote(key, change)
        if key.set == "c_data_set" and change.after.get("data") == f'"{NEXT}"':
            self.followed.setdefault(change.after["msgId"], self.world.now)
        if key.set == "c_data_set" and change.after.get("data") == f'"{PARKED}"':
            self.told.add(change.after["msgId"])

    def _batch(self, queue: ShardedQueue) -> QueueBatch:
        return queue.batch("b", then=Publish(NEXT), on_parked=Publish(PARKED))

    def _joined(self, process: Process, queue: ShardedQueue) -> QueueBatch | None:
        entry = self.call(process, "join", lambda: self._batch(queue))
        return entry.result if entry.ok else None

    def ack(self, delivery: Any) -> Callable[[], None]:
        return partial(delivery.ack, delivery.payload) if self.config.results else super().ack(delivery)

    # ---- people

    def people(self) -> None:
        for number in range(self.rng.randint(1, 2)):
            self.person(f"pub{number}", self.rng.choice((self._publisher, self._repeating)))
        for number in range(self.rng.randint(1, 3)):
            self.person(f"con{number}", self._consumer)
        self.person("sweep", self._sweeper)
        if self.rng.random() < 0.5:
            self.person("shovel", self._shovel)
        for number in range(self.rng.randint(1, 2)):
            self.person(f"closer{number}", self._closer)
        if self.rng.random() < 0.3:
            self.person("canceller", self._canceller)
        if self.config.results:
            self.person("reader", self._reader)
        for number in range(self.rng.randint(1, 2)):
            self.person(f"leader{number}", self._leader)

    def _publisher(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        batch = self._joined(process, queue) if queue else None
        for _ in range(self.rng.randint(1, 4) if batch else 0):
            payloads = []
            for _ in range(self.rng.choice((1, 2, 3))):
                self.published += 1
                payloads.append(f"m{self.published}")
            self.call(process, "publish", partial(batch.publish_many, payloads), tuple(payloads))
            self.idle(process, self.rng.choice((0.01, 0.5, 3.0)))

    def _repeating(self, process: Process, store: SimStore) -> None:
        """A publisher with keys: what fails is published again, and after a crash all of it is."""
        queue = self._opened(process, store)
        batch = self._joined(process, queue) if queue else None
        for number in range(3 if batch else 0):
            keys = [f"{process.name.strip(chr(39))}-{number}-{n}" for n in range(2)]
            for _ in range(3):
                done = self.call(process, "publish", partial(batch.publish_many, keys, dedups=keys), tuple(keys))
                if done.ok or done.outcome == "REFUSED":
                    break
            self.idle(process, self.rng.choice((0.01, 0.5)))

    def _closer(self, process: Process, store: SimStore) -> None:
        self.idle(process, 8.0)
        queue = self._opened(process, store)
        batch = self._joined(process, queue) if queue else None
        if batch:
            self.call(process, "close", batch.close)

    def _reader(self, process: Process, store: SimStore) -> None:
        self.idle(process, self.rng.choice((0.5, 3.0, 8.0)))
        queue = self._opened(process, store)
        batch = self._joined(process, queue) if queue else None
        for _ in range(2 if batch else 0):
            timeout = self.rng.choice((0, 1.0, 5.0))
            self.call(process, "results", lambda timeout=timeout: list(batch.results(timeout)))

    def _canceller(self, process: Process, store: SimStore) -> None:
        self.idle(process, self.rng.choice((0.5, 3.0, 8.0)))
        queue = self._opened(process, store)
        batch = self._joined(process, queue) if queue else None
        if batch:
            self.call(process, "cancel", batch.cancel)

    def _leader(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        if queue is None:
            return
        ending = Ending(_OneQueue(queue))
        for _ in range(self.rng.randint(3, 10)):
            self.call(process, "end", partial(ending.run, Term(1)))
            self.idle(process, self.rng.choice((0.5, 3.0)))

    # ---- the end

    def settle(self) -> None:
        self.operator.seams.sleep(4 * SWEEP)
        queue = self._queue(self.operator_store)
        batch = self._batch(queue)
        self.call(self.operator, "close", batch.close)
        sweeper, ending = Sweeper(queue.registry, Office(Term(1000))), Ending(_OneQueue(queue))
        for _ in range(14):
            queue.redrive(1000)
            self._drain(queue)
            report = sweeper.run_once()
            Shovel(queue).run_once()
            ending.run(Term(1))
            depth = queue.depth()
            self.drained = not report.shards and depth.ready == depth.sideline == depth.parked == 0
            if self.drained:
                break
            self.operator.seams.sleep(SWEEP + 0.5)
        self.operator.seams.sleep(AGAIN + 1)
        for _ in range(2):
            ending.run(Term(1))
        self._drain(queue)
        self.progress = batch.progress()
        if self.config.results:
            self.call(self.operator, "results", lambda: list(batch.results(0)))

    def check(self) -> None:
        promises.check(self)
