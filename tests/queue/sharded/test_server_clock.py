"""Sweeps while the server's clock is set: a leader that lives on goes by its own as well (docs/protocols P5)."""

from __future__ import annotations

import pytest

from latchwork.queue.sharded.upkeep import sweep
from latchwork.queue.sharded.upkeep.report import Stop
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock

from .world import World

HOUR = 3600


@pytest.fixture
def sim():
    clock = ManualClock()
    return World(MemoryStore(clock), clock, shards=1)


def held(world, n=3):
    """Messages in the hands of a consumer that does nothing more."""
    process = world.process()
    process.queue.publish_many(range(n))
    process.queue.receive(n)
    return process


def test_what_was_extended_since_a_leader_has_seen_it_has_another_duration(sim):
    process = sim.process()
    process.queue.publish("m")
    (delivery,) = process.queue.receive()
    sim.clock.step(-10 * HOUR)
    sweeper = sim.process().sweeper()
    for _ in range(3):
        assert sweeper.run_once().rehomed == 0
        sim.lapse(0.9)
        delivery.extend()
        assert sweeper.run_once().rehomed == 0
    delivery.ack()


def test_a_message_that_cannot_be_reached_when_it_is_to_be_taken_is_taken_by_the_next_sweep(sim):
    held(sim, 2)
    sim.clock.step(-10 * HOUR)
    leader = sim.process()
    sweeper = leader.sweeper()
    sweeper.run_once()
    sim.lapse()
    leader.fails(range(6, 9), "dropped")
    report = sweeper.run_once()
    assert (report.rehomed, report.ok) == (0, False)
    sim.lapse()
    assert sweeper.run_once().rehomed == 0
    sim.lapse()
    assert sweeper.run_once().rehomed == 2


def test_a_sweep_that_failed_on_the_way_forgets_nothing_that_a_leader_has_seen(sim):
    held(sim)
    sim.clock.step(-10 * HOUR)
    leader = sim.process()
    sweeper = leader.sweeper()
    sweeper.run_once()
    sim.lapse()
    leadership = sweeper.election.leadership
    leader.store.plan[leader.store._number + 3] = lambda: setattr(leadership, "over", True)  # as it reads the pointers
    assert sweeper.run_once().shards[0].stop is Stop.DEPOSED
    leadership.over = False
    assert sweeper.run_once().rehomed == 3


def test_a_leader_remembers_so_many_messages_of_a_shard_and_comes_to_the_others_later(sim, monkeypatch):
    monkeypatch.setattr(sweep, "MOST_REMEMBERED", 2)
    held(sim, 5)
    sim.clock.step(-10 * HOUR)
    sweeper = sim.process().sweeper()
    found = []
    for _ in range(5):
        found.append(sweeper.run_once().rehomed)
        sim.lapse()
    assert found == [0, 2, 2, 1, 0]


def test_acknowledged_slots_are_passed_though_the_clock_went_back(sim):
    process = sim.process()
    process.queue.publish_many(range(4))
    process.queue.ack_many(process.queue.receive(4))
    sweeper = sim.process().sweeper()
    sweeper.run_once()
    sim.clock.step(-10 * HOUR)
    sim.lapse()
    assert sweeper.run_once().shards[0].swept == 4
