"""The second, small queue: one message for each airport and carrier, whose figures are computed without Spark.

Consumers are killed, so a message may come twice: the file has the same name each time, and the latch counts each
airport and carrier once.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from functools import cached_property

import data
from plan import CLIENT, TTL, Plan

from latchwork.coord import CountDownLatch
from latchwork.queue import Delivery, QueueConfig, QueueRegistry, ShardedQueue, ShovelConfig

SWEEP = timedelta(seconds=6)
"""How long a message may be in the hands of a consumer that shows no sign of life; in production 5 minutes or more."""


class Checks:
    """What the consumers and the coordinator share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.registry = QueueRegistry(plan.store, f"{CLIENT}-checks")
        self._name = f"{plan.job}-checks"
        self.latch = CountDownLatch.get(plan.store, CLIENT, self._name, ttl=TTL)

    @cached_property
    def queue(self) -> ShardedQueue:
        """The queue."""
        return self.registry.get(self._name)

    @property
    def swept(self) -> int:
        """How many messages of dead consumers were swept."""
        return int(self.registry.records.read(self._name, "sweptCounter")["sweptCounter"])

    def create(self, carriers: list[tuple[str, str]]) -> None:
        """The queue with a message for each airport and carrier, and the latch that counts them."""
        data.check_of(self.plan.directory).mkdir()
        CountDownLatch.create(self.plan.store, CLIENT, self._name, len(carriers), ttl=TTL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a sweep duration of seconds is for demonstrations, as it says
            config = QueueConfig(
                self._name,
                shards=4,
                sweep_duration=SWEEP,
                max_deliveries=100,
                shovel=ShovelConfig(1),
                unsafe_limits=True,
            )
            queue = self.registry.create(config)
        queue.publish_many([{"farm": farm, "carrier": carrier} for farm, carrier in carriers])

    def work(self, delivery: Delivery) -> None:
        """The handler: compute, write, rename, and only then count."""
        farm, carrier = delivery.payload["farm"], delivery.payload["carrier"]
        figures = data.direct(data.of_carrier(self.plan.directory, farm, carrier))
        part = data.check_of(self.plan.directory) / f"{farm}-{carrier}.parquet"
        unfinished = part.with_suffix(f".{delivery.message_id}.{delivery.attempts}")
        figures.to_parquet(unfinished)
        unfinished.replace(part)
        self.latch.count_down(party=f"{farm}-{carrier}")
