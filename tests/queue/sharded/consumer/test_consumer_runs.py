"""What a consumer has in hand is handled once or goes back once, whatever happens while it fills, stops and fails."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import pytest

from latchwork.queue import BatchingConfig, Consumer
from latchwork.queue.sharded.consumer.settlements import extend
from latchwork.store import MemoryStore
from latchwork.testing.stores import CountingStore

from .alone import OneThread, made


class Interrupted(threading.Event):
    """A signal comes while the main thread waits for this and has its lock."""

    waits = False

    def wait(self, timeout=None):
        self.waits = True
        signal.raise_signal(signal.SIGTERM)
        self.waits = False
        return super().wait(0)

    def set(self):
        assert not self.waits, "it would wait for ever for the lock"
        super().set()


@pytest.fixture
def queue():
    return made(MemoryStore(OneThread()))


@pytest.fixture
def batches():
    return made(MemoryStore(OneThread()), batching=BatchingConfig(10, 5))


def meanwhile(queue, number, happens):
    """`happens` while the worker asks for messages for the so manieth time."""
    receive, asked = queue.await_messages, []

    def asks(*arguments, **options):
        asked.append(arguments)
        if len(asked) == number:
            happens()
        return receive(*arguments, **options)

    queue.await_messages = asks


def kept(queue):
    return sorted((message.payload, message.reason) for message in queue.sideline.peek(100))


def waiting(queue):
    """What waits in the queue, each with the attempt at which it comes next."""
    return sorted((delivery.payload, delivery.attempts) for delivery in queue.receive(100))


def test_a_batch_that_is_given_up_while_it_fills_goes_back_once_and_is_not_handled(batches):
    seen = []
    consumer = Consumer(batches, seen.append)

    def stops():
        consumer.stop(0)
        batches.publish("came while it stopped")

    batches.publish("had come")
    meanwhile(batches, 2, stops)
    consumer._turns.take()
    assert seen == []
    assert kept(batches) == []
    assert waiting(batches) == [("came while it stopped", 1), ("had come", 1)]
    assert not consumer.runs._runs


def test_a_worker_takes_nothing_that_comes_after_the_consumer_has_stopped(queue):
    seen = []
    consumer = Consumer(queue, seen.append)

    def stops():
        consumer.stop(0)
        queue.publish("late")

    meanwhile(queue, 1, stops)
    consumer._turns.take()
    assert seen == []
    assert waiting(queue) == [("late", 1)]
    assert not consumer.stats, "it is not even handed back"
    assert not consumer.runs._runs


def test_what_comes_to_a_worker_within_the_grace_goes_back(queue):
    seen = []
    consumer = Consumer(queue, lambda delivery: seen.append(delivery.payload))
    queue.publish("in time")
    meanwhile(queue, 1, consumer._stopping.set)
    consumer._turns.take()
    assert seen == []
    assert waiting(queue) == [("in time", 1)]


def test_a_batch_that_a_defect_kept_from_filling_up_is_handled_and_let_go(batches):
    seen = []
    consumer = Consumer(batches, lambda deliveries: seen.append(len(deliveries)))
    batches.publish_many([1, 2])
    meanwhile(batches, 2, lambda: {}["nothing"])
    consumer._turns.take()
    assert seen == [2]
    assert consumer.stats["acked"] == 2
    assert consumer.stats["troubles"] == 1
    assert not consumer.runs._runs


def test_a_handler_may_take_its_list_apart(batches):
    consumer = Consumer(batches, lambda deliveries: deliveries.clear())
    batches.publish_many([1, 2])
    consumer._turns.take()
    assert consumer.stats["acked"] == 2


@pytest.mark.parametrize("ends", ["fails", "is given up", "is interrupted"])
def test_a_large_batch_that_fails_or_is_given_up_costs_one_move_per_thousand(ends):
    store = CountingStore(MemoryStore(OneThread()))
    queue = made(store, batching=BatchingConfig(1500, 5))

    def handler(deliveries):
        store.reset()
        if ends == "is given up":
            consumer.runs.abandon(consumer.runs._runs[0], "hangs")
        elif ends == "is interrupted":
            consumer.stop(0)
        return False

    queue.publish_many(range(1500))
    consumer = Consumer(queue, handler)
    consumer._turns.take()
    assert store.total <= 2 * 4
    if ends == "is interrupted":
        assert consumer.stats["interrupted"] == 1500
        assert {message.attempts for message in queue.peek_all()} == {0}
        return
    assert consumer.stats["failed"] == queue.depth().sideline == 1500
    assert {message.reason for message in queue.sideline.peek_all()} == {"rejected" if ends == "fails" else "timeout"}


def test_what_the_consumer_acknowledged_nobody_brings_back(queue):
    taken = []
    consumer = Consumer(queue, taken.append)
    queue.publish("a")
    consumer._turns.take()
    assert queue.fail_many(taken, [("rejected", None)]) == [False]
    assert kept(queue) == []


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("itself", ["ack", "nack"])
def test_what_a_handler_settles_by_itself_is_settled_whatever_it_answers(queue, itself, answer, caplog):
    consumer = Consumer(queue, lambda delivery: [getattr(delivery, itself)(), answer][1])
    queue.publish("a")
    consumer._turns.take()
    ended = {"acked": 1} if itself == "ack" else {"failed": 1, "failed_rejected": 1}
    assert consumer.stats == {"handled": 1, **ended}
    assert kept(queue) == ([] if itself == "ack" else [("a", "rejected")])
    assert not caplog.records


def test_what_a_handler_settled_before_it_was_given_up_does_not_go_back(queue, caplog):
    def handler(delivery):
        delivery.ack()
        consumer.stop(0)

    consumer = Consumer(queue, handler)
    queue.publish("a")
    consumer._turns.take()
    assert consumer.stats == {"handled": 1}
    assert kept(queue) == []
    assert not caplog.records


def test_a_large_batch_is_extended_in_one_call_per_thousand_without_what_is_settled(caplog):
    store = CountingStore(MemoryStore(OneThread()))
    queue = made(store)
    queue.publish_many(range(1503))
    deliveries = queue.receive(1503)
    consumer = Consumer(queue, lambda delivery: None)
    consumer.runs.open(deliveries)
    deliveries[0].ack()
    store.seams.advance(16)
    store.reset()
    consumer.runs.keep()
    assert (store.total, store.rows["operate_many"]) == (2, 1502)
    assert not caplog.records
    store.seams.advance(50)
    queue.ack_many(deliveries[1:])


def test_each_delivery_that_cannot_be_extended_counts_by_itself(queue, caplog):
    queue.publish_many(range(4))
    deliveries = queue.receive(4)
    queue.pointers.remove([deliveries[1].held])
    queue.store.seams.advance(1)
    extend(deliveries)
    assert "1 deliveries could not be extended; the first (LEASE_LOST)" in caplog.text
    assert deliveries[1].message_id in caplog.text
    queue.store.seams.advance(600)
    extend(deliveries)
    assert "4 deliveries could not be extended; the first (LEASE_LOST)" in caplog.text
    assert "more than 10 sweep durations" in caplog.text


class Slow(Counter):
    """A count that another thread changes, if it may, between being read and being written."""

    meanwhile = other = None

    def __setitem__(self, what, n):
        if self.meanwhile:
            self.other, self.meanwhile = threading.Thread(target=self.meanwhile), None
            self.other.start()
            self.other.join(0.05)
        super().__setitem__(what, n)


def test_two_workers_that_count_at_once_both_count(queue):
    consumer = Consumer(queue, lambda delivery: None)
    consumer._state.counts = counts = Slow()
    counts.meanwhile = lambda: consumer._state.add("handled")
    queue.publish("a")
    consumer._turns.take()
    counts.other.join()
    assert counts["handled"] == 2


def test_a_child_forked_while_a_handler_runs_does_not_hand_back_its_parents_message(queue):
    left = []

    def handler(delivery):
        child = os.fork()
        if not child:
            code = 99
            try:
                consumer.__exit__()
                code = len(kept(queue))
            finally:
                os._exit(code)
        left.append(os.waitpid(child, 0)[1])

    consumer = Consumer(queue, handler).start()
    queue.publish("a")
    consumer._turns.take()
    assert left == [0]
    assert consumer.stats["acked"] == 1
    assert consumer.stop(0)


def test_an_ordered_batch_whose_shard_is_lost_takes_nothing_more_and_goes_to_the_next_holder(batches):
    seen = []
    consumer = Consumer(
        batches, lambda deliveries: seen.append([delivery.payload for delivery in deliveries]), ordered=True
    )

    def loses():
        (grant,) = consumer._turns.locks._busy.values()
        grant.lost.set()

    batches.publish("before")
    meanwhile(batches, 2, loses)
    batches.store.seams.at(0.5, lambda: batches.publish("after"))
    consumer._turns.take()
    assert seen == []
    while not seen:
        consumer._turns.take()
    assert seen == [["before", "after"]]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_pause_while_a_batch_is_collected_begins_no_handler_and_its_messages_go_back(batches, ordered):
    seen, clock = [], batches.store.seams
    consumer = Consumer(
        batches, lambda deliveries: seen.extend((one.payload, one.attempts) for one in deliveries), ordered=ordered
    )
    batches.publish_many(["a", "b"])
    clock.at(1, batches.pause)
    with pytest.warns(UserWarning, match="is paused"):
        consumer._turns.take()
    assert seen == []
    assert clock.monotonic() < 3, "the batch is collected for up to 5 s"
    assert consumer.runs.open_runs == consumer.stuck == 0
    batches.resume()
    batches.publish("c")
    while len(seen) < 3:
        consumer._turns.take()
    assert seen == [("a", 1), ("b", 1), ("c", 1)]


def test_a_signal_takes_no_lock(queue):
    consumer = Consumer(queue, lambda delivery: True)
    consumer._stopping = Interrupted()
    assert consumer.run() is True


@pytest.mark.parametrize(
    "ignorable", [KeyError, {KeyError}, [KeyError], (ValueError, KeyError), frozenset({LookupError})]
)
def test_one_exception_type_or_any_collection_of_them_is_ignorable(queue, ignorable):
    consumer = Consumer(queue, lambda delivery: {}["nothing"], ignorable=ignorable)
    queue.publish("a")
    consumer._turns.take()
    assert consumer.stats["acked"] == 1
    assert kept(queue) == []
