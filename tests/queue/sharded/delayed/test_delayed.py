"""Delayed delivery: never early, once, whatever fails; and what it costs."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from unittest import mock

import pytest

from latchwork.errors import (
    AlreadyExists,
    InvalidRequest,
    LatchworkError,
    LeaseLost,
    OutcomeUnknown,
    RecordTooBig,
    Refused,
    Unavailable,
)
from latchwork.queue import Outcome, QueueConfig, QueueRegistry
from latchwork.queue.sharded.delayed import control, entries
from latchwork.queue.sharded.delayed.control import HORIZON, MARGIN
from latchwork.queue.sharded.delayed.entries import WIDTH, bucket_of
from latchwork.queue.sharded.publishing import publish
from latchwork.queue.sharded.upkeep.timers import AHEAD, SCAN, QueueTimers, Timers
from latchwork.store import MemoryStore, Param, Put, Update
from latchwork.store.rows import Rows
from latchwork.testing import CountingStore, inject_everywhere
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, FaultyStore
from tests.sim.stage import Fault, Kind, Stage
from tests.support import struck


class Term:
    def check(self):
        """It never ends."""


class Farms:
    def __init__(self, *queues):
        self.found = list(queues)

    def queues(self):
        return self.found


def queue_on(store, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(store, "c", farm_id="f").create(
            QueueConfig("q", **{"shards": 2, "retry": False, **options})
        )


def run_until(timers, clock, seconds, step=0.1):
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        clock.advance(max(step, min(timers.run(Term()), end - clock.monotonic())))


@pytest.fixture
def full(monkeypatch):
    """Ids that fill a record of a bucket: few, as how a record gets full does not depend on their number."""
    monkeypatch.setattr(entries, "CHUNK", 20)
    return range(20)


def payloads(queue):
    found = []
    while more := queue.receive(1000):
        found += [delivery.payload for delivery in more]
        queue.ack_many(more)
    return found


# ---- when it comes


def test_a_message_comes_when_it_is_due_and_never_before(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("later", delay=10)
    assert queue.depth().delayed == 1
    run_until(timers, clock, 9.7)
    assert payloads(queue) == []
    run_until(timers, clock, 0.3 + 2 * WIDTH / 1000)
    assert payloads(queue) == ["later"]
    assert queue.depth().delayed == 0
    run_until(timers, clock, 60)
    assert payloads(queue) == []


@pytest.mark.parametrize("zone", [timezone.utc, timezone(timedelta(hours=5))])
def test_a_message_may_be_for_a_moment(store, clock, zone):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("at", at=datetime.fromtimestamp(clock.wall() + 120, zone))
    queue.publish("past", at=datetime.fromtimestamp(clock.wall() - 120, zone))
    run_until(timers, clock, 5)
    assert payloads(queue) == ["past"]
    run_until(timers, clock, 120)
    assert payloads(queue) == ["at"]


@pytest.mark.parametrize("ago", [timedelta(hours=3), timedelta(days=30), timedelta(days=700)])
def test_a_time_in_the_past_is_now_however_long_ago_and_delays_no_other_message(store, clock, ago):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("soon", delay=1)
    run_until(timers, clock, 0.5)
    queue.publish("past", at=datetime.fromtimestamp(clock.wall(), timezone.utc) - ago)
    store.reset()
    run_until(timers, clock, 2, step=0.5)
    assert sorted(payloads(queue)) == ["past", "soon"]
    assert store.total < 50, "the leader looks at no bucket from before"


def test_what_is_due_is_moved_while_a_late_publisher_comes_at_every_look(store, clock):
    queue = queue_on(store)
    past, moved = datetime.fromtimestamp(clock.wall() - 120, timezone.utc), []

    def at_every_look(updates, real=store.repeat_many):
        if updates[0].key == queue.delayed.control and len(updates) > 1 and len(moved) < 30:
            queue.publish("past", at=past)
            moved.append(queue.depth().ready)
        return real(updates)

    queue.publish("later", delay=5)
    paused = mock.patch.object(entries, "_AT", Param("ms"))  # each for two minutes, before it puts its id anywhere
    with paused, mock.patch.object(store, "repeat_many", at_every_look):
        run_until(Timers(Farms(queue)), clock, 10)
    assert moved[10] > 0, "others do not wait until the last late publisher has gone"
    assert sorted(payloads(queue)) == ["later", *["past"] * 30]


def test_a_queue_whose_delayed_messages_cannot_be_moved_is_logged_once_a_minute(store, clock, caplog):
    queue = queue_on(store)
    queue.publish("later", delay=1)
    with mock.patch.object(QueueTimers, "_look", side_effect=Unavailable("away")):
        run_until(Timers(Farms(queue)), clock, 119)
    assert len([one for one in caplog.records if "moved later" in one.message]) == 2


@pytest.mark.parametrize("horizon", [None, "damaged", 1.5, -1, 2**62, 2**62 - 1, []])
def test_a_damaged_horizon_is_written_anew_and_every_message_comes(store, clock, monkeypatch, caplog, horizon):
    monkeypatch.setattr(control, "DAY", 100)
    queue = queue_on(store, message_expiry=60, unsafe_limits=True)
    queue.publish("before", delay=5)
    store.operate(queue.delayed.control, Put(HORIZON, horizon), Put(control.IN, horizon))
    queue.publish("at once", delay=0.2)
    store.operate(queue.delayed.control, Put(HORIZON, horizon), Put(control.IN, horizon))
    run_until(Timers(Farms(queue)), clock, 10)
    assert payloads(queue) == ["at once", "before"]
    assert caplog.text.count("was damaged") == 1


def test_a_delay_of_nothing_is_an_ordinary_publish(store):
    queue = queue_on(store)
    queue.publish("now", delay=0)
    assert payloads(queue) == ["now"]


def test_many_that_are_due_at_once_all_come_once(store, clock, full):
    queue, many = queue_on(store), 3 * len(full)
    timers = Timers(Farms(queue))
    for begin in range(0, many, 4):
        queue.publish_many(range(begin, begin + 4), delay=5)
    assert queue.depth().delayed == many
    run_until(timers, clock, 7)
    assert sorted(payloads(queue)) == list(range(many))
    assert queue.depth().delayed == 0


def test_a_message_keeps_its_id_headers_and_shard(store, clock):
    queue = queue_on(store, shards=8)
    timers = Timers(Farms(queue))
    queue.publish("m", delay=1, key="k", headers={"a": "b"}, message_id="mine")
    run_until(timers, clock, 3)
    (delivery,) = queue.receive(10)
    assert (delivery.message_id, delivery.headers, delivery.shard) == ("mine", {"a": "b"}, queue.shard_of("k"))
    assert delivery.attempts == 1


SHORT = {
    "message_expiry": timedelta(minutes=10), "queue_expiry": timedelta(hours=1), "sweep_duration": timedelta(minutes=1),
    "handler_timeout": timedelta(seconds=30), "unsafe_limits": True,
}  # fmt: skip
"""A life after which few buckets are to be passed."""


def test_a_message_whose_time_was_over_before_anybody_moved_it_is_gone(store, clock):
    queue = queue_on(store, **SHORT)
    queue.publish("m", delay=60)
    clock.advance(60 + 700)
    run_until(Timers(Farms(queue)), clock, 10)
    assert payloads(queue) == []
    assert queue.depth().delayed == 0


def test_a_message_has_not_expired_because_the_clock_was_set_back_before_it_was_published(store, clock):
    queue = queue_on(store, **SHORT)
    timers = Timers(Farms(queue))
    queue.publish("before", delay=1)
    run_until(timers, clock, 5)
    clock.step(-1200)
    queue_on(store, **SHORT).publish("after", delay=1)
    run_until(timers, clock, 10)
    assert payloads(queue) == ["before", "after"]


@contextmanager
def late_row(store, prefix, meanwhile):
    """Of the next batch with a row of such a key, that row is not sent, and then `meanwhile` is called."""
    real, calls = store._operate_many, [meanwhile]

    def sent(rows):
        late = next((n for n, row in enumerate(rows) if row.key.name.startswith(prefix)), None)
        if late is None or not calls:
            return real(rows)
        meanwhile = calls.pop()
        found = real([*rows[:late], *rows[late + 1 :]])
        meanwhile()
        return [*found[:late], Unavailable("it was not sent"), *found[late:]]

    with mock.patch.object(store, "_operate_many", sent):
        yield
    assert not calls


def test_an_id_that_was_sent_again_after_its_bucket_was_passed_and_the_clock_set_back_comes(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("before", delay=1)

    def passed():
        run_until(timers, clock, 20)
        clock.step(-20)

    with late_row(store, "B/", passed):
        queue.publish("late", delay=1)
    run_until(timers, clock, 60)
    assert payloads(queue) == ["before", "late"]


def test_messages_that_became_due_while_no_worker_ran_all_come(store, clock):
    queue = queue_on(store)
    for n in range(20):
        queue.publish(n, delay=30 * n + 1)
    clock.advance(600)
    assert 2 * SCAN * WIDTH < 600 * 1000, "one look does not see all"
    run_until(Timers(Farms(queue)), clock, 30)
    assert sorted(payloads(queue)) == list(range(20))


def test_a_failed_message_can_come_again_after_a_delay(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("m", message_id="mine", headers={"a": "b"})
    for attempt, delay in ((1, 10), (2, timedelta(seconds=20)), (3, 0)):
        (delivery,) = queue.receive()
        assert (delivery.attempts, delivery.message_id, delivery.headers) == (attempt, "mine", {"a": "b"})
        delivery.nack("exception", error="no", delay=delay)
        with pytest.raises(LeaseLost):
            delivery.nack(delay=1)
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        run_until(timers, clock, max(0, seconds - 0.5))
        assert seconds == 0 or queue.receive() == []
        run_until(timers, clock, 3)
    (delivery,) = queue.receive()
    assert (delivery.attempts, delivery.reason, delivery.last_error) == (4, "exception", "no")
    assert queue.depth().sideline == 0
    with pytest.raises(InvalidRequest, match="delay is -1"):
        delivery.nack(delay=-1)
    delivery.nack()
    (sidelined,) = queue.sideline.receive()
    with pytest.raises(InvalidRequest, match="leave the delay out"):
        sidelined.nack(delay=1)


def test_a_failed_message_that_could_not_be_stored_for_later_stays_for_the_sweeper(simulated, monkeypatch):
    process = simulated.process()
    process.queue.publish("m")
    (delivery,) = process.queue.receive(1)
    monkeypatch.setattr(process.queue.delayed, "publish", lambda *_, **__: Rows([RecordTooBig("made to fail")]))
    with pytest.raises(RecordTooBig):
        delivery.nack(delay=1)
    monkeypatch.undo()
    assert process.queue.depth().delayed == 0
    simulated.lapse()
    process.sweeper().run_once()
    assert [message.payload for message in process.queue.sideline.peek_all()] == ["m"]


# ---- cancelled


def test_a_cancelled_message_never_comes_and_one_that_has_come_cannot_be_cancelled(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("a", delay=5, message_id="a")
    queue.publish("b", delay=5, message_id="b")
    assert queue.cancel("a") is Outcome.DONE
    assert queue.cancel("a") is Outcome.NOT_THERE
    assert queue.cancel("nobody") is Outcome.NOT_THERE
    assert queue.depth().delayed == 1
    run_until(timers, clock, 10)
    assert payloads(queue) == ["b"]
    assert queue.cancel("b") is Outcome.NOT_THERE
    assert queue.depth().delayed == 0


def test_one_that_was_moved_and_cancelled_counts_neither_as_delayed_nor_as_ready(store, clock):
    queue = queue_on(store)
    queue.publish("a", delay=0.1, message_id="a")
    clock.advance(0.5)
    Timers(Farms(queue)).run(Term())
    assert queue.depth().ready == 1
    assert queue.cancel("a") is Outcome.DONE
    depth = queue.depth()
    assert (depth.delayed, depth.ready, depth.expired) == (0, 0, 1)


def test_an_id_that_waits_is_not_taken_twice(store, clock):
    queue = queue_on(store)
    queue.publish("a", delay=5, message_id="order/x")
    with pytest.raises(AlreadyExists, match="'order/x' waits"):
        queue.publish("b", delay=5, message_id="order/x")
    run_until(Timers(Farms(queue)), clock, 10)
    assert payloads(queue) == ["a"]
    queue.publish("c", delay=5, message_id="order/x")


@pytest.mark.parametrize("redriven", [False, True])
def test_the_id_of_a_message_whose_life_was_over_before_anybody_moved_it_is_taken_again(store, clock, redriven):
    queue = queue_on(store, **SHORT)
    queue.publish("a", delay=60, message_id="x")
    clock.advance(650)
    with pytest.raises(AlreadyExists):
        queue.publish("b", delay=60, message_id="x")
    clock.advance(20)
    if redriven:
        queue.delayed.redrive(["x"])
    assert queue.publish("b", delay=60, message_id="x") == "x"
    assert queue.depth().delayed == 1
    run_until(Timers(Farms(queue)), clock, 50)
    assert payloads(queue) == []
    run_until(Timers(Farms(queue)), clock, 20)
    assert payloads(queue) == ["b"]
    assert queue.depth().delayed == 0


def test_the_id_of_a_message_that_waits_for_its_next_attempt_is_taken_again(store, clock):
    """It waits under another name (P16)."""
    queue = queue_on(store)
    queue.publish("a", delay=5, message_id="x")
    run_until(Timers(Farms(queue)), clock, 10)
    queue.receive()[0].nack(delay=5)
    queue.publish("b", delay=5, message_id="x")
    run_until(Timers(Farms(queue)), clock, 20)
    assert sorted(payloads(queue)) == ["a", "b"]


@pytest.mark.parametrize("message_id", ["x", "~" * 256])
def test_messages_of_one_id_that_fail_together_all_come_again(store, clock, message_id):
    queue = queue_on(store)
    ids = [queue.publish(payload, message_id=message_id, key="k") for payload in "abc"]
    assert ids == [message_id] * 3
    for delivery in queue.receive(3):
        delivery.nack(delay=5)
    assert queue.depth().delayed == 3
    run_until(Timers(Farms(queue)), clock, 10)
    assert sorted(payloads(queue)) == ["a", "b", "c"]


@pytest.mark.parametrize("delay", [5, 0.1])
def test_a_message_that_was_stored_in_part_comes_once_it_is_published_again_by_its_id(clock, delay):
    """Its entry was there, in no bucket: it was said to wait, and never came."""
    store = FaultyStore(MemoryStore(clock), seams=clock)
    queue = queue_on(store)
    queue.publish("other", delay=30)
    timers = Timers(Farms(queue))
    store.plan = {store._number + 2 + n: "dropped" for n in range(9)}
    with pytest.raises(Unavailable):
        queue.publish("a", delay=delay, message_id="x")
    store.plan = {}
    run_until(timers, clock, 1)
    for _ in range(2):  # it is counted by the first of them
        with pytest.raises(AlreadyExists, match="'x' waits"):
            queue.publish("a", delay=delay, message_id="x")
        assert queue.depth().delayed == 2
    run_until(timers, clock, 10)
    assert payloads(queue) == ["a"]
    assert queue.depth().delayed == 1


def test_a_message_that_was_failed_twice_is_counted_once(clock):
    """The first time its entry and its bucket were written, and it could not be removed."""
    store = FaultyStore(MemoryStore(clock), seams=clock)
    queue = queue_on(store)
    queue.publish("a")
    (delivery,) = queue.receive(1)
    store.plan = {store._number + 4 + n: "dropped" for n in range(9)}
    with pytest.raises(Unavailable):
        delivery.nack(delay=5)
    store.plan = {}
    assert queue.depth().delayed == 1
    delivery.nack(delay=5)
    assert queue.depth().delayed == 1
    run_until(Timers(Farms(queue)), clock, 10)
    assert payloads(queue) == ["a"]
    assert queue.depth().delayed == 0


def test_a_message_whose_bucket_was_passed_comes_once_it_is_published_again_by_its_id(clock):
    """Its publisher was late, and failed before the leader was told to look at its bucket again."""
    store = FaultyStore(MemoryStore(clock), seams=clock)
    queue = queue_on(store)
    queue.publish("other", delay=1)
    timers, first = Timers(Farms(queue_on(store.inner))), store._number
    plan = {first + 2: lambda: run_until(timers, clock, 30, step=2)}
    store.plan = plan | {first + 3 + n: "dropped" for n in range(9)}
    with pytest.raises(OutcomeUnknown):
        queue.publish("a", delay=1, message_id="x")
    store.plan = {}
    run_until(timers, clock, 10, step=2)
    assert payloads(queue) == ["other"]
    with pytest.raises(AlreadyExists, match="'x' waits"):
        queue.publish("a", delay=1, message_id="x")
    run_until(timers, clock, 10, step=2)
    assert payloads(queue) == ["a"]
    assert queue.depth().delayed == 0


@pytest.mark.parametrize("records", [None, 2])
@pytest.mark.parametrize("later", [0, 1])
def test_messages_that_wait_are_neither_counted_nor_entered_again_if_they_are_published_again(
    store, clock, records, later, full
):
    """Those in another record of their bucket, or in the bucket of the last one of their call, were counted each time,
    and all were entered again.
    """
    many = records * len(full) if records else 1
    queue, ids = queue_on(store), [str(number) for number in range(many)]
    buckets = entries.DelayedMessages._buckets
    last = lambda *given: {place: number + later for place, number in buckets(*given).items()}  # noqa: E731
    with mock.patch.object(entries.DelayedMessages, "_buckets", last):
        queue.publish_many(ids, message_ids=ids, delay=60)
    for process in (queue, queue_on(store)):
        with pytest.raises(AlreadyExists):
            process.publish_many(ids, message_ids=ids, delay=60)
        assert queue.depth().delayed == many
        store.reset()
        assert process.delayed.enter_found(ids) == ids
        assert store.total == (2 if many == 1 else 3), "they were read, and no more"
    run_until(Timers(Farms(queue)), clock, 66, step=2)
    assert len(payloads(queue)) == many
    assert queue.depth().delayed == 0


def test_an_entry_that_was_cancelled_is_neither_brought_back_nor_counted_by_its_name(store, clock):
    queue = queue_on(store)
    queue.publish("a", delay=5, message_id="x")
    queue.cancel("x")
    run_until(Timers(Farms(queue)), clock, 10)
    assert queue.delayed.enter_found(["x", "of nobody"]) == ["x", "of nobody"]
    run_until(Timers(Farms(queue)), clock, 10)
    assert payloads(queue) == []
    assert queue.depth().delayed == 0


# ---- refused


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"delay": -1}, "delay is -1"),
        ({"delay": float("nan")}, "delay is nan"),
        ({"delay": "1"}, "delay is '1'"),
        ({"delay": True}, "delay is True"),
        ({"delay": timedelta(days=31)}, "0 to 2592000"),
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - what is refused
        ({"at": 5}, "time zone"),
        ({"at": datetime(2090, 1, 1, tzinfo=timezone.utc)}, "ahead"),
        ({"delay": 1, "at": datetime(2030, 1, 1, tzinfo=timezone.utc)}, "one of them"),
        ({"delay": 1, "dedup": "k"}, "message_id"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_published(options, match):
    queue = queue_on(MemoryStore(ManualClock()))
    with pytest.raises(InvalidRequest, match=match):
        queue.publish("m", **options)
    assert queue.depth().delayed == 0


# ---- what it costs


def test_publishing_is_two_calls_and_moving_few_in_hundreds(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("warm", delay=1)
    for n in (1, 400):
        before = store.total
        queue.publish_many(range(n), delay=30)
        assert store.total - before == 2
    run_until(timers, clock, 29)
    before = store.total
    run_until(timers, clock, 4)
    looks = 4 / 0.1 + 2
    assert store.total - before <= 0.05 * 400 + looks
    assert len(payloads(queue)) == 402


def test_the_first_publish_to_a_crowded_moment_costs_few_calls_and_all_come(store, clock, monkeypatch):
    monkeypatch.setattr(entries, "CHUNK", 2)
    queue = queue_on(store)
    at = datetime.fromtimestamp(clock.wall() + 60, timezone.utc)
    for n in range(130):
        queue.publish(n, at=at)
    another = QueueRegistry(CountingStore(store.inner), "c", farm_id="f").get("q")
    another.store.reset()
    another.publish("first", at=at)
    assert another.store.total <= 4 + 10, "the record, the control record, the entry; the last of 66 records"
    run_until(Timers(Farms(queue)), clock, 70)
    assert sorted(map(str, payloads(queue))) == sorted(["first", *map(str, range(130))])


def test_an_idle_queue_costs_one_call_a_look_however_many_wait(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish_many(range(1000), delay=86_400)
    timers.run(Term())
    looks, before, began = 0, store.total, clock.monotonic()
    while clock.monotonic() < began + 100:
        clock.advance(timers.run(Term()))
        looks += 1
    assert looks <= 100 / AHEAD + 1
    assert store.total - before <= looks + 100 * 1000 / 5000 + 2, "a look, and the horizon moved each 5 s"


def test_a_queue_that_never_had_one_costs_a_quarter_of_a_call_a_second(store, clock):
    timers = Timers(Farms(queue_on(store)))
    before, began = store.total, clock.monotonic()
    while clock.monotonic() < began + 100:
        clock.advance(timers.run(Term()))
    assert store.total - before <= 27


# ---- whatever fails


@pytest.mark.long
def test_at_whatever_call_a_pass_is_struck_the_next_one_takes_few_calls_for_hundreds():
    """Else faults that come again and again let no pass get to its end."""
    calls = 0
    for at in range(1, 20):
        clock = ManualClock()
        memory = MemoryStore(clock)
        queue_on(memory).publish_many(range(200), delay=1)
        clock.advance(2)
        with suppress(Crash, LatchworkError):
            Timers(Farms(queue_on(FaultyStore(memory, {at: "crash_after"})))).run(Term())
        counting = CountingStore(memory)
        queue = queue_on(counting)
        run_until(Timers(Farms(queue)), clock, 5)
        calls = max(calls, counting.total)
        assert sorted(payloads(queue)) == list(range(200))
    assert calls < 100


@pytest.mark.parametrize("ids", [["m"], ["m", "n"]], ids=len)
def test_a_message_whose_entry_could_not_be_dropped_is_dropped_by_the_next_look(ids):
    """Else its state is "ready" for days after it was acknowledged, and its id and its key are taken."""
    clock = ManualClock()
    queue = queue_on(MemoryStore(clock))
    timers = Timers(Farms(queue))
    for name in ids:
        queue.publish(name, delay=1, message_id=name)
    clock.advance(2)

    def away(duty, updates):
        return dict.fromkeys(updates, Unavailable("away"))

    with mock.patch.object(QueueTimers, "_drop", away):
        run_until(timers, clock, 1)
    assert payloads(queue) == ids
    assert queue.depth().delayed == len(ids), "not counted before they are dropped"
    run_until(timers, clock, 3)
    assert (payloads(queue), queue.depth().delayed) == ([], 0)
    for name in ids:
        queue.publish(f"{name} again", delay=1, message_id=name)
    run_until(timers, clock, 3)
    assert sorted(payloads(queue)) == [f"{name} again" for name in ids]


def test_at_whatever_call_a_pass_is_struck_each_message_is_moved_once():
    """Both crashes leave the work half done, and a second mover goes on."""

    def prepare(store):
        queue_on(store).publish_many(range(3), delay=1)
        store.seams.advance(2)

    def move(store, done):
        Timers(Farms(queue_on(store))).run(Term())

    def another(store, done):
        queue = queue_on(store)
        timers = Timers(Farms(queue))
        for _ in range(3):
            run_until(timers, store.seams, 3)
            done += payloads(queue)

    faults = struck.faults("a pass that moves")
    report = inject_everywhere(move, prepare=prepare, recover=another, expected=range(3), faults=faults)
    assert report.calls >= 9
    assert not report.troubles, report


def test_at_whatever_call_a_pass_is_struck_the_next_one_counts_what_it_had_brought():
    """Else what has come counts as delayed, and as tried again, for good."""

    def prepare(store):
        queue = queue_on(store)
        queue.publish_many(["a", "b"])
        for delivery in queue.receive(2):
            delivery.nack(delay=1)
        queue.publish("c", delay=1)
        queue.publish("cancelled", delay=1, message_id="cancelled")
        queue.publish("waits", delay=3600)
        assert queue.cancel("cancelled")
        store.seams.advance(2)

    def move(store, done):
        Timers(Farms(queue_on(store))).run(Term())

    def another(store, done):
        queue = queue_on(store)
        run_until(Timers(Farms(queue)), store.seams, 5)
        done += payloads(queue)

    def check(store):
        depth = queue_on(store).depth()
        assert (depth.delayed, depth.retrying) == (1, 0)

    faults = struck.faults("a pass that counts")
    report = inject_everywhere(move, prepare=prepare, recover=another, expected=list("abc"), check=check, faults=faults)
    assert report.calls >= 9
    assert not report.troubles, report


def test_a_mover_that_was_paused_after_it_looked_moves_nothing_twice(clock):
    store = MemoryStore(clock)
    queue = queue_on(store)
    queue.publish("m", delay=1)
    clock.advance(2)
    one, other = Timers(Farms(queue)), Timers(Farms(queue))
    one.run(Term())
    queue2 = queue_on(store)
    timer = next(iter(one._known.values()))
    number = bucket_of(int(clock.wall() * 1000) - 1000)
    assert payloads(queue2) == ["m"]
    other.run(Term())
    timer._move(number, 0, ["m"])
    assert payloads(queue2) == []
    assert MARGIN >= 10 * WIDTH


def test_a_cancel_whose_reply_was_lost_for_good_is_unknown():
    stage = Stage({"canceller": {n: Fault(Kind.REPLY_LOST) for n in range(7, 60)}})

    def canceller(store):
        queue = queue_on(store, shards=1)
        queue.publish("m", delay=100, message_id="m")
        try:
            return queue.cancel("m")
        except OutcomeUnknown:
            return "unknown"

    stage.act("setup", lambda store: queue_on(store, shards=1))
    stage.act("canceller", canceller, after=1)
    stage.play()
    assert stage.said["canceller"] in (True, "unknown")


def test_of_two_messages_with_one_id_that_are_published_together_the_second_is_refused(store):
    queue = queue_on(store)
    with pytest.raises(AlreadyExists) as refused:
        queue.publish_many(["first", "second"], message_ids=["one", "one"], delay=5)
    assert refused.value.details["published"] == ["one"]
    assert refused.value.details["not_published"] == {1: "ALREADY_EXISTS"}
    assert [message.payload for message in queue.delayed.search()] == ["first"]


def test_an_error_names_what_was_published_for_later_before_a_part_that_failed_as_a_whole(clock, monkeypatch):
    """The store loses the queue's control record after the first part, and then no other can be made."""
    monkeypatch.setattr(publish, "CHUNK", 2)
    store = FaultyStore(MemoryStore(clock), seams=clock)
    queue = queue_on(store)
    queue.publish("first", delay=5)
    begin = store._number
    queue.publish_many(range(2), delay=5)
    each = store._number - begin
    store.plan = {store._number + each + 1: lambda: store.inner.delete(queue.delayed.control)}
    store.plan |= {store._number + each + n: "dropped" for n in range(3, 100)}
    with pytest.raises(LatchworkError) as failed:
        queue.publish_many(range(6), delay=5, message_ids=[f"m-{n}" for n in range(6)])
    store.plan = {}
    assert failed.value.details["published"] == ["m-0", "m-1"]
    others = failed.value.details["not_published"]
    assert others == {2: "OUTCOME_UNKNOWN", 3: "OUTCOME_UNKNOWN", 4: "UNAVAILABLE", 5: "UNAVAILABLE"}


