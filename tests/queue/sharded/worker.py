"""A process of `test_kills`, killed at any moment: `python -m tests.queue.sharded.worker ROLE DATABASE LOG SECONDS`."""

from __future__ import annotations

import os
import sys
import time
import warnings

from latchwork.coord import LeaseElection
from latchwork.errors import LatchworkError, LeaseLost
from latchwork.queue import QueueConfig, QueueRegistry, Sweeper
from latchwork.store import SQLiteStore

warnings.simplefilter("ignore")
CONFIG = QueueConfig("kills", shards=3, sweep_duration=1, handler_timeout=0.5, max_deliveries=1000, unsafe_limits=True)
SWEEP = CONFIG.sweep_duration.total_seconds()


def queue_of(path: str):
    return QueueRegistry(SQLiteStore(path, synchronous="off"), "kills", farm_id="f").create(CONFIG)


def sweeper_of(queue) -> tuple[LeaseElection, Sweeper]:
    """A candidate, and the sweeper that asks it."""
    election = LeaseElection(queue.store, "kills-sweeper", lease=1.0)
    return election, Sweeper(queue.registry, election, parallelism=1)


class Log:
    """Lines that are on their way to the file system before the next step."""

    def __init__(self, path: str) -> None:
        self.file, self.who = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), os.getpid()

    def write(self, word: str, ids) -> None:
        os.write(self.file, "".join(f"{word} {self.who} {i}\n" for i in ids).encode())


def producing(queue, log: Log):
    def produce() -> None:
        for n in (1, 5):
            began = time.monotonic()
            ids = queue.publish_many(range(n))
            # Written too late to be sure that nobody has passed over it, a message is written again (P5).
            log.write("published" if time.monotonic() - began < SWEEP / 2 else "repeated", ids)

    return produce


def consuming(queue, log: Log):
    def consume() -> None:
        for view in (queue, queue.sideline):
            began = time.monotonic()
            deliveries = view.receive(4, timeout=0)
            log.write("handled", [delivery.message_id for delivery in deliveries])
            time.sleep(0.03 if deliveries else 0)  # the work, in the middle of which it may be killed
            for delivery in deliveries:
                log.write(settled(delivery, began), [delivery.message_id])

    return consume


def settled(delivery, began: float) -> str:
    """What became of the acknowledgement. Late: the message was had for so long that it may have been swept."""
    try:
        delivery.ack()
    except LeaseLost:
        had = time.monotonic() - began
        return "late" if had >= SWEEP else f"taken after {had} s:"
    return "acked"


def sweeping(queue, _: Log):
    election, sweeper = sweeper_of(queue)
    election.start()

    def sweep() -> None:
        sweeper.run_once()
        time.sleep(0.05)

    return sweep


def main(role: str, path: str, log: str, seconds: str) -> None:
    queue, end = queue_of(path), time.monotonic() + float(seconds)
    work = {"produce": producing, "consume": consuming, "sweep": sweeping}[role](queue, Log(log))
    while time.monotonic() < end:
        try:
            work()
        except LatchworkError:
            time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
