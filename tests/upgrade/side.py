"""One process of either version: `python side.py ROLE SIDE URL CLIENT`. It uses what both versions have.

Each message has a number. A worker counts it by its side, in a record of its own; it fails every tenth one once, and
does every twenty-fifth one under a lock that both versions contend for.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import latchwork
from latchwork.coord import CountDownLatch, FencedLock
from latchwork.queue import QueueConfig, QueueRegistry, ShovelConfig, Worker
from latchwork.store import Add, Exists, Key

MESSAGES, TOGETHER = 100, 10
"""Messages of each publisher; and of these how many are in the batch, delayed, and with the keys of the other side."""


def make(registry, store):
    """What both sides use, made by the first of them."""
    warnings.simplefilter("ignore")
    shovel = ShovelConfig(1)
    registry.create(QueueConfig("q", shards=4, concurrency=4, backoff=0.1, shovel=shovel, unsafe_limits=True))
    registry.get("q").group("audit", start="oldest")
    CountDownLatch.create(store, registry.client_id, "ready", parties=["old", "new"])
    registry.get("q").batch("run")


def publish(registry, side):
    """Publish the numbers of one side; and under keys that both sides use, numbers that both publish."""
    queue, first = registry.get("q"), 0 if side == "old" else MESSAGES
    numbers = list(range(first, first + MESSAGES))
    plain, later, batched = numbers[: -2 * TOGETHER], numbers[-2 * TOGETHER : -TOGETHER], numbers[-TOGETHER:]
    for number in plain:
        queue.publish(number, key=str(number % 7), headers={"side": side})
    queue.publish_many(later, delay=0.3)
    queue.batch("run").publish_many(batched)
    shared = range(1000, 1000 + TOGETHER)
    return queue.publish_many(list(shared), dedups=[f"d{n}" for n in shared])


def work(registry, store, side):
    """Handle messages until SIGTERM."""
    worker = Worker(registry, grace=20)

    @worker.handler("q")
    def handle(delivery):
        number = delivery.payload
        if number % 10 == 3 and delivery.attempts == 1:
            raise ValueError("the first attempt fails")
        if number % 25 == 0:
            with FencedLock(store, "shared").acquire(timeout=60) as grant:
                grant.operate(Key("tests", f"{registry.client_id}-locked"), Add("n", 1))
        time.sleep(0.005)
        store.operate(Key("tests", f"{registry.client_id}-{number}"), Add(side, 1), exists=Exists.ANY)

    @worker.handler("q@audit")
    def audit(delivery):
        store.operate(Key("tests", f"{registry.client_id}-{delivery.payload}-audit"), Add(side, 1), exists=Exists.ANY)

    CountDownLatch.get(store, registry.client_id, "ready").count_down(party=side)
    worker.run()


def main(role, side, url, client):
    store = latchwork.connect(url)
    registry = QueueRegistry(store, client)
    if role == "make":
        make(registry, store)
    elif role == "publish":
        print(json.dumps(publish(registry, side)))
    else:
        work(registry, store, side)
    print(latchwork.__file__, file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