# ---- damage


@pytest.mark.parametrize("due", [-(2**63), 2**63 - 1, "soon"])
def test_a_delayed_message_whose_time_is_damaged_is_found_without_it(store, due):
    queue = queue_on(store)
    queue.publish("one", delay=60, message_id="one")
    store.operate(queue.delayed.entry("one"), Put("due", due))
    (found,) = queue.delayed.search()
    assert (found.payload, found.not_before) == ("one", None)


def fill(store, key, bin):
    """Let the bin be as large as its record can have it."""
    low, high = 0, 2**20
    while high - low > 1:
        middle = (low + high) // 2
        try:
            store.operate(key, Put(bin, "x" * middle))
            low = middle
        except RecordTooBig:
            high = middle


def test_a_message_that_cannot_be_moved_holds_up_no_other_and_comes_once_it_is_mended(store, clock, caplog):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("healthy", delay=5)
    queue.publish("damaged", delay=5, message_id="bad")
    fill(store, queue.delayed.entry("bad"), "data")  # no room for the mark of who moves it
    run_until(timers, clock, 140)
    queue.publish("newer", delay=5)
    run_until(timers, clock, 20)
    assert payloads(queue) == ["healthy", "newer"]
    assert queue.depth().delayed == 1
    assert "message bad of q cannot be moved" in caplog.text
    store.operate(queue.delayed.entry("bad"), Put("data", '"mended"'))
    run_until(timers, clock, 65)
    assert payloads(queue) == ["mended"]
    assert queue.depth().delayed == 0


