"""Consumers: every answer of a handler settles its message, and nothing that hangs, dies or stops loses one."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from datetime import timedelta
from functools import partial

import pytest

from latchwork import aio
from latchwork.errors import InvalidMessageHandler, InvalidRequest, OutcomeUnknown, TooManyConsumers, Unavailable
from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry, Worker
from latchwork.queue.sharded.consumer.consumer import SUPERVISE_EVERY
from latchwork.queue.sharded.consumer.ordering import ShardLocks
from latchwork.seams import Seams
from latchwork.store import MemoryStore, SQLiteStore

from ..test_expired_depth import Ahead

PATIENCE = 20.0
"""Seconds after which a test gives up waiting for what must come."""
LIMIT = 60.0
"""A `handler_timeout` that no handler reaches by itself, however busy the machine is: the clock leaps beyond it."""


def made(store, client="c", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(store, client).create(
            QueueConfig("q", **{"retry": False, "shards": 2, "unsafe_limits": True, "concurrency": 2, **options})
        )


@pytest.fixture
def consumers():
    started = []
    yield lambda *arguments, **options: started.append(Consumer(*arguments, **options)) or started[-1]
    for consumer in started:
        consumer.stop(0)


def eventually(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came true"
        threading.Event().wait(0.005)


class Hangs:
    """A handler that hangs at each message "hang" until it is released. seen: the payloads that it was given."""

    def __init__(self):
        self.seen, self.released = [], threading.Event()

    def __call__(self, delivery):
        self.seen.append(delivery.payload)
        return delivery.payload != "hang" or self.released.wait(PATIENCE)


def give_up(consumer, handler, number, ahead):
    """Once it has hung so many times in all, let the time of those that hang be over."""
    eventually(lambda: handler.seen.count("hang") == number)
    ahead.by += LIMIT + 1
    consumer._state.wake()


def reasons(queue):
    return sorted(message.reason for message in queue.sideline.peek(100))


def test_true_and_none_acknowledge_false_and_exceptions_fail_ignorable_ones_acknowledge(consumers):
    queue = made(MemoryStore())

    def handler(delivery):
        if delivery.payload == "raise":
            raise ValueError("no")
        if delivery.payload == "ignore":
            raise KeyError("never mind")
        return {"true": True, "none": None, "false": False}[delivery.payload]

    queue.publish_many(["true", "none", "false", "raise", "ignore"])
    consumer = consumers(queue, handler, ignorable=[KeyError]).start()
    eventually(lambda: consumer.stats["acked"] == 3 and consumer.stats["failed"] == 2)
    assert reasons(queue) == ["exception", "rejected"]
    (failed,) = [message for message in queue.sideline.peek() if message.reason == "exception"]
    assert (failed.payload, failed.last_error) == ("raise", "ValueError: no")


def test_a_batch_handler_gets_many_and_may_answer_for_each(consumers):
    queue = made(MemoryStore(), shards=1, batching=BatchingConfig(100, 1), concurrency=1)
    seen = []

    def handler(deliveries):
        seen.append(len(deliveries))
        return [delivery.payload % 10 != 0 for delivery in deliveries]

    queue.publish_many(list(range(50)))
    consumer = consumers(queue, handler).start()
    eventually(lambda: sum(seen) == 50 and consumer.stats["acked"] == 45 and consumer.stats["failed"] == 5)
    assert max(seen) > 10
    assert [message.payload % 10 for message in queue.sideline.peek()] == [0] * 5


def test_a_batch_that_could_not_be_filled_up_is_handled_and_let_go(consumers):
    queue = made(MemoryStore(), shards=1, batching=BatchingConfig(10, 1), concurrency=1)
    receive, given = queue.await_messages, []

    def fails_once(*arguments, **options):
        if len(given) == 1:
            given.append([])
            raise Unavailable("the store is away")
        given.append(receive(*arguments, **options))
        return given[-1]

    queue.publish_many([1, 2])
    queue.await_messages = fails_once
    consumer = consumers(queue, lambda deliveries: True).start()
    eventually(lambda: consumer.stats["acked"] == 2)
    assert consumer.stats["troubles"] == 1
    assert consumer.stop()
    assert not consumer.runs._runs, "a run that nobody ends is extended for ever"


def test_a_batch_answered_with_too_few_answers_fails_and_says_so(consumers):
    queue = made(MemoryStore(), shards=1, batching=BatchingConfig(10, 1), concurrency=1)
    queue.publish_many([1, 2, 3])
    consumer = consumers(queue, lambda deliveries: [True]).start()
    eventually(lambda: consumer.stats["acked"] + consumer.stats["failed"] == 3)
    assert all("answers" in message.last_error for message in queue.sideline.peek())


def test_each_message_of_a_batch_counts_by_itself():
    queue = made(MemoryStore(), shards=1, batching=BatchingConfig(4, 1))
    remove = queue.pointers.remove

    def shaky(held):
        outcomes = remove(held)
        outcomes[1] = OutcomeUnknown("the answer was lost")
        return outcomes

    queue.publish_many([1, 2, 3, 4])
    deliveries = queue.receive(4)
    remove([deliveries[0].held])  # as the sweeper would
    queue.pointers.remove = shaky
    consumer = Consumer(queue, lambda deliveries: None)
    consumer._turns._handle(consumer.runs.open(deliveries))
    assert {name: consumer.stats[name] for name in ("acked", "lost", "unsettled")} == {
        "acked": 2, "lost": 1, "unsettled": 1,
    }  # fmt: skip


def test_a_message_that_its_handler_has_settled_itself_is_counted_as_if_its_result_had_said_so(consumers):
    queue = made(MemoryStore(), shards=1)
    settles = {
        "acks": lambda one: one.ack(),
        "acks all": lambda one: queue.ack_many([one]),
        "nacks": lambda one: one.nack("exception"),
        "nacks for later": lambda one: one.nack(delay=60),
    }
    queue.publish_many(list(settles))
    consumer = consumers(queue, lambda one: settles[one.payload](one)).start()
    eventually(lambda: consumer.stats["handled"] == len(settles) and not consumer.busy)
    assert consumer.stop()
    counts = {"acked": 2, "failed": 2, "failed_exception": 1, "failed_rejected": 1, "lost": 0, "unsettled": 0}
    assert {name: consumer.stats[name] for name in counts} == counts


def test_a_handler_that_hangs_is_given_up_and_replaced_until_the_consumer_is_saturated(consumers):
    ahead, handler = Ahead(), Hangs()
    queue = made(MemoryStore(seams=ahead), concurrency=2, handler_timeout=timedelta(seconds=LIMIT))
    queue.publish("hang")
    consumer = consumers(queue, handler).start()
    give_up(consumer, handler, 1, ahead)
    eventually(lambda: reasons(queue) == ["timeout"])
    queue.publish("fine")
    eventually(lambda: consumer.stats["acked"] == 1)
    assert not consumer.saturated
    queue.publish_many(["hang"] * 3)
    give_up(consumer, handler, 3, ahead)
    give_up(consumer, handler, 4, ahead)
    eventually(lambda: consumer.saturated)
    eventually(lambda: reasons(queue) == ["timeout"] * 4)
    handler.released.set()
    eventually(lambda: not consumer.saturated)
    queue.publish("fine again")
    eventually(lambda: consumer.stats["acked"] == 2)
    assert handler.seen[-1] == "fine again"


def test_one_handler_that_hangs_does_not_stop_a_consumer_of_one(consumers):
    ahead, handler = Ahead(), Hangs()
    queue = made(MemoryStore(seams=ahead), concurrency=1, handler_timeout=timedelta(seconds=LIMIT))
    consumer = consumers(queue, handler).start()
    queue.publish_many(["hang", "fine"], key="k")
    give_up(consumer, handler, 1, ahead)
    eventually(lambda: consumer.stats["acked"] == 1)
    assert not consumer.saturated
    queue.publish("hang")
    give_up(consumer, handler, 2, ahead)
    eventually(lambda: consumer.saturated)
    assert consumer._workers == 2
    handler.released.set()


def test_a_consumer_that_is_scaled_down_while_handlers_hang_keeps_no_worker_too_many():
    queue = made(MemoryStore(), concurrency=3)
    consumer = Consumer(queue, lambda delivery: True)
    for _ in range(3):
        consumer.runs.abandon(consumer.runs.open([]), "hangs")
    consumer._workers = 6
    assert not consumer._should_exit()
    queue.scale(2)
    leave = [consumer._should_exit() for _ in range(3)]
    assert leave == [True, True, False]
    assert not consumer.saturated


def test_a_saturated_consumer_takes_nothing_until_a_handler_returns(consumers, monkeypatch):
    monkeypatch.setattr("latchwork.queue.sharded.consumer.turn.RECEIVE_WAIT", 0.01)
    ahead, handler = Ahead(), Hangs()
    queue = made(MemoryStore(seams=ahead), concurrency=2, handler_timeout=timedelta(seconds=LIMIT))
    consumer = consumers(queue, handler).start()
    queue.publish_many(["hang"] * 4)
    give_up(consumer, handler, 2, ahead)
    give_up(consumer, handler, 4, ahead)
    eventually(lambda: consumer._workers == consumer.runs.stuck == 4)
    queue.publish_many(["fine"] * 5)
    assert len(queue.receive(10)) == 5, "nobody else took them"
    handler.released.set()
    queue.publish("fine again")
    eventually(lambda: consumer.stats["acked"] == 1)
    assert set(reasons(queue)) == {"timeout"}


@pytest.mark.parametrize(
    "raised", [asyncio.CancelledError(), SystemExit(2), GeneratorExit(), KeyboardInterrupt()], ids=repr
)
def test_whatever_a_handler_raises_fails_its_message_and_the_worker_goes_on(consumers, raised):
    queue = made(MemoryStore(), concurrency=1)
    threads = []

    def handler(delivery):
        threads.append(threading.current_thread())
        if delivery.payload == "bad":
            raise raised

    queue.publish_many(["bad", "good"], key="k")
    consumer = consumers(queue, handler).start()
    eventually(lambda: consumer.stats["acked"] == 1)
    assert reasons(queue) == ["exception"]
    assert len(set(threads)) == 1
    assert not consumer.runs._runs, "a run that nobody ends is extended for ever"


def test_an_answer_that_cannot_be_compared_rejects_its_message(consumers):
    class Array:
        def __eq__(self, other):
            raise ValueError("the truth value of an array is ambiguous")

        __hash__ = None

    queue = made(MemoryStore(), concurrency=1)
    queue.publish("a")
    consumer = consumers(queue, lambda delivery: Array()).start()
    eventually(lambda: consumer.stats["failed"] == 1)
    assert reasons(queue) == ["rejected"]
    assert not consumer.runs._runs


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (False, None),
        ("done", "the handler returned a str; return True or None to acknowledge, False to reject"),
        (0, "the handler returned a int; return True or None to acknowledge, False to reject"),
        (1, "the handler returned a int; return True or None to acknowledge, False to reject"),
        (1.0, "the handler returned a float; return True or None to acknowledge, False to reject"),
    ],
)
def test_a_message_is_rejected_with_what_the_handler_returned_instead_of_a_verdict(consumers, answer, why, caplog):
    queue = made(MemoryStore(), concurrency=1)
    queue.publish("a")
    consumer = consumers(queue, lambda delivery: answer).start()
    eventually(lambda: consumer.stats["failed"] == 1)
    (failed,) = queue.sideline.peek()
    assert (failed.reason, failed.last_error) == ("rejected", why)
    (said,) = [record.getMessage() for record in caplog.records if "rejected message" in record.getMessage()]
    line = f"the handler of 'q' rejected message {failed.message_id}, attempt 1"
    assert said == (f"{line}: {why}" if why else line), "its author sees it"


async def asynchronous(delivery):
    """A handler as people write it for other queues."""


class AsynchronousCall:
    async def __call__(self, delivery):
        """An object of which the call is one."""


@pytest.mark.parametrize(
    "handler", [asynchronous, partial(asynchronous), AsynchronousCall()], ids=["function", "partial", "object"]
)
def test_an_async_handler_is_refused_with_the_remedy(handler):
    queue = made(MemoryStore())
    with pytest.raises(InvalidMessageHandler, match=r"async function.*latchwork\.aio"):
        Consumer(queue, handler)
    with pytest.raises(InvalidMessageHandler, match="async function"):
        Worker(queue.registry).handler("q")(handler)


def yielding(delivery):
    yield delivery


async def async_yielding(delivery):
    yield delivery


@pytest.mark.parametrize("handler", [yielding, async_yielding, partial(yielding)])
def test_a_handler_whose_call_would_run_nothing_is_refused(handler):
    queue = made(MemoryStore())
    for use in (
        lambda: Consumer(queue, handler),
        lambda: Worker(queue.registry).handler("q")(handler),
        lambda: Worker(queue.registry).task("q")(handler),
        lambda: aio.Worker(aio.QueueRegistry(aio.Store(MemoryStore()), "c")).handler("q")(handler),
    ):
        with pytest.raises(InvalidMessageHandler, match="yield"):
            use()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_handler_that_returns_a_coroutine_unseen_fails_its_message_and_leaves_no_warning(consumers):
    queue = made(MemoryStore(), concurrency=1)
    queue.publish("a")
    consumer = consumers(queue, lambda delivery: asynchronous(delivery) or None).start()
    eventually(lambda: consumer.stats["failed"] == 1)
    gc.collect()
    (failed,) = queue.sideline.peek()
    assert failed.last_error.startswith("the handler returned a coroutine; return True or None")


def test_a_failing_handler_is_logged_with_its_message_attempt_and_text_and_never_with_the_payload(consumers, caplog):
    queue = made(MemoryStore(), concurrency=1)

    def handler(delivery):
        raise ValueError("no such order")

    message_id = queue.publish({"card": "4111-1111"})
    consumer = consumers(queue, handler).start()
    eventually(lambda: consumer.stats["failed"] == 1)
    (line,) = (record for record in caplog.records if "raised" in record.message)
    assert (line.name, line.levelname) == ("latchwork.worker", "WARNING")
    assert line.message == f"the handler of 'q' raised at message {message_id}, attempt 1: ValueError: no such order"
    assert (line.queue, line.message_id, line.attempt) == ("q", message_id, 1), "for a formatter that writes JSON"
    assert 'raise ValueError("no such order")' in caplog.text, "with its traceback"
    assert "4111" not in caplog.text


def test_an_exception_whose_text_cannot_be_had_fails_its_message_and_the_worker_goes_on(consumers):
    class Silent(Exception):
        def __str__(self):
            raise AttributeError("nothing")

    queue = made(MemoryStore(), concurrency=1)
    threads = []

    def handler(delivery):
        threads.append(threading.current_thread())
        if delivery.payload == "bad":
            raise Silent

    queue.publish_many(["bad", "good"], key="k")
    consumer = consumers(queue, handler).start()
    eventually(lambda: consumer.stats["acked"] == 1)
    (failed,) = queue.sideline.peek()
    assert (failed.reason, failed.last_error) == (
        "exception", "Silent: its text cannot be shown: that raised AttributeError",
    )  # fmt: skip
    assert len(set(threads)) == 1
    assert not consumer.runs._runs


def test_a_run_is_closed_whatever_leaves_its_worker(monkeypatch):
    queue = made(MemoryStore())
    queue.publish("a")
    consumer = Consumer(queue, lambda delivery: True)
    monkeypatch.setattr(consumer._turns, "verdicts", lambda deliveries: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        consumer._turns._handle(consumer._turns._gather(None))
    assert not consumer.runs._runs, "a run that nobody ends is extended for ever"


class FewThreads(Ahead):
    """A system that starts no more than so many workers."""

    def __init__(self, workers):
        self.left = workers

    def spawn(self, run, name):
        if "-worker-" in name:
            if not self.left:
                raise RuntimeError("can't start new thread")
            self.left -= 1
        return super().spawn(run, name)


def test_the_keeper_goes_on_where_a_thread_cannot_be_started(consumers):
    seams = FewThreads(1)
    queue = made(MemoryStore(seams=seams), concurrency=3, handler_timeout=timedelta(seconds=LIMIT))
    handler = Hangs()
    consumer = consumers(queue, handler).start()
    eventually(lambda: consumer.stats["troubles"] > 1)
    eventually(lambda: consumer._workers == 1)  # those that could not be started do not count
    queue.publish("hang")
    give_up(consumer, handler, 1, seams)
    eventually(lambda: reasons(queue) == ["timeout"])
    seams.left = 9
    queue.publish("fine")
    eventually(lambda: consumer.stats["acked"] == 1)
    eventually(lambda: consumer._workers == 4)
    handler.released.set()


def test_a_message_is_extended_while_its_handler_runs(consumers):
    ahead = Ahead()
    times = {"sweep_duration": timedelta(seconds=2 * LIMIT), "handler_timeout": timedelta(seconds=LIMIT)}
    queue = made(MemoryStore(seams=ahead), concurrency=1, **times)
    running, extended = threading.Event(), threading.Event()
    extend = queue.pointers.extend
    queue.pointers.extend = lambda held, *told: extended.set() or extend(held, *told)
    queue.publish("long")
    consumer = consumers(queue, lambda delivery: running.set() or extended.wait(PATIENCE)).start()
    assert running.wait(PATIENCE)
    ahead.by += LIMIT / 2 + 1  # more than a quarter of the sweep duration
    eventually(extended.is_set)
    eventually(lambda: consumer.stats["acked"] == 1)


def test_stop_waits_once_for_all_that_hang_not_for_each(consumers):
    waited = []

    class Clock(Seams):
        def monotonic(self):
            return sum(waited)

    class Hangs:
        def join(self, timeout):
            waited.append(timeout)

        def is_alive(self):
            return True

    consumer = consumers(made(MemoryStore(seams=Clock())), lambda delivery: True)
    consumer._tasks += [Hangs() for _ in range(100)]
    consumer.stop(0)
    assert sum(waited) <= SUPERVISE_EVERY


def test_concurrency_follows_the_queue_and_zero_pauses(consumers):
    queue = made(MemoryStore(), concurrency=1)
    consumer = consumers(queue, lambda delivery: True).start()
    eventually(lambda: consumer._workers == 1)
    queue.scale(3)
    eventually(lambda: consumer._workers == 3)
    with pytest.warns(UserWarning, match="expir"):
        queue.pause()
    eventually(lambda: consumer._workers == 0)
    queue.publish("waits")
    assert queue.depth().ready == 1
    queue.resume()
    eventually(lambda: consumer.stats["acked"] == 1)
    assert queue.concurrency == 3


def test_stop_lets_running_handlers_finish_within_the_grace(consumers):
    queue = made(MemoryStore(), concurrency=1)
    running, go = threading.Event(), threading.Event()
    consumer = consumers(queue, lambda delivery: running.set() or go.wait(PATIENCE)).start()
    queue.publish_many(["a", "b"])
    assert running.wait(PATIENCE)
    stopper = threading.Thread(target=consumer.stop)
    stopper.start()
    eventually(consumer._stopping.is_set)  # before that, a handler that has finished is given the next message
    go.set()
    stopper.join(PATIENCE)
    assert consumer.stats["acked"] == 1
    assert queue.depth().ready == 1


def test_stop_gives_back_what_outlives_the_grace(consumers):
    queue = made(MemoryStore(), concurrency=1)
    running, go = threading.Event(), threading.Event()
    consumer = consumers(queue, lambda delivery: running.set() or go.wait(PATIENCE)).start()
    queue.publish("a")
    assert running.wait(PATIENCE)
    assert consumer.stop(grace=0.05) is False
    (back,) = queue.peek()
    assert (back.reason, back.attempts, reasons(queue)) == ("interrupted", 0, [])
    go.set()
    eventually(lambda: consumer._workers == 0)
    assert consumer.stats["acked"] == 0


@pytest.mark.parametrize("workers", [1, 3])
def test_an_ordered_consumer_keeps_the_order_within_a_key(consumers, workers):
    queue = made(MemoryStore(), shards=4, concurrency=workers)
    seen = []
    expected = {key: list(range(30)) for key in "abcd"}
    for n in range(30):
        for key in expected:
            queue.publish([key, n], key=key)
    consumer = consumers(queue, lambda delivery: seen.append(tuple(delivery.payload)), ordered=True).start()
    eventually(lambda: consumer.stats["acked"] == 120)
    assert {key: [n for k, n in seen if k == key] for key in expected} == expected


def test_two_ordered_consumers_never_work_one_shard_at_once(consumers, tmp_path):
    stores = [SQLiteStore(tmp_path / "s.db", synchronous="off") for _ in range(2)]
    queues = [made(store, shards=2) for store in stores]
    queues[0].publish_many(list(range(60)), keys=[str(n % 2) for n in range(60)])
    busy, clashes, done = set(), [], []
    guard = threading.Lock()

    def handler(delivery):
        with guard:
            if delivery.shard in busy:
                clashes.append(delivery.shard)
            busy.add(delivery.shard)
        threading.Event().wait(0.001)
        with guard:
            busy.discard(delivery.shard)
            done.append(delivery.payload)

    for queue in queues:
        consumers(queue, handler, ordered=True).start()
    eventually(lambda: len(done) == 60)
    assert clashes == []


def test_a_handler_that_is_given_up_leaves_its_shard_to_the_other_workers(consumers, monkeypatch):
    # The lock of the shard is not to run out where the clock leaps: then anybody could have it.
    monkeypatch.setattr("latchwork.queue.sharded.consumer.ordering.LEASE", 100 * LIMIT)
    ahead, handler = Ahead(), Hangs()
    queue = made(MemoryStore(seams=ahead), shards=1, handler_timeout=timedelta(seconds=LIMIT))
    queue.publish_many(["hang", "next"], key="k")
    consumer = consumers(queue, handler, ordered=True).start()
    give_up(consumer, handler, 1, ahead)
    eventually(lambda: consumer.stats["acked"] == 1)
    assert handler.seen == ["hang", "next"]
    assert reasons(queue) == ["timeout"]
    handler.released.set()
    eventually(lambda: consumer.runs.stuck == 0)
    queue.publish("last", key="k")
    eventually(lambda: consumer.stats["acked"] == 2)


def test_a_handler_that_outlives_stop_leaves_its_shard_to_another_process(consumers):
    store = MemoryStore()
    queues = [made(store, shards=1) for _ in range(2)]
    running, released = threading.Event(), threading.Event()
    first = consumers(queues[0], lambda delivery: running.set() or released.wait(PATIENCE), ordered=True).start()
    queues[0].publish_many(["hang", "next"], key="k")
    assert running.wait(PATIENCE)
    assert first.stop(0) is False
    seen = []
    second = consumers(queues[1], lambda delivery: seen.append((delivery.payload, delivery.attempts)), ordered=True)
    second.start()
    eventually(lambda: second.stats["acked"] == 2)
    assert seen == [("hang", 1), ("next", 1)]
    assert not released.is_set()
    released.set()


def test_a_shard_that_ended_twice_stays_with_whoever_has_it_now():
    queue = made(MemoryStore(), shards=1)
    queue.publish("a")
    locks, never = ShardLocks(queue), threading.Event()
    with locks.hold_one(never) as first:
        first.end()
        with locks.hold_one(never) as second:
            first.end()
            assert second.mine()
            assert locks._take_one([0]) is None


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"handler": "not callable"}, InvalidMessageHandler),
        ({"concurrency": 101}, TooManyConsumers),
        ({"concurrency": -1}, InvalidRequest),
        ({"ignorable": ["ValueError"]}, InvalidRequest),
        ({"ignorable": "ValueError"}, InvalidRequest),
        ({"ignorable": int}, InvalidRequest),
        ({"ignorable": 7}, InvalidRequest),
    ],
)
def test_bad_input_is_refused_when_the_consumer_is_made(arguments, error):
    queue = made(MemoryStore())
    handler = arguments.pop("handler", lambda delivery: True)
    with pytest.raises(error):
        Consumer(queue, handler, **arguments)


def test_a_consumer_is_started_once(consumers):
    consumer = consumers(made(MemoryStore()), lambda delivery: True).start()
    with pytest.raises(InvalidRequest, match="make another"):
        consumer.start()


def test_with_starts_a_consumer_and_stops_it(monkeypatch):
    monkeypatch.setattr("latchwork.queue.sharded.consumer.turn.RECEIVE_WAIT", 0.01)
    queue = made(MemoryStore())
    queue.publish("a")
    with Consumer(queue, lambda delivery: True) as consumer:
        eventually(lambda: consumer.stats["acked"] == 1)
    assert consumer._workers == 0
    assert not consumer._supervisor.is_alive()


def test_a_handler_that_stops_its_own_consumer_is_refused_and_the_consumer_goes_on(consumers):
    queue = made(MemoryStore(), concurrency=1)
    seen = []

    def handler(delivery):
        if delivery.payload == "stop":
            with pytest.raises(InvalidRequest, match="stops its own consumer, which would wait for it"):
                consumer.stop()
        seen.append(delivery.payload)

    consumer = consumers(queue, handler).start()
    for payload in ("stop", "next"):
        queue.publish(payload)
        eventually(lambda: payload in seen)  # noqa: B023 - called within this turn
    assert consumer.stop(PATIENCE)
    assert (consumer.stats["acked"], consumer.given_up) == (2, 0)


def test_every_stop_says_what_the_first_one_did(consumers):
    queue = made(MemoryStore(), concurrency=1)
    running, go, said = threading.Event(), threading.Event(), []
    consumer = consumers(queue, lambda delivery: running.set() or go.wait(PATIENCE))
    runner = threading.Thread(target=lambda: said.append(consumer.run()))
    queue.publish("a")
    runner.start()
    assert running.wait(PATIENCE)
    assert consumer.stop(0) is False
    runner.join(PATIENCE)
    consumer.stop(0)
    assert (consumer.given_up, consumer.hung) == (1, 0), "what a stop gave up does not hang for the next one"
    go.set()
    eventually(lambda: consumer._workers == 0)
    assert [*said, consumer.stop(0)] == [False, False]


def test_a_consumer_that_is_run_again_in_another_thread_says_that_it_was_started_before(consumers):
    consumer = consumers(made(MemoryStore()), lambda delivery: None)
    threading.Timer(0.1, consumer.stop).start()
    assert consumer.run()
    said = []

    def again():
        with pytest.raises(InvalidRequest, match="started before"):
            consumer.run()
        said.append(True)

    thread = threading.Thread(target=again)
    thread.start()
    thread.join(PATIENCE)
    assert said == [True]


WORKER = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
from latchwork.store import SQLiteStore
from latchwork.queue import *
from latchwork.queue.sharded.consumer.signals import Signals
queue = QueueRegistry(SQLiteStore(sys.argv[1], synchronous="off"), "c").get("q")
signalled = Signals._signalled
def told(*given):
    signalled(*given)
    os.write(1, b"told\\n")
Signals._signalled = told
def handler(delivery):
    print("began", flush=True)
    time.sleep(float(sys.argv[2]))
    return True
drained = Consumer(queue, handler, concurrency=1, grace=float(sys.argv[3])).run()
print("drained" if drained else "handed back", flush=True)
"""


