"""Threads that share a queue: without faults, every message is received exactly once."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from datetime import timedelta

import pytest

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.active import ActiveShards
from latchwork.store import MemoryStore, SQLiteStore

MESSAGES, PRODUCERS, CONSUMERS = 240, 3, 4


@pytest.fixture(params=["memory", "sqlite", "aerospike"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "store.db", synchronous="off")
        yield made
        made.close()
    else:
        yield request.getfixturevalue("aerospike_store")


@pytest.mark.parametrize("batch", [1, 20])
def test_every_message_is_received_once(store, batch):
    config = QueueConfig("q", shards=4, sweep_duration=timedelta(minutes=20))
    # Two processes' worth of handles, each shared by several threads.
    handles = [QueueRegistry(store, f"threads{batch}").create(config) for _ in range(2)]
    published: list[str] = []
    received: Counter[str] = Counter()
    failures: list[BaseException] = []
    done = threading.Event()

    def produce(number: int) -> None:
        queue = handles[number % 2]
        for first in range(0, MESSAGES // PRODUCERS, 8):
            published.append(queue.publish(first))
            published.extend(queue.publish_many(range(7)))

    def consume(number: int) -> None:
        queue = handles[number % 2]
        deliveries, is_last = [], False
        while deliveries or not is_last:
            is_last = done.is_set()  # before the look, which then finds all that was published
            # As `receive` waits so long, but each call of the store has its own time, also on a busy machine.
            deliveries = queue.await_messages(batch, store.seams.monotonic() + (0 if is_last else 0.05), None)
            received.update(delivery.message_id for delivery in deliveries)
            queue.ack_many(deliveries)

    def guarded(work, number) -> None:
        try:
            work(number)
        except BaseException as failure:
            failures.append(failure)

    producers = [threading.Thread(target=guarded, args=(produce, n)) for n in range(PRODUCERS)]
    consumers = [threading.Thread(target=guarded, args=(consume, n)) for n in range(CONSUMERS)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join(60)
    done.set()
    for thread in consumers:
        thread.join(60)
    assert not failures
    assert len(published) == MESSAGES
    assert received == Counter(published)
    assert handles[0].depth().ready == 0


def test_a_publish_goes_on_though_another_thread_adds_a_group_at_that_moment():
    queue = QueueRegistry(MemoryStore(), "c").create(QueueConfig("q", shards=1))
    groups = [queue.group(f"g{n}").active for n in range(3)]

    def at_each_step(frame, event, _):
        if event == "line" and "weakref" in frame.f_code.co_filename and len(groups) < 20:
            groups.append(ActiveShards(queue.pointers))
            groups[-1].follow(queue.active)
        return at_each_step

    before = sys.gettrace()
    sys.settrace(at_each_step)
    try:
        queue.active.loaded([0])
    finally:
        sys.settrace(before)
    assert len(groups) > 3
    assert groups[0].believed
