"""Sweeps that fail, are stopped or overtaken: who is told, what is noted, and what goes on."""

from __future__ import annotations

import logging

import pytest

from latchwork.errors import RecordTooBig, Unavailable
from latchwork.queue import QueueConfig, QueueRegistry, Sweeper
from latchwork.queue.sharded.upkeep.report import Stop
from latchwork.store import MapPut, MemoryStore
from latchwork.testing.clock import InlineClock, ManualClock
from latchwork.testing.stores import FaultyStore
from tests.queue.sharded.world import Election, World


@pytest.fixture
def sim():
    clock = ManualClock()
    return World(MemoryStore(clock), clock)


def abandon(queue, n=3):
    queue.publish_many(range(n))
    while queue.receive(1000):
        pass


def test_in_the_background_each_sweep_is_told_and_a_failed_one_is_followed_by_the_next(caplog):
    clock = InlineClock()
    store = FaultyStore(MemoryStore(clock))
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False, shards=1))
    abandon(queue)
    sweeper = Sweeper(queue.registry, Election(1))

    def fail(*calls):
        store.plan |= {store._number + number: "dropped" for number in calls}

    clock.at(599, lambda: fail(1, 2, 3))  # the queues cannot be listed
    clock.at(1499, lambda: fail(3, 4, 5))  # the pointers of the one queue cannot be read
    clock.at(2500, sweeper._stop.set)
    with caplog.at_level(logging.INFO, "latchwork"):
        sweeper.start()
    # Of the sweeps alone: what a task of an earlier test says at its end is none of them.
    told = [record for record in caplog.records if "sweep" in record.name]
    assert [record.levelname for record in told] == ["WARNING", "WARNING", "INFO"]
    failed, warned, informed = told
    assert failed.getMessage().startswith("the sweep failed; the next one is in 900 s (UNAVAILABLE): ")
    assert not failed.exc_info, "one line is enough for a store that is away"
    assert "UNAVAILABLE" in warned.getMessage()
    assert "brought back 3 messages" in informed.getMessage()


def test_a_defect_in_one_queue_does_not_stop_the_sweep_of_the_others(caplog, monkeypatch):
    clock = ManualClock()
    registry = QueueRegistry(MemoryStore(clock), "c")
    for name in "ab":
        abandon(registry.create(QueueConfig(name, retry=False, shards=1)))
    clock.advance(1201)
    planned = Sweeper.tasks
    monkeypatch.setattr(
        Sweeper, "tasks", lambda self, queue, *more: planned(self, queue, *more) if queue.name == "b" else 1 / 0
    )
    report = Sweeper(registry, Election(1)).run_once()
    assert (report.rehomed, sorted(report.queues), report.ok) == (3, ["a", "b"], False)
    assert report.failures == (("a", "ZeroDivisionError('division by zero')"),)
    assert "the sweep of a failed" in caplog.text
    assert "ZeroDivisionError" in registry.last_sweep("a").error
    assert not registry.last_sweep("b").error


@pytest.mark.parametrize("codec", ["msgpack", ["json"]], ids=str)
def test_a_queue_with_a_codec_that_is_not_known_stops_neither_the_sweep_nor_the_refresh_of_the_others(codec):
    store = MemoryStore(ManualClock())
    registry = QueueRegistry(store, "c")
    for name in "ab":
        abandon(registry.create(QueueConfig(name, retry=False, shards=1)))
    store.seams.advance(1201)
    store.operate(registry.records.key("a"), MapPut("settings", "codec", codec))
    elsewhere = QueueRegistry(store, "c")
    report = Sweeper(elsewhere, Election(1)).run_once()
    assert (sorted(report.queues), report.rehomed) == (["a", "b"], 3)
    assert [(name, error[:10], "codec" in error) for name, error in report.failures] == [("a", "UNREADABLE", True)]
    registry.deactivate("b")
    elsewhere.refresh()
    assert elsewhere.get("b").live.active is False


def test_a_queue_whose_pointers_cannot_be_read_is_reported_and_noted_as_failed(sim, caplog):
    process = sim.process()
    abandon(process.queue)
    sim.lapse()
    process.fails(range(3, 6), "dropped")
    report = process.sweeper().run_once()
    ((name, error),) = report.failures
    assert (name, report.queues, report.rehomed) == ("q", ("q",), 0)
    assert error.startswith("UNAVAILABLE: ")
    assert process.registry.last_sweep("q").error == error
    assert process.sweeper().run_once().rehomed == 3


