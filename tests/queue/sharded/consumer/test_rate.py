"""A consumer's rate: no handler begins that the limiter has not allowed, and what has to wait counts no attempt."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

import pytest

from latchwork.coord import RateLimiter
from latchwork.errors import InvalidRequest, OutcomeUnknown, Unavailable
from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry, Worker
from latchwork.queue.sharded.consumer import rate as rates
from latchwork.queue.sharded.consumer.ordering import HeldShard
from latchwork.queue.sharded.consumer.rate import Rate
from latchwork.queue.sharded.consumer.turn import MAX_RATE_WAIT
from latchwork.queue.sharded.delivery import MAX_EXTENSION
from latchwork.queue.sharded.slots import Slot
from latchwork.queue.sharded.upkeep.sweeper import Sweeper
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.store import MemoryStore
from latchwork.testing.stores import CountingStore

from .alone import OneThread, made


@pytest.fixture
def clock():
    return OneThread()


@pytest.fixture
def store(clock):
    return CountingStore(MemoryStore(clock))


class Term:
    def check(self):
        """It never ends."""


class Farms:
    def __init__(self, found):
        self.found = found

    def queues(self):
        return self.found


@pytest.fixture
def queue(store):
    return made(store)


def waiting(queue):
    """What waits in the queue, each with the attempt at which it comes next."""
    return sorted((delivery.payload, delivery.attempts) for delivery in queue.receive(1000))


def most_in_any(times, window):
    return max(sum(begin <= time < begin + window for time in times) for begin in times)


def test_no_more_handlers_begin_in_any_window_than_the_rate_allows(queue, store, clock):
    began = []
    limiter = RateLimiter(store, "bank", 3, 1.0)
    consumer = Consumer(queue, lambda delivery: began.append(clock.monotonic()), rate=limiter)
    queue.publish_many(range(12))
    start = clock.monotonic()
    while consumer.stats["acked"] < 12:
        consumer._turns.take()
    assert most_in_any(began, 1.0) == 3
    assert clock.monotonic() - start < 2 * 12 / 3, "nor much fewer"
    assert consumer.stats["failed"] == 0


def test_two_consumers_of_two_queues_share_a_rate(store, clock):
    limiter, began = RateLimiter(store, "bank", 2, 10), []
    first = made(store)
    second = QueueRegistry(store, "d").create(QueueConfig("q", retry=False, shards=1))
    consumers = [Consumer(q, lambda delivery: began.append(1), rate=limiter) for q in (first, second)]
    for consumer in consumers:
        consumer.queue.publish_many(range(3))
    for _ in range(3):
        for consumer in consumers:
            consumer._turns.take()
    assert len(began) == 2


def test_what_may_not_begin_soon_goes_back_uncounted_and_nothing_is_claimed_until_it_may(queue, store, clock):
    consumer = Consumer(queue, lambda delivery: None, rate=RateLimiter(store, "bank", 1, 60))
    queue.publish_many(range(4))
    for _ in range(3):
        consumer._turns.take()
    assert (consumer.stats["handled"], consumer.stats["handed_back"]) == (1, 2)
    store.reset()
    before, limited = clock.monotonic(), consumer.stats["rate_limited"]
    consumer._turns.take()
    assert store.total == 0
    assert clock.monotonic() > before, "it waits, rather than ask again at once"
    assert consumer.stats["rate_limited"] == limited + 1, "each minute of a long wait says what is waited for"
    assert waiting(queue) == [(n, 1) for n in range(1, 4)]


def test_a_message_that_waits_for_the_rate_goes_back_when_the_consumer_ends(queue, store, clock):
    limiter = RateLimiter(store, "bank", 1, MAX_RATE_WAIT / 2)
    limiter.try_acquire()
    seen = []
    consumer = Consumer(queue, seen.append, rate=limiter)
    queue.publish("a")
    clock.at(0.2, consumer._stopping.set)
    consumer._turns.take()
    assert seen == []
    assert waiting(queue) == [("a", 1)]


def test_each_key_has_the_rate_for_itself_and_holds_up_no_other(queue, store, clock):
    handled = Counter()
    limiter = RateLimiter(store, "tenant", 1, 30)
    consumer = Consumer(
        queue, lambda delivery: handled.update([delivery.payload]), rate=limiter, per_key=lambda one: one.payload
    )
    queue.publish_many(["a"] * 3 + ["b", "c"])
    for _ in range(8):
        consumer._turns.take()
    assert handled == {"a": 1, "b": 1, "c": 1}
    assert queue.depth().delayed == 2


def test_what_a_key_has_too_much_of_comes_again_when_it_is_its_turn_uncounted(queue, store, clock):
    began, attempts = [], []

    def handler(delivery):
        began.append(clock.monotonic())
        attempts.append(delivery.attempts)

    consumer = Consumer(queue, handler, rate=RateLimiter(store, "tenant", 1, 10), per_key=lambda one: "a")
    timers = Timers(Farms([queue]))
    queue.publish_many(range(4))
    put_off, real = [], queue.put_off
    queue.put_off = lambda *arguments: put_off.append(arguments) or real(*arguments)
    for _ in range(100):
        consumer._turns.take()
        clock.advance(1)
        timers.run(Term())
        if len(began) == 4:
            break
    assert attempts == [1, 1, 1, 1]
    assert most_in_any(began, 10) == 1
    assert len(put_off) <= 4, "each comes back in its turn, not all of them each time"


def test_in_order_a_message_waits_with_its_shard(queue, store, clock):
    seen = []
    consumer = Consumer(
        queue, lambda delivery: seen.append(delivery.payload), ordered=True, rate=RateLimiter(store, "bank", 1, 3)
    )
    queue.publish_many(range(4), key="k")
    began = clock.monotonic()
    for _ in range(20):
        consumer._turns.take()
        if len(seen) == 4:
            break
    assert seen == [0, 1, 2, 3]
    assert clock.monotonic() - began >= 9


class Leads:
    """An election that this process has won for good."""

    class Leadership(Term):
        epoch = 1

    leadership = Leadership()


def test_in_order_a_message_waits_for_longer_than_it_can_be_extended_and_is_handled_once(
    queue, store, clock, monkeypatch
):
    monkeypatch.setattr(
        HeldShard, "lost", property(lambda held: held.grant not in consumer._turns.locks._busy.values())
    )
    seen, sweeper = [], Sweeper(made(store).registry, Leads())
    consumer = Consumer(queue, seen.append, ordered=True, rate=RateLimiter(store, "bank", 1, 1200))

    def keep():
        consumer._keep_alive()
        sweeper.run_once()
        clock.at(10, keep)

    queue.publish_many(range(2), key="k")
    keep()
    while len(seen) < 2:
        consumer._turns.take()
    assert clock.monotonic() > MAX_EXTENSION * queue.pointers.sweep + queue.pointers.sweep
    consumer._turns.settlements.send()
    assert [(one.payload, one.attempts, one.settled) for one in seen] == [(0, 1, True), (1, 1, True)]
    assert waiting(queue) == []


def test_in_order_a_message_that_waits_is_left_first_for_the_next_holder_when_the_consumer_ends(queue, store, clock):
    limiter, seen = RateLimiter(store, "bank", 1, 3), []
    limiter.try_acquire()
    consumer = Consumer(queue, seen.append, ordered=True, rate=limiter)
    queue.publish_many(range(2), key="k")
    clock.at(1, consumer._stopping.set)
    consumer._turns.take()
    assert seen == []
    assert queue.sideline.peek() == []
    clock.advance(60)
    second = Consumer(made(store), lambda delivery: seen.append(delivery.payload), ordered=True)
    for _ in range(40):
        second._turns.take()
        clock.advance(1)
        if len(seen) == 2:
            break
    assert seen == [0, 1]


@pytest.mark.parametrize("failure", [Unavailable("the store is away"), OutcomeUnknown("the answer was lost")])
def test_where_the_limiter_cannot_be_asked_nothing_begins(queue, store, clock, failure):
    limiter, seen = RateLimiter(store, "bank", 10, 1), []

    def fails(n=1):
        raise failure

    consumer = Consumer(queue, seen.append, rate=limiter)
    limiter.try_acquire = fails
    queue.publish("a")
    consumer._turns.take()
    consumer._turns.take()
    assert seen == []
    assert consumer.stats["troubles"] >= 1
    assert not consumer.stats["rate_limited"], "the rate has held nothing up"
    del limiter.try_acquire
    clock.advance(1)
    for _ in range(3):
        consumer._turns.take()
    assert [delivery.attempts for delivery in seen] == [1]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("key", [lambda one: {}["tenant"], lambda one: 7, lambda one: "", lambda one: "a\0b"])
def test_a_key_that_cannot_be_had_fails_its_message_alone(queue, store, key, ordered):
    seen = []
    consumer = Consumer(queue, seen.append, rate=RateLimiter(store, "t", 9, 1), per_key=key, ordered=ordered)
    queue.publish("a")
    consumer._turns.take()
    assert seen == []
    (failed,) = queue.sideline.peek()
    assert failed.reason == "exception"
    assert failed.last_error.startswith("per_key raised ")
    assert not consumer.runs._runs


async def asynchronous(delivery):
    """No key is had of what it returns."""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate": 5}, "RateLimiter"),
        ({"rate": (5, 1)}, "RateLimiter"),
        ({"per_key": str}, "per_key without rate"),
        ({"rate": True, "per_key": "tenant"}, "function"),
        ({"rate": True, "per_key": asynchronous}, "function"),
    ],
)
def test_a_rate_that_is_none_is_refused_before_any_call(queue, store, options, says):
    if options.get("rate") is True:
        options = {**options, "rate": RateLimiter(store, "bank", 1, 1)}
    store.reset()
    with pytest.raises(InvalidRequest, match=says):
        Consumer(queue, lambda delivery: None, **options)
    with pytest.raises(InvalidRequest, match=says):
        Worker(queue.registry).handler("q", **options)
    assert store.total == 0


def test_a_rate_of_batches_is_refused_with_the_remedy(store):
    queue = made(store, batching=BatchingConfig(10, 1))
    with pytest.raises(InvalidRequest, match="in the handler"):
        Consumer(queue, lambda deliveries: None, rate=RateLimiter(store, "bank", 1, 1))


# ---- what cannot be handed back, put off, or asked


class NoDeletes(CountingStore):
    """A store that refuses deletions once it is told to."""

    refuses = False

    def _delete(self, removal):
        if self.refuses:
            raise Unavailable("deletions are refused")
        return super()._delete(removal)

    def _delete_many(self, removals):
        if self.refuses:
            return [Unavailable("deletions are refused") for _ in removals]
        return super()._delete_many(removals)


def test_what_cannot_be_handed_back_is_copied_once_and_waits_its_time(clock):
    store, seen = NoDeletes(MemoryStore(clock)), []
    queue, limiter = made(store), RateLimiter(store, "bank", 1, 60)
    limiter.try_acquire()
    consumer = Consumer(queue, seen.append, rate=limiter)
    queue.publish("a")
    store.refuses = True
    consumer._turns.take()
    store.reset()
    began = clock.monotonic()
    for _ in range(20):
        consumer._turns.take()
    assert store.total == 0, "the limiter has said how long"
    assert queue.depth().ready == 1, "one copy, not one a turn"
    assert consumer.stats["unsettled"] == 1
    assert clock.monotonic() - began >= 1.0, "it waits between two tries"
    assert seen == []


def test_what_cannot_be_handed_back_while_nothing_may_begin_is_tried_once_and_waits(clock):
    store = NoDeletes(MemoryStore(clock))
    queue = made(store)
    consumer = Consumer(queue, lambda delivery: None, concurrency=1)
    queue.publish("a")
    consumer._turns.prefetched.put(queue.receive(1))
    store.refuses = True
    consumer.allot(0)
    began = clock.monotonic()
    for _ in range(20):
        consumer._turns.take()
    assert queue.depth().ready == 1
    assert clock.monotonic() - began >= 1.0


def test_a_pause_while_a_key_has_too_much_holds_up_no_other_key(queue, store, clock):
    limiter, seen = RateLimiter(store, "tenant", 1, 3600), []
    limiter.of_key("a").try_acquire()
    consumer = Consumer(
        queue,
        lambda delivery: seen.append(delivery.payload),
        rate=limiter,
        per_key=lambda one: one.payload,
        concurrency=1,
    )
    rate = consumer._turns.rate
    ask = rate.ask
    rate.ask = lambda key: (ask(key), consumer.allot(0))[0]
    queue.publish("a")
    consumer._turns.take()
    rate.ask = ask
    consumer.allot(1)
    queue.publish("b")
    clock.advance(1)
    for _ in range(3):
        consumer._turns.take()
    assert seen == ["b"]


def test_what_a_sweep_took_while_it_was_put_off_comes_again_once(queue, store, clock):
    limiter = RateLimiter(store, "tenant", 1, 3600)
    limiter.of_key("a").try_acquire()
    consumer = Consumer(queue, lambda delivery: None, rate=limiter, per_key=lambda one: one.payload)
    rate = consumer._turns.rate
    ask = rate.ask
    rate.ask = lambda key: (queue.pointers.stamp([Slot(0, 1)], "a sweep"), ask(key))[1]
    queue.publish("a")
    consumer._turns.take()
    assert (queue.depth().delayed, queue.depth().ready) == (1, 0)
    assert consumer.stats["lost"] == 1
    assert not rate.closed


@pytest.mark.parametrize("fails", [Unavailable("the store is away"), OutcomeUnknown("the answer was lost")])
def test_what_was_stored_for_later_is_not_handed_back_where_its_deletion_fails(queue, store, clock, fails):
    def refused(held):
        raise fails

    limiter = RateLimiter(store, "tenant", 1, 3600)
    limiter.of_key("a").try_acquire()
    consumer = Consumer(queue, lambda delivery: None, rate=limiter, per_key=lambda one: one.payload)
    queue.publish("a")
    queue.pointers.remove = refused
    consumer._turns.take()
    assert (queue.depth().delayed, queue.depth().ready) == (1, 0)
    assert consumer.stats["unsettled"] == 1
    assert not consumer._turns.rate.closed


def test_turns_are_remembered_for_so_many_keys_the_latest_ones(store, clock, monkeypatch):
    monkeypatch.setattr(rates, "MOST_KEYS", 3)
    rate = Rate(RateLimiter(store, "tenant", 1, 10), lambda one: one.payload, store.seams)
    for key in "abcade":
        rate.turn_of(key, 60, 3600)
    assert list(rate._turns) == ["a", "d", "e"]
    assert rate.turn_of("a", 60, 3600) == pytest.approx(60 + 2 * 11), "behind the two before it"


def test_a_key_with_more_messages_than_have_a_turn_within_the_longest_delay_goes_on_at_its_rate(store, clock):
    rate, longest, begun = Rate(RateLimiter(store, "tenant", 10, 60), lambda one: one.payload, store.seams), 360, []
    began, waits = clock.monotonic(), [(0.0, n) for n in range(300)]
    while waits and waits[0][0] < 5 * longest:
        due, n = heappop(waits)
        clock.advance(max(0.0, began + due - clock.monotonic()))
        now, wait = clock.monotonic() - began, rate.ask("a")
        if wait:
            heappush(waits, (now + rate.turn_of("a", wait, longest), n))
        else:
            begun.append(now)
    in_each = [sum(n * longest <= time < (n + 1) * longest for time in begun) for n in range(5)]
    assert min(in_each) > 45, "about 54, as the limiter has room again a tenth of its window late"


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("leaves", [SystemExit, GeneratorExit])
def test_a_key_function_that_would_end_the_process_fails_its_message_alone(queue, store, leaves, ordered):
    def key(delivery):
        raise leaves

    consumer = Consumer(queue, lambda delivery: None, rate=RateLimiter(store, "t", 9, 1), per_key=key, ordered=ordered)
    queue.publish("a")
    consumer._turns.take()
    (failed,) = queue.sideline.peek()
    assert failed.last_error.startswith(f"per_key raised {leaves.__name__}")
    assert consumer.runs.open_runs == 0