def test_a_bucket_that_cannot_be_read_is_passed_and_others_are_moved(store, clock, caplog):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("lost", delay=5)
    bucket = queue.delayed.bucket(bucket_of(int(clock.wall() * 1000) + 5000), 0)
    store.operate(bucket, Put("ids", "no map"))
    queue.publish("healthy", delay=60)
    run_until(timers, clock, 70)
    assert payloads(queue) == ["healthy"]


def test_a_horizon_of_long_ago_is_not_followed_bucket_by_bucket(store, clock):
    queue = queue_on(store)
    queue.delayed.kept = 60
    timers = Timers(Farms(queue))
    queue.publish("x", delay=5)
    store.operate(queue.delayed.control, Put("horizon", 7))
    before = store.total
    run_until(timers, clock, 10)
    assert payloads(queue) == ["x"]
    assert store.total - before < 100


@pytest.mark.parametrize("horizon", ["x", -1, 2**63 - 1, None])
def test_a_damaged_horizon_keeps_no_other_queue_waiting(store, clock, horizon, caplog):
    queue = queue_on(store)
    queue.delayed.kept = 60
    other = queue.registry.create(QueueConfig("other", shards=1))
    timers = Timers(Farms(queue, other))
    queue.publish("x", delay=5)
    other.publish("y", delay=5)
    store.operate(queue.delayed.control, Put("horizon", horizon))
    run_until(timers, clock, 10)
    assert payloads(other) == ["y"]
    assert payloads(queue) == ["x"]
    assert "damaged" in caplog.text


