"""The history of a queue: a minute each minute, whoever leads, and whatever is damaged (docs/protocols P27)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from latchwork.background import FailureLog
from latchwork.errors import InvalidRequest, LeaseLost
from latchwork.logs import Log
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.envelope import Reason
from latchwork.queue.sharded.history import DAY, KEPT_DAYS, MINUTE, MINUTES, TTL, Minute, history, noting, rates
from latchwork.queue.sharded.history import _key as record_of
from latchwork.queue.sharded.upkeep.recording import TAKEN_OVER, Recording
from latchwork.queue.sharded.workers import WorkerReport, reading, reporting
from latchwork.store import MapPut, MemoryStore, Put, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore
from tests.support.backends import store as any_store  # noqa: F401 - a fixture
from tests.support.sqlite_damage import damage_row


class Term:
    def __init__(self, epoch=1):
        self.epoch, self.over = epoch, False

    def check(self):
        if self.over:
            raise LeaseLost("the term is over")


class Farms:
    def __init__(self, registry):
        self.registry = registry

    def queues(self):
        return self.registry.queues()

    def failure_log(self):
        return FailureLog(self.registry.store.seams, Log(__name__))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return CountingStore(MemoryStore(clock))


def leads(registry, epoch=1):
    """A leader, and its duty, of which the first minute is over."""
    term, duty = Term(epoch), Recording(Farms(registry))
    assert duty.run(term) == MINUTE
    return lambda: duty.run(term)


def reports(queue, worker, **facts):
    queue.store.repeat(reporting(queue, replace(WorkerReport(worker, 0.0, 0, 1, 0, 0, 0), **facts)))


def opened(store, queues=1):
    registry = QueueRegistry(store, "c", farm_id="f")
    return [registry.create(QueueConfig(f"q{n}", shards=2)) for n in range(queues)]


def test_a_minute_says_what_waits_who_works_and_why_messages_failed(store, clock):
    (queue,) = opened(store)
    note = leads(queue.registry, epoch=7)
    queue.publish_many(range(5))
    clock.advance(30)
    reports(queue, "a", acked=4, failed=3, reasons={"exception": 2, "timeout": 1})
    reports(queue, "b", acked=1, failed=1, reasons={"exception": 1})
    note()
    (minute,) = history(queue)
    assert (minute.ready, minute.published, minute.received, minute.oldest) == (5, 5, 0, 30)
    assert (minute.workers, minute.joined, minute.acked, minute.failed, minute.epoch) == (2, None, 5, 4, 7)
    assert minute.reasons == {"exception": 3, "timeout": 1}
    assert minute.at == clock.wall() // MINUTE * MINUTE


def test_rates_are_those_between_two_minutes_whoever_noted_them(store, clock):
    (queue,) = opened(store)
    for epoch, messages in ((1, 0), (2, 120), (5, 60)):
        note = leads(queue.registry, epoch)
        clock.advance(MINUTE)
        queue.publish_many(range(messages)) if messages else None
        note()
    assert rates(history(queue)) == [(None, None), (2.0, 0.0), (1.0, 0.0)]


def test_a_worker_that_was_not_there_a_minute_before_is_a_mark_and_the_first_minute_of_a_term_knows_none(store, clock):
    (queue,) = opened(store)
    note = leads(queue.registry)
    for workers in (("a",), ("a", "b"), ("a", "b"), ("c", "d", "b")):
        for one in workers:
            reports(queue, one)
        note()
        clock.advance(MINUTE)
    assert [minute.joined for minute in history(queue)] == [None, 1, 0, 2]


def test_a_minute_without_a_leader_is_not_there_and_no_zero(store, clock):
    (queue,) = opened(store)
    note = leads(queue.registry)
    note()
    clock.advance(3 * MINUTE)
    note()
    first, second = history(queue)
    assert second.at - first.at == 3 * MINUTE
    assert first.oldest is None


@pytest.mark.parametrize("queues", [1, 40])
def test_a_minute_of_all_queues_is_one_write_and_three_reads(store, clock, queues):
    registry = opened(store, queues)[0].registry
    for queue in registry.queues():
        queue.publish("m")
    note = leads(registry)
    note()
    store.reset()
    clock.advance(MINUTE)
    note()
    cost = store.total - store.calls["query"]
    assert cost == 4, store.calls
    assert store.calls["operate_many"] + store.calls["operate"] == 2


def test_a_leader_that_was_deposed_notes_nothing_and_one_that_does_not_know_it_yet_notes_the_truth(store, clock):
    (queue,) = opened(store)
    duty, term = Recording(Farms(queue.registry)), Term()
    duty.run(term)
    queue.publish("m")
    reports(queue, "w")
    read_at = round(clock.wall() * 1000)
    late = noting(queue, read_at, [*FIGURES, REASONS])
    clock.advance(5 * MINUTE)
    leads(queue.registry, 2)()
    store.repeat(late)  # it was paused between its read and its write
    first, second = history(queue)
    assert (first.at, first.ready, first.epoch, second.epoch) == (read_at // 60_000 * 60, 1, 1, 2)
    term.over = True
    with pytest.raises(LeaseLost):
        duty.run(term)
    assert len(history(queue)) == 2


def test_two_weeks_can_be_read_in_one_call_and_older_records_expire(store, clock):
    (queue,) = opened(store)
    note = leads(queue.registry)
    for _ in range(20):
        reports(queue, "w")
        note()
        clock.advance(DAY)
    store.reset()
    found = history(queue, days=KEPT_DAYS)
    assert (store.total, len(found)) == (1, KEPT_DAYS)
    assert found[-1].at - found[0].at == (KEPT_DAYS - 1) * DAY
    assert store.get(record_of(queue, int(clock.wall()) // DAY - KEPT_DAYS - 3)) is None
    assert TTL > KEPT_DAYS * DAY
    for days in (KEPT_DAYS + 1, -1, math.nan, "1"):
        with pytest.raises(InvalidRequest):
            history(queue, days=days)


def test_a_day_of_the_largest_figures_fits_into_a_record(any_store):  # noqa: F811 - the fixture
    (queue,) = opened(any_store)
    day = int(any_store.seams.wall()) // DAY * DAY * 1000
    largest = [2**62] * 15 + [[2**62] * len(Reason)]
    rows = [noting(queue, day + n * MINUTE * 1000, largest) for n in range(DAY // MINUTE)]
    # One at a time, as no two rows of a call may be of one record; the last of them write the whole day.
    whole = Put(MINUTES, {row.ops[0].key: row.ops[0].value for row in rows[:-10]})
    any_store.repeat(replace_ops(rows[0], whole))
    for row in rows[-10:]:
        any_store.repeat(row)
    assert len(any_store.get(rows[0].key).bins[MINUTES]) == DAY // MINUTE


def replace_ops(update, *ops):
    from msgspec.structs import replace as replaced

    return replaced(update, ops=ops)


FIGURES, REASONS = [1] * 15, [0] * len(Reason)
DAMAGED = ["text", 3, [], [1, 2], FIGURES, [*["x"] * 15, REASONS], [*FIGURES, 7], [*[-2] * 15, REASONS]]


def test_damaged_minutes_are_left_out_and_the_others_are_read(any_store):  # noqa: F811 - the fixture
    (queue,) = opened(any_store)
    now = round(any_store.seams.wall() * 1000)
    any_store.repeat(noting(queue, now, [*FIGURES, REASONS]))
    place = record_of(queue, now // 1000 // DAY)
    number = now // 1000 % DAY // MINUTE
    for n, entry in enumerate(DAMAGED):
        any_store.operate(place, MapPut(MINUTES, (number - n - 1) % 1440, entry), repeatable=True)
    for number in (1440, "x"):
        any_store.operate(place, MapPut(MINUTES, number, [*FIGURES, REASONS]), repeatable=True)
    assert [minute.ready for minute in history(queue, days=2)] == [1]


def test_a_damaged_record_is_replaced_with_the_next_minute(store, clock):
    (queue,) = opened(store)
    note = leads(queue.registry)
    note()
    store.operate(record_of(queue, int(clock.wall()) // DAY), Put(MINUTES, "no map"), repeatable=True)
    assert history(queue) == ()
    note()
    assert len(history(queue)) == 1


def test_a_record_of_workers_that_cannot_be_read_keeps_no_queue_from_its_minute(clock, tmp_path, caplog):
    store = SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock)
    queues = opened(store, 2)
    note = leads(queues[0].registry)
    for queue in queues:
        reports(queue, "a")
    damage_row(store, reading(queues[0]).key)
    note()
    assert [[minute.workers for minute in history(queue)] for queue in queues] == [[0], [1]]
    assert any("q0_WORKERS" in line for line in caplog.messages)
    store.close()


def test_what_a_later_version_appends_is_passed_over():
    store = MemoryStore(ManualClock())
    (queue,) = opened(store)
    now = round(store.seams.wall() * 1000)
    store.repeat(noting(queue, now, [1] * 15 + [[0] * (len(Reason) + 2), 5, "more"]))
    (minute,) = history(queue)
    assert isinstance(minute, Minute)
    assert minute.reasons == {}


def test_the_duty_comes_again_at_the_begin_of_the_next_minute(store, clock):
    (queue,) = opened(store)
    note = leads(queue.registry)
    clock.advance(60 - clock.wall() % 60 + 17)
    reports(queue, "w")
    assert note() == pytest.approx(44, abs=0.1)


def test_a_process_that_leads_again_does_not_take_all_that_changed_meanwhile_for_a_deploy(store, clock):
    (queue,) = opened(store)
    duty = Recording(Farms(queue.registry))
    for epoch, worker in ((1, "a"), (5, "b")):
        assert duty.run(Term(epoch)) == MINUTE
        clock.advance(MINUTE)
        reports(queue, worker)
        duty.run(Term(epoch))
    assert [minute.joined for minute in history(queue)] == [None, None]


def test_what_failed_since_a_message_was_done_is_carried_on_also_by_a_new_leader_and_without_workers(store, clock):
    (queue,) = opened(store)
    note, found = leads(queue.registry), []

    def minute(**facts):
        if facts:
            reports(queue, "a", **facts)
        note()
        last = history(queue)[-1]
        found.append((last.failing_since, last.failed_since))
        clock.advance(MINUTE)
        return last.at

    minute(acked=3)
    first = minute(failed=2)
    minute(acked=0, failed=0)
    note = leads(queue.registry, epoch=2)
    minute(failed=1)
    clock.advance((TAKEN_OVER - 1) * MINUTE)
    note = leads(queue.registry, epoch=3)
    minute()  # nobody reports
    minute(acked=1, failed=1)
    minute(acked=0, failed=0)
    assert found == [(None, 0), (first, 2), (first, 2), (first, 3), (first, 3), (None, 0), (None, 0)]


@pytest.mark.parametrize("more", [[], ["x", 1], [-1, 0], [5], [None, 3], [2**62, "1"]])
def test_a_minute_of_an_earlier_version_or_with_a_damaged_end_says_nothing_of_what_failed(store, clock, more):
    (queue,) = opened(store)
    queue.store.repeat(noting(queue, int(clock.wall() * 1000), [*range(15), [], *more]))
    (minute,) = history(queue)
    assert (minute.ready, minute.failing_since, minute.failed_since) == (0, None, 0)
