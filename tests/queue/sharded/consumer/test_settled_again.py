"""What a consumer could not settle, as the store was away, is settled by itself once the store is back, and once."""

from __future__ import annotations

import pytest

from latchwork.errors import OutcomeUnknown, Unavailable
from latchwork.queue import Consumer
from latchwork.queue.sharded.envelope import Reason
from latchwork.queue.sharded.in_flight import in_flight
from latchwork.store import MemoryStore
from latchwork.testing.stores import CountingStore

from .alone import OneThread, made

SWEEP = 60
"""The sweep duration of the queue, in seconds."""


class Switched(CountingStore):
    """A store that can be away."""

    failure = None

    def _call(self, verb, request, *rest):
        if self.failure is not None:
            self._count(verb, request)
            raise self.failure
        return super()._call(verb, request, *rest)


@pytest.fixture
def clock():
    return OneThread()


@pytest.fixture
def store(clock):
    return Switched(MemoryStore(clock))


@pytest.fixture
def queue(store):
    return made(store, retry=True)


def loses_the_store(store, failure=None, answer=True):
    """A handler during which the store goes away."""

    def handler(delivery):
        store.failure = failure or Unavailable("the store is away")
        if answer is not True:
            raise ValueError(answer)

    return handler


def kept(consumer, clock, seconds=20):
    """The supervisor looks again and again."""
    for _ in range(int(2 * seconds)):
        clock.advance(0.5)
        consumer._move_on()


def handled(consumer):
    """The consumer takes a message, and handles it."""
    consumer._turns.take()


@pytest.mark.parametrize("failure", [Unavailable("the store is away"), OutcomeUnknown("the answer was lost")])
def test_an_acknowledgement_is_sent_again_until_the_store_is_back(queue, store, clock, failure, caplog):
    queue.publish("m")
    consumer = Consumer(queue, loses_the_store(store, failure))
    handled(consumer)
    assert consumer.stats["unsettled"] == 1
    store.reset()
    kept(consumer, clock)
    assert 2 <= store.total <= 15, "the pauses grow"
    store.failure = None
    caplog.set_level("INFO", "latchwork.worker")
    kept(consumer, clock)
    assert not in_flight(queue).messages
    assert (consumer.stats["acked"], consumer.stats["unsettled"], consumer.stats["lost"]) == (1, 0, 0)
    assert "1 message of 'q' that could not be settled, as the store was away: settled now" in caplog.text
    store.reset()
    kept(consumer, clock)
    assert store.total == 0, "it is done"


def test_a_message_that_failed_is_stored_for_later_once_the_store_is_back(queue, store, clock):
    queue.publish("m")
    consumer = Consumer(queue, loses_the_store(store, answer="no"))
    handled(consumer)
    kept(consumer, clock)
    store.failure = None
    kept(consumer, clock)
    assert not in_flight(queue).messages
    (waits,) = queue.delayed.search()
    assert (waits.payload, waits.attempts, waits.last_error) == ("m", 1, "ValueError: no")
    assert (consumer.stats["failed"], consumer.stats["unsettled"]) == (1, 0)


@pytest.mark.parametrize("answer", [True, "no"])
def test_a_message_that_another_consumer_has_by_then_is_left_to_it(queue, store, clock, answer):
    queue.publish("m")
    consumer = Consumer(queue, loses_the_store(store, answer=answer))
    handled(consumer)
    store.failure = None
    ((slot, _, _),) = in_flight(queue).held
    queue.pointers.stamp([slot], "other")
    kept(consumer, clock)
    assert [one.delivery for one in in_flight(queue).held] == ["other"]
    assert queue.delayed.search() == []
    assert (consumer.stats["lost"], consumer.stats["unsettled"]) == (1, 0)


def test_what_a_sweep_may_have_taken_by_then_is_left_to_it(queue, store, clock, caplog):
    queue.publish("m")
    consumer = Consumer(queue, loses_the_store(store))
    handled(consumer)
    kept(consumer, clock, SWEEP + 15)
    assert "1 message of 'q' could not be settled in time, as the store was away: left to the sweep" in caplog.text
    store.failure = None
    store.reset()
    kept(consumer, clock)
    assert store.total == 0
    assert in_flight(queue).messages == 1


def test_a_consumer_that_stops_settles_what_it_owes_at_once(queue, store):
    queue.publish("m")
    consumer = Consumer(queue, loses_the_store(store))
    handled(consumer)
    store.failure = None
    consumer.stop()
    assert not in_flight(queue).messages


def test_in_order_a_message_that_failed_is_left_to_the_next_holder_of_its_shard(queue, store, clock):
    queue.publish("m")
    consumer = Consumer(queue, print, ordered=True)
    (delivery,) = queue.receive(1)
    store.failure = Unavailable("the store is away")
    consumer._settlements.fail([delivery], [(Reason.EXCEPTION, "no")])
    store.failure = None
    kept(consumer, clock)
    assert in_flight(queue).messages == 1
    assert queue.delayed.search() == []


def test_in_order_what_is_owed_is_settled_soon_however_long_the_store_was_away_before(store, clock):
    queue = made(store, shards=2)
    consumer = Consumer(queue, loses_the_store(store), ordered=True)
    keys = {queue.shard_of(key): key for key in "abcdef"}
    queue.publish("first", key=keys[0])
    handled(consumer)
    kept(consumer, clock)
    store.reset()
    for _ in range(200):  # until just after a try, so that the next one is as late as it can be
        if store.total:
            break
        kept(consumer, clock, 0.5)
    assert store.total
    store.failure = None
    queue.publish("second", key=keys[1])
    handled(consumer)
    store.failure = None
    kept(consumer, clock, 2)
    assert consumer.stats["handled"] == 2
    assert not in_flight(queue).messages
