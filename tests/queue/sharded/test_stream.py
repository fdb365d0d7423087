"""What a stream does to a queue, without Spark: ownership, identical replays, acknowledgement (P7)."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest

from latchwork.errors import FencedOut, InvalidRequest, QueueOwned
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded import stream as ranges
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.ledger.ledger import LEDGER_TTL, Ledger, Outgoing
from latchwork.queue.sharded.slots import Slot, WriteResult
from latchwork.store import Exists, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore

N = 12


@pytest.fixture
def clock():
    return ManualClock(seed=1)


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def queue(store):
    return open_on(store, create=True)


def open_on(store, *, create=False):
    registry = QueueRegistry(store, "shop")
    if not create:
        return registry.get("q")
    return registry.create(QueueConfig("q", shards=2, sweep_duration=timedelta(minutes=20)))


def fill(queue, n=N):
    for number in range(n):
        queue.publish_many([number], key=f"k{number}")


def test_a_slot_that_a_stream_found_empty_stays_closed_as_long_as_a_ledger_may_fill_it(store, clock):
    """Else a row that comes after the batch is one that no batch reads."""
    config = QueueConfig("short", shards=1, message_expiry=timedelta(hours=1))
    queue = QueueRegistry(store, "shop").create(config).pointers
    queue.reserve({0: 1})
    assert flat(ranges.read(queue, 0, 0, 1)) == []
    clock.advance(LEDGER_TTL - 1)
    assert queue.write([Slot(0, 1)], [Envelope("1", "late")]) == [WriteResult.SPENT]


def flat(steps):
    return [message for step in steps for message in step]


def test_a_slot_that_a_stream_gives_up_is_counted_once_however_often_its_range_is_read(queue):
    pointers = queue.pointers
    pointers.reserve({0: 2})
    for _ in range(2):
        assert flat(ranges.read(pointers, 0, 0, 2)) == []
    assert [state.expired for state in pointers.states()] == [2, 0]


def test_a_range_is_read_a_thousand_at_a_time_and_waits_one_grace_however_many_slots_are_empty(
    store, clock, monkeypatch
):
    monkeypatch.setattr(ranges, "STEP", 4)
    queue = QueueRegistry(store, "shop").create(QueueConfig("one", shards=1)).pointers
    queue.reserve({0: N})
    queue.write(
        [Slot(0, n) for n in range(1, N + 1) if n % 4], [Envelope("1", f"m{n}") for n in range(1, N + 1) if n % 4]
    )
    steps = ranges.read(queue, 0, 0, N)
    assert [pointer for pointer, _ in next(steps)] == [1, 2, 3]
    assert queue.store.get(queue.key(Slot(0, 8))) is None
    slept = len(clock.slept)
    assert [[pointer for pointer, _ in step] for step in steps] == [[5, 6, 7], [9, 10, 11]]
    assert len(clock.slept) == slept


def everything(queue):
    """All that can be read, from where FIRE is."""
    states = queue.pointers.states()
    return {s.shard: flat(ranges.read(queue.pointers, s.shard, s.fired, s.loaded)) for s in states}


def numbers(found):
    return Counter(int(envelope.data) for messages in found.values() for _, envelope in messages)


ALL = Counter(range(N))


# ---- ownership


def test_a_stream_that_does_not_own_the_queue_is_told_who_does(queue):
    with pytest.raises(FencedOut, match="'etl' does not own it; nobody does"):
        ranges.current(queue.pointers, "etl")
    ranges.take(queue.pointers, "other")
    with pytest.raises(FencedOut, match="'etl' does not own it; other does"):
        ranges.current(queue.pointers, "etl")


def test_a_stream_owns_every_shard_and_consumers_are_refused_by_its_name(queue):
    fill(queue)
    ranges.take(queue.pointers, "etl")
    with pytest.raises(QueueOwned, match="'etl'"):
        queue.receive(1)


def test_consumers_of_an_empty_queue_that_a_stream_owns_are_refused_too(queue):
    ranges.take(queue.pointers, "etl")
    with pytest.raises(QueueOwned, match="'etl'"):
        queue.receive(1)


def test_another_stream_is_refused_by_the_owners_name_and_leaves_no_trace(queue):
    owner = ranges.take(queue.pointers, "etl")
    with pytest.raises(QueueOwned, match="'etl' owns it"):
        ranges.take(queue.pointers, "other")
    assert ranges.current(queue.pointers, "etl") == owner


def test_a_restart_under_the_same_name_takes_over_and_fences_its_predecessor_off(queue):
    fill(queue)
    before, after = (ranges.take(queue.pointers, "etl") for _ in range(2))
    assert after.epoch > before.epoch
    with pytest.raises(FencedOut, match="taken it over"):
        ranges.acknowledge(queue.pointers, before, 0, 1)
    assert ranges.acknowledge(queue.pointers, after, 0, 1) == 1


def test_a_predecessor_that_is_overtaken_in_the_middle_of_an_acknowledgement_does_not_move_the_pointer(store, queue):
    fill(queue)
    before = ranges.take(queue.pointers, "etl")
    plan = {4: lambda: ranges.take(queue.pointers, "etl")}
    faulty = open_on(FaultyStore(store, {number + 1: act for number, act in plan.items()}))
    with pytest.raises(FencedOut):
        ranges.acknowledge(faulty.pointers, before, 0, 3)
    assert queue.pointers.states()[0].fired == 0


def test_consumers_have_the_queue_again_once_it_is_let_go(queue):
    fill(queue)
    owner = ranges.take(queue.pointers, "etl")
    ranges.release(queue.pointers, owner)
    assert len(queue.receive(N)) + len(queue.receive(N)) == N
    assert ranges.take(queue.pointers, "other").epoch > owner.epoch


def test_letting_go_of_what_somebody_else_has_taken_over_changes_nothing(queue):
    before, after = (ranges.take(queue.pointers, "etl") for _ in range(2))
    ranges.release(queue.pointers, before)
    assert ranges.current(queue.pointers, "etl") == after


@pytest.mark.parametrize("at", range(2, 8))
def test_two_that_take_the_queue_at_once_under_two_names_do_not_both_have_it(store, queue, at):
    rivals = []

    def rival():
        with suppress(QueueOwned):
            rivals.append(ranges.take(queue.pointers, "other"))

    mine = None
    with suppress(QueueOwned):
        mine = ranges.take(open_on(FaultyStore(store, {at: rival})).pointers, "etl")
    owners = {name for name, _ in ranges._owners(queue.pointers)}
    assert owners == ({"etl"} if mine else {"other"} if rivals else {None})
    assert not (mine and rivals)


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_bad_stream_names_are_refused(queue, name):
    with pytest.raises(InvalidRequest, match="streamId"):
        ranges.take(queue.pointers, name)


# ---- reading


def test_a_range_reads_the_same_until_it_is_acknowledged(queue):
    fill(queue)
    ranges.take(queue.pointers, "etl")
    first = everything(queue)
    assert numbers(first) == ALL
    assert everything(queue) == first


def test_a_slow_producer_is_refused_before_anything_is_read_so_that_replays_are_the_same(queue):
    fill(queue, 3)
    reserved = queue.pointers.reserve({0: 1, 1: 1})
    first = everything(queue)
    outcomes = queue.pointers.write(
        [Slot(shard, pointer) for shard, pointer in reserved.items()], [envelope_of(99), envelope_of(98)]
    )
    assert {outcome.value for outcome in outcomes} == {"spent"}
    assert everything(queue) == first


def test_a_producer_that_sleeps_for_many_sweep_durations_adds_nothing_to_a_replay(queue, clock):
    fill(queue, 3)
    slot = Slot(0, queue.pointers.reserve({0: 1})[0])
    first = everything(queue)
    clock.advance(10 * queue.pointers.sweep)
    (outcome,) = queue.pointers.write([slot], [envelope_of(99)])
    assert outcome is WriteResult.SPENT
    assert everything(queue) == first


def test_a_producer_within_the_grace_is_waited_for(queue, clock):
    pointer = queue.pointers.reserve({0: 1})[0]
    clock.at(0.2, lambda: queue.pointers.write([Slot(0, pointer)], [envelope_of(7)]))
    assert [int(envelope.data) for _, envelope in flat(ranges.read(queue.pointers, 0, 0, pointer))] == [7]


def envelope_of(number):
    from latchwork.queue.sharded.envelope import Envelope

    return Envelope(str(number), f"id{number}")


def test_a_snapshot_changes_nothing(queue):
    fill(queue)
    queue.pointers.reserve({0: 1})
    before = dict(queue.store._records)
    assert sum(1 for shard in (0, 1) for _ in flat(ranges.peek(queue.pointers, shard, 0, 100))) == N
    assert queue.store._records == before


# ---- acknowledging


def acknowledge_all(queue, owner):
    for state in queue.pointers.states():
        ranges.acknowledge(queue.pointers, owner, state.shard, state.loaded)


def test_a_stream_says_whose_it_is_how_far_behind_and_when_it_acknowledged_last(queue):
    fill(queue)
    state = ranges.state_of(queue.pointers)
    assert (state.owners, state.shards, state.acked) == ((), 0, None)
    owner = ranges.take(queue.pointers, "etl")
    before = ranges.state_of(queue.pointers)
    assert (before.owners, before.shards, before.acked) == (("etl",), queue.config.shards, None)
    assert before.lag == sum(ALL.values())
    acknowledge_all(queue, owner)
    after = ranges.state_of(queue.pointers)
    assert after.lag == 0
    assert abs(after.acked / 1000 - queue.store.seams.wall()) < 60
    ranges.release(queue.pointers, owner)
    assert ranges.state_of(queue.pointers).owners == ()


def test_what_is_acknowledged_is_gone_and_what_comes_later_is_not(queue):
    fill(queue)
    owner = ranges.take(queue.pointers, "etl")
    acknowledge_all(queue, owner)
    fill(queue, 3)
    assert numbers(everything(queue)) == Counter(range(3))
    assert queue.depth().ready == 3


def test_what_another_library_loaded_is_gone_once_it_is_acknowledged(store, queue):
    """It carries no message id; left where it is, a sweep would bring it back."""
    store.operate(queue.pointers.key(Slot(0, 1)), Put("data", "1"), exists=Exists.CREATE, ttl=3600)
    queue.pointers.reserve({0: 1})
    owner = ranges.take(queue.pointers, "etl")
    assert numbers(everything(queue)) == Counter([1])
    acknowledge_all(queue, owner)
    assert store.get(queue.pointers.key(Slot(0, 1))) is None


def test_an_acknowledgement_is_repeatable_and_never_goes_back(queue):
    fill(queue)
    owner = ranges.take(queue.pointers, "etl")
    loaded = queue.pointers.states()[0].loaded
    assert ranges.acknowledge(queue.pointers, owner, 0, loaded) == loaded
    assert ranges.acknowledge(queue.pointers, owner, 0, 2) == 0
    assert queue.pointers.states()[0].fired == loaded


def test_messages_that_were_published_exactly_once_leave_their_ids(queue):
    Ledger(queue, "job").publish(0, [Outgoing(n) for n in range(N)])
    owner = ranges.take(queue.pointers, "etl")
    assert numbers(everything(queue)) == ALL
    acknowledge_all(queue, owner)
    kept = [record.bins for key, record in queue.store._records.items() if key.set.endswith("_data_set")]
    assert [set(bins) for bins in kept] == [{"msgId", "keepId", "modified_at", "v"}] * N
    assert Ledger(queue, "job").publish(0, [Outgoing(n) for n in range(N)]).new == 0
    assert numbers(everything(queue)) == Counter()


def test_tombstones_are_never_deleted(queue):
    pointer = queue.pointers.reserve({0: 1})[0]
    owner = ranges.take(queue.pointers, "etl")
    everything(queue)
    acknowledge_all(queue, owner)
    assert queue.pointers.write([Slot(0, pointer)], [envelope_of(1)])[0].value == "spent"


def test_an_acknowledgement_costs_two_calls_for_a_thousand_messages_and_two_more(store, queue):
    queue.publish_many(list(range(1000)), key="k")
    owner = ranges.take(queue.pointers, "etl")
    counting = CountingStore(store)
    other = open_on(counting)
    before = counting.total
    ranges.acknowledge(other.pointers, owner, queue.shard_of("k"), 1000)
    assert counting.total - before == 4