@pytest.mark.parametrize("brought", ["x", 5, [], {5: []}, {"": []}, {"1/0": 5}, {"1/0": [5, ""]}, {"x": ["gone"] * 3}])
def test_a_damaged_note_of_what_was_brought_holds_up_no_message_and_is_forgotten(store, clock, brought):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("x", delay=5)
    store.operate(queue.delayed.control, Put(control.BROUGHT, brought))
    run_until(timers, clock, 10)
    assert payloads(queue) == ["x"]
    queue.publish_many(["y", "z"], delay=5)
    waiting = queue.depth().delayed
    run_until(timers, clock, 10)
    assert payloads(queue) == ["y", "z"]
    assert queue.depth().delayed == max(0, waiting - 2)
    assert not store.get(queue.delayed.control, control.BROUGHT).bins.get(control.BROUGHT)


def test_with_a_damaged_count_messages_come_and_no_notes_pile_up(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("x", delay=1)
    store.operate(queue.delayed.control, Put(control.OUT, "damaged"))
    for n in range(20):
        queue.publish(n, delay=1)
        run_until(timers, clock, 5)
    assert payloads(queue) == ["x", *range(20)]
    record = store.get(queue.delayed.control, control.BROUGHT)
    assert len(record.bins.get(control.BROUGHT) or ()) <= 1


# ---- names that live again


def test_a_cancelled_id_is_published_again_and_comes_once_when_it_is_due_then(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("old", delay=5, message_id="m", headers={"a": "b"})
    assert queue.cancel("m")
    assert not queue.cancel("m")
    queue.publish("new", delay=20, message_id="m")
    with pytest.raises(AlreadyExists):
        queue.publish("third", delay=1, message_id="m")
    run_until(timers, clock, 15)
    assert payloads(queue) == [], "its first bucket still has its id"
    run_until(timers, clock, 10)
    (delivery,) = queue.receive(10)
    assert (delivery.payload, delivery.message_id, dict(delivery.headers)) == ("new", "m", {})


def test_a_create_that_comes_after_the_cancel_brings_nothing_back(store, clock):
    queue = queue_on(store)
    held = []
    late = mock.patch.object(store, "repeat_many", side_effect=lambda updates: held.append(updates) or [()] * 9)
    with late, suppress(ValueError):
        queue.publish("late", delay=5, message_id="m")
    queue.publish("m", delay=5, message_id="m")
    assert queue.cancel("m")
    for updates in held:
        store.repeat_many(updates)
    run_until(Timers(Farms(queue)), clock, 10)
    assert payloads(queue) == []


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "parked"])
@pytest.mark.parametrize("has_failed", [True, False], ids=["failed", "delayed"])
def test_a_create_that_comes_after_the_message_was_moved_brings_nothing_back(store, clock, has_failed, is_done):
    """Else it is said to wait, and a new message of its key is not published, until the entry expires."""
    requests, send = list[Update](), store.repeat_many
    queue = queue_on(store, retry=True, max_deliveries=1 + has_failed)

    def heard(updates, *more):
        requests.extend(one for one in updates if one.key.name.startswith("E/"))
        return send(updates, *more)

    with mock.patch.object(store, "repeat_many", heard):
        if has_failed:
            of = queue.publish("m", unique="key")
            queue.receive()[0].nack(delay=1)
        else:
            of = queue.publish("m", unique="key", delay=1)
    run_until(Timers(Farms(queue)), clock, 5)
    (delivery,) = queue.receive()
    delivery.ack() if is_done else delivery.nack()
    assert {type(row) for row in send(requests)} == {AlreadyExists}
    assert queue.status(of).state == ("done" if is_done else "parked")
    assert queue.publish("next", unique="key") != of
    assert (payloads(queue), queue.depth().delayed) == (["next"], 0)
    clock.advance(entries.LATE + 1)
    assert store.get_many([one.key for one in requests]) == [None] * len(requests)