def test_a_failure_that_cannot_be_noted_is_reported_all_the_same(sim, caplog):
    process = sim.process()
    process.fails(range(3, 9), "dropped")
    ((name, error),) = process.sweeper().run_once().failures
    assert (name, error[:12]) == ("q", "UNAVAILABLE:")
    assert "the failed sweep of q could not be noted" in caplog.text
    assert process.registry.last_sweep("q").failure == 0


def test_a_sweeper_that_is_stopped_ends_before_the_next_batch_and_leaves_the_rest_to_the_next(sim):
    process = sim.process()
    abandon(process.queue, 1100)
    sim.lapse()
    sweeper = process.sweeper()
    process.store.plan[process.store._number + 8] = sweeper._stop.set
    report = sweeper.run_once()
    assert (report.rehomed, report.ok) == (1000, False)
    assert "the sweeper was stopped" in report.failures[0][1]
    sweeper._stop.clear()
    assert sweeper.run_once().rehomed == 100


def test_a_leader_that_was_overtaken_notes_nothing_over_its_successors_note(sim, caplog):
    process = sim.process()
    process.sweeper(epoch=9).run_once()
    noted = process.registry.last_sweep("q")
    sim.lapse()
    report = process.sweeper(epoch=4).run_once()
    assert report.failures == (("q", "deposed: a leader of an epoch above 4 has swept it"),)
    assert process.registry.last_sweep("q") == noted
    assert process.registry.records.read("q")["epoch"] == 9
    (record,) = [record for record in caplog.records if "by epoch 4 was not noted" in record.message]
    assert record.levelname == "WARNING"
    assert f"{sim.client}-sweeper" in record.message


class Full(MemoryStore):
    """No message gets into a sideline."""

    def _operate_many(self, updates):
        return [self._unless_full(update) for update in updates]

    def _unless_full(self, update):
        full = "_SIDELINE_SHARD" in update.key.name and "POINTERS" not in update.key.name
        return RecordTooBig("no room") if full else super()._operate_many([update])[0]


class Unmarkable(MemoryStore):
    """What was fired cannot be noted in a queue's record, nor anything that is written with it."""

    def _operate(self, update):
        if any(isinstance(op, MapPut) and op.bin == "sweepMarks" for op in update.ops):
            raise Unavailable("down")
        return super()._operate(update)


def extended_and_abandoned(store):
    """A world in which the first message of the shard is held by a consumer, and two behind it are abandoned."""
    sim = World(store, store.seams, shards=1)
    queue = sim.process().queue
    queue.publish_many(range(3))
    first, *_ = queue.receive(3)
    sim.lapse()
    first.extend()
    return sim


def test_messages_that_cannot_be_moved_fail_the_sweep_also_behind_one_that_is_in_somebodys_hands():
    sim = extended_and_abandoned(Full(ManualClock()))
    process = sim.process()
    report = process.sweeper().run_once()
    (shard,) = report.shards
    assert (shard.stop, shard.live, shard.refused, report.ok) == (Stop.LIVE, 1, 2, False)
    assert report.failures == (("q", "shard 0 of the main queue: 2 messages could not be moved"),)
    last = process.registry.last_sweep("q")
    assert (last.success, last.failure > 0, last.error) == (0, True, report.failures[0][1])


def test_a_sweep_whose_outcome_could_not_be_written_is_noted_as_failed():
    sim = extended_and_abandoned(Unmarkable(ManualClock()))
    process = sim.process()
    report = process.sweeper().run_once()
    (shard,) = report.shards
    assert (shard.stop, shard.rehomed, shard.marked, report.ok) == (Stop.FAILED, 2, 0, False)
    assert "UNAVAILABLE: down" in process.registry.last_sweep("q").error


def test_a_leader_whose_mark_is_refused_says_that_it_was_deposed(sim):
    process = sim.process()
    process.queue.publish_many(range(3))
    process.queue.receive(3)
    sweeper = process.sweeper(epoch=4)
    other = sim.process()
    other.sweeper(epoch=9).note(other.queue, 9, None)
    report = sweeper.run_once()
    assert {shard.stop for shard in report.shards} == {Stop.DEPOSED}
    assert (report.ok, report.failures[0][0]) == (False, "q")
