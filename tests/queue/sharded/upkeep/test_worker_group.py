"""Processes that consume are members of their client's group. In virtual time."""

from __future__ import annotations

import pytest

from latchwork.coord.presence.presence import Membership
from latchwork.deadline import call_time
from latchwork.errors import OutcomeUnknown
from latchwork.queue import QueueRegistry
from latchwork.queue.sharded.upkeep import worker_group
from latchwork.queue.sharded.upkeep.upkeep import upkeep_of
from latchwork.queue.sharded.upkeep.worker_group import LEASE, WorkerMembership, _meta, queues_of, workers_of
from latchwork.seams import Seams
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore
from tests.queue.sharded.upkeep.test_upkeep import consuming
from tests.sim.stage import Fault, Kind, Stage
from tests.support.waiting import until


def at_work(store):
    return [(one.farm, queues_of(one)) for one in workers_of(store, "c", "f").members()]


def test_a_process_that_consumes_is_there_with_its_queues_until_it_stops():
    stage = Stage()
    stage.act("worker", consuming([], 100))
    stage.act("looks", at_work, after=50)
    stage.act("looks later", at_work, after=150)
    stage.play()
    assert stage.said == {"worker": None, "looks": [("f", ["q"])], "looks later": []}


@pytest.fixture
def lease(monkeypatch):
    """A shorter one, so that less time has to pass."""
    monkeypatch.setattr(worker_group, "LEASE", 20.0)
    return worker_group.LEASE


def test_a_process_that_died_is_missed_by_the_others(lease):
    stage = Stage()
    dead = stage.act("dead", consuming([], 1000))
    stage.world.at(40.0, dead.die)
    stage.act("worker", consuming([], 50 + 5 * lease))
    stage.act("early", at_work, after=30)
    stage.act("late", lambda store: (at_work(store), workers_of(store, "c", "f").lost()), after=40 + 5 * lease)
    stage.play()
    assert len(stage.said["early"]) == 2
    there, lost = stage.said["late"]
    assert (len(there), len(lost)) == (1, 1)


@pytest.mark.long
def test_a_process_that_was_paused_for_longer_than_its_lease_comes_back():
    stage = Stage({"worker": {"Put:beat#": 3 * LEASE}})
    stage.act("worker", consuming([], 1000))
    stage.act("other", consuming([], 1000))
    stage.act("looks", at_work, after=900)
    stage.play()
    assert len(stage.said["looks"]) == 2


def test_a_defect_as_it_leaves_is_logged_and_ends_no_thread_with_a_traceback(monkeypatch, caplog):
    def leave(self):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(Membership, "leave", leave)
    group = workers_of(MemoryStore(), "c", "f")
    membership = WorkerMembership(group, "me", lambda: ["q"])
    membership.start()
    until(group.members)
    membership.stop(60)
    assert "this process could not leave" in caplog.text


def test_a_store_that_is_away_does_not_end_it(caplog):
    stage = Stage({"worker": dict.fromkeys(range(1, 200), Fault(Kind.DROPPED))})

    def body(store):
        membership = WorkerMembership(workers_of(store, "c", "f"), "me", lambda: ["q"])
        membership.start()
        membership.start()
        store.seams.sleep(300 * LEASE)
        membership.stop(1.0)

    stage.act("worker", body)
    stage.act("looks", at_work, after=200 * LEASE)
    stage.play(until=1e6)
    assert stage.said["looks"] == [("f", ["q"])]
    assert "this process could not join or renew" in caplog.text


class Hand(ManualClock):
    """Background work is kept, and done when the test says so."""

    def __init__(self):
        super().__init__()
        self.work = []

    def spawn(self, run, name):
        self.work.append(run)


TOTAL_TIMEOUT = 1000.0
"""Seconds for which a store whose URL says so waits for a reply."""


class Hanging(CountingStore):
    """A store that gives no answer to any call while it hangs."""

    hangs = False

    def _operate(self, update):
        if self.hangs:
            self.seams.sleep(min(TOTAL_TIMEOUT, call_time() or TOTAL_TIMEOUT))
            raise OutcomeUnknown("no reply came")
        return super()._operate(update)


