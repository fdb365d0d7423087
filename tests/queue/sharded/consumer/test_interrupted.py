"""Work that is cut by the end of its worker goes on elsewhere, first of all, and costs no attempt."""

from __future__ import annotations

import warnings

import pytest

from latchwork.errors import Interrupted, LeaseLost
from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry
from latchwork.queue.sharded.slots import Slot
from latchwork.queue.sharded.subqueue import MAX_INTERRUPTS
from latchwork.queue.sharded.upkeep.shovel import Shovel
from latchwork.store import MemoryStore, SQLiteStore
from latchwork.testing import bring_back
from latchwork.testing.stores import CountingStore

from .alone import OneThread
from .test_ordered import LEASE, turns


@pytest.fixture
def clock():
    return OneThread()


@pytest.fixture(params=["memory", "sqlite"])
def store(request, clock, tmp_path):
    made = (
        MemoryStore(clock)
        if request.param == "memory"
        else SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock)
    )
    yield made
    made.close()


def opened(store, **options):
    """The queue, as another process has it."""
    settings = {"shards": 1, "sweep_duration": 60, "unsafe_limits": True} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", **settings))


def stopped_in_its_handler(queue, **options):
    """A consumer whose grace ends while its handler runs, and what the handler has seen."""
    seen = []

    def handler(delivery):
        seen.append(delivery)
        consumer.stop(0)

    consumer = Consumer(queue, handler, upkeep=False, **options)
    consumer._turns.take()
    return consumer, seen


def handled(queue, limit=10):
    """Receive and acknowledge what is ready: payload, attempt and reason of each, in order."""
    found = []
    while deliveries := queue.receive(limit):
        found += [(delivery.payload, delivery.attempts, delivery.reason) for delivery in deliveries]
        queue.ack_many(deliveries)
    return found


# ---- where it goes


def test_what_outlives_the_grace_comes_first_and_its_attempt_does_not_count(store):
    here, there = opened(store), opened(store)
    here.publish_many(["long", "next"])
    consumer, _ = stopped_in_its_handler(here)
    assert consumer.stats["interrupted"] == 1
    depth = there.depth()
    assert (depth.ready, depth.sideline, depth.parked, depth.delayed) == (2, 0, 0, 0)
    assert [message.payload for message in there.peek()] == ["long", "next"]
    assert handled(there, 1) == [("long", 1, "interrupted"), ("next", 1, None)]
    assert there.depth().ready == 0


def test_an_attempt_that_failed_before_still_counts(store):
    here, there = opened(store, retry=False), opened(store, retry=False)
    here.publish("m")
    here.receive()[0].nack("exception")
    Shovel(here).run_once()
    stopped_in_its_handler(here)
    assert handled(there) == [("m", 2, "interrupted")]


def test_the_late_result_of_an_interrupted_handler_changes_nothing(store):
    here, there = opened(store), opened(store)
    here.publish("m")
    _, (late,) = stopped_in_its_handler(here)
    with pytest.raises(LeaseLost):
        late.ack()
    assert handled(there) == [("m", 1, "interrupted")]


def test_in_a_batch_all_that_is_in_hand_goes_back(store):
    options = {"batching": BatchingConfig(3, 1)}
    here, there = opened(store, **options), opened(store, **options)
    here.publish_many([1, 2, 3])
    stopped_in_its_handler(here)
    assert sorted(handled(there)) == [(n, 1, "interrupted") for n in (1, 2, 3)]


def test_in_order_the_next_holder_is_given_it_first_and_it_does_not_count(clock):
    store = MemoryStore(clock)
    here, there, seen = opened(store), opened(store), []
    here.publish_many(["long", "next"], key="k")
    stopped_in_its_handler(here, ordered=True)
    consumer = Consumer(there, lambda one: seen.append((one.payload, one.attempts)), ordered=True, upkeep=False)
    turns([consumer], LEASE + 2, clock)
    assert seen == [("long", 1), ("next", 1)]


def test_a_message_that_the_next_holder_works_on_is_interrupted_no_more(clock):
    store, bins = MemoryStore(clock), []
    here, there = opened(store), opened(store)
    here.publish_many(["kills its process", "next"], key="k")
    stopped_in_its_handler(here, ordered=True)
    slot = there.pointers.key(Slot(0, 1))
    consumer = Consumer(
        there, lambda _: bins.append(store.get(slot, "interrupted", "attempts").bins), ordered=True, upkeep=False
    )
    turns([consumer], LEASE + 2, clock)
    assert bins[0] == {"attempts": 1}, "if it dies now, the sweep sees a crash"


