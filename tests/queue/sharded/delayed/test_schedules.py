"""Schedules: which ticks there are, and that each is published once."""

from __future__ import annotations

import warnings
from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import islice, pairwise

import pytest

from latchwork.errors import Corrupt, InvalidRequest, LatchworkError, NotFound, OutcomeUnknown
from latchwork.queue import Publish, QueueConfig, QueueRegistry, Schedule
from latchwork.queue.sharded.delayed.schedules import MAX_TICKS, ScheduleRecords
from latchwork.queue.sharded.upkeep.scheduling import Scheduling
from latchwork.store import Key, MapPut, MapRemove, MemoryStore, Put, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore
from latchwork.testing.stores import Fault as Struck

MINUTE = timedelta(minutes=1)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def ticks(schedule, after, n=3):
    return [tick.isoformat()[:19] for tick in islice(schedule.ticks(at(after)), n)]


def test_ticks_of_an_interval_are_its_multiples():
    schedule = Schedule("s", "q", every=timedelta(minutes=20))
    assert ticks(schedule, "2026-01-01T00:05:00") == [
        "2026-01-01T00:20:00", "2026-01-01T00:40:00", "2026-01-01T01:00:00",
    ]  # fmt: skip
    assert ticks(schedule, "2026-01-01T00:20:00", 1) == ["2026-01-01T00:40:00"]


def test_ticks_of_a_cron_line_are_those_of_its_time_zone():
    schedule = Schedule("s", "q", cron="0 3 * * *", tz="Europe/Berlin")
    assert ticks(schedule, "2026-01-01T00:00:00", 2) == ["2026-01-01T02:00:00", "2026-01-02T02:00:00"]
    assert ticks(schedule, "2026-07-01T00:00:00", 1) == ["2026-07-01T01:00:00"]


def test_in_the_night_that_lacks_an_hour_a_job_runs_once_right_after_it():
    schedule = Schedule("s", "q", cron="30 2 * * *", tz="Europe/Berlin")
    assert ticks(schedule, "2026-03-28T12:00:00", 2) == ["2026-03-29T01:00:00", "2026-03-30T00:30:00"]


def test_in_the_night_that_has_an_hour_twice_a_job_runs_once_in_the_first():
    schedule = Schedule("s", "q", cron="30 2 * * *", tz="Europe/Berlin")
    assert ticks(schedule, "2026-10-24T12:00:00", 2) == ["2026-10-25T00:30:00", "2026-10-26T01:30:00"]


def test_a_job_each_half_hour_runs_by_elapsed_time_through_both_nights():
    schedule = Schedule("s", "q", cron="*/30 * * * *", tz="Europe/Berlin")
    for night in ("2026-03-29T00:00:00", "2026-10-25T00:00:00"):
        found = list(islice(schedule.ticks(at(night)), 8))
        assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=30)}


def test_a_step_without_a_star_is_fixed_times_that_run_once_where_an_hour_comes_twice():
    schedule = Schedule("s", "q", cron="5-55/25 2 * * *", tz="Europe/Berlin")
    first_hour = ["2026-10-25T00:05:00", "2026-10-25T00:30:00", "2026-10-25T00:55:00"]
    assert ticks(schedule, "2026-10-24T12:00:00", 4) == [*first_hour, "2026-10-26T01:05:00"]
    starred = Schedule("s", "q", cron="*/25 2 * * *", tz="Europe/Berlin")
    both_hours = ["2026-10-25T00:00:00", "2026-10-25T00:25:00", "2026-10-25T00:50:00", "2026-10-25T01:00:00"]
    assert ticks(starred, "2026-10-24T12:00:00", 4) == both_hours


