"""Ordered consumers: a shard changes hands only where no later message of a key gets before an earlier one."""

from __future__ import annotations

import warnings

import pytest

from latchwork.queue import Consumer, QueueConfig, QueueRegistry
from latchwork.queue.envelope import Envelope
from latchwork.queue.ordered import TURN
from latchwork.queue.pointers import Slot
from latchwork.store import MemoryStore
from tests.clock import ManualClock


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
    store = MemoryStore(clock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("q", shards=1, sweep_duration=60, unsafe_limits=True)
    return [QueueRegistry(store, "c").create(config) for _ in range(2)]


def test_a_shard_is_kept_beyond_the_turn_while_a_claimed_message_is_not_there_yet(queues, clock):
    here, there = queues
    seen = []

    def handler(delivery):
        seen.append(delivery.payload)
        if delivery.payload == "other":  # meanwhile a slow publisher arrives, publishes again, and the turn ends
            there.pointers.write([Slot(0, 1)], [Envelope('"first"', "m1")])
            there.publish("second")
            clock.advance(TURN)

    there.pointers.reserve({0: 1})
    there.publish("other")
    Consumer(here, handler, ordered=True)._once()
    assert seen == ["other", "first"], "the turn is over, so the second is for whoever is next"
    Consumer(there, handler, ordered=True)._once()
    assert seen == ["other", "first", "second"]


@pytest.mark.parametrize("paused", [False, True])
def test_a_shard_is_not_kept_for_a_message_that_never_comes_nor_while_the_queue_is_paused(queues, clock, paused):
    here, there = queues

    def handler(delivery):
        clock.advance(TURN)
        if paused:
            with pytest.warns(UserWarning, match="expir"):
                here.pause()

    consumer = Consumer(here, handler, ordered=True)
    there.pointers.reserve({0: 1})
    there.publish("other")
    consumer._once()
    assert consumer.stats["acked"] == 1
    assert here.awaits({0}) is paused
    assert consumer._locks._busy == {}


def test_a_worker_ends_its_turn_once_the_consumer_is_saturated(queues):
    here, _ = queues
    consumer = Consumer(here, lambda delivery: consumer._runs.abandon(other, "hangs"), ordered=True)
    here.publish_many(["a", "b", "c"])
    other = consumer._runs.open([])
    consumer._once()
    assert consumer.saturated
    assert here.depth().ready == 2
    assert consumer.stats["acked"] == 1