def hanging(clock, begin, end):
    """A store that hangs from one moment to another, and a membership on it."""
    store = Hanging(MemoryStore(clock))
    clock.at(begin, lambda: setattr(store, "hangs", True))
    clock.at(end, lambda: setattr(store, "hangs", False))
    return store, WorkerMembership(workers_of(store, "c", "f"), "me", lambda: ["q"])


def test_a_heartbeat_without_a_reply_leaves_time_for_the_next_within_the_lease():
    clock, kept = Hand(), []
    _, membership = hanging(clock, LEASE / 4, LEASE / 2)
    membership.start()
    clock.at(1, lambda: kept.append(membership._membership))
    clock.at(2 * LEASE, lambda: kept.append(membership._membership))
    clock.at(2 * LEASE, lambda: kept.append(membership._membership.lost.is_set()))
    clock.at(2 * LEASE + 1, membership._background.stopping.set)
    clock.work[0]()
    before, after, is_lost = kept
    assert (after is before, is_lost) == (True, False)


def test_a_store_that_hangs_delays_a_process_that_leaves_for_less_than_the_lease():
    clock = Hand()
    _, membership = hanging(clock, LEASE, 100 * LEASE)
    membership.start()
    clock.at(LEASE + 1, membership._background.stopping.set)
    clock.work[0]()
    assert clock.monotonic() < 2 * LEASE


def test_a_process_that_works_again_while_it_is_still_leaving_joins_again(lease):
    stage = Stage({"worker": dict.fromkeys(range(30, 200), Fault(Kind.DROPPED))})

    def body(store):
        upkeep = upkeep_of(QueueRegistry(store, "c", farm_id="f"))
        upkeep.join("one", "a")
        store.seams.sleep(60)
        upkeep.leave("one", 0.2)
        upkeep.join("another", "b")
        store.seams.sleep(40 * lease)
        upkeep.leave("another")

    stage.act("worker", body)
    stage.act("looks", at_work, after=30 * lease)
    stage.act("looks later", at_work, after=50 * lease)
    stage.play(until=1e6)
    assert stage.said == {"worker": None, "looks": [("f", ["b"])], "looks later": []}


class Lingering:
    """A task that counts as alive, though its work is done, until somebody waits for its end."""

    def __init__(self, task):
        self.task, self.is_over = task, False

    def is_alive(self):
        return not self.is_over

    def join(self, timeout=None):
        self.task.join(timeout)
        self.is_over = timeout is None


class SlowToEnd(Seams):
    def spawn(self, run, name):
        return Lingering(super().spawn(run, name))


def test_a_process_joins_again_whose_thread_has_left_and_is_not_over_yet():
    group = workers_of(MemoryStore(SlowToEnd()), "c", "f")
    membership = WorkerMembership(group, "me", lambda: ["q"])
    membership.start()
    until(group.members)
    membership.stop(0.0)
    until(lambda: membership._is_over)
    assert not group.members()
    membership.start()
    assert until(group.members)
    membership.stop(None)


def test_who_works_on_another_queue_says_so():
    stage = Stage()

    def body(store):
        upkeep = upkeep_of(QueueRegistry(store, "c", farm_id="f"))
        upkeep.join("one", "a")
        store.seams.sleep(LEASE)
        upkeep.join("another", "b")
        store.seams.sleep(LEASE)
        said = at_work(store)
        upkeep.leave("one")
        upkeep.leave("another")
        return said

    stage.act("worker", body)
    stage.play()
    assert stage.said["worker"] == [("f", ["a", "b"])]


@pytest.mark.parametrize("count", [0, 1, 100])
def test_as_many_queues_are_named_as_there_is_room_for(count):
    names = [f"a-queue-with-a-long-name-{number:03}" for number in range(count)]
    assert _meta(names)["queues"] == names[: min(count, 6)]


def test_a_member_that_is_no_worker_has_no_queues():
    group = workers_of(MemoryStore(ManualClock()), "c", "f")
    for meta in (None, 5, {"queues": 5}, {"other": []}):
        group.join("p", meta=meta, keep_alive=False)
        (member,) = group.members()
        assert queues_of(member) == []