@pytest.mark.parametrize(
    ("missed", "late", "published"),
    [
        ("skip", 30, 1), ("skip", 90, 0), ("last", 30, 1), ("last", 90, 1), ("all", 30, 10), ("all", 90, 10),
    ],
)  # fmt: skip
def test_what_happens_to_ticks_that_nobody_published_in_time(missed, late, published):
    schedule = Schedule("s", "q", every=timedelta(hours=1), missed=missed)
    last = at("2026-01-01T00:00:00")
    newest = at("2026-01-01T10:00:00")
    found, settled = schedule.due(last, newest + timedelta(seconds=late))
    assert len(found) == published
    assert settled == newest, "and none of them is looked at again"
    assert found[-1:] in ([], [newest])


def test_a_pass_looks_at_so_many_ticks_and_the_next_one_goes_on():
    schedule = Schedule("s", "q", every=timedelta(seconds=1), missed="all")
    begin = at("2026-01-01T00:00:00")
    found, settled = schedule.due(begin, begin + timedelta(days=1))
    assert len(found) == MAX_TICKS
    assert schedule.due(settled, begin + timedelta(days=1))[0][0] == settled + timedelta(seconds=1)


@pytest.mark.parametrize("missed", ["skip", "last"])
@pytest.mark.parametrize(
    ("rule", "away"),
    [({"every": timedelta(seconds=1)}, timedelta(days=30)), ({"cron": "* * * * *"}, timedelta(days=3))],
)
def test_of_more_missed_ticks_than_a_pass_looks_at_the_newest_alone_is_published(missed, rule, away):
    schedule = Schedule("s", "q", missed=missed, **rule)
    settled = at("2026-01-01T00:00:00")
    now, found = settled + away, []
    while (step := schedule.due(settled, now))[1] != settled:
        found += step[0]
        settled = step[1]
    assert found == [now]


def test_a_server_clock_that_was_set_back_does_not_silence_a_schedule():
    schedule = Schedule("s", "q", every=MINUTE)
    now = at("2026-01-01T00:00:30")
    found, settled = schedule.due(now + timedelta(hours=1), now)
    assert (found, settled) == ([], now)


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({"every": 300}, "every 5 min"),
        ({"cron": "0 3 * * *", "tz": "Europe/Berlin"}, "At 03:00 every day, Europe/Berlin"),
        ({"cron": "30 12 * * *"}, "At 12:30 every day, UTC"),
    ],
)
def test_a_schedule_says_in_words_when_it_ticks(when, words):
    assert Schedule("s", "q", **when).in_words == words


