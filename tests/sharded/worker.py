"""A process of `test_kills`: `python -m tests.sharded.worker ROLE DATABASE LOG SECONDS`; it is killed at any moment."""

from __future__ import annotations

import os
import sys
import time
import warnings

from latchwork.errors import LatchworkError
from latchwork.queue import QueueConfig, QueueRegistry, Sweeper
from latchwork.store import SQLiteStore

warnings.simplefilter("ignore")
CONFIG = QueueConfig("kills", shards=3, sweep_duration=1, handler_timeout=0.5, max_deliveries=1000, unsafe_limits=True)


class Election:
    """Every process believes that it leads: sweeps must be safe nevertheless."""

    class leadership:  # noqa: N801 - what the sweeper reads
        epoch = 1

        @staticmethod
        def check() -> None:
            pass


def queue_of(path: str):
    return QueueRegistry(SQLiteStore(path, synchronous="off"), "kills", farm_id="f").create(CONFIG)


class Log:
    """Lines that are on their way to the file system before the next step."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, word: str, ids) -> None:
        os.write(self.file, "".join(f"{word} {i}\n" for i in ids).encode())


def produce(queue, log: Log) -> None:
    log.write("published", [queue.publish("one")])
    log.write("published", queue.publish_many(range(5)))


def consume(queue, log: Log) -> None:
    for view in (queue, queue.sideline):
        deliveries = view.receive(4, timeout=0)
        log.write("handled", [delivery.message_id for delivery in deliveries])
        view.ack_many(deliveries)


def sweep(queue, _: Log) -> None:
    Sweeper(queue.registry, Election(), parallelism=1).run_once()
    time.sleep(0.05)


def main(role: str, path: str, log: str, seconds: str) -> None:
    work = {"produce": produce, "consume": consume, "sweep": sweep}[role]
    queue, kept, end = queue_of(path), Log(log), time.monotonic() + float(seconds)
    while time.monotonic() < end:
        try:
            work(queue, kept)
        except LatchworkError:
            time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
