"""Ordered consumers: a shard changes hands only where no later message of a key gets before an earlier one."""

from __future__ import annotations

import warnings

import pytest

from latchwork.errors import Unavailable
from latchwork.queue import Consumer, QueueConfig, QueueRegistry
from latchwork.queue.sharded.consumer.ordering import ASK, ShardLocks
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.shards import Slot
from latchwork.store import MemoryStore
from tests.support.clock import ManualClock
from tests.support.faulty import CountingStore

from .world import Torn


class OneThread(ManualClock):
    """Nothing runs in the background: a turn is shorter than the lease."""

    def spawn(self, run, name):
        return None


@pytest.fixture
def clock():
    return OneThread()


@pytest.fixture
def queues(clock):
    """The same queue in two processes."""
    return made(clock)


def made(clock, kind=MemoryStore, shards=1):
    store = kind(clock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("q", shards=shards, sweep_duration=60, unsafe_limits=True)
    return [QueueRegistry(store, "c").create(config) for _ in range(2)]


def arrive(queue, pointer):
    """A slow publisher's message comes, and then the next of its key."""
    queue.pointers.write([Slot(0, pointer)], [Envelope('"first"', "m1")])
    queue.publish("second")


def test_nothing_that_is_behind_a_message_on_its_way_is_given_before_it(queues, clock):
    here, there = queues
    seen = []
    there.pointers.reserve({0: 1})
    there.publish("other")
    clock.at(0.05, lambda: arrive(there, 1))
    Consumer(here, lambda delivery: seen.append(delivery.payload), ordered=True)._once()
    assert seen == ["first", "other", "second"]


def test_what_is_behind_a_message_that_never_comes_is_given_once_that_was_given_up(queues):
    here, there = queues
    seen = []
    there.pointers.reserve({0: 1})
    there.publish("other")
    consumer = Consumer(here, lambda delivery: seen.append(delivery.payload), ordered=True)
    consumer._once()
    assert seen == ["other"]
    assert not here.awaits({0})
    assert consumer._locks._busy == {}


def test_a_message_that_could_not_be_read_is_asked_for_again_though_its_shard_has_nothing_else(clock):
    here, there = made(clock, Torn)
    seen = []
    there.publish("m")
    consumer = Consumer(here, lambda delivery: seen.append(delivery.payload), ordered=True)
    here.store.torn = True
    with pytest.raises(Unavailable):
        consumer._once()
    here.store.torn = False
    consumer._once()
    assert seen == ["m"]


def test_a_worker_ends_its_turn_once_the_consumer_is_saturated(queues):
    here, _ = queues

    def handler(delivery):
        for other in others:
            consumer._runs.abandon(other, "hangs")

    consumer = Consumer(here, handler, ordered=True)
    here.publish_many(["a", "b", "c"])
    others = [consumer._runs.open([]) for _ in range(2 * here.concurrency)]
    consumer._once()
    assert consumer.saturated
    assert here.depth().ready == 2
    assert consumer.stats["acked"] == 1


def one_turn(consumer, clock):
    """Seconds and calls that it takes a worker to find nothing for it."""
    began, store = clock.monotonic(), consumer.queue.store
    store.reset()
    consumer._once()
    return clock.monotonic() - began, store.total


def counted(clock, shards=1):
    return made(clock, lambda seams: CountingStore(MemoryStore(seams)), shards)


def test_a_worker_of_a_paused_queue_waits_and_asks_the_store_for_nothing(clock):
    queue, _ = counted(clock)
    queue.publish_many(["a", "b"])
    with pytest.warns(UserWarning, match="paused"):
        queue.pause()
    queue.used = False
    consumer = Consumer(queue, lambda delivery: None, concurrency=4, ordered=True)
    assert one_turn(consumer, clock) == (ASK, 0)
    assert queue.used, "or its record would expire while it is paused"
    queue.resume()
    consumer._once()
    assert consumer.stats["acked"] == 2


def test_a_message_for_a_free_shard_that_comes_while_the_others_are_asked_for_is_not_waited_for(clock, monkeypatch):
    here, there = counted(clock, shards=2)
    there.publish("a")
    with ShardLocks(there).hold_one(clock.event()) as held:
        consumer = Consumer(here, lambda delivery: None, ordered=True)
        consumer._once()
        take = consumer._locks._take_one
        free = 1 - held.shard
        monkeypatch.setattr(consumer._locks, "_take_one", lambda shards: (take(shards), here.active.loaded([free]))[0])
        seconds, _ = one_turn(consumer, clock)
    assert seconds < 0.2


def test_a_worker_whose_shards_are_all_worked_elsewhere_asks_for_them_once_a_second(clock):
    here, there = counted(clock)
    there.publish("a")
    locks = ShardLocks(there)
    with locks.hold_one(clock.event()) as held:
        consumer = Consumer(here, lambda delivery: None, ordered=True)
        consumer._once()
        seconds, calls = one_turn(consumer, clock)
        assert held.mine()
    assert seconds == ASK
    assert calls <= 3, "a look, and an attempt at the lock"
    consumer._once()
    assert consumer.stats["acked"] == 1