@pytest.mark.parametrize(
    ("signals", "times", "ends", "left"),
    [
        ([signal.SIGTERM], ("0.5", "20"), "drained", []),
        ([signal.SIGTERM], ("20", "0.1"), "handed back", [("interrupted", 0)]),
        ([signal.SIGTERM, signal.SIGTERM], ("20", "20"), "handed back", [("interrupted", 0)]),
    ],
)
def test_sigterm_drains_and_a_second_one_forces(tmp_path, signals, times, ends, left):
    path = tmp_path / "s.db"
    queue = made(SQLiteStore(path, synchronous="off"))
    queue.publish("a")
    child = subprocess.Popen([sys.executable, "-c", WORKER, str(path), *times], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "began\n"
        for number in signals:
            os.kill(child.pid, number)
            # a second signal that came before the first one was handled would be one with it
            assert child.stdout.readline() == "told\n"
        assert child.stdout.read().strip() == ends
        assert child.wait(PATIENCE) == 0
    finally:
        child.kill()
        child.wait()
    assert [(message.reason, message.attempts) for message in queue.peek()] == left
    assert reasons(queue) == []


FORKS = """
import os, signal, sys, time, warnings
warnings.simplefilter("ignore")
from latchwork.store import MemoryStore
from latchwork.queue import *
queue = QueueRegistry(MemoryStore(), "c").create(QueueConfig("q"))
queue.publish("a")
def handler(delivery):
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.write(there, b"ready")
        end = time.monotonic() + 5
        while time.monotonic() < end:
            pass
        os._exit(0)
    os.read(here, 5)
    time.sleep(0.1)
    os.kill(child, signal.SIGTERM)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
print(Consumer(queue, handler, concurrency=1).run(), flush=True)
"""


def test_a_child_that_a_handler_has_forked_can_be_terminated():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["True", "True"]
