"""Delayed delivery: never early, once, whatever fails; and what it costs."""

from __future__ import annotations

import warnings
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest

from latchwork.errors import AlreadyExists, InvalidRequest, LatchworkError, LeaseLost, OutcomeUnknown, RecordTooBig
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.delayed import CHUNK, MARGIN, WIDTH, bucket_of
from latchwork.queue.sharded.upkeep.timers import AHEAD, Timers
from latchwork.queue.sharded.upkeep.upkeep import LEASE, upkeep_of
from latchwork.store import MemoryStore, Put, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, Crash, FaultyStore
from tests.sim.stage import Fault, Kind, Stage


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
        return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", **{"shards": 2, **options}))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request, clock, tmp_path):
    made = (
        MemoryStore(clock)
        if request.param == "memory"
        else SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock)
    )
    yield CountingStore(made)
    made.close()


def run_until(timers, clock, seconds, step=0.1):
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        clock.advance(max(step, min(timers.run(Term()), end - clock.monotonic())))


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
    queue.publish("at", at=datetime.fromtimestamp(clock.wall() + 3600, zone))
    queue.publish("past", at=datetime.fromtimestamp(clock.wall() - 3600, zone))
    run_until(timers, clock, 5)
    assert payloads(queue) == ["past"]
    run_until(timers, clock, 3600)
    assert payloads(queue) == ["at"]


def test_a_delay_of_nothing_is_an_ordinary_publish(store):
    queue = queue_on(store)
    queue.publish("now", delay=0)
    assert payloads(queue) == ["now"]


def test_many_that_are_due_at_once_all_come_once(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    for begin in range(0, 3 * CHUNK, 100):
        queue.publish_many(range(begin, begin + 100), delay=5)
    assert queue.depth().delayed == 3 * CHUNK
    run_until(timers, clock, 7)
    assert sorted(payloads(queue)) == list(range(3 * CHUNK))
    assert queue.depth().delayed == 0


def test_a_message_keeps_its_id_headers_and_shard(store, clock):
    queue = queue_on(store, shards=8)
    timers = Timers(Farms(queue))
    queue.publish("m", delay=1, key="k", headers={"a": "b"}, message_id="mine")
    run_until(timers, clock, 3)
    (delivery,) = queue.receive(10)
    assert (delivery.message_id, delivery.headers, delivery.shard) == ("mine", {"a": "b"}, queue.shard_of("k"))
    assert delivery.attempts == 1


def test_a_message_whose_time_was_over_before_anybody_moved_it_is_gone(store, clock):
    queue = queue_on(store, message_expiry=timedelta(hours=1), queue_expiry=timedelta(hours=5))
    queue.publish("m", delay=60)
    clock.advance(60 + 3700)
    run_until(Timers(Farms(queue)), clock, 10)
    assert payloads(queue) == []
    assert queue.depth().delayed == 0


def test_messages_that_became_due_while_no_worker_ran_all_come(store, clock):
    queue = queue_on(store)
    for n in range(20):
        queue.publish(n, delay=60 * n + 1)
    clock.advance(3600)
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


# ---- cancelled


def test_a_cancelled_message_never_comes_and_one_that_has_come_cannot_be_cancelled(store, clock):
    queue = queue_on(store)
    timers = Timers(Farms(queue))
    queue.publish("a", delay=5, message_id="a")
    queue.publish("b", delay=5, message_id="b")
    assert queue.cancel("a") is True
    assert queue.cancel("a") is False
    assert queue.cancel("nobody") is False
    assert queue.depth().delayed == 1
    run_until(timers, clock, 10)
    assert payloads(queue) == ["b"]
    assert queue.cancel("b") is False
    assert queue.depth().delayed == 0


def test_an_id_that_waits_is_not_taken_twice(store, clock):
    queue = queue_on(store)
    queue.publish("a", delay=5, message_id="x")
    with pytest.raises(AlreadyExists, match="'x' waits"):
        queue.publish("b", delay=5, message_id="x")
    run_until(Timers(Farms(queue)), clock, 10)
    assert payloads(queue) == ["a"]
    queue.publish("c", delay=5, message_id="x")


# ---- refused


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"delay": -1}, "delay is -1"),
        ({"delay": float("nan")}, "delay is nan"),
        ({"delay": "1"}, "delay is '1'"),
        ({"delay": True}, "delay is True"),
        ({"delay": timedelta(days=3)}, "0 to 172800 s"),
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


