"""The sweeper around the protocol: who may sweep, what is reported and noted, and what it costs."""

from __future__ import annotations

import pickle
import re
from datetime import timedelta

import pytest

from latchwork.errors import FencedOut, InvalidRequest, LatchworkError, LeaseLost, Unavailable
from latchwork.queue import QueueConfig, QueueRegistry, Shovel, ShovelConfig, Sweeper
from latchwork.queue.sharded.redrive import take
from latchwork.queue.sharded.slots import Slot
from latchwork.queue.sharded.upkeep.report import ShardReport, SubqueueKind, SweepReport
from latchwork.queue.sharded.upkeep.sweep import sweep_shards
from latchwork.store import Exists, MemoryStore, Put
from latchwork.testing.clock import InlineClock, ManualClock
from latchwork.testing.stores import CountingStore
from tests.queue.sharded.world import Election, World


@pytest.fixture
def sim():
    clock = ManualClock()
    return World(MemoryStore(clock), clock)


def abandon(world, n=3):
    process = world.process()
    ids = process.queue.publish_many(range(n))
    while process.queue.receive(1000):
        pass
    world.lapse()
    return process, ids


def test_who_does_not_lead_does_nothing(sim):
    process, _ = abandon(sim)
    election = Election(1)
    election.leadership = None
    process.store.reset()
    report = Sweeper(process.registry, election).run_once()
    assert (report.led, report.ok, process.store.total) == (False, False, 0)


def test_leadership_is_checked_before_every_batch(sim):
    process, _ = abandon(sim, 1100)
    election = Election(1)
    Sweeper(process.registry, election, parallelism=1).run_once()
    assert election.leadership.checks >= 3, "as the sweep begins, and before each batch"


def test_a_leader_that_loses_its_lead_stops_before_the_next_batch(sim):
    process, _ = abandon(sim, 1100)
    election = Election(1)
    process.store.plan[process.store._number + 8] = lambda: setattr(election.leadership, "over", True)
    report = Sweeper(process.registry, election, parallelism=1).run_once()
    assert report.rehomed == 1000
    assert not report.ok
    assert "deposed" in report.failures[0][1]
    assert process.registry.last_sweep("q").error


def test_success_and_failure_are_noted_and_readable(sim):
    process, _ = abandon(sim)
    registry = process.registry
    assert registry.last_sweep("q").success == 0
    sweeping = sim.process()
    sweeping.sweeper().run_once()
    first = registry.last_sweep("q")
    assert (first.success > 0, first.failure) == (True, 0)
    sim.lapse()
    process.queue.publish("x")
    process.queue.receive()
    sim.lapse()
    failing = sim.process()
    failing.fails(range(5, 9), "dropped")
    report = failing.sweeper().run_once()
    assert not report.ok
    last = registry.last_sweep("q")
    assert last.failure > first.success
    assert last.error


def test_a_sweep_with_nothing_to_do_is_noted_as_a_success(sim):
    process = sim.process()
    process.sweeper().run_once()
    assert process.registry.last_sweep("q").success > 0


def test_a_sideline_that_refuses_is_a_failure_that_shows(sim, monkeypatch):
    process, ids = abandon(sim)
    sweeping = sim.process()
    sweeping.fails(range(7, 10), "dropped")
    report = sweeping.sweeper().run_once()
    assert (report.refused, report.rehomed, report.ok) == (3, 0, False)
    assert "could not be moved" in process.registry.last_sweep("q").error
    sim.recover()
    assert not sim.lost(ids)


def test_all_queues_are_swept_by_as_many_threads_as_allowed():
    clock = ManualClock()
    registry = QueueRegistry(MemoryStore(clock), "c")
    for number in range(20):
        queue = registry.create(QueueConfig(f"q{number}", retry=False, shards=1))
        queue.publish(number)
        queue.receive()
    clock.advance(1201)
    report = Sweeper(registry, Election(1), parallelism=8).run_once()
    assert (len(report.queues), report.rehomed, report.ok) == (20, 20, True)


@pytest.mark.parametrize(
    ("asked", "value"),
    [
        *(("parallelism", value) for value in (0, 65, True, "8")),
        *(("initial_delay", value) for value in (-1, None, True, float("nan"), float("inf"), "600")),
        *(("interval", value) for value in (0, None, True, float("nan"), 1e300, "900")),
    ],
)
def test_a_sweeper_that_is_asked_for_nonsense_is_refused_when_it_is_made(asked, value):
    registry = QueueRegistry(MemoryStore(ManualClock()), "c")
    with pytest.raises(InvalidRequest, match=re.escape(f"{asked} is {value!r}; it must be")):
        Sweeper(registry, Election(1), **{asked: value})