def test_in_a_group_it_goes_back_to_that_group_and_does_not_count(store):
    here, there = opened(store), opened(store)
    group, other = here.group("g"), there.group("g")
    here.publish("m")
    stopped_in_its_handler(group)
    assert handled(other) == [("m", 1, "interrupted")]
    assert handled(there) == [("m", 1, None)]


# ---- processes that die


def test_a_drain_that_is_killed_is_brought_back_uncounted(store, clock):
    here, there = opened(store), opened(store)
    here.publish("m")
    (delivery,) = here.receive()
    here.interrupting([delivery])  # as a stop does first; then it is killed
    bring_back(there)
    assert handled(there) == [("m", 1, "interrupted")]


def test_a_process_that_is_killed_without_a_drain_counts(store):
    here, there = opened(store), opened(store)
    here.publish("m")
    here.receive()
    bring_back(there)
    assert handled(there) == [("m", 2, "swept")]


def test_a_stop_takes_the_attempts_back_before_the_grace_has_ended(clock):
    store = MemoryStore(clock)
    here, there, marked = opened(store), opened(store), []

    def handler(delivery):
        consumer._workers = 1  # this one, which runs for longer than the grace
        clock.at(1, lambda: marked.append(here.pointers.look([delivery.held.slot])[0].interrupted))
        consumer.stop(2)

    here.publish("m")
    consumer = Consumer(here, handler, upkeep=False)
    consumer._turns.take()
    assert marked != []
    assert marked[0] is not None
    assert handled(there) == [("m", 1, "interrupted")]


def test_after_fifty_interruptions_it_is_parked(clock):
    store = MemoryStore(clock)
    opened(store).publish("m")
    times = 0
    while True:
        _, seen = stopped_in_its_handler(opened(store))
        if not seen:
            break
        times += 1
        assert times <= MAX_INTERRUPTS + 1
    assert times == MAX_INTERRUPTS + 1
    (parked,) = opened(store).parked.peek()
    assert (parked.payload, parked.reason, parked.attempts) == ("m", "interrupted", 0)
    opened(store).redrive(1)
    assert [payload for payload, _, _ in handled(opened(store))] == ["m"]


# ---- check


def test_check_tells_a_handler_that_its_worker_stops_and_costs_no_call(clock):
    store = CountingStore(MemoryStore(clock))
    here, there, told = opened(store), opened(store), []

    def handler(delivery):
        store.reset()
        delivery.check()
        consumer._stopping.set()
        with pytest.raises(Interrupted) as told_:
            delivery.check()
        assert store.total == 0
        told.append(told_.value)
        raise told_.value

    here.publish("m")
    consumer = Consumer(here, handler, upkeep=False)
    consumer._turns.take()
    assert len(told) == 1
    assert handled(there) == [("m", 1, "interrupted")]


def test_check_tells_a_handler_that_was_given_up_that_its_lease_is_lost(clock):
    here, told = opened(MemoryStore(clock)), []

    def handler(delivery):
        (run,) = consumer.runs._open_runs()
        consumer.runs.abandon(run, "it took too long")
        with pytest.raises(LeaseLost):
            delivery.check()
        told.append(1)

    here.publish("m")
    consumer = Consumer(here, handler, upkeep=False)
    consumer._turns.take()
    assert told == [1]


@pytest.mark.parametrize("learns", ["by the time", "by its extension"])
def test_check_tells_who_lost_the_message_to_a_sweep(clock, learns):
    store = MemoryStore(clock)
    here, there = opened(store), opened(store)
    here.publish("m")
    (delivery,) = here.receive()
    delivery.check()
    if learns == "by the time":
        clock.advance(61)
    else:
        bring_back(there)
        with pytest.raises(LeaseLost):
            delivery.extend()
    with pytest.raises(LeaseLost):
        delivery.check()


def test_check_is_content_with_a_delivery_that_is_extended(clock):
    here = opened(MemoryStore(clock))
    here.publish("m")
    (delivery,) = here.receive()
    for _ in range(4):
        clock.advance(40)
        delivery.extend()
        delivery.check()


def test_interrupted_that_is_raised_while_nothing_stops_is_an_ordinary_failure(clock):
    def handler(delivery):
        raise Interrupted("by the user")

    here = opened(MemoryStore(clock))
    here.publish("m")
    consumer = Consumer(here, handler, upkeep=False)
    consumer._turns.take()
    assert consumer.stats["failed"] == 1
    assert here.depth().delayed == 1
