"""An order pipeline: a batch of orders that ends, and two groups that get every order at their own pace.

    python examples/order_pipeline.py

Three hundred orders are published into a batch. Two workers charge them, one of which is killed with orders in its
hands; the groups `audit` and `search` get every order as well. When the last order is charged, and not before, a
message follows, exactly once: the day's report. It runs on the embedded store, or wherever $LATCHWORK_STORE points.
Times of seconds are for the demonstration only (`unsafe_limits`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import latchwork
from latchwork.queue import Consumer, Delivery, Publish, QueueConfig, QueueRegistry, ShovelConfig

ORDERS = 300
CLIENT = f"pipeline{os.getpid()}"
CONFIG: dict[str, Any] = {
    "shards": 4,
    "concurrency": 4,
    "message_expiry": 600,
    "queue_expiry": 600,
    "sweep_duration": 2,
    "handler_timeout": 1,
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


class Handled:
    """Which payloads a handler has seen, and how often. Safe between threads."""

    def __init__(self) -> None:
        self.seen: Counter[Any] = Counter()
        self._guard = threading.Lock()

    def __call__(self, delivery: Delivery) -> None:
        with self._guard:
            self.seen[delivery.payload.get("order", "report")] += 1


def killed_worker(url: str) -> int:
    """Let another process take some orders, and kill it; how many it had."""
    child = subprocess.Popen([sys.executable, "-c", DOOMED, url, CLIENT], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    taken = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    return taken


def until(what: str, holds: Callable[[], bool], pause: Callable[[float], None], rounds: int = 600) -> None:
    """Wait until it holds, for a minute at most."""
    for _ in range(rounds):
        if holds():
            return
        pause(0.1)
    raise SystemExit(f"after a minute still not so: {what}")


def run(url: str) -> None:
    """Publish, kill, charge, count."""
    warnings.simplefilter("ignore")
    store = latchwork.connect(url)
    orders = QueueRegistry(store, CLIENT).create(QueueConfig("orders", **CONFIG))
    audit, search = orders.group("audit"), orders.group("search")
    with orders.batch("monday", then=Publish({"report": "monday"})) as batch:
        batch.publish_many([{"order": n} for n in range(ORDERS)])
    print(f"published {batch.progress().published} orders; a worker is killed with {killed_worker(url)} of them")
    charged, audited, searched = Handled(), Handled(), Handled()
    with ExitStack() as stack:
        for queue, handler in ((orders, charged), (audit, audited), (search, searched)):
            stack.enter_context(Consumer(queue, handler))
        if not batch.wait(timeout=60):
            raise SystemExit(f"the batch did not end: {batch.progress()}, parked: {batch.missing()}")
        assert all(charged.seen[n] for n in range(ORDERS)), "each order was charged before the batch ended"
        print(f"done: {batch.progress().done} orders, each counted once")
        until("the report", lambda: charged.seen["report"] > 0, store.seams.sleep)
        until("both groups", lambda: len(audited.seen) == len(searched.seen) == ORDERS + 1, store.seams.sleep)
    again = sum(n - 1 for name, n in charged.seen.items() if name != "report")
    print(f"the report came {charged.seen['report']} time; {again} orders were charged again after the kill")
    print(f"audit and search have {len(audited.seen)} and {len(searched.seen)} messages, the report among them")
    assert charged.seen["report"] == 1
    assert batch.progress().ended
    store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run(os.environ.get("LATCHWORK_STORE") or f"sqlite:{folder}/orders.db")
