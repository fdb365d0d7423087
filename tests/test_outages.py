"""A store that is away for a while: a wait with more time than that goes on; one with less tells no untruth."""

from __future__ import annotations

import logging
import threading

import pytest

from latchwork.coord import CountDownLatch, FencedLock, LatchLevel, ReadWriteLock, Semaphore
from latchwork.deadline import LATE, call_time
from latchwork.errors import LockUnavailable, Misconfigured, OutcomeUnknown, StorageFailed, Unavailable
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore, Outage

TIMEOUT = 60.0


@pytest.fixture
def clock():
    return ManualClock()


def latch(store, level=LatchLevel.DC):
    made = CountDownLatch.create(store, "shop", "run", 1, farm_id="f", level=level)
    made.count_down()
    return made


def large(store):
    queue = LargeQueue.create(store, "large", 100)
    queue.enqueue_many([1, 2, 3], txn_id="t")
    return queue


def sharded(store):
    queue = QueueRegistry(store, "shop").create(QueueConfig("orders", shards=4))
    queue.publish("m")
    return queue


WAITS = {
    "latch.wait": (latch, lambda it, timeout: it.wait(timeout)),
    "latch.wait across farms": (lambda store: latch(store, LatchLevel.XDC), lambda it, timeout: it.wait(timeout)),
    "lock.acquire": (lambda store: FencedLock(store, "lock"), lambda it, timeout: it.acquire(timeout).fence),
    "semaphore.acquire": (
        lambda store: Semaphore(store, "permits", permits=3),
        lambda it, timeout: it.acquire(2, timeout=timeout).fence,
    ),
    "rwlock.read": (lambda store: ReadWriteLock(store, "rw"), lambda it, timeout: it.read(timeout).fence),
    "rwlock.write": (lambda store: ReadWriteLock(store, "rw"), lambda it, timeout: it.write(timeout).fence),
    "large.enqueue": (large, lambda it, timeout: it.enqueue(4, timeout=timeout) == 3),
    "large.dequeue": (large, lambda it, timeout: it.dequeue(timeout=timeout).value == 1),
    "large.transaction": (large, lambda it, timeout: it.transaction("t", timeout=timeout).offsets == range(3)),
    "receive": (sharded, lambda it, timeout: [m.payload for m in it.receive(timeout=timeout)] == ["m"]),
}
waits = pytest.mark.parametrize("wait", WAITS)
FAULTS = ("dropped", "request_lost")
"""Nothing was written: the caller knows, or it does not."""


def begun(wait, clock):
    """What to wait for, over a store that can be away from now on; and how."""
    make, call = WAITS[wait]
    store = FaultyStore(MemoryStore(clock))
    return store, make(store), call


@pytest.mark.matrix
@waits
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wait_outlives_an_outage_that_is_shorter(wait, fault, clock, caplog):
    store, it, call = begun(wait, clock)
    began = clock.monotonic()
    store.plan = Outage(clock, began, began + TIMEOUT / 2, fault)
    with caplog.at_level(logging.WARNING):
        assert call(it, TIMEOUT)
    assert TIMEOUT / 2 <= clock.monotonic() - began < TIMEOUT / 2 + 3, "a store that is back is found soon"
    lines = [record.message for record in caplog.records if record.name == "latchwork.retry"]
    assert len(lines) == 1, "one line a minute"
    assert "is asked again for up to" in lines[0]


@pytest.mark.matrix
@waits
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wait_whose_time_ends_in_an_outage_does_not_say_that_its_condition_is_not_so(wait, fault, clock):
    store, it, call = begun(wait, clock)
    began = clock.monotonic()
    store.plan = Outage(clock, began, began + 10 * TIMEOUT, fault)
    with pytest.raises((Unavailable, OutcomeUnknown)) as failed:
        call(it, TIMEOUT)
    assert type(failed.value) in (Unavailable, OutcomeUnknown)
    assert TIMEOUT <= clock.monotonic() - began < TIMEOUT + 1


@waits
def test_a_wait_without_time_ends_with_the_first_trouble(wait, clock):
    store, it, call = begun(wait, clock)
    began = clock.monotonic()
    store.plan = Outage(clock, began, began + TIMEOUT)
    with pytest.raises(Unavailable):
        call(it, 0)
    assert clock.monotonic() - began < 1