@pytest.mark.parametrize("hours", [1, 20, 24])
def test_what_a_dead_shovel_had_claimed_is_in_the_sideline_again_after_one_sweep_duration(sim, hours):
    sim.options = {"shovel": ShovelConfig(timedelta(hours=hours)), "shards": 1}
    process = sim.process()
    process.queue.publish("x")
    process.receive()[0].nack()
    sim.pass_time(hours * 3600)
    source = process.queue.sideline.pointers
    source.claim(0, 1)
    take(source, [Slot(0, 1)])
    assert process.sweeper().run_once().rehomed == 0
    sim.lapse()
    report = process.sweeper().run_once()
    assert [s.kind for s in report.shards if s.rehomed] == [SubqueueKind.SIDELINE]
    assert [message.payload for message in process.queue.sideline.peek()] == ["x"]


def test_what_a_dead_shovel_had_claimed_keeps_its_backoff_its_reason_and_its_error(sim):
    sim.options = {"shovel": ShovelConfig(60), "backoff": timedelta(hours=6), "shards": 1}
    process = sim.process()
    process.queue.publish("x")
    process.receive()[0].nack("exception", error="it broke")
    (before,) = process.queue.sideline.search()
    source = process.queue.sideline.pointers
    source.claim(0, 1)
    take(source, [Slot(0, 1)])
    process.sweeper().run_once()
    sim.lapse()
    assert process.sweeper().run_once().rehomed == 1
    (after,) = process.queue.sideline.search()
    assert (after.reason, after.last_error) == ("exception", "it broke")
    assert after.not_before == before.not_before
    assert Shovel(process.queue).run_once().moved == 0, "it is not due"


def test_parked_messages_that_a_redrive_took_and_lost_are_parked_again_with_their_reason(sim):
    sim.options = {"max_deliveries": 1}
    process = sim.process()
    ids = process.queue.publish_many(["x", "y"])
    for delivery in process.receive():
        delivery.nack("rejected")
    Shovel(process.queue).run_once()
    assert process.receive() == []
    assert process.queue.depth().parked == 2
    lost = sim.process()
    lost.fails(range(3, 40), "dropped")
    with pytest.raises(LatchworkError):
        lost.queue.redrive(1)
    assert process.queue.parked.peek() == []
    sweeper = process.sweeper()
    for _ in range(3):
        sweeper.run_once()
        sim.lapse()
    parked = process.queue.parked.peek()
    assert {(message.message_id, message.reason) for message in parked} == {(one, "exhausted") for one in ids}
    assert len(process.queue.redrive(2)) == 2


def test_a_deactivated_queue_is_swept_until_it_is_empty_and_then_left_to_expire_with_each_sweep_noted(sim):
    process, _ = abandon(sim)
    sweeper = sim.process().sweeper()
    process.registry.deactivate("q")
    assert sweeper.run_once().rehomed == 3
    noted, left = process.registry.last_sweep("q"), process.registry.records.record("q").ttl
    sim.lapse()
    assert sweeper.run_once().scanned == 0
    assert process.registry.last_sweep("q").success > noted.success, "somebody sweeps it"
    assert process.registry.records.record("q").ttl < left - 1000


def test_claimed_and_never_stamped_messages_wait_one_duration_from_their_first_sweep(sim):
    process = sim.process()
    process.queue.publish("x", key="k")
    process.queue.pointers.claim(process.queue.shard_of("k"), 1)
    sim.lapse()
    sweeper = sim.process().sweeper()
    (shard,) = sweeper.run_once().shards
    assert (shard.stamped, shard.rehomed) == (1, 0)
    sim.lapse()
    assert sweeper.run_once().rehomed == 1


def test_a_record_that_another_program_spoilt_is_left_out(sim):
    process, _ = abandon(sim)
    key = process.registry.records.key("broken")
    sim.store.operate(key, Put("active", "true"), exists=Exists.CREATE)
    assert process.sweeper().run_once().rehomed == 3


def test_a_thousand_abandoned_messages_cost_eight_calls_in_all():
    for shards in (1, 32):
        clock = ManualClock()
        store = CountingStore(MemoryStore(clock))
        registry = QueueRegistry(store, "c")
        queue = registry.create(QueueConfig("q", retry=False, shards=shards))
        queue.publish_many(range(1000))
        while queue.receive(1000):
            pass
        clock.advance(1201)
        store.reset()
        assert Sweeper(registry, Election(1)).run_once().rehomed == 1000
        assert store.total == 8


def test_a_sweep_of_512_idle_shards_is_four_calls():
    store = CountingStore(MemoryStore(ManualClock()))
    registry = QueueRegistry(store, "c")
    registry.create(QueueConfig("q", retry=False, shards=512))
    store.reset()
    Sweeper(registry, Election(1)).run_once()
    assert store.total == 4


