"""What a publisher may ask for, of each verb that publishes: what can mean nothing is refused before any call."""

from __future__ import annotations

import asyncio

import pytest

from latchwork import aio
from latchwork.errors import AlreadyExists, InvalidRequest
from latchwork.queue import QueueConfig, QueueRegistry, Worker
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore
from tests.support.waiting import until


@pytest.fixture
def store():
    made = CountingStore(MemoryStore(ManualClock()))
    QueueRegistry(made, "c", farm_id="f").create(QueueConfig("q", shards=2))
    return made


def queue_on(store):
    return QueueRegistry(store, "c", farm_id="f").get("q")


def alone(store, **options):
    return queue_on(store).publish({"n": 1}, **options)


def among_many(store, dedup=None, **options):
    return queue_on(store).publish_many([{"n": 1}], dedups=dedup and [dedup], **options)[0]


def in_a_batch(store, **options):
    return queue_on(store).batch("b").publish({"n": 1}, **options)


def through_a_publisher(store, **options):
    with queue_on(store).publisher(linger=0) as publisher:
        publication = publisher.publish({"n": 1}, **options)
        until(publication.done)  # its thread takes real time, of which the clock of the store knows nothing
        return publication.result(timeout=0)


def as_a_task(store, **options):
    worker = Worker(QueueRegistry(store, "c", farm_id="f"))
    return worker.task("q")(takes_n).options(**options).publish(n=1)


def takes_n(n: int): ...


def on_a_loop(store, **options):
    async def publish():
        queue = await aio.QueueRegistry(aio.Store(store), "c", farm_id="f").get("q")
        return await queue.publish({"n": 1}, **options)

    return asyncio.run(publish())


VERBS = [alone, among_many, in_a_batch, through_a_publisher, as_a_task, on_a_loop]


@pytest.mark.parametrize("verb", VERBS)
def test_a_message_without_a_key_is_no_duplicate(store, verb):
    of = verb(store, dedup=None, on_duplicate="raise")
    assert verb(store, on_duplicate="raise") != of
    assert [one.payload for one in queue_on(store).receive(10)] == [{"n": 1}] * 2


@pytest.mark.parametrize("verb", VERBS)
def test_the_second_message_of_a_key_raises_with_the_id_of_the_first(store, verb):
    of = verb(store, dedup="k", on_duplicate="raise")
    with pytest.raises(AlreadyExists) as refused:
        verb(store, dedup="k", on_duplicate="raise")
    assert refused.value.details["message_id"] == of
    assert verb(store, dedup="k") == of
    assert len(queue_on(store).receive(10)) == 1


@pytest.mark.parametrize(
    "options", [{"dedup_for": 60}, {"dedup_for": 60, "delay": 5}, {"dedup_for": 60, "unique": "k"}]
)
def test_a_time_for_a_key_that_is_not_given_is_refused_before_any_call(store, options):
    queue = queue_on(store)
    before = store.total
    with pytest.raises(InvalidRequest, match="dedup_for without dedup"):
        queue.publish({"n": 1}, **options)
    with queue.publisher() as publisher, pytest.raises(InvalidRequest, match="dedup_for"):
        publisher.publish({"n": 1}, dedup_for=60)
    assert store.total == before


@pytest.mark.parametrize("where", ["queue", "batch"])
def test_one_key_for_all_and_one_for_each_is_refused_before_any_call(store, where):
    queue = queue_on(store)
    publishing = queue if where == "queue" else queue.batch("b")
    before = store.total
    with pytest.raises(InvalidRequest, match="key and keys"):
        publishing.publish_many([1, 2], key="k", keys=["a", "b"])
    assert store.total == before


def test_a_replacement_without_a_key_is_refused_and_the_parameter_that_is_missing_is_named(store):
    queue = queue_on(store)
    before = store.total
    with pytest.raises(InvalidRequest, match="only `publish` with unique= replaces a message"):
        queue.publish({"n": 1}, on_duplicate="replace")
    assert store.total == before
