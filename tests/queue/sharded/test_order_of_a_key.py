"""Messages of one key, from one thread, keep their order: every way into a shard, with every feature that it takes."""

from __future__ import annotations

import warnings
from datetime import datetime, timezone
from functools import partial
from itertools import product
from unittest import mock

import pytest

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.outbox import Outbox
from latchwork.queue.paged import PagedQueue
from latchwork.queue.sharded.envelope import Reason
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.store import MemoryStore
from latchwork.testing.clock import InlineClock
from tests.queue.sharded.delayed.test_delayed import Farms, Term

KEY, COUNT = "order-7", 8


@pytest.fixture
def clock():
    return InlineClock()  # the publisher stores where it is asked to, in no thread


@pytest.fixture(params=["memory", "aerospike"])
def queues(request, clock):
    """Two queues, of which the second has fewer shards."""
    store = MemoryStore(clock) if request.param == "memory" else request.getfixturevalue("aerospike_store")
    registry = QueueRegistry(store, store.seams.unique())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            registry.create(QueueConfig(name, retry=False, shards=shards))
            for name, shards in (("here", 4), ("there", 3))
        ]


def one_by_one(publish, features, pause=lambda: None):
    for n in range(COUNT):
        publish(n, key=KEY, **features(n))
        pause()


def many(publish_many, features):
    each = [features(n) for n in range(COUNT)]
    common = {name: value for name, value in each[0].items() if name != "dedup"}
    if {"dedup"} == each[1].keys() - each[0].keys():  # a call of many has keys for all, or for none
        each = [{"dedup": f"{each[1]['dedup']}-{n}", **one} for n, one in enumerate(each)]
    dedups = {"dedups": [one["dedup"] for one in each]} if "dedup" in each[1] else {}
    publish_many(list(range(COUNT)), key=KEY, **common, **dedups)


def through_a_publisher(queue, features):
    publisher = queue.publisher()
    with mock.patch.object(publisher, "_keep_sending"):  # all wait before the first is stored
        one_by_one(publisher.publish, features)
    publisher.close()


WAYS = {
    "one by one": lambda queue, features: one_by_one(queue.publish, features),
    "20 ms apart": lambda queue, features: one_by_one(queue.publish, features, partial(queue.store.seams.sleep, 0.02)),
    "many": lambda queue, features: many(queue.publish_many, features),
    "a batch": lambda queue, features: one_by_one(queue.batch("b").publish, features),
    "many of a batch": lambda queue, features: many(queue.batch("b").publish_many, features),
    "a publisher": through_a_publisher,
}

FEATURES = {
    "plain": lambda n: {},
    "dedup": lambda n: {"dedup": f"key-{n}"},
    "every second with dedup": lambda n: {"dedup": f"key-{n}"} if n % 2 else {},
    "dedup for several times": lambda n: {"dedup": f"key-{n}", "dedup_for": 60 + n % 3} if n else {"dedup": "key-0"},
    "delay": lambda n: {"delay": 0.4},
    "at": lambda n: {"at": datetime(2020, 1, 1, tzinfo=timezone.utc)},
}


def of_run(features, run):
    """With dedup keys that no other run has."""
    return {name: f"{run}-{value}" if name == "dedup" else value for name, value in features.items()}


def moved(queue, left=lambda depth: depth.delayed):
    """Let the upkeep move what is due, until nothing is left."""
    timers, seams = Timers(Farms(queue)), queue.store.seams
    end = seams.monotonic() + 30
    while left(queue.depth()) and seams.monotonic() < end:
        timers.run(Term())
        seams.sleep(0.05)


def order(queue):
    """The payloads as an ordered consumer takes them, shard by shard."""
    found = []
    for shard in range(queue.config.shards):
        while some := queue.receive(3, shards={shard}):
            found += [one.payload for one in some]
            queue.ack_many(some)
    return found


def test_whatever_way_and_with_whatever_feature_they_are_published(queues):
    queue, _ = queues
    wrong = {}
    for number, (way, (name, features)) in enumerate(product(WAYS, FEATURES.items())):
        WAYS[way](queue, lambda n, given=features, run=number: of_run(given(n), run))
        moved(queue)
        found = order(queue)
        if found != list(range(COUNT)):
            wrong[way, name] = found
    assert wrong == {}


def test_however_they_are_brought_back_or_elsewhere(queues):
    here, there = queues
    here.publish_many(list(range(COUNT)), key=KEY)
    for bring in (here.sideline.redrive, partial(here.sideline.move, queue=there)):
        for delivery in here.receive(COUNT, shards={here.shard_of(KEY)}):
            delivery.nack()
        assert set(bring(sorted(one.message_id for one in here.sideline.search())).values()) == {"done"}
    assert {one.shard for one in there.peek(COUNT)} == {here.shard_of(KEY) % 3}
    for delivery in there.receive(COUNT):
        delivery.nack(delay=0.4)
    moved(there)
    for delivery in there.receive(COUNT):
        there._park(delivery, Reason.EXHAUSTED)
    assert len(there.redrive(COUNT)) == COUNT
    assert order(there) == list(range(COUNT))


def test_delayed_messages_that_are_brought_elsewhere_or_forward(queues):
    here, there = queues
    here.publish_many(list(range(COUNT)), key=KEY, delay=50)
    names = sorted(one.message_id for one in here.delayed.search())
    assert set(here.delayed.move(names, there).values()) == {"done"}
    assert set(there.delayed.redrive(names).values()) == {"done"}
    moved(there, lambda depth: depth.ready < COUNT)  # it counts as delayed what it was given twice
    assert {one.shard for one in there.peek(COUNT)} == {here.shard_of(KEY) % 3}
    assert order(there) == list(range(COUNT))


def test_what_a_program_repeats(queues, tmp_path):
    queue, _ = queues
    with PagedQueue.open(tmp_path, "q") as local:
        Outbox(local, queue).put_many(list(range(COUNT)), key=KEY)
        Outbox(local, queue).forward()
    assert order(queue) == list(range(COUNT))
    rows = [Outgoing(n, str(n), key=KEY) for n in range(COUNT)]
    Ledger(queue, "job/1", batch=3).publish(0, rows)
    assert order(queue) == list(range(COUNT))
