"""What is said of a transaction that is asked for while others work on the queue, or when the queue is no more."""

from __future__ import annotations

from contextlib import suppress

import pytest

from latchwork.errors import InvalidRequest, NotFound, OutcomeUnknown
from latchwork.queue import LargeQueue, Transaction
from latchwork.queue.circular import transactions
from latchwork.queue.circular.layout import TXNS
from latchwork.queue.circular.plan import OVERWRITE, Request
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore

from .together import in_one_hold


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


@pytest.mark.parametrize(
    "txn", ["x" * 257, "\N{GRINNING FACE}" * 65, 10**256, 10**5000], ids=["letters", "faces", "int", "huge"]
)
def test_an_id_has_at_most_so_many_bytes_that_those_remembered_fit_into_a_record(store, queue, txn):
    calls = store.total
    for act in (lambda: queue.enqueue("a", txn_id=txn), lambda: queue.dequeue(txn_id=txn)):
        with pytest.raises(InvalidRequest, match=r"txn_id is .* 256.*: (shorten it|use a shorter one)"):
            act()
    with pytest.raises(InvalidRequest, match="256"):
        queue.transaction(txn)
    assert store.total == calls
    longest = "\N{GRINNING FACE}" * 64
    assert queue.enqueue("a", txn_id=longest) == 1
    assert queue.transaction(longest).offsets == range(1, 2)


def test_transactions_are_forgotten_in_time_though_many_are_in_each_hold(store, queue):
    for hold in range(30):
        requests = [Request(OVERWRITE, f"{hold}-{number}", values=["a"]) for number in range(64)]
        in_one_hold(queue, requests)
    assert len(store.get(queue.layout.meta).bins[TXNS]) <= 1024 + 2 * 64 + 3


def test_transactions_are_forgotten_in_time_though_every_other_hold_only_asks(store, queue, monkeypatch):
    monkeypatch.setitem(transactions.REMEMBERED, "", 100)
    for number in range(400):
        with suppress(OutcomeUnknown):  # once older ones are forgotten
            queue.transaction(f"order-{number}")
        queue.enqueue("a", txn_id=f"order-{number}", overwrite_if_full=True)
    assert len(store.get(queue.layout.meta).bins[TXNS]) <= 256 + 2 * 64 + 3


@pytest.mark.parametrize("txn", ["", "~"])
def test_keys_of_the_bookkeeping_are_no_ids(store, queue, txn):
    calls = store.total
    for act in (queue.transaction, lambda txn: queue.enqueue("a", txn_id=txn), lambda txn: queue.dequeue(txn_id=txn)):
        with pytest.raises(InvalidRequest, match="txn_id is"):
            act(txn)
    assert store.total == calls
