"""Deduplication: one message a key within a time, whatever fails."""

from __future__ import annotations

from datetime import timedelta

import pytest

from latchwork.errors import AlreadyExists, InvalidRequest
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.upkeep.sweeper import Sweeper
from latchwork.store import MemoryStore, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore
from tests.queue.sharded.world import Election
from tests.sim.stage import Fault, Kind, Stage


def queue_on(store, **options):
    return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", **{"shards": 2, **options}))


@pytest.fixture(params=["memory", "sqlite", "aerospike"])
def queue(request, tmp_path):
    if request.param == "aerospike":
        yield queue_on(request.getfixturevalue("aerospike_store"))
        return
    store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", synchronous="off")
    yield queue_on(store)
    store.close()


def payloads(queue):
    found = []
    while more := queue.receive(100):
        found += [delivery.payload for delivery in more]
        queue.ack_many(more)
    return sorted(found)


def test_the_second_call_is_answered_with_the_first_ones_id(queue):
    first = queue.publish("a", dedup="invoice-7")
    assert queue.publish("b", dedup="invoice-7") == first
    assert queue.publish("b", dedup="invoice-8") != first
    assert payloads(queue) == ["a", "b"]
    assert queue.publish("c", dedup="invoice-7") == first, "also after it was acknowledged"
    assert payloads(queue) == []


def test_the_callers_own_id_is_kept_with_the_key(queue):
    assert queue.publish("a", dedup="k", message_id="mine") == "mine"
    assert queue.publish("a", dedup="k", message_id="other") == "mine"


def test_in_hundreds_each_key_has_one_message(queue):
    ids = queue.publish_many(range(300), dedups=[f"k{n % 200}" for n in range(300)])
    assert len(set(ids)) == 200
    assert ids[:100] == ids[200:]
    again = queue.publish_many(range(1000, 1250), dedups=[f"k{n}" for n in range(250)])
    assert again[:200] == ids[:200]
    assert payloads(queue) == [*range(200), *range(1200, 1250)]


def test_a_duplicate_can_be_an_error_that_names_the_first():
    queue = queue_on(MemoryStore())
    first = queue.publish("a", dedup="k")
    with pytest.raises(AlreadyExists) as raised:
        queue.publish("b", dedup="k", on_duplicate="raise")
    assert raised.value.details["message_id"] == first
    assert queue.publish("c", dedup="new", on_duplicate="raise") != first


def test_a_key_is_forgotten_after_its_time_and_not_before():
    clock = ManualClock()
    queue = queue_on(MemoryStore(clock))
    first = queue.publish("a", dedup="k", dedup_for=timedelta(hours=1))
    clock.advance(3590)
    assert queue.publish("b", dedup="k", dedup_for=timedelta(hours=1)) == first
    clock.advance(20)
    assert queue.publish("c", dedup="k", dedup_for=timedelta(hours=1)) != first
    assert payloads(queue) == ["a", "c"]


def test_a_key_is_remembered_for_seconds_as_for_a_timedelta():
    clock = ManualClock()
    queue = queue_on(MemoryStore(clock))
    first = queue.publish("a", dedup="k", dedup_for=60)
    clock.advance(50)
    assert queue.publish("b", dedup="k", dedup_for=60) == first
    clock.advance(20)
    assert queue.publish("c", dedup="k", dedup_for=60) != first


@pytest.mark.parametrize("span", [1.4, 2.5, timedelta(seconds=4, milliseconds=499)])
def test_a_key_is_remembered_for_the_last_part_of_a_second_too(span):
    clock = ManualClock()
    queue = queue_on(MemoryStore(clock))
    first = queue.publish("a", dedup="k", dedup_for=span)
    clock.advance((span.total_seconds() if isinstance(span, timedelta) else span) - 0.01)
    assert queue.publish("b", dedup="k", dedup_for=span) == first
    clock.advance(1.1)
    assert queue.publish("c", dedup="k", dedup_for=span) != first


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dedup": ""}, "dedup"),
        ({"dedup": "k" * 257}, "257 characters"),
        ({"dedup": 7}, "dedup"),
        ({"dedup": "k", "dedup_for": True}, "timedelta"),
        ({"dedup": "k", "dedup_for": 0.5}, "1 s to 365 days"),
        ({"dedup": "k", "dedup_for": timedelta(0)}, "1 s to 365 days"),
        ({"dedup": "k", "on_duplicate": "ignore"}, "on_duplicate"),
        ({"on_duplicate": "ignore"}, "on_duplicate"),
        ({"dedup_for": "a day"}, "dedup_for"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_published(options, match):
    queue = queue_on(MemoryStore())
    with pytest.raises(InvalidRequest, match=match):
        queue.publish("a", **options)
    assert queue.depth().loaded == 0


def test_there_is_one_key_for_each_payload():
    with pytest.raises(InvalidRequest, match="1 dedups for 2 payloads"):
        queue_on(MemoryStore()).publish_many(["a", "b"], dedups=["k"])


def test_it_costs_five_calls_for_any_batch_and_one_where_all_keys_are_known():
    store = CountingStore(MemoryStore())
    queue = queue_on(store)
    queue.publish("warm")
    for n, calls in ((1, 5), (500, 5)):
        before = store.total
        queue.publish_many(range(n), dedups=[f"{n}/{k}" for k in range(n)])
        assert store.total - before == calls
        before = store.total
        queue.publish_many(range(n), dedups=[f"{n}/{k}" for k in range(n)])
        assert store.total - before == 1


@pytest.mark.matrix
@pytest.mark.parametrize("call", range(2, 7))
@pytest.mark.parametrize(
    "kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.REPLY_LOST, Kind.DROPPED, Kind.LATE, Kind.PAUSE, Kind.DUPLICATE]
)
def test_whatever_fails_at_whatever_call_there_is_one_message_and_both_have_its_id(call, kind):
    """One publisher is struck at a call; another publishes the key meanwhile; a consumer works all the time."""
    stage = Stage({"first": {call: Fault(kind, 30.0)}})

    def publisher(store):
        queue = queue_on(store, shards=1)
        return queue.publish("m", dedup="k")

    def consumer(store):
        queue, found = queue_on(store, shards=1), []
        sweeper = Sweeper(queue.registry, Election(1))
        for _ in range(40):
            for view in (queue, queue.sideline):
                for delivery in view.receive(10, timeout=1):
                    found.append(delivery.message_id)
                    delivery.ack()
            store.seams.sleep(100)
            sweeper.run_once()
        return found

    stage.act("setup", lambda store: queue_on(store, shards=1))
    stage.act("first", publisher, after=1)
    stage.act("second", publisher, after=1.01)
    stage.act("third", publisher, after=50)
    stage.act("consumer", consumer, after=0.5)
    stage.play(until=10_000)
    found = stage.said["consumer"]
    assert len(set(found)) == 1
    assert len(found) == 1, "nobody died with it in hand, so it is handed out once"
    assert stage.said["third"] == found[0]
    for name in ("first", "second"):
        if isinstance(stage.said.get(name), str):
            assert stage.said[name] == found[0]
