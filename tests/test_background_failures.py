"""No task in the background ends by an error that nobody expected: it pauses, goes on, and says so once a minute.

Each of these tests runs under a log handler that raises, as one that ships records to a service that is away.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from itertools import pairwise

import pytest

from latchwork.background import ERROR_BACKOFF, QUIET, FailureLog
from latchwork.coord import FencedLock, LeaseElection
from latchwork.errors import Misconfigured, OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.logs import Log
from latchwork.queue import (
    Consumer,
    Outbox,
    PagedQueue,
    QueueConfig,
    QueueRegistry,
    Shovel,
    ShovelConfig,
    Sweeper,
    Worker,
)
from latchwork.queue.sharded.upkeep.upkeep import Upkeep
from latchwork.seams import DIED, SYSTEM, Seams
from latchwork.store import MemoryStore
from latchwork.testing.clock import InlineClock, ManualClock

DEFECT = ValueError("zip() argument 2 is shorter than argument 1")
AWAY = Unavailable("the store is away")
FAILURES = pytest.mark.parametrize("failure", [AWAY, DEFECT], ids=["away", "defect"])


@pytest.fixture(autouse=True)
def shipper(caplog):
    """A log handler of the program's that raises each time, after the test's own has kept the record."""

    class Shipper(logging.Handler):
        def handle(self, record):
            if record.levelno >= (caplog.handler.level or logging.WARNING):
                caplog.handler.handle(record)
            raise OSError("the log shipper has no connection")

    handler, ours = Shipper(), logging.getLogger("latchwork")
    ours.addHandler(handler)
    yield
    ours.removeHandler(handler)


def made(store, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(store, "c").create(
            QueueConfig("q", **{"shards": 1, "unsafe_limits": True, "shovel": ShovelConfig(1), **options})
        )


def failing(failure):
    def fail(*_, **__):
        raise failure.with_traceback(None)  # else it grows by each raise, and so does the log

    return fail


def said(caplog, text):
    return [record for record in caplog.records if text in record.getMessage()]


# ---- what is said


def test_each_kind_of_failure_is_said_once_a_minute_with_how_many_came_in_between(caplog):
    clock = ManualClock()
    failure_log = FailureLog(clock, Log("latchwork.test"))
    for _ in range(130):
        failure_log.record(AWAY, "the work failed")
        failure_log.record(DEFECT, "the work failed")
        clock.advance(1)
    ours, defects = [
        [record.getMessage() for record in caplog.records if record.levelno == level]
        for level in (logging.WARNING, logging.ERROR)
    ]
    assert len(ours) == len(defects) == 3
    assert ours[0] == "the work failed (UNAVAILABLE): the store is away"
    assert ours[1].endswith(f"; {QUIET - 1:.0f} more since this was logged last")


def test_an_error_of_ours_is_one_line_and_a_defect_shows_where_it_was_raised(caplog):
    failure_log = FailureLog(ManualClock(), Log("latchwork.test"))
    for failure in (AWAY, OutcomeUnknown("no reply"), Misconfigured("no such namespace"), DEFECT, KeyError("another")):
        failure_log.record(failure, "the work failed")
    first, second = caplog.records
    assert (first.levelname, first.exc_info) == ("WARNING", None)
    assert (second.levelname, second.exc_info[1]) == ("ERROR", DEFECT)


# ---- consumers


class Pauses(Seams):
    """The real world, in which the pauses of a test's choice are noted and do not last."""

    def __init__(self):
        self.drawn = []

    def uniform(self, low, high):
        self.drawn.append((low + high) / 2)
        return 0.001


