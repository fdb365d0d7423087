"""Sweeps that fail, are stopped or overtaken: who is told, what is noted, and what goes on."""

from __future__ import annotations

import logging

import pytest

from latchwork.queue import QueueConfig, QueueRegistry, Sweeper
from latchwork.store import MemoryStore
from tests.clock import ManualClock
from tests.faulty import FaultyStore

from .world import Election, World


@pytest.fixture
def sim():
    clock = ManualClock()
    return World(MemoryStore(clock), clock)


def abandon(queue, n=3):
    queue.publish_many(range(n))
    while queue.receive(1000):
        pass


class Inline(ManualClock):
    """Background tasks run inside `start`."""

    def spawn(self, run, name):
        run()
        return self

    def join(self, timeout=None):
        """It has ended."""

    def is_alive(self):
        return False


def test_in_the_background_each_sweep_is_told_and_a_failed_one_is_followed_by_the_next(caplog):
    clock = Inline()
    store = FaultyStore(MemoryStore(clock))
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    abandon(queue)
    sweeper = Sweeper(queue.registry, Election(1))

    def fail(*calls):
        store.plan |= {store._number + number: "dropped" for number in calls}

    clock.at(599, lambda: fail(1, 2, 3))  # the queues cannot be listed
    clock.at(1499, lambda: fail(3, 4, 5))  # the pointers of the one queue cannot be read
    clock.at(2500, sweeper._stop.set)
    with caplog.at_level(logging.INFO, "latchwork"):
        sweeper.start()
    failed, warned, informed = caplog.records
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "INFO"]
    assert failed.getMessage() == "the sweep failed; the next one is in 900 s"
    assert failed.exc_info
    assert "UNAVAILABLE" in warned.getMessage()
    assert "re-homed 3" in informed.getMessage()


def test_a_defect_in_one_queue_does_not_stop_the_sweep_of_the_others(caplog, monkeypatch):
    clock = ManualClock()
    registry = QueueRegistry(MemoryStore(clock), "c")
    for name in "ab":
        abandon(registry.create(QueueConfig(name, shards=1)))
    clock.advance(1201)
    planned = Sweeper.tasks
    monkeypatch.setattr(
        Sweeper, "tasks", lambda self, queue, bins: planned(self, queue, bins) if queue.name == "b" else 1 / 0
    )
    report = Sweeper(registry, Election(1)).run_once()
    assert (report.rehomed, sorted(report.queues), report.ok) == (3, ["a", "b"], False)
    assert report.failures == (("a", "ZeroDivisionError('division by zero')"),)
    assert "the sweep of a failed" in caplog.text
    assert "ZeroDivisionError" in registry.last_sweep("a").error
    assert not registry.last_sweep("b").error


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
    abandon(process.queue, 2500)
    sim.lapse()
    sweeper = process.sweeper()
    process.store.plan[process.store._number + 8] = sweeper._stop.set
    report = sweeper.run_once()
    assert (report.rehomed, report.ok) == (1000, False)
    assert "the sweeper was stopped" in report.failures[0][1]
    sweeper._stop.clear()
    assert sweeper.run_once().rehomed == 1500


def test_a_leader_that_was_overtaken_notes_nothing_over_its_successors_note(sim, caplog):
    process = sim.process()
    process.sweeper(epoch=9).run_once()
    noted = process.registry.last_sweep("q")
    sim.lapse()
    with caplog.at_level(logging.INFO, "latchwork"):
        process.sweeper(epoch=4).run_once()
    assert process.registry.last_sweep("q") == noted
    assert process.registry.records.read("q")["epoch"] == 9
    assert "by epoch 4 was not noted" in caplog.text
