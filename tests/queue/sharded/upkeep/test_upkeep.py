"""Upkeep by election: a process in which a consumer runs needs nothing beside it. In virtual time."""

from __future__ import annotations

import warnings
from collections import Counter
from types import SimpleNamespace

import pytest

from latchwork.coord import LeaseElection
from latchwork.coord.election.candidates import CONTENDERS
from latchwork.coord.lock import LOCKS
from latchwork.queue import Consumer, QueueConfig, QueueRegistry, ShovelConfig, Sweeper
from latchwork.queue.sharded import registry
from latchwork.queue.sharded.upkeep import farms
from latchwork.queue.sharded.upkeep import upkeep as module
from latchwork.queue.sharded.upkeep.upkeep import LEASE, Shoveling, election_name, upkeep_of
from latchwork.seams import Seams
from latchwork.store import Exists, Key, MemoryStore, Put, SQLiteStore
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


@pytest.mark.parametrize("moment", range(8))
def test_after_a_leader_died_another_process_leads_within_its_lease_and_one_look(moment):
    stage, died, led = Stage(), 40.0 + moment, {}

    def candidate(name):
        def body(store):
            upkeep = upkeep_of(QueueRegistry(store, "c", farm_id="f"))
            upkeep.join("a member")
            while stage.world.now < 70:
                store.seams.sleep(0.1)
                if upkeep.leads:
                    led.setdefault(name, stage.world.now)
            upkeep.leave("a member")

        return body

    first = stage.act("first", candidate("first"))
    stage.act("second", candidate("second"), after=1)
    stage.world.at(died, first.die)
    stage.play()
    assert led["first"] < died < led["second"] <= died + LEASE + module.LOOKS.high + 1


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
        store.seams.sleep(3 * farms.LIST)
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
            store.seams.sleep(2 * farms.LIST)

    stage.act("elsewhere", elsewhere, after=5)
    stage.play()
    assert stage.said["leader"] is None
    assert handled == [("m", 1), ("m", 2)]


@pytest.mark.parametrize("candidate", ["me@db1.example.com:4711", f"me@{64 * 'f'}", "me@"])
def test_a_candidate_that_names_no_farm_ends_no_upkeep(candidate, monkeypatch):
    monkeypatch.setattr(farms, "LIST", 15.0)
    stage, handled = Stage(), []

    def elsewhere(store):
        election = LeaseElection(store, election_name("c"), candidate=candidate)
        election.start(lambda leadership: None)
        store.seams.sleep(4 * farms.LIST)
        election.stop()

    stage.act("process", consuming(handled, 3 * farms.LIST, handler=lambda delivery: delivery.attempts > 1))
    stage.act("elsewhere", elsewhere, after=5)
    stage.act("publisher", lambda store: queue_on(store).publish("m"), after=2 * farms.LIST)
    stage.play()
    assert handled == [("m", 1), ("m", 2)]


def test_an_idle_process_pays_less_than_half_a_call_a_second_for_upkeep_and_the_leader_nine_tenths():
    stage, seconds = Stage(), 600
    stage.server.trace = []

    def body(store):
        upkeep = upkeep_of(QueueRegistry(store, "c", farm_id="f"))
        upkeep.join("a member")
        store.seams.sleep(seconds)
        upkeep.leave("a member")

    stage.act("leader", body)
    stage.act("follower", body, after=1)
    stage.play()
    for name, most in (("leader", 0.9), ("follower", 0.45)):
        calls = sum(entry[2] == name for entry in stage.server.trace)
        assert 0.1 * seconds < calls <= most * seconds, name


def test_an_idle_consumer_asks_14_times_a_second_for_messages_and_once_in_two_seconds_at_most_for_upkeep():
    """The figures of docs/guide/work-queue.md: one queue of 8 shards, two processes, by the server's count."""
    stage, begin, end = Stage(), 30.0, 90.0
    stage.server.trace = []

    def body(store):
        queue = QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=8))
        with Consumer(queue, lambda delivery: True):
            store.seams.sleep(end)

    stage.act("leader", body)
    stage.act("follower", body, after=1)
    stage.play()
    calls = Counter(entry[2] for entry in stage.server.trace if begin <= entry[1] < end)
    each = {name: n / (end - begin) for name, n in calls.items()}
    assert 13.5 < each["follower"] < 14.5
    assert 0.5 < each["leader"] - each["follower"] < 1.3