@pytest.mark.parametrize("meanwhile", ["moved", "discarded"])
def test_a_failed_message_that_is_stored_for_later_again_stays_moved_or_discarded(clock, meanwhile):
    """Its consumer has no answer, and fails it once more when the message has been handled again, or thrown away."""
    store = FaultyStore(MemoryStore(clock), seams=clock)
    queue = queue_on(store)
    of = queue.publish("m")
    (delivery,) = queue.receive()
    store.plan = {store._number + 4 + n: "dropped" for n in range(20)}
    with suppress(Unavailable):
        delivery.nack(delay=1)
    store.plan = {}
    if meanwhile == "discarded":
        assert queue.delayed.discard([of]) == {of: Outcome.DONE}
    run_until(Timers(Farms(queue)), clock, 5)
    assert payloads(queue) == (["m"] if meanwhile == "moved" else [])
    delivery.nack(delay=1)
    run_until(Timers(Farms(queue)), clock, 5)
    assert (payloads(queue), queue.depth().delayed) == ([], 0)
    assert queue.status(of).state == ("done" if meanwhile == "moved" else "gone")


@pytest.mark.parametrize("was_delayed", [True, False], ids=["delayed", "at once"])
def test_an_id_that_was_cancelled_is_published_with_a_delay_and_comes(store, clock, was_delayed):
    """The cancel of the former message of that id does not count for the next one."""
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("a", message_id="x", delay=1 if was_delayed else None)
    run_until(timers, clock, 3)
    assert queue.cancel("x") is Outcome.DONE
    queue.publish("b", message_id="x", delay=5)
    status = queue.status("x")
    assert (status.state, status.cancelled) == ("delayed", False)
    run_until(timers, clock, 10)
    assert payloads(queue) == ["b"]


