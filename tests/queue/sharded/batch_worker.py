"""A process of `test_batches_killed`: `python -m tests.queue.sharded.batch_worker URL CLIENT LOG SECONDS`.

It handles messages, and takes part in the upkeep: sweeps, brings back what failed, and ends batches.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings

import latchwork
from latchwork.background import Troubles
from latchwork.coord import LeaseElection
from latchwork.errors import LatchworkError
from latchwork.queue import QueueConfig, QueueRegistry, Shovel, ShovelConfig, Sweeper
from latchwork.queue.sharded.upkeep.ending import Ending

NEXT = "next"
warnings.simplefilter("ignore")
CONFIG = QueueConfig(
    "batches", shards=3, sweep_duration=1, handler_timeout=0.5, max_deliveries=1000, shovel=ShovelConfig(1),
    unsafe_limits=True, message_expiry=600, queue_expiry=600,
)  # fmt: skip


def queue_of(url: str, client: str):
    return QueueRegistry(latchwork.connect(url), client, farm_id="f").create(CONFIG)


class Own:
    """What a leader knows of: this queue."""

    def __init__(self, queue) -> None:
        self.queue = queue

    def queues(self):
        return [self.queue]

    def troubles(self):
        return Troubles(self.queue.store.seams, logging.getLogger(__name__))


def work(queue, log: int, end: float) -> None:
    """Handle messages, half of them slowly; whoever is elected does the upkeep in between."""
    election = LeaseElection(queue.store, f"{queue.registry.client_id}-ends", lease=1.0)
    sweeper, ending = Sweeper(queue.registry, election, parallelism=1), Ending(Own(queue))
    election.start()
    swept = time.monotonic()
    while time.monotonic() < end:
        try:
            for view in (queue, queue.sideline):
                found = view.receive(7)
                for delivery in found:
                    os.write(log, f"handled {delivery.payload} {delivery.message_id}\n".encode())
                time.sleep(0.02 if found else 0.005)
                view.ack_many(found)
            leadership = election.leadership
            if leadership is not None:
                ending.run(leadership)
                if time.monotonic() - swept > 0.5:
                    swept = time.monotonic()
                    sweeper.run_once()
                    Shovel(queue).run_once()
        except LatchworkError as failure:
            os.write(log, f"error {failure.code} -\n".encode())


if __name__ == "__main__":
    url, client, path, seconds = sys.argv[1:]
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    work(queue_of(url, client), opened, time.monotonic() + float(seconds))