def test_an_interval_is_given_in_seconds_or_as_a_timedelta():
    assert Schedule("one", "q", every=60) == Schedule("one", "q", every=MINUTE)
    assert Schedule("one", "q", every=60.0).to_json() == Schedule("one", "q", every=MINUTE).to_json()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"every": MINUTE, "cron": "* * * * *"}, "either every= or cron="),
        ({}, "either every= or cron="),
        ({"every": True}, "timedelta"),
        ({"every": 1.5}, "whole seconds"),
        ({"every": timedelta(milliseconds=1500)}, "whole seconds"),
        ({"every": timedelta(0)}, "1 s to 366 days"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 25 * * *"}, "Bad hour"),
        ({"cron": "0 0 * 13 *"}, "Bad month"),
        ({"cron": "* * *"}, "five fields"),
        ({"cron": 7}, "five fields"),
        ({"cron": "* * * * * *"}, "five fields"),
        ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "time zone"),
        ({"cron": "* * * * *", "tz": "../etc/passwd"}, "time zone"),
        ({"cron": "* * * * *", "tz": 3}, "time zone"),
        *(
            ({"cron": "* * * * *", "tz": zone}, "time zone")
            for zone in ("localtime", "posixrules", "right/UTC", "/UTC")
        ),
        ({"cron": ",".join(["0"] * 400_000) + " * * * *"}, "at most 1000 characters"),
        ({"every": MINUTE, "payload": {1: "a", "1": "b"}}, "two keys"),
        ({"every": MINUTE, "tz": "z" * 101}, "at most 100 characters"),
        ({"every": MINUTE, "missed": "some"}, "skip, last, all"),
        ({"every": MINUTE, "payload": {1, 2}}, "not JSON"),
        ({"every": MINUTE, "payload": float("nan")}, "not JSON"),
        ({"every": MINUTE, "payload": "x" * 70_000}, "70002 bytes"),
        ({"every": MINUTE, "name": ""}, "name"),
        ({"every": MINUTE, "name": "n" * 101}, "101 characters"),
        ({"every": MINUTE, "queue": ""}, "queue"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_and_says_why(wrong, match):
    with pytest.raises(InvalidRequest, match=match):
        Schedule(**{"name": "s", "queue": "q", **wrong})


def test_a_payload_that_the_queue_would_refuse_at_each_tick_is_refused_at_once():
    registry = registry_on(MemoryStore(), codec=dict[str, int])
    with pytest.raises(InvalidRequest, match="this queue takes"):
        registry.schedule(Schedule("s", "q", {"n": "seven"}, every=MINUTE))
    assert registry.schedules() == []


def test_schedules_that_would_not_fit_into_their_record_are_refused_with_the_limit():
    registry = registry_on(MemoryStore())
    for number in range(15):
        registry.schedule(Schedule(f"s{number}", "q", "x" * 65_000, every=MINUTE))
    with pytest.raises(InvalidRequest, match="at most 1000000"):
        registry.schedule(Schedule("s15", "q", "x" * 65_000, every=MINUTE))
    registry.schedule(Schedule("s0", "q", every=MINUTE))  # one that takes the place of another counts once


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(InvalidRequest, match="no time zone"):
        next(Schedule("s", "q", every=MINUTE).ticks(datetime(2026, 1, 1)))  # noqa: DTZ001 - what is refused


# ---- kept in the store


def registry_on(store, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry = QueueRegistry(store, "c", farm_id="f")
        registry.create(QueueConfig("q", shards=1, **options))
    return registry


@pytest.mark.parametrize("backend", ["memory", "sqlite", "aerospike"])
def test_schedules_are_put_replaced_listed_and_removed(backend, request, tmp_path):
    store = {
        "memory": MemoryStore, "sqlite": lambda: SQLiteStore(tmp_path / "s.db", synchronous="off"),
        "aerospike": lambda: request.getfixturevalue("aerospike_store"),
    }[backend]()  # fmt: skip
    registry = registry_on(store)
    assert registry.schedules() == []
    one = Schedule("one", "q", {"n": 1}, cron="0 3 * * 1", tz="Europe/Berlin", missed="skip")
    registry.schedule(one)
    registry.schedule(Schedule("two", "q", every=MINUTE))
    assert registry.schedules() == [one, Schedule("two", "q", every=MINUTE)]
    registry.schedule(Schedule("one", "q", {"n": 2}, every=MINUTE))
    assert registry.schedules()[0].payload == {"n": 2}
    assert registry.pause_schedule("one", by="anna")
    assert not registry.pause_schedule("one", by="ben")
    assert [(one.schedule.name, one.paused_by) for one in registry.schedule_states()] == [("one", "anna"), ("two", "")]
    assert registry.resume_schedule("one")
    assert not registry.resume_schedule("one")
    message = registry.trigger_schedule("two")
    assert [one.message_id for one in registry.get("q").peek()] == [message]
    registry.pause_schedule("one")
    registry.unschedule("one")
    for gone in (registry.unschedule, registry.pause_schedule, registry.resume_schedule, registry.trigger_schedule):
        with pytest.raises(NotFound, match="'one'"):
            gone("one")
    assert [schedule.name for schedule in registry.schedules()] == ["two"]
    assert [queue.name for queue in registry.queues(active=None)] == ["q"], "they are no queue"


def test_a_schedule_for_a_queue_that_is_not_there_or_takes_bytes_is_refused():
    registry = registry_on(MemoryStore())
    with pytest.raises(NotFound, match="nowhere"):
        registry.schedule(Schedule("s", "nowhere", every=MINUTE))
    registry.create(QueueConfig("raw", codec="bytes"))
    with pytest.raises(InvalidRequest, match="takes bytes"):
        registry.schedule(Schedule("s", "raw", every=MINUTE))
    with pytest.raises(InvalidRequest, match="Schedule"):
        registry.schedule("s")


def test_neither_a_schedule_nor_a_batch_publishes_to_a_group_alone():
    registry = registry_on(MemoryStore())
    queue = registry.get("q")
    queue.group("audit")
    with pytest.raises(InvalidRequest, match="is a group: publish to the queue 'q'"):
        registry.schedule(Schedule("s", "q@audit", every=MINUTE))
    assert registry.schedules() == []
    with pytest.raises(InvalidRequest, match="is a group: publish to the queue 'q'"):
        queue.batch("night", then=Publish("done", queue="q@audit"))
    assert queue.list_batches() == []


# ---- published


class Term:
    def check(self):
        """It never ends."""


class Farms:
    def __init__(self, *registries):
        self.found = list(registries)

    def registries(self):
        return self.found


def published(queue):
    return [delivery.message_id for delivery in queue.receive(1000)]


def test_each_tick_is_published_once_and_a_damaged_schedule_stops_no_other(caplog):
    clock = ManualClock()
    registry = registry_on(MemoryStore(clock))
    duty = Scheduling(Farms(registry))
    registry.schedule(Schedule("s", "q", "x", every=MINUTE))
    registry.schedule(Schedule("a", "q", "y", every=timedelta(hours=1)))
    key = ScheduleRecords(registry.store, "c", "f").key
    registry.store.operate(key, MapPut("specs", "a", "{no json"), repeatable=True)
    clock.advance(61)
    for _ in range(3):
        assert 0 < duty.run(Term()) <= 15
    found = published(registry.get("q"))
    assert len(found) == len(set(found)) == 1
    assert caplog.text.count("'a' was not published") == 1, "for a minute"
    with pytest.raises(Corrupt, match="'a'"):
        registry.schedules()


def test_a_damaged_record_of_schedules_stops_no_other_farm(caplog):
    clock = ManualClock()
    store = MemoryStore(clock)
    farms = [registry_on(store), QueueRegistry(store, "c", farm_id="g")]
    farms[1].create(QueueConfig("q", shards=1))
    for registry in farms:
        registry.schedule(Schedule("s", "q", "x", every=MINUTE))
    store.operate(ScheduleRecords(store, "c", "f").key, Put("specs", "no map"))
    duty = Scheduling(Farms(*farms))
    clock.advance(61)
    for _ in range(3):
        assert 0 < duty.run(Term()) <= 2
    assert len(published(farms[1].get("q"))) == 1
    assert caplog.text.count("the schedules could not be read") == 1, "for a minute"
    with pytest.raises(Corrupt, match="put the schedules again"):
        farms[0].schedules()


def test_a_defect_that_one_schedule_meets_stops_no_other(caplog, monkeypatch):
    clock = ManualClock()
    registry = registry_on(MemoryStore(clock))
    for name in "ab":
        registry.schedule(Schedule(name, "q", name, every=MINUTE))
    due = Schedule.due
    monkeypatch.setattr(Schedule, "due", lambda self, *times: 1 / 0 if self.name == "a" else due(self, *times))
    duty = Scheduling(Farms(registry))
    clock.advance(61)
    for _ in range(3):
        duty.run(Term())
    assert len(published(registry.get("q"))) == 1
    assert caplog.text.count("'a' was not published") == 1, "for a minute"


@pytest.mark.parametrize("damage", [MapRemove("last", ("s",)), MapPut("last", "s", "soon")], ids=["lost", "damaged"])
def test_a_schedule_whose_last_tick_was_lost_or_is_damaged_publishes_its_next_one(damage):
    clock = ManualClock()
    registry = registry_on(MemoryStore(clock))
    records = ScheduleRecords(registry.store, "c", "f")
    registry.schedule(Schedule("s", "q", every=MINUTE))
    registry.schedule(Schedule("t", "q", every=MINUTE))
    registry.store.operate(records.key, damage, repeatable=True)
    duty = Scheduling(Farms(registry))
    for _ in range(12):
        duty.run(Term())
        clock.advance(10)
    found = Counter(name.partition("@")[0] for name in published(registry.get("q")))
    assert found["s"] == found["t"] == 2
    assert not records.begin("s", 1)
    assert not records.begin("unknown", 1)


def test_a_tick_whose_publishing_was_not_noted_is_not_published_again():
    clock = ManualClock()
    registry = registry_on(MemoryStore(clock))
    registry.schedule(Schedule("s", "q", every=MINUTE))
    records = ScheduleRecords(registry.store, "c", "f")
    before = records.read()[1]["s"]
    clock.advance(60)
    Scheduling(Farms(registry)).run(Term())
    assert records.settle("s", records.read()[1]["s"], before)
    Scheduling(Farms(registry)).run(Term())
    assert len(published(registry.get("q"))) == 1


def test_the_ticks_of_a_queue_that_is_closed_come_once_it_takes_messages_again():
    clock = ManualClock()
    registry = registry_on(MemoryStore(clock))
    registry.schedule(Schedule("s", "q", every=MINUTE, missed="all"))
    registry.deactivate("q")
    duty = Scheduling(Farms(registry))
    clock.advance(120)
    duty.run(Term())
    registry.create(registry.get("q").config)
    assert published(registry.get("q")) == []
    clock.advance(60)
    duty.run(Term())
    assert len(set(published(registry.get("q")))) == 3


def test_passes_follow_at_once_while_a_tick_is_due():
    clock = ManualClock()
    registry = registry_on(MemoryStore(clock))
    registry.schedule(Schedule("s", "q", cron="* * * * *"))
    clock.advance(3 * MAX_TICKS * 60)
    duty = Scheduling(Farms(registry))
    pauses = [duty.run(Term()) for _ in range(4)]
    assert [pause < 1 for pause in pauses] == [True, True, False, False], "two only count the ticks that were missed"
    assert len(published(registry.get("q"))) == 1


def test_a_pass_in_which_nothing_is_due_is_one_read():
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    registry = registry_on(store)
    registry.schedule(Schedule("s", "q", every=MINUTE))
    clock.advance(61)
    duty = Scheduling(Farms(registry))
    duty.run(Term())
    calls = store.total
    duty.run(Term())
    assert store.total == calls + 1


@pytest.mark.parametrize("letter", ["я", "語", "\N{RINGED PLANET}"])
def test_a_schedule_with_the_longest_name_is_published(letter):
    clock = ManualClock()
    registry = registry_on(MemoryStore(clock))
    registry.schedule(Schedule(letter * 100, "q", every=MINUTE))
    clock.advance(60)
    Scheduling(Farms(registry)).run(Term())
    assert len(published(registry.get("q"))) == 1


def test_the_record_of_schedules_is_read_whatever_is_in_it():
    store = MemoryStore()
    records = ScheduleRecords(store, "c", "f")
    assert records.read() == ({}, {})
    assert records.stored()[:4] == ({}, {}, {}, {})
    assert not records.settle("s", 1, 2)
    assert records.key == Key("f_c_ignis_queues", "latchwork-schedules")


@pytest.mark.parametrize("then", ["replaced", "removed"])
def test_a_request_of_schedule_that_arrives_after_its_repeat_puts_no_old_schedule_back(then):
    late = FaultyStore(MemoryStore(clock := ManualClock()), {2: Struck("late", after=None)})
    old, new = Schedule("s", "q", every=60), Schedule("s", "q", every=120)
    ScheduleRecords(late, "c", "f").put(old)
    assert late.pending == 1
    others = ScheduleRecords(late.inner, "c", "f")
    others.put(new) if then == "replaced" else others.remove("s")
    clock.advance(1)
    before = others.read()
    late.deliver()
    assert others.read() == before


def test_a_request_of_unschedule_that_arrives_after_its_repeat_removes_no_new_schedule():
    late = FaultyStore(MemoryStore(), {1: Struck("late", after=None)})
    others = ScheduleRecords(late.inner, "c", "f")
    others.put(Schedule("s", "q", every=60))
    ScheduleRecords(late, "c", "f").remove("s")
    others.put(Schedule("s", "q", every=120))
    before = others.read()
    assert late.pending == 1
    late.deliver()
    assert others.read() == before
    assert set(before[0]) == {"s"}


@pytest.mark.parametrize("fault", ["reply_lost", "request_lost", "late"])
def test_a_schedule_that_was_not_there_is_not_found_although_a_reply_was_lost(fault):
    lossy = FaultyStore(MemoryStore(), {1: fault})
    ScheduleRecords(lossy.inner, "c", "f").put(Schedule("other", "q", every=60))
    with pytest.raises(NotFound):
        ScheduleRecords(lossy, "c", "f").remove("s")
    ScheduleRecords(FaultyStore(lossy.inner, {1: fault}), "c", "f").remove("other")


# ---- pause, resume, trigger


def waiting(queue):
    return [message.message_id for message in queue.peek(1_000)]


@pytest.fixture(params=["memory", "sqlite"])
def clocked(request, tmp_path):
    clock = ManualClock()
    store = MemoryStore(clock) if request.param == "memory" else SQLiteStore(tmp_path / "s.db", seams=clock)
    yield store, clock
    store.close()


def test_a_paused_schedule_publishes_nothing_and_begins_again_with_the_tick_after_the_resume(clocked):
    store, clock = clocked
    registry = QueueRegistry(store, "shop", farm_id="f")
    queue, duty = registry.create(QueueConfig("q", shards=1)), Scheduling(Farms(registry))
    registry.schedule(Schedule("s", "q", "tick", every=60, missed="all"))
    assert registry.pause_schedule("s", by="anna")
    assert not registry.pause_schedule("s", by="ben"), "who was first stays"
    (state,) = registry.schedule_states()
    assert (state.paused_by, state.paused is not None, state.overdue()) == ("anna", True, 0)
    for _ in range(5):
        clock.advance(60)
        duty.run(Term())
    assert waiting(queue) == []
    assert registry.resume_schedule("s")
    assert not registry.resume_schedule("s")
    assert registry.schedule_states()[0].paused is None
    duty.run(Term())
    assert waiting(queue) == [], "what was due in between is never published"
    clock.advance(60)
    duty.run(Term())
    assert len(waiting(queue)) == 1


def test_a_deploy_that_puts_an_equal_schedule_again_loses_no_tick_and_another_one_begins_then(clocked):
    store, clock = clocked
    registry = QueueRegistry(store, "shop", farm_id="f")
    queue, duty = registry.create(QueueConfig("q", shards=1)), Scheduling(Farms(registry))
    registry.schedule(Schedule("s", "q", "tick", every=60))
    clock.advance(60)  # no worker runs
    registry.schedule(Schedule("s", "q", "tick", every=60))
    duty.run(Term())
    assert len(waiting(queue)) == 1
    clock.advance(60)
    registry.schedule(Schedule("s", "q", "another", every=60))
    duty.run(Term())
    assert len(waiting(queue)) == 1


def test_a_pause_outlives_a_deploy_that_puts_the_schedule_again_and_ends_with_it(clocked):
    store, _ = clocked
    registry = QueueRegistry(store, "shop", farm_id="f")
    registry.create(QueueConfig("q", shards=1))
    registry.schedule(Schedule("s", "q", every=60))
    registry.pause_schedule("s")
    registry.schedule(Schedule("s", "q", every=30))
    assert registry.schedule_states()[0].paused is not None
    registry.unschedule("s")
    registry.schedule(Schedule("s", "q", every=30))
    assert registry.schedule_states()[0].paused is None
    for verb in (registry.pause_schedule, registry.resume_schedule, registry.trigger_schedule):
        with pytest.raises(NotFound, match="absent"):
            verb("absent")
        with pytest.raises(InvalidRequest):
            verb("")
    QueueRegistry(store, "none", farm_id="f")
    with pytest.raises(NotFound):
        QueueRegistry(store, "none", farm_id="f").pause_schedule("s")


def test_a_trigger_publishes_once_and_moves_no_tick(clocked):
    store, clock = clocked
    registry = QueueRegistry(store, "shop", farm_id="f")
    queue, duty = registry.create(QueueConfig("q", shards=1)), Scheduling(Farms(registry))
    registry.schedule(Schedule("s", "q", {"a": 1}, every=60))
    before = registry.schedule_states()[0].settled
    registry.pause_schedule("s")
    message = registry.trigger_schedule("s")
    assert waiting(queue) == [message]
    assert message[:2] == "s@", "and the time in ms, so that it is no tick's"
    assert datetime.fromisoformat(message[2:]).isoformat(timespec="milliseconds") == message[2:]
    assert queue.peek()[0].payload == {"a": 1}
    assert registry.schedule_states()[0].settled == before
    registry.resume_schedule("s")
    clock.advance(60)
    duty.run(Term())
    assert len(waiting(queue)) == 2


def test_the_pause_of_a_schedule_is_read_as_such_whatever_it_has_become():
    registry = QueueRegistry(MemoryStore(ManualClock()), "shop", farm_id="f")
    queue = registry.create(QueueConfig("q", shards=1))
    registry.schedule(Schedule("s", "q", every=1))
    key = ScheduleRecords(registry.store, "shop", "f").key
    for value in ("x", -1, 2**62, None, [1]):
        registry.store.operate(key, MapPut("paused", "s", value))
        assert registry.schedule_states()[0].paused is not None, value
    registry.store.operate(key, Put("paused", "no map"))
    with pytest.raises(Corrupt, match="'paused' is no map"):
        registry.schedule_states()
    registry.store.seams.advance(5)
    Scheduling(Farms(registry)).run(Term())
    assert waiting(queue) == [], "which are paused is not known"


@pytest.mark.parametrize("verb", ["pause_schedule", "resume_schedule", "trigger_schedule"])
def test_whatever_call_fails_it_is_done_once_or_said_to_be_unknown(verb):
    for fault in ("dropped", "reply_lost", "late"):
        for at in range(1, 12):
            clock = ManualClock()
            store = FaultyStore(MemoryStore(clock), seams=clock)
            registry = QueueRegistry(store, "shop", farm_id="f")
            queue = registry.create(QueueConfig("q", shards=1))
            registry.schedule(Schedule("s", "q", "tick", every=3600))
            if verb == "resume_schedule":
                registry.pause_schedule("s")
            store.plan = {store._number + at: fault}
            try:
                outcome = getattr(registry, verb)("s")
            except LatchworkError as failure:
                outcome = failure
            store.plan = {}
            is_paused = registry.schedule_states()[0].paused is not None
            if verb == "trigger_schedule":
                there = waiting(queue)
                if isinstance(outcome, OutcomeUnknown):
                    assert there in ([], [outcome.details["message_id"]]), (fault, at)
                else:
                    assert there == ([] if isinstance(outcome, LatchworkError) else [outcome]), (fault, at)
            elif outcome is True:
                assert is_paused == (verb == "pause_schedule"), (fault, at)