def test_a_shard_can_be_swept_elsewhere_and_the_reports_add_up(sim):
    """What an executor needs: tasks and reports that pickle, and no more than a store, an epoch and a check."""
    process, _ = abandon(sim, 5)
    sweeper = process.sweeper(epoch=4)
    ((queue, bins),) = process.registry.listed()
    tasks = pickle.loads(pickle.dumps(sweeper.tasks(queue, bins, 4)))
    parts = [pickle.loads(pickle.dumps(sweep_shards(sim.store, [task], 4, lambda: None))) for task in tasks]
    report = sum((SweepReport(4, ("q",), tuple(part)) for part in parts), SweepReport(4))
    assert (report.rehomed, report.queues, report.ok) == (5, ("q",), True)
    assert "brought back 5 messages" in str(report)


def test_a_mark_of_a_group_that_was_made_again_is_new_to_a_leader_that_has_known_the_same_one_before(sim):
    process, other = sim.process(), sim.process()
    first, second = process.sweeper(), other.sweeper()

    def claimed_and_absent():
        """A group in whose sideline a slot was claimed, by one that died, of which the writer is paused."""
        group = process.queue.group("g", start="now")
        group.sideline.pointers.reserve({0: 1})
        assert group.sideline.pointers.claim(0, 1)
        return group

    group = claimed_and_absent()
    first.run_once()
    sim.lapse()
    assert group.drop()
    claimed_and_absent()
    second.run_once()
    first.election = Election(next(sim.epochs))
    assert [(one.kind, one.swept) for one in first.run_once().shards] == [(SubqueueKind.SIDELINE, 0)]
    sim.lapse()
    assert [one.swept for one in first.run_once().shards] == [1]


def test_what_is_known_of_a_queue_that_is_gone_is_forgotten(sim):
    process, _ = abandon(sim, 1)
    group = process.queue.group("g", start="oldest")
    process.queue.publish("m")
    sweeper = process.sweeper()
    assert group.receive(10)
    sweeper.run_once()
    known = sweeper._seen, sweeper._live
    assert all("q@g" in {queue for queue, _ in one} for one in known)
    group.drop()
    sweeper.run_once()
    assert all({queue for queue, _ in one} <= {"q"} for one in known)


def test_a_task_of_a_deposed_epoch_writes_no_pointer(sim):
    process, _ = abandon(sim)
    ((queue, bins),) = process.registry.listed()
    tasks = process.sweeper(epoch=4).tasks(queue, bins, 4)
    process.sweeper(epoch=9).run_once()
    sim.lapse()
    reports = sweep_shards(sim.store, tasks, 4, lambda: None)
    assert all(isinstance(report, ShardReport) for report in reports)
    assert process.registry.records.read("q")["epoch"] == 9

    def deposed() -> None:
        raise FencedOut("no")

    assert {r.stop.value for r in sweep_shards(sim.store, tasks, 4, deposed)} == {"deposed"}


def test_started_it_waits_ten_minutes_and_then_sweeps_every_fifteen():
    clock = InlineClock()
    registry = QueueRegistry(MemoryStore(clock), "c")
    registry.create(QueueConfig("q", retry=False))
    election = Election(1)
    sweeper = Sweeper(registry, election)
    began, swept = clock.monotonic(), []

    def run_once():
        swept.append(clock.monotonic() - began)
        if len(swept) == 3:
            sweeper._stop.set()
        return SweepReport(0)

    sweeper.run_once = run_once
    sweeper.start()
    assert swept == [600, 1500, 2400]
    assert sweeper.stop()


@pytest.mark.parametrize("reader", ["", "g"])
def test_a_message_that_a_sweep_has_moved_in_a_pause_is_not_stored_once_more_as_it_fails(world, reader):
    process = world.process()
    view = process.queue.group(reader) if reader else process.queue
    process.queue.publish_many(["a", "b", "c"])
    failed, back, later = view.receive(3)
    world.lapse()
    assert process.sweeper().run_once().rehomed == 3
    with pytest.raises(LeaseLost):
        failed.nack()
    assert view.hand_back([back]) == [False]
    with pytest.raises(LeaseLost):
        later.nack(delay=1)
    depth = view.depth()
    assert (depth.ready, depth.delayed, depth.sideline) == (0, 0, 3)


def test_a_message_that_no_sweep_has_moved_in_a_pause_fails_as_any_other(world):
    process = world.process()
    process.queue.publish("a")
    (delivery,) = process.queue.receive()
    world.lapse()
    delivery.nack()
    assert process.queue.depth().sideline == 1


def test_a_message_of_which_it_is_not_known_who_has_it_is_not_stored_as_it_fails(simulated):
    process = simulated.process()
    process.queue.publish("a")
    (delivery,) = process.queue.receive()
    simulated.lapse()
    process.fails((1, 2, 3), "dropped")
    with pytest.raises(Unavailable):
        delivery.nack()
    assert process.queue.depth().sideline == 0
    delivery.nack()
    assert process.queue.depth().sideline == 1
