"""Upkeep by election: a process in which a consumer runs needs nothing beside it. In virtual time."""

from __future__ import annotations

import warnings

import pytest

from latchwork.coord import LeaseElection
from latchwork.queue import Consumer, QueueConfig, QueueRegistry, ShovelConfig, Sweeper
from latchwork.queue.sharded.upkeep import upkeep as module
from latchwork.queue.sharded.upkeep.upkeep import LEASE, election_name, upkeep_of
from latchwork.store import MemoryStore
from tests.sim.stage import Stage

SWEEP = 20


def queue_on(store, *, farm="f", client="c"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig(
            "q", shards=1, sweep_duration=SWEEP, handler_timeout=5, shovel=ShovelConfig(5), unsafe_limits=True
        )
    return QueueRegistry(store, client, farm_id=farm).create(config)


def candidates(store, client="c"):
    return LeaseElection(store, election_name(client)).contenders()


def consuming(handled, seconds, *, handler=lambda delivery: True, **options):
    """A process that consumes for so many seconds; what its handler was given goes to `handled`."""

    def body(store):
        def handle(delivery):
            handled.append((delivery.payload, delivery.attempts))
            return handler(delivery)

        with Consumer(queue_on(store), handle, **options):
            store.seams.sleep(seconds)

    return body


def test_what_a_handler_rejected_comes_back_with_nothing_else_started():
    stage, handled = Stage(), []
    stage.act("publisher", lambda store: queue_on(store).publish("m"))
    stage.act("worker", consuming(handled, 30, handler=lambda delivery: delivery.attempts == 3), after=1)
    stage.play()
    assert handled == [("m", 1), ("m", 2), ("m", 3)]


def test_what_a_dead_consumer_had_is_handled_by_those_that_live():
    stage, handled = Stage(), []
    stage.act("publisher", lambda store: queue_on(store).publish("m"))
    dead = stage.act("dead", lambda store: (queue_on(store).receive(1), store.seams.sleep(1000)), after=1)
    stage.world.at(2.0, dead.die)
    stage.act("worker", consuming(handled, 6 * SWEEP), after=3)
    stage.play()
    assert handled == [("m", 2)]


def test_a_leader_that_dies_is_succeeded_and_its_duties_are_done():
    stage, handled = Stage(), []
    stage.act("publisher", lambda store: queue_on(store).publish("m"))
    leader = stage.act(
        "leader", consuming([], 1000, handler=lambda delivery: delivery and stage.world.pause(900)), after=1
    )
    stage.world.at(4.0, leader.die)
    stage.act("worker", consuming(handled, 3 * LEASE + 5 * SWEEP), after=6)
    stage.play()
    assert handled == [("m", 2)]


def test_without_upkeep_a_consumer_is_no_candidate_and_nothing_comes_back():
    stage, handled, seen = Stage(), [], []
    stage.act("publisher", lambda store: queue_on(store).publish("m"))
    stage.act("worker", consuming(handled, 60, handler=lambda delivery: False, upkeep=False), after=1)
    stage.act("onlooker", lambda store: seen.append(candidates(store)), after=30)
    stage.play()
    assert handled == [("m", 1)]
    assert seen == [[]]


def test_a_process_is_one_candidate_however_many_consumers_it_has_and_none_once_all_have_stopped():
    stage, seen = Stage(), []

    def body(store):
        queue, other = queue_on(store), QueueRegistry(store, "c", farm_id="f")
        first = Consumer(queue, lambda delivery: True).start()
        second = Consumer(other.get("q"), lambda delivery: True).start()
        store.seams.sleep(10)
        seen.append(len(candidates(store)))
        first.stop()
        store.seams.sleep(10)
        seen.append(len(candidates(store)))
        second.stop()
        store.seams.sleep(1)
        seen.append(len(candidates(store)))

    stage.act("process", body)
    stage.play()
    assert seen == [1, 1, 0]


def test_the_leader_keeps_up_every_farm_whose_processes_stand_for_election():
    stage, handled = Stage(), []

    def leader(store):
        upkeep = upkeep_of(QueueRegistry(store, "c", farm_id="f"))
        upkeep.join("a member")
        store.seams.sleep(3 * module.LIST)
        assert upkeep.leads
        upkeep.leave("a member")

    stage.act("leader", leader)

    def elsewhere(store):
        queue = queue_on(store, farm="g")
        queue.publish("m")

        def handle(delivery):
            handled.append((delivery.payload, delivery.attempts))
            return delivery.attempts > 1

        with Consumer(queue, handle):
            store.seams.sleep(2 * module.LIST)

    stage.act("elsewhere", elsewhere, after=5)
    stage.play()
    assert stage.said["leader"] is None
    assert handled == [("m", 1), ("m", 2)]


def test_an_idle_process_pays_at_most_half_a_call_a_second_for_upkeep():
    stage, seconds = Stage(), 600
    stage.server.trace = []

    def body(store):
        upkeep = upkeep_of(QueueRegistry(store, "c", farm_id="f"))
        upkeep.join("a member")
        store.seams.sleep(seconds)
        upkeep.leave("a member")

    for name in ("leader", "follower"):
        stage.act(name, body)
    stage.play()
    for name in ("leader", "follower"):
        calls = sum(entry[2] == name for entry in stage.server.trace)
        assert 0.1 * seconds < calls <= 0.5 * seconds, name


def test_a_duty_that_fails_is_tried_again_and_keeps_no_other_from_being_done(monkeypatch, caplog):
    tried = []

    def broken(self):
        tried.append(self)
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Sweeper, "run_once", broken)
    stage, handled = Stage(), []
    stage.act("publisher", lambda store: queue_on(store).publish("m"))
    stage.act("worker", consuming(handled, 20, handler=lambda delivery: delivery.attempts == 2), after=1)
    stage.play()
    assert handled == [("m", 1), ("m", 2)]
    assert 2 <= len(tried) <= 8, "tried again, with growing pauses"
    assert caplog.text.count("sweeping failed") == 1, "and said so once"


def test_a_queue_whose_shovel_fails_keeps_no_other_waiting(monkeypatch):
    stage, handled = Stage(), []

    def body(store):
        queue = queue_on(store)
        broken = QueueRegistry(store, "c", farm_id="f").create(_named("broken"))
        monkeypatch.setattr(
            type(broken.sideline.pointers), "states", _failing_for("broken", type(broken.sideline.pointers).states)
        )
        queue.publish("m")

        def handle(delivery):
            handled.append(delivery.attempts)
            return delivery.attempts > 1

        with Consumer(queue, handle):
            store.seams.sleep(20)

    stage.act("process", body)
    stage.play()
    assert handled == [1, 2]


def _named(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueConfig(
            name, shards=1, sweep_duration=SWEEP, handler_timeout=5, shovel=ShovelConfig(5), unsafe_limits=True
        )


def _failing_for(name, states):
    from latchwork.errors import Unavailable

    def failing(self):
        if self.name.startswith(name):
            raise Unavailable("no node has the partition")
        return states(self)

    return failing


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_upkeep_is_a_switch(wrong):
    from latchwork.errors import InvalidRequest

    with pytest.raises(InvalidRequest, match="upkeep"):
        Consumer(queue_on(MemoryStore()), lambda delivery: True, upkeep=wrong)