@pytest.mark.parametrize(("maker", "soon"), [("leader", 10), ("other", 15)])
def test_a_queue_that_is_made_later_is_kept_up_within_seconds_whichever_process_makes_it(monkeypatch, maker, soon):
    """Its delayed messages are moved, what failed is brought back, and what its dead consumers had is swept."""
    stage, handled = Stage(), {}
    if maker == "other":  # all processes of a stage share what this process remembers
        monkeypatch.setattr(registry, "made_here", Counter())

    def make(store):
        queue = queue_on(store)
        queue.publish("delayed", delay=1)
        queue.publish_many(["dead", "failed"], key="k")
        _, failed = queue.receive(2)
        failed.nack()

    def leader(store):
        upkeep = upkeep_of(QueueRegistry(store, "c", farm_id="f"))
        upkeep.join("a member")
        store.seams.sleep(30)
        if maker == "leader":
            make(store)
        store.seams.sleep(150)
        upkeep.leave("a member")

    def other(store):
        if maker == "other":
            make(store)

    def consumer(store):
        queue, began = queue_on(store), store.seams.monotonic()
        while store.seams.monotonic() < began + 2 * SWEEP + 40:
            for delivery in queue.receive(10, timeout=1):
                delivery.ack()
                handled[delivery.payload] = store.seams.monotonic() - began

    stage.act("leader", leader)
    stage.act("other", other, after=30)
    stage.act("consumer", consumer, after=30.5)
    stage.play()
    assert handled["delayed"] < soon
    assert handled["failed"] < soon
    assert handled["dead"] < 2 * SWEEP + soon


def test_upkeep_goes_on_once_what_only_a_person_can_mend_was_mended(caplog):
    stage, handled = Stage(), []
    lock = Key(LOCKS, election_name("c"))
    stage.act("publisher", lambda store: queue_on(store).publish("m"))
    stage.act("damage", lambda store: store.operate(lock, Put("locked", "x"), exists=Exists.ANY), after=0.5)
    stage.act("worker", consuming(handled, 60, handler=lambda delivery: delivery.attempts == 2), after=1)
    stage.act("repair", lambda store: store.delete(lock), after=30)
    stage.play()
    assert handled == [("m", 1), ("m", 2)]
    assert "is damaged" in caplog.text


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


def test_a_shovel_is_due_when_it_said_so_however_the_clock_rounds(monkeypatch):
    clock = Ticking()
    queue = queue_on(MemoryStore(seams=clock))
    farms = SimpleNamespace(queues=lambda: [queue], failure_log=lambda: None)
    passes = []
    monkeypatch.setattr(Shoveling, "_pass", lambda *_: passes.append(clock.now))
    for number in range(1000):
        passes.clear()
        duty, clock.now = Shoveling(farms), number * 1.001
        while (pause := duty.run(None)) and len(passes) == 1:
            clock.now += pause
        assert len(passes) == 2, f"it asked to be called again in {pause} s, at {clock.now}, and made no pass"


class Ticking(Seams):
    """A clock that stands still unless it is set."""

    now = 0.0

    def monotonic(self):
        return self.now


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


def test_a_damaged_list_of_candidates_keeps_no_duty_from_its_work(tmp_path):
    store = SQLiteStore(tmp_path / "s.db", synchronous="off")
    queue, election = queue_on(store), LeaseElection(store, election_name("c"), candidate="vm:1:x@f")
    store.operate(Key(CONTENDERS, election_name("c")), Put("seen-until", 7), exists=Exists.ANY)
    assert [one.name for one in farms.Farms(queue.registry, election).queues()] == ["q"]
    store.close()
