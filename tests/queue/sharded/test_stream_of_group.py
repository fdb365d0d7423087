"""A stream that reads as a group owns the group and not the queue, and takes nothing from anybody else (P7, P17)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from latchwork.errors import Corrupt, FencedOut, NotFound, QueueOwned
from latchwork.queue import QueueConfig, QueueRegistry, Shovel
from latchwork.queue.sharded import stream
from latchwork.queue.sharded.groups.stamps import ACKED, TRIES
from latchwork.queue.sharded.rules import GROUPS
from latchwork.queue.sharded.slots import Slot
from latchwork.store import MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, FaultyStore

N = 10


@pytest.fixture
def store():
    return MemoryStore(ManualClock(seed=1))


@pytest.fixture
def queue(store):
    return QueueRegistry(store, "shop").create(
        QueueConfig("q", retry=False, shards=2, sweep_duration=timedelta(minutes=20))
    )


def publish(queue, *payloads):
    for payload in payloads:
        queue.publish(payload, key=f"k{payload}")


def read(pointers, owner):
    """All that the stream has before it."""
    return sorted(
        int(envelope.data)
        for state in stream.states(pointers, owner)
        for step in stream.read(pointers, state.shard, state.fired, state.loaded, owner)
        for _, envelope in step
    )


def acknowledge(pointers, owner):
    for state in stream.states(pointers, owner):
        stream.acknowledge(pointers, owner, state.shard, state.loaded)


def received(queue):
    """Receive and acknowledge all."""
    found = []
    while batch := queue.receive(100):
        found += [delivery.payload for delivery in batch]
        queue.ack_many(batch)
    return sorted(found)


def records(store, queue):
    return [queue.pointers.key(Slot(shard, n)) for shard in range(2) for n in range(1, 2 * N)
            if store.get(queue.pointers.key(Slot(shard, n)), "msgId") is not None]  # fmt: skip


@pytest.mark.parametrize("first", ["stream", "queue", "group"])
def test_the_queue_and_its_other_groups_get_all_too_and_the_last_one_deletes(store, queue, first):
    audit, other = queue.group("audit"), queue.group("other")
    publish(queue, *range(N))
    owner = stream.take(audit.pointers, "etl")
    done = {
        "stream": lambda: (read(audit.pointers, owner), acknowledge(audit.pointers, owner))[0],
        "queue": lambda: received(queue),
        "group": lambda: received(other),
    }
    order = [first, *(name for name in done if name != first)]
    for name in order:
        assert len(records(store, queue)) == N
        assert done[name]() == list(range(N))
    assert records(store, queue) == []
    assert read(audit.pointers, owner) == []
    assert audit.depth().ready == 0


def test_a_stream_of_a_group_refuses_its_consumers_and_nobody_elses(queue):
    audit, other = queue.group("audit"), queue.group("other")
    publish(queue, 1)
    owner = stream.take(audit.pointers, "etl")
    with pytest.raises(QueueOwned, match="the stream 'etl' owns"):
        audit.receive(1)
    assert audit.pointers.claim(queue.shard_of("k1"), 1) is None
    with pytest.raises(QueueOwned):
        stream.take(audit.pointers, "another")
    assert received(queue) == received(other) == [1]
    stream.release(audit.pointers, owner)
    assert received(audit) == [1]


def test_what_was_there_before_the_group_reads_alike_until_it_is_acknowledged_whoever_deletes_it(store, queue):
    publish(queue, *range(N))
    audit = queue.group("audit", start="oldest")
    owner = stream.take(audit.pointers, "etl")
    assert read(audit.pointers, owner) == list(range(N))
    assert received(queue) == list(range(N))
    assert read(audit.pointers, owner) == list(range(N))
    acknowledge(audit.pointers, owner)
    assert records(store, queue) == []


def test_what_others_were_done_with_before_the_group_read_it_is_not_counted_as_expired(store, queue):
    publish(queue, *range(N))
    audit = queue.group("audit", start="oldest")
    assert received(queue) == list(range(N))
    queue.pointers.reserve({0: 1})  # its producer has died, and this one counts
    owner = stream.take(audit.pointers, "etl")
    elsewhere = QueueRegistry(store, "shop").get(audit.name).pointers  # as a task of Spark has it
    for state in stream.states(audit.pointers, owner):
        found = stream.read(elsewhere, state.shard, state.fired, state.loaded, owner)
        assert [message for step in found for message in step] == []
    assert audit.depth().expired == 1


def test_a_snapshot_of_a_group_has_what_nobody_has_received_in_it_and_changes_nothing(store, queue):
    publish(queue, *range(4))
    audit = queue.group("audit", start="oldest")
    publish(queue, *range(4, N))
    audit.ack_many(audit.receive(3))
    before = {key: store.get(key).bins for key in records(store, queue)}
    found = [
        int(envelope.data)
        for state in audit.pointers.states()
        for step in stream.peek(audit.pointers, state.shard, state.fired, state.loaded)
        for _, envelope in step
    ]
    assert len(found) == N - 3
    assert sorted(found) == sorted(message.payload for message in audit.peek(100))
    assert {key: store.get(key).bins for key in records(store, queue)} == before


def test_what_comes_back_to_the_groups_own_shards_is_streamed_too(queue):
    audit = queue.group("audit")
    publish(queue, 7)
    (delivery,) = audit.receive(1)
    audit.fail(delivery, "rejected", "no")
    Shovel(audit).run_once()
    owner = stream.take(audit.pointers, "etl")
    assert read(audit.pointers, owner) == [7]
    acknowledge(audit.pointers, owner)
    assert read(audit.pointers, owner) == []
    assert received(queue) == [7]


def test_one_that_was_overtaken_is_refused_before_it_acknowledges(queue):
    audit = queue.group("audit")
    publish(queue, *range(N))
    old = stream.take(audit.pointers, "etl")
    new = stream.take(audit.pointers, "etl")
    for refused in (
        lambda: stream.states(audit.pointers, old),
        lambda: stream.acknowledge(audit.pointers, old, 0, 1),
    ):
        with pytest.raises(FencedOut):
            refused()
    assert read(audit.pointers, new) == list(range(N))


def test_a_group_that_is_dropped_ends_its_stream(queue):
    audit = queue.group("audit")
    owner = stream.take(audit.pointers, "etl")
    audit.drop()
    with pytest.raises(NotFound):
        stream.states(audit.pointers, owner)
    with pytest.raises(NotFound):
        stream.take(audit.pointers, "etl")


def test_an_empty_slot_is_closed_so_that_a_replay_reads_alike_and_the_producer_publishes_elsewhere(queue):
    audit = queue.group("audit")
    queue.pointers.reserve({0: 1})
    owner = stream.take(audit.pointers, "etl")
    assert read(audit.pointers, owner) == []
    assert queue.pointers.write_tombstones([Slot(0, 1)]) == [False], "there is a tombstone"


@pytest.mark.parametrize("fault", ["reply_lost", "crash_before", "crash_after"])
@pytest.mark.parametrize("own_first", [True, False])
def test_whatever_fails_in_an_acknowledgement_it_can_be_done_again(store, queue, fault, own_first):
    audit = queue.group("audit", start="oldest")
    publish(queue, *range(N))
    owner = stream.take(audit.pointers, "etl")
    if own_first:
        received(queue)
    for call in range(1, 12):
        faulty = FaultyStore(store, {call: fault})
        try:
            acknowledge(QueueRegistry(faulty, "shop").get("q@audit").pointers, owner)
        except Crash:
            continue
    acknowledge(audit.pointers, owner)
    assert read(audit.pointers, owner) == []
    assert audit.depth().ready == 0
    if not own_first:
        assert received(queue) == list(range(N))


def test_what_comes_back_from_the_queues_own_sideline_does_not_come_to_the_stream_again(queue):
    audit = queue.group("audit")
    publish(queue, 7)
    (delivery,) = queue.receive(1)
    queue.fail(delivery, "rejected", "no")
    Shovel(queue).run_once()
    owner = stream.take(audit.pointers, "etl")
    assert sum(state.loaded - state.fired for state in stream.states(audit.pointers, owner)) == 2
    assert read(audit.pointers, owner) == [7]
    acknowledge(audit.pointers, owner)
    assert received(queue) == [7]


@pytest.mark.parametrize("bin", [GROUPS, ACKED])
@pytest.mark.parametrize("wrong", [7, "audit", [1]])
def test_a_message_whose_readers_are_damaged_is_named(store, queue, bin, wrong):
    audit = queue.group("audit")
    owner = stream.take(audit.pointers, "etl")
    publish(queue, 7)
    (key,) = records(store, queue)
    store.operate(key, Put(bin, wrong))
    with pytest.raises(Corrupt, match=f"{key.name}.*'{bin}'"):
        read(audit.pointers, owner)


@pytest.mark.parametrize("wrong", [7, "audit", [1]])
def test_attempts_that_are_damaged_keep_no_message_from_the_stream(store, queue, wrong):
    audit = queue.group("audit")
    owner = stream.take(audit.pointers, "etl")
    publish(queue, 7)
    assert received(queue) == [7]
    (key,) = records(store, queue)
    store.operate(key, Put(TRIES, wrong))
    assert read(audit.pointers, owner) == [7]
    acknowledge(audit.pointers, owner)
    assert records(store, queue) == []
