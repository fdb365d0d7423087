"""Ordered consumers of a sharded queue: publishers that wait for each answer, workers that die, stop and lose locks."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, ClassVar

from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry
from latchwork.queue.sharded.queue import ShardedQueue

from ..checkers import ordered as promises
from ..faults.kinds import WITH_THREADS, Kind
from ..world import Process
from .base import Scenario, SimStore

SWEEP = 1500.0
"""Seconds of the sweep duration: nothing is swept within a run, so whatever comes again was taken over. Nor does a
tombstone expire, however far the server's clock is set forward: its publisher could still come."""
LAST = 1_000
"""The number of each key's last message."""
LANDED = 31.0
"""Seconds after which no request of a dead process arrives any more. A later claim may take each key's last
message too; then nothing shows others that there is something to take over, and it comes with the sweep."""
SETTLED = 120.0
"""Seconds in which a calm consumer must have handled whatever is left."""


def _config(shards: int, batching: BatchingConfig | None) -> QueueConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueConfig(
            "q", shards=shards, sweep_duration=SWEEP, handler_timeout=60, max_deliveries=100, batching=batching,
            unsafe_limits=True,
        )  # fmt: skip


CONFIGS = [_config(shards, batching) for shards in (1, 2) for batching in (None, None, BatchingConfig(3, 1))]


class Ordered(Scenario):
    """What each key's publisher was told is safe, one message after the other, is handled in that order."""

    name = "ordered"
    lease = 10.0
    """Of a shard's lock."""
    horizon = 60.0
    span = 40.0
    patience = 1000.0
    kinds = (*WITH_THREADS, Kind.ROW, Kind.SLOW_PRODUCER)
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND)
    most_messages: ClassVar[int] = 6

    def setup(self) -> None:
        self.config = self.rng.choice(CONFIGS)
        self.given_up: set[tuple[str, int]] = set()
        self._queue(self.operator_store)

    def _queue(self, store: SimStore) -> ShardedQueue:
        return QueueRegistry(store, "c", farm_id="f").create(self.config)

    def _opened(self, process: Process, store: SimStore) -> ShardedQueue | None:
        entry = self.call(process, "open", lambda: self._queue(store))
        return entry.result if entry.ok else None

    # ---- people

    def people(self) -> None:
        for number in range(self.rng.randint(1, 2)):
            self.person(f"pub{number}", partial(self._producer, f"key{number}"), lives=1)
        for number in range(self.rng.randint(1, 3)):
            self.person(f"con{number}", self._worker)

    def _producer(self, key: str, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for number in range(self.rng.randint(2, self.most_messages) if queue else 0):
            self.call(process, "publish", partial(queue.publish, [key, number], key=key), key, number)
            self.idle(process, self.rng.choice((0.01, 0.01, 0.5, 6.0)))

    def _worker(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        if queue is None:
            return
        consumer = self._consumer(process, queue)
        self.idle(process, self.rng.choice((3.0, 20.0, 60.0)))
        if self.rng.random() < 0.5:
            consumer.stop(self.rng.choice((0.0, 5.0)))

    def _consumer(self, process: Process, queue: ShardedQueue) -> Consumer:
        def handle(given: Any) -> bool:
            for delivery in [given] if queue.config.batching is None else given:
                self.call(process, "handle", lambda: None, *delivery.payload)
            self.idle(process, self.rng.choice((0.01, 0.01, 0.3, 15.0)))
            return True

        workers = self.rng.randint(1, 2)
        return Consumer(queue, handle, concurrency=workers, ordered=True, upkeep=False).start()

    # ---- the end

    def settle(self) -> None:
        """Somebody comes who dies of nothing, and handles what is left; not what was given up when others stopped.

        What a consumer died with comes when its shard has something more, or with the sweep.
        """
        queue = self._queue(self.operator_store)
        self.operator.seams.sleep(LANDED)
        self.given_up = {tuple(message.payload) for message in queue.sideline.peek_all()}
        for key in sorted({entry.args[0] for entry in self.history.named("publish")}):
            self.call(self.operator, "publish", partial(queue.publish, [key, LAST], key=key), key, LAST)
        consumer = self._consumer(self.operator, queue)
        for _ in range(int(SETTLED)):
            self.operator.seams.sleep(1.0)
            if not promises.unhandled(self):
                break
        consumer.stop()

    def check(self) -> None:
        promises.check(self)
