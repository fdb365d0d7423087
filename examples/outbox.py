"""A producer that keeps going through an outage of its store.

    python examples/outbox.py

A producer takes orders and puts them into an outbox: a local queue on its own disk, from which they are forwarded to a
sharded queue in the background. After 150 orders the store goes away: first its replies are lost, then it answers no
more. The producer takes orders as before. It is killed in the middle of the outage and started again while the store is
still away. When the store comes back, every order that was ever acknowledged to a customer arrives, once, and those of
one customer in their order. It runs on the embedded store, or wherever $LATCHWORK_STORE points.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import count, islice
from pathlib import Path
from typing import Any

import latchwork
from latchwork import OutcomeUnknown, Unavailable
from latchwork.queue import Outbox, PagedQueue, QueueConfig, QueueRegistry, UnopenedQueue
from latchwork.queue.outbox.lag import stored_lag
from latchwork.store import RecordStore
from latchwork.store.port import DelegatingStore

CLIENT = "shop"
CONFIG = QueueConfig("orders", shards=4)
CUSTOMERS = 20
LIFE = 1_000_000
"""Orders of the producer's second life have numbers from here on."""
OUTAGE, STOP = "store-is-away", "stop"
"""Files that switch the store off, and the producer."""


class Leaving(DelegatingStore):
    """A store that is away while a file is there. The first three replies of an outage are lost on their way."""

    def __init__(self, inner: RecordStore, switch: Path) -> None:
        super().__init__(inner)
        self.switch, self.lost = switch, 0

    def _call(self, verb: str, *request: Any) -> Any:
        if not self.switch.exists():
            return getattr(self.inner, verb)(*request)
        if self.lost < 3 and verb == "_operate_many":
            self.lost += 1
            getattr(self.inner, verb)(*request)
            raise OutcomeUnknown("the reply of the store did not come")
        raise Unavailable("the store is away")

    def _get(self, *request: Any) -> Any:
        return self._call("_get", *request)

    def _get_many(self, *request: Any) -> Any:
        return self._call("_get_many", *request)

    def _operate(self, *request: Any) -> Any:
        return self._call("_operate", *request)

    def _operate_many(self, *request: Any) -> Any:
        return self._call("_operate_many", *request)

    def _delete(self, *request: Any) -> Any:
        return self._call("_delete", *request)

    def _delete_many(self, *request: Any) -> Any:
        return self._call("_delete_many", *request)

    def _query(self, *request: Any) -> Any:
        return self._call("_query", *request)

    def _ensure_index(self, *request: Any) -> Any:
        return self._call("_ensure_index", *request)


def produce(url: str, client: str, folder: Path, first: int) -> None:
    """The producer's process: take orders until told to stop, and say which of them were acknowledged."""
    store = Leaving(latchwork.connect(url), folder / OUTAGE)
    with PagedQueue.open(folder, "orders", lifetime=60, page_size=1024 * 1024) as local:
        outbox = Outbox(local, UnopenedQueue(QueueRegistry(store, client), CONFIG), disk_budget=50_000_000).start()
        for order in count(first):
            if (folder / STOP).exists():
                break
            customer = f"customer {order % CUSTOMERS}"
            outbox.put({"order": order, "customer": customer}, key=customer)
            print(order, flush=True)
            time.sleep(0.005)
        while outbox.lag().messages:
            time.sleep(0.05)
        outbox.stop()


class Producer:
    """A producer's process, as the one who started it sees it."""

    def __init__(self, url: str, client: str, folder: Path, first: int) -> None:
        command = [sys.executable, __file__, "produce", url, client, str(folder), str(first)]
        self.said = folder / f"said-{first}"
        with self.said.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output)

    def kill(self) -> None:
        """End it without a warning. Nothing where it has ended."""
        self.process.kill()
        self.process.wait()

    def take(self, more: int) -> None:
        """Wait until it has acknowledged so many orders more."""
        wanted, end = len(self.acknowledged()) + more, time.monotonic() + 60
        while len(self.acknowledged()) < wanted:
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit("the producer takes no orders")
            time.sleep(0.02)

    def acknowledged(self) -> list[int]:
        """The orders that it had said were put."""
        lines = self.said.read_text().splitlines(keepends=True)
        return [int(line) for line in lines if line.endswith("\n")]


def arrived(url: str, client: str) -> list[dict[str, Any]]:
    """Every order in the queue, as consumers get them."""
    queue, found = QueueRegistry(latchwork.connect(url), client).create(CONFIG), []
    while deliveries := queue.receive(1_000):
        found += [delivery.payload for delivery in deliveries]
        queue.ack_many(deliveries)
    return found


def run(url: str, folder: Path) -> bool:
    """The whole story; whether every acknowledged order arrived once and in order."""
    producers: list[Producer] = []
    try:
        return _told(url, f"{CLIENT}{os.getpid()}", folder, producers)
    finally:
        for producer in producers:
            producer.kill()


def _told(url: str, client: str, folder: Path, producers: list[Producer]) -> bool:
    first = Producer(url, client, folder, 0)
    producers.append(first)
    first.take(150)
    (folder / OUTAGE).touch()
    first.take(100)
    print(f"the store is away; {len(first.acknowledged())} orders are acknowledged, {stored_lag(folder, 'orders')}")
    first.kill()
    second = Producer(url, client, folder, LIFE)
    producers.append(second)
    print("the producer was killed and is started again, without its store")
    second.take(150)
    print(f"{len(second.acknowledged())} orders more, {stored_lag(folder, 'orders')}")
    (folder / OUTAGE).unlink()
    second.take(50)
    (folder / STOP).touch()
    second.process.wait(60)
    print(f"the store is back, {stored_lag(folder, 'orders')}")
    return judge(first.acknowledged() + second.acknowledged(), arrived(url, client))


def judge(acknowledged: list[int], found: list[dict[str, Any]]) -> bool:
    """Say what was lost, doubled and out of order."""
    times = Counter(order["order"] for order in found)
    lost = sum(order not in times for order in acknowledged)
    doubled = sum(n > 1 for n in times.values())
    disorder = 0
    for customer in {order["customer"] for order in found}:
        theirs = [order["order"] for order in found if order["customer"] == customer]
        disorder += sum(after < before for before, after in zip(theirs, islice(theirs, 1, None), strict=False))
    more = len(set(times) - set(acknowledged))  # put, but its customer was not told: the producer was killed just then
    print(
        f"orders acknowledged {len(acknowledged)}, arrived {len(times) - more} and {more} more, "
        f"lost {lost}, doubled {doubled}, out of order {disorder}"
    )
    return bool(acknowledged) and not (lost or doubled or disorder)


def main() -> None:
    """Run it, on a store of its own unless one was named."""
    if sys.argv[1:2] == ["produce"]:
        url, client, folder, first = sys.argv[2:]
        produce(url, client, Path(folder), int(first))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = os.environ.get("LATCHWORK_STORE") or f"sqlite:{Path(folder) / 'store.db'}?synchronous=normal"
        sys.exit(0 if run(url, Path(folder)) else 1)


if __name__ == "__main__":
    main()