@pytest.mark.parametrize("call", range(2, 7))
@pytest.mark.parametrize(
    "kind", [Kind.CRASH_AFTER, Kind.REPLY_LOST, Kind.DROPPED, Kind.LATE, Kind.PAUSE, Kind.DUPLICATE]
)
def test_a_publisher_that_is_struck_publishes_once_or_not_at_all(call, kind):
    """Due in 3 s; the fault pauses or delays for 30, so that its bucket was emptied and passed meanwhile."""
    stage = Stage({"publisher": {call: Fault(kind, 30.0)}})
    found, published = _play(stage, delay=3)
    assert len(found) == len(set(found))
    assert set(found) <= {"m"}
    if isinstance(published, str):
        assert found == ["m"]


@pytest.mark.parametrize("call", range(1, 26))
@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.REPLY_LOST, Kind.LATE, Kind.PAUSE])
def test_a_mover_that_is_struck_moves_it_once(call, kind):
    """The first of two processes is struck at a call around the time at which the message is due."""
    stage = Stage({"first": {12 + call: Fault(kind, 60.0)}})
    found, published = _play(stage, delay=20)
    assert isinstance(published, str)
    assert found == ["m"]


def _play(stage, delay):
    def keeper(store):
        upkeep = upkeep_of(QueueRegistry(store, "c", farm_id="f"))
        upkeep.join("test")
        store.seams.sleep(100 + 3 * LEASE)
        upkeep.leave("test")

    def consumer(store):
        queue, found = queue_on(store, shards=1), []
        for _ in range(300):
            for delivery in queue.receive(10, timeout=0.5):
                found.append(delivery.payload)
                delivery.ack()
            store.seams.sleep(0.5)
        return found

    stage.act("setup", lambda store: queue_on(store, shards=1))
    stage.act("first", keeper, after=1)
    stage.act("second", keeper, after=2)
    stage.act("publisher", lambda store: queue_on(store, shards=1).publish("m", delay=delay), after=3)
    stage.act("consumer", consumer, after=4)
    stage.play(until=2000)
    return stage.said["consumer"], stage.said.get("publisher")


@pytest.mark.parametrize("call", range(1, 16))
@pytest.mark.parametrize("fault", ["crash_before", "crash_after", "reply_lost", "dropped", "late"])
def test_at_whatever_call_a_pass_is_struck_each_message_is_moved_once(call, fault, clock):
    """Both crashes leave the work half done; a second mover goes on at once, and what was late lands at the end."""
    inner = MemoryStore(clock)
    faulty = FaultyStore(inner, seams=clock)
    queue = queue_on(faulty)
    queue.publish_many(range(3), delay=1)
    clock.advance(2)
    mine = Timers(Farms(queue))
    faulty.plan = {faulty._number + call: fault}
    with suppress(LatchworkError, Crash):
        mine.run(Term())
    fresh = queue_on(inner)
    other = Timers(Farms(fresh))
    found = []
    for _ in range(3):
        run_until(other, clock, 3)
        found += payloads(fresh)
    faulty.deliver()
    run_until(other, clock, 3)
    assert sorted(found + payloads(fresh)) == [0, 1, 2]
    assert faulty.fired or call > 9, "a pass has nine calls at least"


@pytest.mark.parametrize("seed", range(12))
def test_a_cancelled_message_is_never_delivered_however_close_the_cancel_comes(seed):
    stage = Stage()

    def canceller(store):
        queue = queue_on(store, shards=1)
        queue.publish("m", delay=10, message_id="m")
        store.seams.sleep(9.7 + 0.1 * seed)
        return queue.cancel("m")

    def mover(store):
        timers = Timers(Farms(queue_on(store, shards=1)))
        for _ in range(200):
            store.seams.sleep(max(0.05, min(0.2, timers.run(Term()))))
        return payloads(queue_on(store, shards=1))

    stage.act("setup", lambda store: queue_on(store, shards=1))
    stage.act("canceller", canceller, after=1)
    stage.act("mover", mover, after=0.5)
    stage.play()
    assert stage.said["mover"] == ([] if stage.said["canceller"] is True else ["m"])


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
    stage = Stage({"canceller": {n: Fault(Kind.REPLY_LOST) for n in range(6, 14)}})

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
    assert [message.payload for message in queue.delayed.search()] == ["first"]


# ---- damage


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
    run_until(timers, clock, 400)
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
    queue.publish("healthy", delay=400)
    run_until(timers, clock, 410)
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
def test_a_damaged_horizon_is_an_error_of_that_queue_alone(store, clock, horizon, caplog):
    queue = queue_on(store)
    other = queue.registry.create(QueueConfig("other", shards=1))
    timers = Timers(Farms(queue, other))
    queue.publish("x", delay=5)
    other.publish("y", delay=5)
    store.operate(queue.delayed.control, Put("horizon", horizon))
    run_until(timers, clock, 10)
    assert payloads(other) == ["y"]
    assert "horizon" in caplog.text
