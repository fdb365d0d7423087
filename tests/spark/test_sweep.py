"""The sweep as a Spark job: the same report as the local sweep, and nothing for a leader that was deposed."""

from __future__ import annotations

import gc
import pickle
import sys
import time
import warnings
import weakref
from types import SimpleNamespace

import pytest
from pyspark import cloudpickle

from latchwork.coord import LeaseElection
from latchwork.errors import FencedOut, InvalidRequest
from latchwork.queue import QueueConfig, QueueRegistry, Sweeper
from latchwork.queue.sharded.upkeep.report import ShardReport, ShardTask, Stop, SubqueueKind
from latchwork.queue.sharded.upkeep.sweep import BATCH
from latchwork.retry import Poll
from latchwork.seams import SYSTEM, Seams
from latchwork.spark import sweep, sweep_on
from latchwork.store import Add, Key, MemoryStore, Put, SQLiteStore
from latchwork.store.port import PolicyView
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore

from .conftest import BOTH

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

OFFICE = Key("latchwork_locks", "sweeper")


class Ahead(Seams):
    """Clocks that a test sets forward; executors get them as they are when their tasks are sent."""

    def __init__(self, seconds):
        self.seconds = seconds

    def wall(self):
        return super().wall() + self.seconds

    def monotonic(self):
        return super().monotonic() + self.seconds

    def uniform(self, low, high):
        """The middle: two registries begin to publish at the same shard."""
        return (low + high) / 2


class AheadStore(SQLiteStore):
    """A SQLite file seen through such clocks, on executors too."""

    def __init__(self, path, seconds=0):
        super().__init__(path, seams=Ahead(seconds), synchronous="off")

    def __reduce__(self):
        return AheadStore, (self.path, self.seams.seconds)


class Simulated:
    """One sweep duration passes at once."""

    seconds = 1200

    def __init__(self, store):
        self.store = store

    def lapse(self):
        self.store.seams.seconds += self.seconds + 1


class Real:
    """A real server's clock cannot be moved."""

    seconds = 3

    def __init__(self, store):
        self.store = store

    def lapse(self):
        time.sleep(self.seconds + 0.1)


class Leading:
    """A leadership of another make: no election's record shows it."""

    def __init__(self, epoch):
        self.epoch = epoch

    def check(self):
        """It believes in itself."""


@pytest.fixture
def simulated(tmp_path):
    made = Simulated(AheadStore(tmp_path / "store.db"))
    yield made
    made.store.close()


@pytest.fixture(params=BOTH)
def world(request):
    if request.param == "sqlite":
        return request.getfixturevalue("simulated")
    return Real(request.getfixturevalue("aerospike_store"))


@pytest.fixture
def elect():
    """Makes a leadership on the store of a world; its lease outlasts every clock that is set forward."""
    elections = []

    def elected(world):
        election = LeaseElection(world.store, "sweeper", lease=86_400)
        elections.append(election)
        election.start()
        return Poll(low=0.005, high=0.05).until(SYSTEM, lambda: election.leadership, timeout=30)

    yield elected
    for election in elections:
        election.stop()


def registry_of(world, client="spark"):
    return QueueRegistry(world.store, client, farm_id="f")