@pytest.mark.matrix
@waits
@pytest.mark.parametrize("failure", [Misconfigured, StorageFailed])
def test_a_failure_that_time_does_not_mend_ends_a_wait_at_once(wait, failure, clock):
    store, it, call = begun(wait, clock)

    def fail():
        raise failure("it stays so")

    store.plan = Outage(clock, 0, 1e9, fail)
    began = clock.monotonic()
    with pytest.raises(failure, match="it stays so"):
        call(it, TIMEOUT)
    assert clock.monotonic() - began < 1


def test_a_wait_without_an_end_goes_on_and_says_so_each_minute(clock, caplog):
    store, it, call = begun("latch.wait", clock)
    began = clock.monotonic()
    store.plan = Outage(clock, began, began + 3000)
    with caplog.at_level(logging.WARNING):
        assert call(it, None)
    assert 3000 <= clock.monotonic() - began < 3003
    assert 48 <= sum(record.name == "latchwork.retry" for record in caplog.records) <= 50


def test_a_change_without_a_timeout_says_soon_that_the_store_is_away(clock):
    store, it, _ = begun("large.enqueue", clock)
    store.plan = Outage(clock, 0, 1e9)
    began = clock.monotonic()
    for call in (lambda: it.enqueue(4), it.dequeue, lambda: it.transaction("t")):
        with pytest.raises(Unavailable):
            call()
    assert clock.monotonic() - began < 3


def test_a_lock_that_others_hold_is_not_had_after_an_outage_either(clock):
    store, it, call = begun("lock.acquire", clock)
    FencedLock(store.inner, "lock", owner="other", lease=600).acquire()
    store.plan = Outage(clock, clock.monotonic(), clock.monotonic() + TIMEOUT / 2)
    with pytest.raises(LockUnavailable, match="other"):
        call(it, TIMEOUT)


def test_a_commit_in_doubt_is_looked_for_until_the_time_is_over(clock):
    store, it, _ = begun("large.enqueue", clock)
    store.plan = {3: "reply_lost"}
    number = store._number

    def away():
        store.plan = Outage(clock, clock.monotonic(), clock.monotonic() + TIMEOUT / 2)

    store.plan = {number + 3: "reply_lost", number + 4: away}
    assert it.enqueue(4, timeout=TIMEOUT) == 3
    assert it.info().tail_offset == 4
    assert clock.monotonic() >= TIMEOUT / 2


def test_a_claim_in_doubt_ends_no_wait_for_messages(clock):
    store, it, _ = begun("receive", clock)
    it.publish("another")
    number = store._number

    def away():
        store.plan = Outage(clock, clock.monotonic(), clock.monotonic() + TIMEOUT / 2)

    store.plan = {number + 3: "reply_lost", number + 4: away}  # the bell and the pointers are read before the claim
    found = it.receive(2, timeout=TIMEOUT)
    assert len(found) == 1, "what the claim in doubt took is left to the sweeper"
    assert clock.monotonic() >= TIMEOUT / 2


# ---- the time of each call


class Timed(CountingStore):
    """Notes how much time each call has, and lets every call take a moment."""

    def __init__(self, inner):
        super().__init__(inner)
        self.times = []

    def _call(self, verb, request, *rest):
        self.times.append(call_time())
        self.seams.sleep(0.01)
        return super()._call(verb, request, *rest)


@waits
def test_every_store_call_of_a_verb_has_the_time_that_the_verb_has_left(wait, clock):
    make, call = WAITS[wait]
    store = Timed(MemoryStore(clock))
    it = make(store)
    assert set(store.times) <= {None}, "without a timeout a call takes as long as the store allows"
    store.times.clear()
    if wait == "receive":
        clock.advance(600)  # what the registry knows is to be refreshed
    assert call(it, 5)
    assert None not in store.times
    assert store.times == sorted(store.times, reverse=True)
    assert 5 < store.times[0] <= 5 + LATE
    assert call_time() is None


def test_nobody_waits_long_behind_another_thread_whose_look_hangs():
    hangs, end = threading.Event(), threading.Event()
    queue = sharded(FaultyStore(MemoryStore()))

    def hang():
        hangs.set()
        assert end.wait(60)

    queue.store.next(hang)
    other = threading.Thread(target=lambda: queue.await_messages(1, 0, None), daemon=True)
    other.start()
    try:
        assert hangs.wait(60)
        with pytest.raises(Unavailable, match="another thread"):
            queue.receive()
    finally:
        end.set()
        other.join(60)
    assert not other.is_alive()
