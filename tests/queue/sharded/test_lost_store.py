"""The store comes back empty, or without some records, under live handles: what is published then is swept as ever."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from latchwork.errors import LatchworkError, NotFound, Unavailable
from latchwork.queue import QueueRegistry
from latchwork.queue.sharded.pointers import KNOWN
from latchwork.queue.sharded.registry import REFRESH
from latchwork.queue.sharded.upkeep.sweep import sweep_shards
from latchwork.queue.sharded.upkeep.sweeper import GONE
from latchwork.store import MemoryStore, Put
from latchwork.testing.clock import ManualClock

from .world import World


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def sim(clock):
    return World(MemoryStore(clock), clock, shards=1)


def emptied(sim):
    sim.store._records.clear()


def abandoned(process, n):
    """Messages that a consumer was given, which then died."""
    process.queue.publish_many(range(n))
    return {delivery.message_id for delivery in process.queue.receive(n)}


def swept(sim, process, sweeper, times=3):
    """What comes to the sideline within so many sweeps."""
    for _ in range(times):
        sim.lapse()
        assert sweeper.run_once().ok
    return {message.message_id for message in process.queue.sideline.peek_all()}


def test_a_queue_that_is_made_again_once_all_has_expired_is_not_swept_from_its_beginning(sim):
    process = sim.process()
    abandoned(process, 3)
    sim.pass_time(timedelta(days=60, hours=1).total_seconds())
    later = sim.process()
    assert later.registry.records.read("q")["sweepPointers"] == {"0": 3}


def test_a_queue_in_use_is_made_again_and_swept_and_the_log_says_so(sim, caplog):
    process = sim.process()
    sweeper = process.sweeper()
    process.queue.publish_many(range(5))
    emptied(sim)
    ids = abandoned(process, 3)
    with pytest.raises(NotFound):
        process.registry.records.read("q")
    sim.pass_time(REFRESH)
    with caplog.at_level(logging.WARNING):
        process.queue.publish("more")
    assert "is gone though the queue is in use" in caplog.text
    assert [queue.name for queue in process.registry.queues()] == ["q"]
    assert ids <= swept(sim, process, sweeper)


def test_a_queue_that_is_made_again_keeps_what_was_changed_since_it_was_made(sim):
    process = sim.process()
    process.queue.scale(7)
    with pytest.warns(UserWarning, match="go on expiring"):
        process.queue.pause(by="ann")
    process.registry.set_retry("q", True)
    emptied(sim)
    process.queue.publish("m")
    process.registry.refresh()
    again = QueueRegistry(sim.store, sim.client, farm_id="f").create(process.queue.config)
    assert (again.concurrency, again.live.changed_by, again.config.retry) == (0, "ann", True)
    again.resume()
    assert again.concurrency == 7


@pytest.mark.parametrize("used", [True, False])
def test_a_queue_that_was_deactivated_or_is_not_used_is_not_made_again(sim, used):
    process = sim.process()
    if used:
        process.registry.deactivate("q")
    process.queue.used = used
    emptied(sim)
    process.registry.refresh()
    assert process.registry.queues(active=None) == []


def test_what_is_published_after_the_pointers_alone_were_lost_is_swept(sim, caplog):
    """The sweep had come to 5, and 8 more were fired since: no pointer is below what was swept."""
    process = sim.process()
    sweeper = process.sweeper()
    process.queue.publish_many(range(5))
    process.queue.ack_many(process.queue.receive(5))
    swept(sim, process, sweeper)
    assert process.registry.records.read("q")["sweepPointers"] == {"0": 5}
    for kind in (process.queue, process.queue.sideline, process.queue.parked):
        sim.store.delete(kind.pointers.pointers_key(0))
    ids = abandoned(process, 8)
    with caplog.at_level(logging.WARNING):
        assert swept(sim, process, sweeper) == ids
    assert "has lost pointers of queue q" in caplog.text


def test_a_mark_of_lost_pointers_does_not_let_the_sweep_pass_an_empty_slot_that_is_young(sim):
    """Else a message whose publisher is slow, and whose consumer died, would be acknowledged and never read."""
    process = sim.process()
    sweeper = process.sweeper()
    process.queue.publish_many(range(3))
    process.queue.receive(1)  # held: the sweep pointer stays before it, and what was fired is marked
    sweeper.run_once()
    for key in [key for key in sim.store._records if key != process.registry.records.key("q")]:
        sim.store.delete(key)
    sim.lapse()
    queue = process.queue
    queue.pointers.reserve({0: 1})
    queue.pointers.claim(0, 1)
    sweeper.run_once()
    assert queue.registry.records.read("q")["sweepPointers"] == {"0": 0}


def test_shards_that_no_sweep_has_seen_are_marked_as_seen_and_nothing_begins_again(sim, caplog):
    process = sim.process()
    abandoned(process, 3)
    process.sweeper().run_once()
    assert sim.store.get(process.queue.pointers.pointers_key(0)).bins[KNOWN] == 1
    with caplog.at_level(logging.WARNING):
        assert len(swept(sim, process, process.sweeper())) == 3
    assert process.registry.records.read("q")["sweepPointers"] == {"0": 3}
    assert "has lost" not in caplog.text


def test_pointers_that_began_again_after_a_sweep_was_planned_are_not_marked_as_seen_by_it(sim):
    """Else their first slots would never be swept: the sweep pointer is that of the lost ones."""
    process = sim.process()
    sweeper = process.sweeper()
    abandoned(process, 3)
    ((queue, bins),) = process.registry.listed(active=None)
    tasks = sweeper.tasks(queue, bins, 1)
    for kind in (queue, queue.sideline, queue.parked):
        sim.store.delete(kind.pointers.pointers_key(0))
    later = abandoned(process, 2)
    sweep_shards(sim.store, tasks, 1, lambda: None)
    assert KNOWN not in sim.store.get(queue.pointers.pointers_key(0)).bins
    assert later <= swept(sim, process, sweeper)


def test_a_sweep_that_could_not_mark_a_shard_as_seen_writes_no_sweep_pointer_of_it(sim, monkeypatch, caplog):
    """Else the next sweep would take it for one that was lost, and its sweep pointer would go back."""
    process = sim.process()
    sweeper = process.sweeper()
    for delivery in (process.queue.publish_many(range(3)), process.queue.receive(3))[1]:
        delivery.ack()
    sim.lapse()
    operate_many = MemoryStore._operate_many

    def failing(store, updates):
        rows = iter(operate_many(store, [one for one in updates if Put(KNOWN, 1) not in one.ops]))
        return [Unavailable("cut") if Put(KNOWN, 1) in one.ops else next(rows) for one in updates]

    with monkeypatch.context() as cut:
        cut.setattr(MemoryStore, "_operate_many", failing)
        sweeper.run_once()
    assert KNOWN not in sim.store.get(process.queue.pointers.pointers_key(0)).bins
    assert process.registry.records.read("q")["sweepPointers"] == {"0": 0}
    sim.lapse()
    sweeper.run_once()
    assert "has lost pointers" not in caplog.text
    assert KNOWN in sim.store.get(process.queue.pointers.pointers_key(0)).bins


def test_an_earlier_leader_begins_nothing_again(sim):
    process = sim.process()
    abandoned(process, 3)
    later, earlier = process.sweeper(epoch=9), sim.process().sweeper(epoch=4)
    swept(sim, process, later)
    before = process.registry.records.read("q")
    sim.store.delete(process.queue.pointers.pointers_key(0))
    abandoned(process, 1)
    assert not earlier.run_once().ok
    assert process.registry.records.read("q")["sweepPointers"] == before["sweepPointers"]


def test_an_index_that_was_lost_with_the_store_is_made_again(sim, monkeypatch):
    process = sim.process()
    made = []
    monkeypatch.setattr(sim.store, "_ensure_index", lambda *args: made.append(args))
    real = type(sim.store)._query

    def without_index(store, *args):
        if not made:
            raise LatchworkError("the index is not there")
        return real(store, *args)

    monkeypatch.setattr(type(sim.store), "_query", without_index)
    with pytest.raises(LatchworkError):
        process.registry.queues()
    assert [queue.name for queue in process.registry.queues()] == ["q"]


def test_a_group_that_is_made_in_the_emptied_store_gets_what_an_older_process_publishes_there(sim):
    """The older process remembers more slots than there are now, and for which groups they were."""
    process = sim.process()
    process.queue.publish_many(range(100))
    emptied(sim)
    later = sim.process()
    group = later.queue.group("g")
    process.queue.publish_many(["a", "b"])
    process.queue.publish("c")
    mine = later.queue.receive(10)
    later.queue.ack_many(mine)
    assert sorted(delivery.payload for delivery in mine) == ["a", "b", "c"]
    assert sorted(delivery.payload for delivery in group.receive(10)) == ["a", "b", "c"]


@pytest.mark.parametrize("publishes", [True, False])
def test_a_group_that_is_made_again_claims_no_slot_that_is_not_reserved(sim, publishes):
    """It would leave what is published there later behind, where only a sweep looks, which may have passed it."""
    process, other = sim.process(), sim.process()
    group, publisher = process.queue.group("g"), (process if publishes else other).queue
    publisher.publish_many(range(50))
    group.ack_many(group.receive(100))
    emptied(sim)
    other.queue.publish_many(["a", "b"])
    process.registry.refresh()
    assert [delivery.payload for delivery in group.receive(10)] == ["a", "b"]
    (state,) = group.pointers.shared.states()
    assert (state.loaded, state.fired) == (2, 2)


def test_a_group_that_another_process_has_dropped_does_not_come_back_with_a_process_that_still_uses_it(sim, caplog):
    process, other = sim.process(), sim.process()
    group = process.queue.group("g")
    process.queue.publish("m")
    assert len(group.receive(1)) == 1
    other.registry.get("q@g").drop()
    with pytest.raises(NotFound, match="was dropped"):
        group.receive(1)
    assert group.used
    process.registry.refresh()
    assert [queue.name for queue in other.registry.queues(active=None)] == ["q"]
    assert "is made again" not in caplog.text
    process.queue.publish("n")
    process.queue.ack_many(process.queue.receive(10))
    assert process.queue.store.get(process.queue.pointers.key((0, 2))) is None, "the message waits for no group"


@pytest.mark.parametrize("lost", ["all", "all, and the queue is used again", "its record alone"])
def test_a_group_in_use_that_the_store_has_lost_is_made_again(sim, lost, caplog):
    process = sim.process()
    group = process.queue.group("g")
    process.queue.publish_many(range(3))
    group.ack_many(group.receive(3))
    if lost == "its record alone":
        sim.store.delete(process.registry.records.key("q@g"))
    else:
        emptied(sim)
        sim.pass_time(1)
    if lost == "all, and the queue is used again":
        sim.process().queue.publish("m")
    process.registry.refresh()
    assert "q@g" in [queue.name for queue in process.registry.queues()]
    assert "the record of queue q@g" in caplog.text
    process.queue.publish("last")
    assert "last" in [delivery.payload for delivery in group.receive(10)]


@pytest.mark.parametrize("terms", ["one term", "a term for each sweep"])
def test_a_group_in_use_whose_record_is_lost_is_made_again_though_a_sweep_comes_first(sim, terms):
    """The sweeps of two refresh periods come before the refresh."""
    process, other = sim.process(), sim.process()
    group, sweeper = process.queue.group("g"), other.sweeper()
    assert group.receive() == []
    sim.store.delete(process.registry.records.key("q@g"))
    process.queue.publish("m")
    for _ in range(3 if terms == "one term" else 30):
        assert sweeper.run_once().ok
        if terms != "one term":
            sweeper.election.leadership.epoch += 1
        sim.pass_time(GONE / 3)
    process.registry.refresh()
    assert "q@g" in [queue.name for queue in process.registry.queues()]
    assert [delivery.payload for delivery in group.receive(10)] == ["m"]


def test_how_long_a_record_was_gone_is_counted_from_its_last_loss(sim):
    process, other = sim.process(), sim.process()
    group, sweeper = process.queue.group("g"), other.sweeper()
    for _ in range(4):
        sim.store.delete(process.registry.records.key("q@g"))
        sweeper.run_once()
        sim.pass_time(GONE / 2)
        sweeper.run_once()
        group.used = True
        process.registry.refresh()
        sweeper.run_once()
    process.queue.publish("m")
    assert [delivery.payload for delivery in group.receive(10)] == ["m"]