def test_the_number_that_waits_is_right_though_the_drop_of_one_message_is_in_doubt(store, clock):
    queue, drop, doubts = queue_on(store), QueueTimers._drop, ["a"]

    def in_doubt(duty, updates):
        return drop(duty, updates) | {doubts.pop(): OutcomeUnknown("no reply") for _ in doubts[:1]}

    queue.publish("waits", delay=3600)
    queue.publish_many(["a", "b"], message_ids=["a", "b"], delay=1)
    with mock.patch.object(QueueTimers, "_drop", in_doubt):
        run_until(Timers(Farms(queue)), clock, 10)
    assert (sorted(payloads(queue)), queue.depth().delayed) == (["a", "b"], 1)


def test_a_drop_that_comes_late_leaves_the_next_message_of_that_id(store, clock):
    queue, requests, drop = queue_on(store), list[Update](), QueueTimers._drop

    def heard(duty, updates):
        requests.extend(updates.values())
        return drop(duty, updates)

    timers = Timers(Farms(queue))
    queue.publish("old", delay=1, message_id="m")
    with mock.patch.object(QueueTimers, "_drop", heard):
        run_until(timers, clock, 3)
    queue.publish("new", delay=1, message_id="m")
    assert {type(row) for row in store.repeat_many(requests)} == {Refused}
    run_until(timers, clock, 3)
    assert sorted(payloads(queue)) == ["new", "old"]


