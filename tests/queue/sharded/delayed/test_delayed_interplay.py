"""Delayed messages beside what else a queue can do: order, pauses, deactivation, parking, streams, outboxes."""

from __future__ import annotations

import inspect
import warnings

import pytest

from latchwork.errors import InvalidRequest, LatchworkError, LeaseLost
from latchwork.queue import Consumer, Outbox, QueueConfig, QueueRegistry
from latchwork.queue.sharded import stream
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from tests.queue.sharded.delayed.test_delayed import Farms, payloads, queue_on, run_until
from tests.sim.stage import Stage


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def queue(store):
    return queue_on(store, max_deliveries=2)


@pytest.fixture
def timers(queue):
    return Timers(Farms(queue))


def test_those_of_one_key_come_in_the_order_in_which_they_are_due(queue, timers, clock):
    queue.publish("second", key="k", delay=20)
    queue.publish("first", key="k", delay=10)
    queue.publish("now", key="k")
    run_until(timers, clock, 25)
    assert payloads(queue) == ["now", "first", "second"]


def test_an_ordered_consumer_takes_those_that_became_due_one_after_the_other():
    stage, handled, together = Stage(), [], []

    def consumer(store):
        queue = queue_on(store)

        def handle(delivery):
            together.append(delivery.payload)
            assert len(together) == 1
            store.seams.sleep(1)
            together.remove(delivery.payload)
            handled.append(delivery.payload)

        with Consumer(queue, handle, concurrency=4, ordered=True):
            for delay, payload in ((15, "c"), (5, "a"), (10, "b")):
                queue.publish(payload, key="k", delay=delay)
            store.seams.sleep(60)

    stage.act("consumer", consumer)
    stage.play()
    assert stage.said["consumer"] is None
    assert handled == ["a", "b", "c"]


def test_a_paused_or_scaled_queue_gets_what_is_due_and_nobody_takes_it(queue, timers, clock):
    queue.publish("m", delay=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue.pause()
    run_until(timers, clock, 10)
    assert (queue.depth().ready, queue.depth().delayed) == (1, 0)
    assert queue.concurrency == 0
    queue.resume()
    queue.scale(3)
    queue.publish("n", delay=5)
    run_until(timers, clock, 10)
    assert sorted(payloads(queue)) == ["m", "n"]


def test_a_deactivated_queue_takes_no_delayed_messages_and_delivers_those_that_it_has(queue, timers, clock):
    queue.publish("m", delay=5)
    queue.registry.deactivate("q")
    with pytest.raises(LatchworkError, match="deactivated"):
        queue.publish("n", delay=5)
    run_until(timers, clock, 10)
    assert payloads(queue) == ["m"]


def test_a_message_that_was_put_off_too_often_is_parked_and_comes_no_more(queue, timers, clock):
    queue.publish("m")
    for attempt in (1, 2):
        (delivery,) = queue.receive()
        assert delivery.attempts == attempt
        delivery.nack(delay=5)
        run_until(timers, clock, 10)
    assert queue.receive() == []
    assert [message.payload for message in queue.parked.peek()] == ["m"]
    run_until(timers, clock, 100)
    assert (queue.depth().ready, queue.depth().delayed, queue.depth().parked) == (0, 0, 1)
    queue.redrive(10)
    assert [delivery.attempts for delivery in queue.receive()] == [1]


def test_a_stream_that_has_the_queue_reads_what_is_due(queue, timers, clock):
    queue.publish("m", delay=5, key="k")
    owner = stream.take(queue.pointers, "etl")
    run_until(timers, clock, 10)
    states = {state.shard: state for state in queue.pointers.states()}
    state = states[queue.shard_of("k")]
    read = [row for step in stream.read(queue.pointers, state.shard, state.fired, state.loaded) for row in step]
    assert len(read) == 1
    assert stream.acknowledge(queue.pointers, owner, state.shard, state.loaded) == 1


def test_a_delivery_that_was_put_off_is_settled(queue, timers, clock):
    queue.publish("m")
    (delivery,) = queue.receive()
    delivery.nack(delay=5)
    for late in (delivery.ack, delivery.nack, lambda: delivery.nack(delay=1)):
        with pytest.raises(LeaseLost):
            late()
    run_until(timers, clock, 10)
    assert payloads(queue) == ["m"]


def test_an_outbox_has_no_delays_and_bytes_have(queue, timers, clock, store):
    """What an outbox brings is published as it is forwarded; who wants it later publishes to the queue itself."""
    assert "delay" not in inspect.signature(Outbox.put).parameters
    raw = QueueRegistry(store, "c", farm_id="f").create(QueueConfig("raw", shards=1, codec="bytes"))
    raw.publish(b"\x00\xff", delay=5)
    run_until(Timers(Farms(raw)), clock, 10)
    assert payloads(raw) == [b"\x00\xff"]
    with pytest.raises(InvalidRequest):
        queue.publish("m", delay=5, message_id="")
