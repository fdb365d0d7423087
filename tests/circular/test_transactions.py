"""What is said of a transaction that is asked for while others work on the queue, or when the queue is no more."""

from __future__ import annotations

import pytest

from latchwork.errors import NotFound, OutcomeUnknown
from latchwork.queue import LargeQueue, Transaction
from latchwork.store import MemoryStore
from tests.clock import ManualClock
from tests.faulty import CountingStore, FaultyStore


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return FaultyStore(MemoryStore(clock))


@pytest.fixture
def queue(store):
    made = LargeQueue.create(store.inner, "q", 10)
    made.enqueue("old")
    return LargeQueue.open(store, "q")


def others(store):
    return LargeQueue.open(store.inner, "q")


def before(store, call, act):
    """Let others act just before the call with this number, counted from now."""
    store.plan = {store._number + call: act}


def test_what_is_committed_while_it_is_asked_for_is_reported(store, queue):
    before(store, 2, lambda: others(store).enqueue_many("ab", txn_id="t"))
    assert queue.transaction("t") == Transaction("t", range(1, 3))
    assert others(store).enqueue("c", timeout=0) == 3, "the lock was given back"


def test_what_was_never_begun_stays_not_committed(store, queue):
    assert queue.transaction("t") is None
    counting = CountingStore(store.inner)
    again = LargeQueue.open(counting, "q")
    counting.reset()
    assert again.transaction("t") is None
    assert counting.calls == {"operate": 1}, "said from the record, without the lock"


def test_who_loses_the_lock_while_asking_does_not_know(store, queue, clock):
    def overtake():
        clock.advance(1)
        others(store).enqueue("x", timeout=5)

    before(store, 3, overtake)
    with pytest.raises(OutcomeUnknown, match="ask again") as unknown:
        queue.transaction("t")
    assert unknown.value.details["txn_id"] == "t"
    assert queue.transaction("t", timeout=5) is None


def test_looking_at_a_queue_that_is_gone_says_how_to_make_it(store, queue):
    store.inner.delete(queue.layout.meta)
    for look in (queue.info, lambda: queue.read_at(0)):
        with pytest.raises(NotFound, match=r"'q' is gone; make it with LargeQueue\.create"):
            look()


def test_a_handle_says_which_queue_it_is(queue):
    assert repr(queue) == "LargeQueue('q', capacity=10)"