def eventually(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


@FAILURES
def test_a_worker_outlives_whatever_a_store_raises_and_pauses_longer_each_time(failure, caplog):
    caplog.set_level(logging.INFO, "latchwork.worker")
    seams = Pauses()
    queue = made(MemoryStore(seams=seams))
    receive, asked, seen = queue.await_messages, [], []

    def fails(*given, **options):
        asked.append(given)
        if len(asked) <= 12:
            raise failure
        return receive(*given, **options)

    queue.await_messages = fails
    queue.publish("a")
    consumer = Consumer(queue, lambda delivery: seen.append(delivery.payload), concurrency=1).start()
    try:
        eventually(lambda: seen == ["a"])
    finally:
        consumer.stop()
    assert consumer.stats["troubles"] == 12
    assert len(said(caplog, "has lost the store" if failure is AWAY else "met an error")) == 1
    assert len(said(caplog, "has the store back")) == (failure is AWAY)
    longer = [ERROR_BACKOFF.low * 2**failures for failures in range(5)]
    assert [pause for pause in seams.drawn if pause in longer][: len(longer)] == longer
    assert max(seams.drawn) == ERROR_BACKOFF.high


def test_a_thread_that_an_exception_ended_is_remembered_by_its_name_and_a_child_forgets_it(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    SYSTEM.spawn(failing(SystemExit()), "latchwork-test-dies").join(10)
    try:
        assert DIED["latchwork-test-dies"] == "SystemExit"
        child = os.fork()
        if child == 0:
            os._exit(len(DIED))
        assert os.waitpid(child, 0)[1] == 0
    finally:
        DIED.clear()


def test_a_worker_that_ends_however_it_does_is_replaced(consumers_stopped, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    queue, seen, left = made(MemoryStore()), [], [3]
    consumer = consumers_stopped(Consumer(queue, lambda delivery: seen.append(delivery.payload), concurrency=1))

    def pause(*_):
        left[0] -= 1
        raise SystemExit  # as a log handler may that ends the program

    receive = queue.await_messages
    monkeypatch.setattr(queue, "await_messages", lambda *a, **o: failing(DEFECT)() if left[0] else receive(*a, **o))
    monkeypatch.setattr(consumer._state, "pause", pause)
    queue.publish("a")
    consumer.start()
    eventually(lambda: seen == ["a"])
    assert consumer._workers == 1
    consumer.stop(0)
    DIED.clear()


def test_no_worker_ends_and_none_is_started_in_its_place_while_everything_fails(consumers_stopped, monkeypatch):
    started = []

    class Counting(Pauses):
        def spawn(self, run, name):
            started.append(name)
            return super().spawn(run, name)

    queue = made(MemoryStore(seams=Counting()))
    monkeypatch.setattr(queue, "await_messages", failing(DEFECT))
    consumer = consumers_stopped(Consumer(queue, print, concurrency=2))
    consumer.start()
    eventually(lambda: consumer.stats["troubles"] > 50)
    assert [name for name in started if "worker" in name] == ["q-worker-0", "q-worker-1"]
    assert consumer._workers == 2


@pytest.fixture
def consumers_stopped():
    made = []
    yield lambda consumer: made.append(consumer) or consumer
    for consumer in made:
        consumer.stop(0)


@FAILURES
def test_workers_are_started_though_the_settings_cannot_be_read(consumers_stopped, monkeypatch, caplog, failure):
    queue, seen = made(MemoryStore()), []
    queue.publish("a")

    def fails_for_the_supervisor():
        if threading.current_thread().name.endswith("-supervisor"):
            raise failure

    monkeypatch.setattr(queue.registry, "refresh_if_due", fails_for_the_supervisor)
    consumers_stopped(Consumer(queue, lambda delivery: seen.append(delivery.payload))).start()
    eventually(lambda: seen == ["a"])
    assert len(said(caplog, "met an error")) == 1


# ---- upkeep


@FAILURES
def test_a_shovel_that_fails_for_ten_minutes_goes_on_and_says_so_once_a_minute(monkeypatch, caplog, failure):
    clock = InlineClock()
    queue = made(MemoryStore(clock))
    queue.publish("a")
    queue.receive()[0].nack()
    shovel, passes = Shovel(queue), []

    def fails():
        passes.append(clock.monotonic())
        raise failure.with_traceback(None)

    monkeypatch.setattr(shovel, "_pass", fails)
    monkeypatch.setattr(queue.registry, "refresh_if_due", failing(failure))
    clock.at(600, shovel._stop.set)
    shovel.start()
    assert len(said(caplog, "the shovel of q failed")) in (9, 10, 11)
    assert max(later - earlier for earlier, later in pairwise(passes)) < ERROR_BACKOFF.high + 5
    monkeypatch.undo()
    shovel._stop.clear()
    clock.at(clock.monotonic() + 10, shovel._stop.set)
    shovel._run()
    assert [delivery.payload for delivery in queue.receive()] == ["a"]


class Leads:
    """An election that this process has won."""

    def __init__(self):
        self.leadership, self.epoch = self, 1

    def check(self):
        """It leads."""


@FAILURES
def test_a_sweeper_that_fails_for_ten_minutes_goes_on_and_says_so_once_a_minute(monkeypatch, caplog, failure):
    clock = InlineClock()
    queue = made(MemoryStore(clock))
    sweeper = Sweeper(queue.registry, Leads(), initial_delay=0, interval=0.01)
    monkeypatch.setattr(queue.registry, "scan", failing(failure))
    clock.at(600, sweeper._stop.set)
    sweeper.start()
    records = said(caplog, "the sweep failed")
    assert len(records) in (9, 10, 11)
    assert all(bool(record.exc_info) is (failure is DEFECT) for record in records)
    assert len(clock.slept) < 200, "it pauses longer each time"


def test_a_sweep_of_which_a_part_fails_again_and_again_says_so_once_a_minute(monkeypatch, caplog):
    clock = InlineClock()
    queue = made(MemoryStore(clock))
    sweeper = Sweeper(queue.registry, Leads(), initial_delay=0, interval=1)
    monkeypatch.setattr(sweeper, "tasks", failing(AWAY))
    clock.at(600, sweeper._stop.set)
    sweeper.start()
    assert len(said(caplog, "the store is away")) in (9, 10, 11)


@FAILURES
def test_an_outbox_that_cannot_forward_for_ten_minutes_goes_on_and_says_so_once_a_minute(
    tmp_path, monkeypatch, caplog, failure
):
    clock = InlineClock()
    queue = made(MemoryStore(clock))
    with PagedQueue.open(tmp_path, "out") as pages:
        outbox = Outbox(pages, queue)
        outbox.put("a")
        monkeypatch.setattr("latchwork.queue.outbox.outbox.publish", failing(failure))
        clock.at(600, outbox._background.stopping.set)
        outbox.start()
        assert len(said(caplog, "could not forward")) in (9, 10, 11)
        assert outbox.failure is failure
        monkeypatch.undo()
        assert outbox.forward() == 1


class Hand(ManualClock):
    """What is started in the background is kept, and runs when the test says so."""

    def __init__(self):
        super().__init__()
        self.work = {}

    def spawn(self, run, name):
        self.work[name.rsplit("-", 1)[0]] = run
        return self

    def join(self, timeout=None):
        """It has ended."""

    def is_alive(self):
        return False


class Term:
    """A term of office that lasts until the test ends it."""

    def __init__(self, clock):
        self.lost = clock.event()

    def check(self):
        """It leads."""


@pytest.mark.long
@FAILURES
def test_a_duty_of_the_upkeep_that_fails_for_an_hour_goes_on_and_says_so_once_a_minute(caplog, failure):
    clock = InlineClock()
    upkeep, term, done = Upkeep(made(MemoryStore(clock)).registry), Term(clock), []

    class Duty:
        def run(self, _):
            done.append(clock.monotonic())
            raise failure

    clock.at(3600, term.lost.set)
    upkeep._perform(Duty(), term)
    assert len(said(caplog, "upkeep: duty failed")) in range(30, 62)
    assert max(later - earlier for earlier, later in pairwise(done)) <= 90


@FAILURES
def test_a_pass_of_one_queue_that_fails_leaves_those_of_the_others(monkeypatch, caplog, failure):
    clock = InlineClock()
    queue = made(MemoryStore(clock))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = queue.registry.create(QueueConfig("other", shards=1, shovel=ShovelConfig(1), unsafe_limits=True))
    passes, term = [], Term(clock)

    def run_once(shovel, *, ends):
        passes.append(shovel.queue.name)
        raise failure.with_traceback(None)

    monkeypatch.setattr(Shovel, "run_once", run_once)
    upkeep = Upkeep(queue.registry)
    clock.at(120, term.lost.set)
    upkeep._perform(upkeep._duties[1], term)
    assert passes.count("q") == passes.count(other.name) > 100
    assert len(said(caplog, "is tried again")) in (2, 3)


@FAILURES
def test_a_worker_divides_its_threads_again_after_whatever_went_wrong(monkeypatch, caplog, failure):
    clock = Hand()
    queue = made(MemoryStore(clock))
    worker, allotted = Worker(queue.registry, upkeep=False), []
    worker.handler("q", start_at=5)(print)
    worker.consumers = {"q": Consumer(queue, print, upkeep=False)}
    monkeypatch.setattr(worker.consumers["q"].queue.pointers, "states", failing(failure))

    def allot(opened):
        allotted.append(dict(opened))
        raise failure.with_traceback(None)

    monkeypatch.setattr(worker, "_allot", allot)
    clock.at(100, worker._stopping.set)
    worker._divide_threads()
    assert len(allotted) > 300
    assert len(caplog.records) in (1, 2, 3, 4)


# ---- leases


@FAILURES
def test_a_lease_is_renewed_again_after_whatever_a_renewal_raised(monkeypatch, caplog, failure):
    clock = Hand()
    grant = FencedLock(MemoryStore(clock), "lock", lease=9).acquire(keep_alive=True)
    renew = grant._leased.renew
    monkeypatch.setattr(grant._leased, "renew", failing(failure))
    clock.at(6, lambda: monkeypatch.setattr(grant._leased, "renew", renew))
    clock.at(60, grant.give_up)
    clock.work["latchwork-lease"]()
    assert 60 <= clock.monotonic() < 64, "it was not lost before"
    assert len(said(caplog, "could not be renewed")) == 1


@FAILURES
def test_a_candidate_stands_again_after_whatever_its_store_raised(monkeypatch, caplog, failure):
    clock = Hand()
    election, terms = LeaseElection(MemoryStore(clock), "office", candidate="me"), []

    def lead(leadership):
        terms.append(leadership.epoch)
        election.stop()

    elect = election._elect
    monkeypatch.setattr(election, "_elect", failing(failure))
    clock.at(300, lambda: monkeypatch.setattr(election, "_elect", elect))
    election.start(lead)
    clock.work["latchwork-election"]()
    assert len(terms) == 1
    assert len(said(caplog, "tries again in")) in (5, 6)


def test_who_waits_in_vain_to_be_elected_hears_what_the_campaign_failed_with_last(monkeypatch):
    clock = Hand()
    election = LeaseElection(MemoryStore(clock), "office", candidate="me")
    monkeypatch.setattr(election, "_elect", failing(DEFECT))
    clock.at(5, election.stop)
    election.start()
    clock.work["latchwork-election"]()
    with pytest.raises(WaitTimeout, match="zip"):
        election._serve(print, 1)


@FAILURES
def test_a_candidate_reports_to_the_roster_again_after_whatever_its_store_raised(monkeypatch, caplog, failure):
    clock = Hand()
    election = LeaseElection(MemoryStore(clock), "office", candidate="me")
    election._enter(stop := clock.event())
    monkeypatch.setattr(election._candidates, "report", failing(failure))
    clock.at(200, monkeypatch.undo)
    seen = []
    clock.at(300, lambda: seen.extend(election.contenders()))
    clock.at(300, stop.set)
    clock.work["latchwork-candidates"]()
    assert seen == ["me"]
    assert len(said(caplog, "its entry among the candidates could not be updated")) in (3, 4)


def test_the_traceback_of_an_error_of_ours_is_there_for_who_debugs(caplog):
    failure_log = FailureLog(ManualClock(), Log("latchwork.test"))
    with caplog.at_level(logging.DEBUG, "latchwork.test"):
        failure_log.record(AWAY, "the sweep failed")
    line, debugging = caplog.records
    assert (line.levelno, line.exc_info) == (logging.WARNING, None)
    assert (debugging.levelno, debugging.exc_info[1]) == (logging.DEBUG, AWAY)
