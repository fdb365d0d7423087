"""A message that failed comes back by itself, exactly when its pause is over, until its attempts are spent."""

from __future__ import annotations

import logging
import warnings
from datetime import timedelta

import pytest

from latchwork.errors import Unavailable
from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry, ShovelConfig
from latchwork.queue.sharded.delayed.entries import WIDTH
from latchwork.queue.sharded.slots import Slot
from latchwork.queue.sharded.stats import stats_of
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.retry import Poll
from latchwork.store import MemoryStore, Put
from latchwork.store.rows import Rows
from latchwork.testing import ManualClock, bring_back

from .consumer.alone import OneThread
from .consumer.test_ordered import Losing
from .delayed.test_delayed import Farms, run_until

SETTINGS = {"shards": 1, "sweep_duration": 60, "unsafe_limits": True}
LATE = 2 * WIDTH / 1000
"""Seconds within which a message comes that is due."""


@pytest.fixture
def clock():
    return OneThread()


def made(store, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", **SETTINGS | options))


def failing(queue, error="it broke"):
    """Fail what is ready; each message's attempts."""
    deliveries = queue.receive(100)
    for delivery in deliveries:
        delivery.nack("exception", error=error)
    return [delivery.attempts for delivery in deliveries]


def comes_after(queue, timers, clock):
    """Seconds until a message is ready."""
    began = clock.monotonic()
    while not queue.depth().ready:
        run_until(timers, clock, 0.1)
    return clock.monotonic() - began


def ends(queue):
    """How many are (ready, delayed, in the sideline, parked)."""
    depth = queue.depth()
    return depth.ready, depth.delayed, depth.sideline, depth.parked


def waits(queue):
    """What is anywhere."""
    return [
        m.payload for view in (queue, queue.sideline, queue.parked) for m in view.peek_all()
    ] + queue.delayed.search()


# ---- it comes back


def test_a_message_whose_handler_raised_comes_again_without_any_setting(store, clock):
    queue, seen = made(store), []

    def handler(delivery):
        seen.append((delivery.payload, delivery.attempts, delivery.reason))
        if len(seen) < 3:
            raise ValueError("it broke")

    queue.publish("m")
    for _ in range(3):
        Consumer(queue, handler)._turns.take()
        bring_back(queue)
    assert seen == [("m", 1, None), ("m", 2, "exception"), ("m", 3, "exception")]
    assert ends(queue) == (0, 0, 0, 0)


def test_it_comes_when_its_pause_is_over_and_never_before(store, clock):
    queue = made(store)
    timers = Timers(Farms(queue))
    queue.publish("m")
    assert failing(queue) == [1]
    assert ends(queue) == (0, 1, 0, 0)
    run_until(timers, clock, 14.8)
    assert queue.receive() == []
    run_until(timers, clock, 0.2 + LATE)
    assert failing(queue) == [2]


def test_its_pauses_double_up_to_an_hour_at_most_and_then_it_is_parked(clock):
    queue, pauses = made(MemoryStore(clock)), {}
    for attempt in range(1, 21):
        queue.publish(attempt)
        queue.store.operate(queue.pointers.key(Slot(0, attempt)), Put("attempts", attempt - 1))
        assert failing(queue) == [attempt]
    for message in queue.delayed.search(within=timedelta(hours=2), limit=100):
        pauses[message.payload] = message.not_before.timestamp() - clock.wall()
    assert pauses == {n: pytest.approx(min(15 * 2 ** (n - 1), 3270), abs=1) for n in range(1, 20)}
    (parked,) = queue.parked.peek()
    assert (parked.attempts, parked.reason, parked.last_error) == (20, "exhausted", "it broke")


def test_no_default_pause_is_longer_than_an_hour():
    config, seeded = QueueConfig("q"), ManualClock(seed=1)
    assert max(config.retries.pause(n, seeded) for n in range(1, 21) for _ in range(50)) <= 3600
    assert {config.retries.pause(1, seeded) for _ in range(3)} != {15.0}, "with jitter"


@pytest.mark.parametrize("backoff", [2, timedelta(seconds=2), Poll(2, 2, jitter=0)], ids=str)
def test_a_backoff_alone_is_enough(clock, backoff):
    queue = made(MemoryStore(clock), backoff=backoff, max_deliveries=2)
    timers = Timers(Farms(queue))
    queue.publish("m")
    assert failing(queue) == [1]
    assert 2 <= comes_after(queue, timers, clock) <= 2 + LATE + 0.1
    assert failing(queue, "again") == [2]
    (parked,) = queue.parked.peek()
    assert (parked.attempts, parked.reason, parked.last_error) == (2, "exhausted", "again")


@pytest.mark.parametrize("options", [{"retry": None}, {"retry": False, "backoff": 1}, {"shovel": ShovelConfig(60)}])
def test_without_a_retry_or_with_a_shovel_it_waits_in_the_sideline(clock, options):
    queue = made(MemoryStore(clock), **options)
    queue.publish("m")
    failing(queue)
    run_until(Timers(Farms(queue)), clock, 30, step=1)
    assert ends(queue) == (0, 0, 1, 0)


def test_what_fails_in_a_group_comes_again_to_that_group_alone(store, clock):
    queue = made(store)
    group = queue.group("g")
    queue.publish("m", key="k")
    queue.ack_many(queue.receive())
    assert failing(group) == [1]
    run_until(Timers(Farms(queue, group)), clock, 15 + LATE)
    assert queue.receive() == []
    (again,) = group.receive()
    assert (again.payload, again.attempts, again.reason, again.last_error) == ("m", 2, "exception", "it broke")


def test_of_a_batch_only_what_was_refused_comes_again(store, clock):
    queue, seen = made(store, batching=BatchingConfig(3, 1)), []

    def handler(deliveries):
        seen.append(sorted(delivery.payload for delivery in deliveries))
        return [delivery.payload != 2 or len(seen) > 1 for delivery in deliveries]

    queue.publish_many([1, 2, 3])
    Consumer(queue, handler)._turns.take()
    assert ends(queue) == (0, 1, 0, 0)
    run_until(Timers(Farms(queue)), clock, 15 + LATE)
    Consumer(queue, handler)._turns.take()
    assert seen == [[1, 2, 3], [2]]
    assert ends(queue) == (0, 0, 0, 0)


def test_what_cannot_be_decoded_comes_again_and_is_parked_as_unreadable(clock):
    queue = made(MemoryStore(clock), codec="json")
    queue.publish("m")
    queue.store.operate(queue.pointers.key(Slot(0, 1)), Put("data", "{"))
    assert queue.receive() == []
    run_until(Timers(Farms(queue)), clock, 15 + LATE)
    assert queue.receive() == []
    assert [message.reason for message in queue.parked.peek()] == ["unreadable"]
    assert ends(queue) == (0, 0, 0, 1)


@pytest.mark.parametrize("ordered", [False, True])
def test_what_cannot_be_decoded_is_logged_and_counted_as_any_failure(clock, caplog, ordered):
    queue = made(MemoryStore(clock), codec="json")
    message_id = queue.publish("m")
    queue.store.operate(queue.pointers.key(Slot(0, 1)), Put("data", '{"secret'))
    consumer = Consumer(queue, print, ordered=ordered)
    consumer._turns.take()
    (line,) = [record for record in caplog.records if record.name == "latchwork.worker"]
    assert (line.levelname, line.queue, line.message_id, line.attempt) == ("WARNING", "q", message_id, 1)
    assert f"the handler of 'q' was not given message {message_id}, attempt 1: the payload cannot be" in caplog.text
    assert "secret" not in caplog.text
    assert (consumer.stats["failed"], consumer.stats["failed_unreadable"]) == (1, 1)
    assert consumer.stats["unsettled"] == 0


@pytest.mark.parametrize(
    ("damage", "goes_to", "reason"),
    [(Put("data", "{"), "E/q/", "unreadable"), (Put("attempts", 20), "q_PARKED", "exhausted")],
)
def test_what_is_not_handed_out_and_could_not_be_moved_is_logged(clock, caplog, damage, goes_to, reason):
    queue = made(Losing(MemoryStore(clock), seams=clock))
    message_id = queue.publish("m")
    queue.store.operate(queue.pointers.key(Slot(0, 1)), damage)
    queue.store.among = goes_to
    consumer = Consumer(queue, print)
    consumer._turns.take()
    queue.store.among = None
    (line,) = [record for record in caplog.records if "could not be moved" in record.getMessage()]
    assert line.getMessage().startswith(f"message {message_id} of 'q' ({reason}) could not be moved, and comes again")
    assert (line.levelname, line.code) == ("WARNING", "UNAVAILABLE")
    assert (consumer.stats["failed"], consumer.stats["unsettled"]) == (reason == "unreadable", 1)
    bring_back(queue)
    assert ends(queue) == (1, 0, 0, 0)


# ---- consumers that die


def test_what_a_dead_consumer_had_comes_to_the_tail_of_the_queue(store, clock):
    queue = made(store)
    queue.publish("first")
    queue.receive()
    queue.publish("second")
    bring_back(queue)
    assert ends(queue) == (2, 0, 0, 0)
    assert [(d.payload, d.attempts, d.reason) for d in queue.receive(2)] == [("second", 1, None), ("first", 2, "swept")]


def test_the_log_says_of_no_message_that_it_is_parked_which_was_settled_before(clock, caplog):
    queue = made(MemoryStore(clock), max_deliveries=1)
    queue.publish_many(["done", "fails"])
    done, fails = sorted(queue.receive(2), key=lambda delivery: delivery.payload)
    done.ack()
    with caplog.at_level(logging.ERROR):
        assert queue.fail_many([done, fails], [("timeout", None)] * 2) == [False, True]
    assert [record.message_id for record in caplog.records] == [fails.message_id]


def test_a_message_that_kills_its_processes_is_parked_after_its_last_attempt(clock):
    queue, died = made(MemoryStore(clock), max_deliveries=3), 0
    queue.publish("poison")
    while queue.receive():
        died += 1
        bring_back(queue)
    assert died == 3
    (parked,) = queue.parked.peek()
    assert (parked.attempts, parked.reason) == (3, "exhausted")


# ---- nothing is lost where the store fails


def test_what_cannot_be_stored_for_later_stays_for_the_sweep(clock, monkeypatch):
    queue = made(MemoryStore(clock))
    queue.publish("m")
    (delivery,) = queue.receive()
    away = Unavailable("the delayed messages are away")
    monkeypatch.setattr(queue.delayed, "publish", lambda envelopes, *_, **__: Rows([away] * len(envelopes)))
    with pytest.raises(Unavailable, match="are away"):
        delivery.nack()
    bring_back(queue)
    assert [again.reason for again in queue.receive()] == ["swept"]


@pytest.mark.parametrize("place", range(4))
def test_the_failure_that_is_told_of_is_the_last_one_and_none_where_its_note_is_damaged(store, place):
    queue = made(store)
    queue.publish("m", message_id="mine")
    failing(queue)
    assert (stats_of(queue).last_retry.message_id, stats_of(queue).last_retry.error) == ("mine", "it broke")
    good = list(stats_of(queue).last_retry)
    damaged = [*good[:place], 0, *good[place + 1 :]]  # one of its entries is 0, or (place 3) there is one more
    store.operate(queue.delayed.control, Put("last-retry", damaged))
    assert stats_of(queue).last_retry is None


# ---- what it costs


@pytest.mark.parametrize("number", [1, 100])
def test_a_failure_costs_three_calls_and_no_more_for_many(store, number):
    queue = made(store)
    queue.publish_many(range(2))
    failing(queue)  # the record of all delayed messages is there now
    queue.publish_many(range(number))
    deliveries = queue.receive(number)
    store.reset()
    assert queue.fail_many(deliveries, [("exception", "it broke")] * number) == [True] * number
    assert store.total == 3


# ---- queues of before


@pytest.fixture
def before(clock):
    """A store with a queue that an earlier version made, with its defaults."""
    store = MemoryStore(clock)
    day = timedelta(days=2)
    queue = made(store, message_expiry=day, queue_expiry=day, max_deliveries=5, retry=False)
    key = queue.registry.records.key("q")
    settings = dict(store.get(key).bins["settings"])
    del settings["retry"]
    store.operate(key, Put("settings", settings))
    return store


def test_a_queue_of_an_earlier_version_keeps_its_sideline(before):
    queue = QueueRegistry(before, "c", farm_id="f").get("q")
    assert (queue.config.retry, queue.config.max_deliveries) == (False, 5)
    queue.publish("m")
    failing(queue)
    assert ends(queue) == (0, 0, 1, 0)


def test_todays_defaults_are_no_other_settings_for_a_queue_of_an_earlier_version(before, caplog):
    with caplog.at_level(logging.WARNING):
        queue = made(before)
    assert (queue.config.retry, queue.config.max_deliveries) == (False, 5)
    assert queue.config.message_expiry == queue.config.queue_expiry == timedelta(days=2)
    assert "was made with the defaults of an earlier version" in caplog.text
    assert "failed messages stay in the sideline" in caplog.text
    queue.publish("m")
    failing(queue)
    assert ends(queue) == (0, 0, 1, 0)


@pytest.mark.filterwarnings("ignore:.*unsafe")
@pytest.mark.parametrize("wanted", [True, False])
def test_a_program_gets_a_queue_as_its_retries_were_switched_and_is_told_once(wanted, clock, caplog):
    store = MemoryStore(clock)
    made(store, retry=wanted)
    QueueRegistry(store, "c", farm_id="f").set_retry("q", not wanted)
    registry = QueueRegistry(store, "c", farm_id="f")
    with caplog.at_level(logging.WARNING):
        queues = [registry.create(QueueConfig("q", **SETTINGS | {"retry": wanted})) for _ in range(2)]
    assert [queue.config.retry for queue in queues] == [not wanted] * 2
    assert caplog.text.count(f"retry of queue q was switched to {not wanted} after it was made, and stays so") == 1


def test_a_message_that_was_cut_has_no_error_of_another_attempt(clock):
    queue = made(MemoryStore(clock), backoff=1)
    queue.publish("m")
    failing(queue, "not acknowledged within 300 s")
    comes_after(queue, Timers(Farms(queue)), clock)
    (delivery,) = queue.receive()
    assert delivery.last_error == "not acknowledged within 300 s"
    queue.give_back([delivery])
    (message,) = queue.peek()
    assert (message.reason, message.last_error) == ("interrupted", None)