def test_a_message_that_came_is_never_said_to_be_cancelled_though_its_trace_is_lost(store, clock):
    queue = queue_on(store)
    queue.publish("x", delay=1, message_id="m")
    run_until(Timers(Farms(queue)), clock, 3)
    assert payloads(queue) == ["x"]
    assert queue.status("m").state == "done"
    store.delete(queue.delayed.places.key("m"))
    status = queue.status("m")
    assert (status.state, status.cancelled) == ("unknown", False)


def test_a_message_of_a_batch_that_two_buckets_name_is_moved_and_counted_once(store, clock):
    queue = queue_on(store)
    batch = queue.batch("b")
    of = batch.publish("m", delay=60)
    batch.close()
    assert queue.delayed.redrive([of]) == {of: Outcome.DONE}
    run_until(Timers(Farms(queue)), clock, 5)
    progress = batch.progress()
    assert (progress.waiting, progress.discarded) == (1, 0)
    assert payloads(queue) == ["m"]
    assert batch.progress().done == 1


def test_a_message_that_was_moved_there_and_back_comes_once(store, clock):
    here = queue_on(store)
    there = here.registry.create(QueueConfig("there", shards=1))
    here.publish("x", delay=5, message_id="m")
    assert here.delayed.move(["m"], there) == {"m": Outcome.DONE}
    assert there.delayed.move(["m"], here) == {"m": Outcome.DONE}
    run_until(Timers(Farms(here, there)), clock, 10)
    assert payloads(here) == ["x"]
    assert payloads(there) == []


@pytest.mark.parametrize("was_running", [True, False])
@pytest.mark.parametrize("where", ["delayed", "retrying", "parked", "sideline"])
def test_a_message_that_was_moved_comes_though_a_former_one_of_its_id_was_cancelled_there(
    store, clock, where, was_running
):
    there = queue_on(store)
    options = {"max_deliveries": 1} if where == "parked" else {}
    here = there.registry.create(QueueConfig("here", shards=1, retry=where != "sideline", **options))
    timers = Timers(Farms(here, there))
    there.publish("old", message_id="x")
    if was_running:
        (delivery,) = there.receive()
        assert there.cancel("x") is Outcome.ASKED
        delivery.nack()
    else:
        assert there.cancel("x") is Outcome.DONE
    here.publish("new", message_id="x", delay=5 if where == "delayed" else None)
    for delivery in here.receive():
        delivery.nack()
    view = here.delayed if where in ("delayed", "retrying") else getattr(here, where)
    assert view.move(["x"], there) == {"x": Outcome.DONE}
    run_until(timers, clock, 60)
    assert payloads(there) == ["new"]