def config(world, name="q", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = {"sweep_duration": world.seconds, "handler_timeout": world.seconds / 2}
        return QueueConfig(name, **{"retry": False, "shards": 4, "unsafe_limits": True} | times | options)


def abandon(world, registry, messages, name="q", **options):
    """A queue from which so many messages were received and never acknowledged, one sweep duration ago."""
    queue = registry.create(config(world, name, **options))
    ids = queue.publish_many(range(messages))
    while queue.receive(1000):
        pass
    world.lapse()
    return queue, ids


def comparable(report):
    shards = sorted(report.shards, key=lambda shard: (shard.queue, shard.kind, shard.shard))
    return sorted(report.queues), shards, sorted(report.failures), report.ok


@pytest.mark.long
def test_the_report_is_that_of_the_local_sweeper(spark, simulated, elect):
    here, there = (registry_of(simulated, client) for client in ("local", "spark"))
    queues = [abandon(simulated, registry, 40, name=name)[0] for registry in (here, there) for name in ("a", "b")]
    for queue in queues:
        queue.publish_many(range(10), key="k")  # a consumer holds these
        assert len(queue.receive(100)) == 10
    for registry in (here, there):
        registry.create(config(simulated, "idle"))
    election = SimpleNamespace(leadership=elect(simulated))
    local = Sweeper(here, election, parallelism=1).run_once()
    report = sweep_on(spark, there, election.leadership)
    assert (report.rehomed, report.epoch) == (80, election.leadership.epoch)
    assert comparable(report) == comparable(local)
    assert all(there.last_sweep(name).success > 0 for name in ("a", "b", "idle"))
    bins = [registry.records.read("a", "sweepPointers", "sweptCounter", "epoch") for registry in (here, there)]
    assert bins[0] == bins[1]


@pytest.mark.long
def test_every_abandoned_message_is_in_the_sideline(spark, world, elect):
    registry = registry_of(world)
    queue, ids = abandon(world, registry, 300)
    report = sweep_on(spark, registry, elect(world))
    assert report.ok
    assert report.rehomed >= 300
    assert {message.message_id for message in queue.sideline.peek(1000)} == set(ids)


@pytest.mark.long
def test_acknowledged_slots_are_passed_once_the_leader_has_known_their_mark_for_one_duration(spark, simulated, elect):
    registry, leadership = registry_of(simulated), elect(simulated)
    queue = registry.create(config(simulated))
    queue.publish_many(range(20))
    queue.ack_many(queue.receive(20))
    first = sweep_on(spark, registry, leadership)
    assert {shard.stop for shard in first.shards} == {Stop.YOUNG}
    assert sum(shard.marked for shard in first.shards) == 20
    simulated.lapse()
    second = sweep_on(spark, registry, leadership)
    assert (second.acked, {shard.stop for shard in second.shards}) == (20, {Stop.DRAINED})
    assert sweep_on(spark, registry, leadership).shards == ()


class Deposing(PolicyView):
    """A store in which another candidate takes the office while an executor sweeps its first batch."""

    def __init__(self, inner):
        super().__init__(inner, inner.policy)

    def __reduce__(self):
        return Deposing, (self.inner,)

    def _operate_many(self, updates):
        outcomes = self.inner._operate_many(updates)
        if len(updates) >= BATCH:  # the first of a shard also marks its pointers
            self.inner.operate(OFFICE, Add("fencing-ctr", 1), Put("lock-owner", "other"), Put("grant-id", "other"))
        return outcomes


@pytest.mark.long
def test_a_leader_deposed_in_the_middle_is_refused_on_every_executor(spark, world, elect):
    registry, leadership = registry_of(world), elect(world)
    abandon(world, registry, 4 * BATCH, shards=2)
    deposed = QueueRegistry(Deposing(world.store), "spark", farm_id="f")
    report = sweep_on(spark, deposed, leadership)
    # One batch of each of the two tasks may have been under way when the office changed hands.
    assert 0 < report.rehomed <= 2 * BATCH
    assert {shard.stop for shard in report.shards} == {Stop.DEPOSED}
    assert not report.ok
    assert "has ended" in report.failures[0][1]
    again = sweep_on(spark, registry, leadership)
    assert (again.rehomed, {shard.stop for shard in again.shards}) == (0, {Stop.DEPOSED})
    assert "has ended" in registry.last_sweep("q").error


@pytest.mark.long
def test_a_leadership_of_another_make_is_refused_where_a_later_epoch_has_swept(spark, simulated):
    registry = registry_of(simulated)
    queue, _ = abandon(simulated, registry, 20)
    registry.records.change(queue.config, Put("epoch", 9))
    report = sweep_on(spark, registry, Leading(8))
    assert (report.rehomed, {shard.stop for shard in report.shards}) == (0, {Stop.DEPOSED})
    assert sweep_on(spark, registry, Leading(9)).rehomed == 20


def test_a_leader_that_knows_that_it_was_deposed_starts_no_job(simulated, elect):
    registry, leadership = registry_of(simulated), elect(simulated)
    abandon(simulated, registry, 5)
    leadership.lost.set()
    report = sweep_on(None, registry, leadership)
    assert not report.ok
    assert "FENCED_OUT" in report.failures[0][1]


def test_without_work_there_is_no_job_and_the_success_is_noted(simulated, elect):
    registry = registry_of(simulated)
    registry.create(config(simulated, shards=64))
    assert sweep_on(None, registry, elect(simulated)).ok
    assert registry.last_sweep("q").success > 0


def test_a_damaged_record_fails_its_own_queue_and_no_other(simulated, monkeypatch):
    registry = registry_of(simulated)
    for name in ("damaged", "sound"):
        abandon(simulated, registry, 3, name, shards=1)
    registry.records.change(registry.get("damaged").config, Put("epoch", "one"))
    monkeypatch.setattr(sweep, "_run", lambda _spark, job, ranges: [one for part in ranges for one in job.sweep(part)])
    report = sweep_on(None, registry, Leading(1))
    assert set(report.queues) == {"damaged", "sound"}
    assert [(queue, "CORRUPT" in error and "epoch" in error) for queue, error in report.failures] == [("damaged", True)]
    assert registry.get("sound").depth().sideline == 3


def test_damaged_sweep_pointers_are_put_right_before_the_tasks_begin(simulated, monkeypatch):
    registry = registry_of(simulated)
    abandon(simulated, registry, 3, "q", shards=1)
    registry.records.change(registry.get("q").config, Put("sweepPointers", [0]))
    monkeypatch.setattr(sweep, "_run", lambda _spark, job, ranges: [one for part in ranges for one in job.sweep(part)])
    report = sweep_on(None, registry, Leading(1))
    assert (report.rehomed, [("sweepPointers" in error) for _, error in report.failures]) == (3, [True])
    assert sweep_on(None, registry, Leading(2)).ok


def test_a_report_that_a_queue_cannot_take_fails_that_queue_alone(simulated):
    registry = registry_of(simulated)
    queue = registry.create(config(simulated, shards=1))
    report = sweep._finished(
        sweep._sweeper(registry), 1, sweep.QueueSweep(queue, []), [ShardReport("q", SubqueueKind.MAIN, 7)]
    )
    assert report.failures == (("q", "KeyError((<SubqueueKind.MAIN: 'main'>, 7))"),)


def test_who_does_not_lead_sweeps_nothing():
    report = sweep_on(None, QueueRegistry(MemoryStore(), "c"), None)
    assert (report.led, report.queues) == (False, ())


def test_a_store_that_cannot_be_shipped_is_refused_before_any_call():
    store = MemoryStore()
    with pytest.raises(InvalidRequest, match="one process"):
        sweep_on(None, QueueRegistry(store, "c"), Leading(1))
    assert not store._records


# ---- the parts, without Spark


BEGUN = 7_000
"""The first slot of each range: what counts is how many there are."""


def tasks_of(shards, slots):
    return [
        ShardTask("c", "f", QueueConfig("q", retry=False), SubqueueKind.MAIN, n, 0, BEGUN, BEGUN + slots, 0, 0, 1)
        for n in range(shards)
    ]


def test_ranges_hold_about_one_batch_and_every_shard_once():
    for shards, slots, ranges in ((512, 10, 6), (3, 5000, 3), (1, 1, 1), (0, 1, 0)):
        found = sweep.ranges_of(tasks_of(shards, slots))
        assert len(found) == ranges
        assert [task.shard for part in found for task in part] == list(range(shards))


def test_a_task_that_spark_runs_again_goes_on_where_the_first_attempt_came_to():
    clock = ManualClock()
    store = MemoryStore(clock)
    registry = QueueRegistry(store, "c")
    queue = registry.create(QueueConfig("q", retry=False, shards=1))
    queue.publish_many(range(5))
    queue.receive(5)
    clock.advance(1201)
    sweeper = sweep._sweeper(registry)
    ((listed, bins),) = registry.listed()
    tasks = pickle.loads(pickle.dumps(tuple(sweeper.tasks(listed, bins, 3))))
    job = sweep.Job(store, 3, None)
    (first,) = job.sweep(tasks)
    (second,) = job.sweep(tasks)
    assert (first.rehomed, first.swept, first.stop) == (5, 5, Stop.DRAINED)
    assert (second.rehomed, second.swept, second.stop) == (0, 5, Stop.DRAINED)


def test_what_a_registry_is_remembered_by_does_not_keep_it():
    registry = QueueRegistry(MemoryStore(), "c")
    assert sweep._sweeper(registry) is sweep._sweeper(registry)
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None


def test_a_check_asks_the_store_before_every_batch():
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    registry = QueueRegistry(store, "c")
    queue = registry.create(QueueConfig("q", retry=False, shards=1))
    queue.publish_many(range(3000))
    while queue.receive(1000):
        pass
    clock.advance(1201)

    class Term:
        checks = 0

        def check(self):
            self.checks += 1
            if self.checks == 3:
                raise FencedOut("over")

    ((listed, bins),) = registry.listed()
    term = Term()
    (report,) = sweep.Job(store, 3, term).sweep(tuple(sweep._sweeper(registry).tasks(listed, bins, 3)))
    assert (term.checks, report.rehomed, report.stop) == (3, 2000, Stop.DEPOSED)


def test_a_group_that_was_being_dropped_as_its_process_died_is_dropped_by_the_sweep(simulated):
    registry = registry_of(simulated)
    group = registry.create(config(simulated)).group("g")
    record = registry.records.key(group.name)
    simulated.store.operate(record, Put("dropped", 1), repeatable=True)
    plans, report = sweep._plan(sweep._sweeper(registry), registry, Leading(1))
    assert [plan.queue.name for plan in plans] == ["q"]
    assert "q@g" in report.queues
    assert simulated.store.get(record) is None
