"""A shop's orders: a producer, a consumer with a flaky handler, a shovel, and a sweeper under an election.

    python examples/orders.py

Two hundred orders go through a sharded queue. The handler fails some of them, hangs on one and rejects one for good; a
second consumer process dies with orders in its hands. The shovel brings back what failed, the elected sweeper what the
dead one had; what fails too often is parked, looked at, and brought back by hand. It runs on the embedded store, or
wherever $LATCHWORK_STORE points. Times of seconds are for the demonstration only (`unsafe_limits`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import latchwork
from latchwork.coord import LeaseElection
from latchwork.queue import Consumer, Delivery, QueueConfig, QueueRegistry, Shovel, ShovelConfig, Sweeper

ORDERS = 200
CLIENT = f"shop{os.getpid()}"
CONFIG = {
    "shards": 4,
    "concurrency": 4,
    "message_expiry": 600,
    "queue_expiry": 600,
    "sweep_duration": 3,
    "handler_timeout": 1,
    "max_deliveries": 3,
    "shovel": ShovelConfig(interval=1),
    "unsafe_limits": True,
}
DOOMED = """
import sys, time, latchwork
from latchwork.queue import QueueRegistry
queue = QueueRegistry(latchwork.connect(sys.argv[1]), sys.argv[2]).get("orders")
print(len(queue.receive(20, timeout=10)), flush=True)
time.sleep(60)
"""


class Shop:
    """Handles orders, and keeps count."""

    def __init__(self) -> None:
        self.handled: Counter[int] = Counter()
        self._guard = threading.Lock()
        self.fixed = False

    def handle(self, delivery: Delivery) -> bool:
        """Every tenth order fails at first, order 13 hangs once, order 99 is rejected until the shop is fixed."""
        order = delivery.payload["order"]
        if order == 99 and not self.fixed:
            return False
        if order % 10 == 0 and delivery.attempts == 1:
            raise ConnectionError("the bank did not answer")
        if order == 13 and delivery.attempts == 1:
            time.sleep(2)
        with self._guard:
            self.handled[order] += 1
        return True


def doomed_consumer(url: str) -> int:
    """Start another process, let it take some orders, and kill it; how many it had."""
    child = subprocess.Popen([sys.executable, "-c", DOOMED, url, CLIENT], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    taken = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    return taken


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition is true; after so many seconds say so and go on."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            print("(still not there; going on)")
            return
        time.sleep(0.1)


def run(url: str) -> bool:
    """The whole story; whether every order was handled."""
    registry = QueueRegistry(latchwork.connect(url), CLIENT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = registry.create(QueueConfig("orders", **CONFIG))
    shop = Shop()

    queue.publish_many([{"order": order} for order in range(ORDERS)], headers={"source": "web"})
    print(f"published {ORDERS} orders: {queue.depth()}")
    print(f"a consumer died with {doomed_consumer(url)} orders in its hands")

    election = LeaseElection(registry.store, f"{CLIENT}-sweeper", lease=2)
    election.start()
    sweeper = Sweeper(registry, election, initial_delay=0.5, interval=0.5).start()
    shovel = Shovel(queue).start()
    consumer = Consumer(queue, shop.handle, grace=5).start()

    wait_until(lambda: len(shop.handled) == ORDERS - 1 and queue.depth().parked == 1, 40)
    leader = election.leadership
    print(f"leader {leader}, last sweep {registry.last_sweep('orders')}")
    for message in queue.parked.peek():
        print(f"parked: {message.payload} after {message.attempts} deliveries, because {message.reason}")

    shop.fixed = True
    print(f"fixed; brought back {len(queue.redrive(10))} parked order")
    wait_until(lambda: len(shop.handled) == ORDERS, 10)

    drained = consumer.stop()
    shovel.stop()
    sweeper.stop()
    election.stop()
    twice = sum(count > 1 for count in shop.handled.values())
    print(f"drained {drained}, {queue.depth()}")
    print(f"orders {ORDERS}, handled {len(shop.handled)}, lost {ORDERS - len(shop.handled)}, handled twice {twice}")
    return len(shop.handled) == ORDERS


def main() -> None:
    """Run it, on a store of its own unless one was named."""
    with tempfile.TemporaryDirectory() as folder:
        url = os.environ.get("LATCHWORK_STORE") or f"sqlite:{Path(folder) / 'orders.db'}?synchronous=normal"
        sys.exit(0 if run(url) else 1)


if __name__ == "__main__":
    main()