def test_what_a_dropped_group_has_put_off_comes_to_no_group_of_its_name(store, clock):
    queue = queue_on(store)
    old = queue.group("g")
    queue.publish_many(["a", "b"])
    for delivery in old.receive(2):
        delivery.nack(delay=5)
    old.drop()
    new = queue.group("g", start="now")
    assert new.delayed.search() == []
    assert new.depth().delayed == 0
    queue.publish("c")
    (delivery,) = new.receive(1)
    delivery.nack(delay=5)
    run_until(Timers(Farms(queue, new)), clock, 10)
    assert payloads(new) == ["c"]
    assert new.depth().delayed == 0


# ---- a publisher that is late


def paused_before_its_bucket(queue, *payloads, delay, **options):
    """Publish, but put the ids into their bucket only when what this returns is called."""
    delayed, steps = queue.delayed, []
    with mock.patch.object(delayed, "_enter", lambda ids, ttl, _: steps.append((ids, ttl)) or {}):
        queue.publish_many(payloads, delay=delay, **options)
    ((ids, ttl),) = steps

    def go_on():
        assert delayed._enter(ids, ttl) == {}

    return go_on


def test_a_late_message_comes_though_the_first_record_of_its_bucket_is_empty_by_then(store, clock, full):
    """Its publisher remembers that the first record was full."""
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    clock.advance(WIDTH / 1000 - clock.wall() % (WIDTH / 1000))
    queue.publish_many(full, delay=1)
    queue.publish_many(["behind"], delay=1)
    late = [paused_before_its_bucket(queue, n, delay=1) for n in ("late", "later")]
    more = paused_before_its_bucket(queue, *full, delay=1)
    run_until(timers, clock, 3)
    assert len(payloads(queue)) == len(full) + 1
    late[0]()
    run_until(timers, clock, 1)
    assert payloads(queue) == ["late"]
    more()  # the second record is full again, so what follows goes to a third
    late[1]()
    run_until(timers, clock, 30)
    assert sorted(payloads(queue), key=str) == sorted([*full, "later"], key=str)


def test_a_late_message_comes_though_it_came_between_a_look_and_the_passing_of_its_bucket(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("first", delay=1)
    go_on = paused_before_its_bucket(queue, "late", delay=2)
    run_until(timers, clock, 1.5)
    clock.advance(2 + 2 * MARGIN / 1000)
    (timer,) = timers._known.values()
    passing, steps = timer._pass, [go_on]

    def passes(horizon, to):
        while to - horizon >= MARGIN and steps:
            steps.pop()()
        passing(horizon, to)

    with mock.patch.object(timer, "_pass", passes):
        run_until(timers, clock, 3)
    assert not steps
    run_until(timers, clock, 30)
    assert sorted(payloads(queue)) == ["first", "late"]


# ---- a store that comes back empty


def test_delayed_messages_come_that_were_published_after_the_store_had_come_back_empty(store, clock, full):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    clock.advance(WIDTH / 1000 - clock.wall() % (WIDTH / 1000))
    queue.publish_many(full, delay=10)
    queue.publish("in the second record of its bucket", delay=10)
    timers.run(Term())
    bucket = bucket_of(round((clock.wall() + 10) * 1000))
    lost = [queue.delayed.control, *(queue.delayed.bucket(bucket, k) for k in range(2))]
    assert all(store.delete(key) for key in lost)
    assert queue.publish("m", delay=10, message_id="m") == "m"
    assert store.delete(queue.delayed.control)
    assert [message.message_id for message in queue.delayed.search()] == ["m"]
    assert store.delete(queue.delayed.control)
    queue.publish("cancelled", delay=10, message_id="n")
    assert queue.cancel("n")
    run_until(timers, clock, 20)
    assert payloads(queue) == ["m"]


def test_a_message_that_is_let_come_at_once_is_found_once(store):
    queue = queue_on(store)
    queue.publish("m", delay=1, message_id="m")
    assert queue.delayed.redrive(["m"]) == {"m": Outcome.DONE}
    assert [message.message_id for message in queue.delayed.search()] == ["m"]


# ---- a queue, or a group, that is made again under its name


def test_a_message_put_off_in_a_group_that_was_made_again_comes_to_that_group(store, clock):
    queue = queue_on(store)
    listed = Farms(queue, queue.group("g"))
    timers = Timers(listed)

    def put_off():
        queue.publish("m")
        (delivery,) = listed.found[1].receive()
        delivery.nack(delay=2)

    put_off()
    run_until(timers, clock, 10)
    assert payloads(listed.found[1]) == ["m"]
    listed.found[1].drop()
    listed.found[1] = queue.group("g")
    put_off()
    run_until(timers, clock, 10)
    assert payloads(listed.found[1]) == ["m"]


def test_a_leader_that_has_not_heard_that_a_group_was_made_again_leaves_its_messages(store, clock):
    queue = queue_on(store)
    group = queue.group("g")
    listed = Farms(queue, group)
    timers = Timers(listed)
    queue.publish("m")
    group.receive()[0].nack(delay=2)
    timers.run(Term())
    group.drop()
    again = queue.group("g")
    queue.publish("m")
    again.receive()[0].nack(delay=2)
    run_until(timers, clock, 10)
    assert again.depth().delayed == 1
    listed.found[1] = again
    run_until(timers, clock, 10)
    assert payloads(again) == ["m"]


def test_delayed_messages_come_to_a_queue_that_was_made_again_with_fewer_shards(store, clock):
    queue = queue_on(store, shards=8)
    listed = Farms(queue)
    timers = Timers(listed)
    queue.publish("m", delay=2)
    run_until(timers, clock, 10)
    assert payloads(queue) == ["m"]
    assert store.delete(queue.registry.records.key("q"))
    listed.found[0] = queue_on(store, shards=1)
    listed.found[0].publish_many(range(16), delay=2)
    with mock.patch("latchwork.queue.sharded.upkeep.timers.SPREAD", 1):  # to each of the shards that were there before
        run_until(timers, clock, 20)
    assert sorted(payloads(listed.found[0])) == list(range(16))
