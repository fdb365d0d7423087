"""Holds that are lost, commits in doubt, records that are gone: who is told what, and what is in the queue then."""

from __future__ import annotations

import os

import pytest

from latchwork.errors import (
    AlreadyExists,
    Corrupt,
    InvalidRequest,
    LeaseLost,
    LockUnavailable,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from latchwork.queue import Entry, LargeQueue
from latchwork.queue.circular.group_commit import HOLDS
from latchwork.queue.circular.layout import TXNS, Layout
from latchwork.queue.circular.plan import ENQUEUE, Request
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Key, MapPut, MemoryStore, Put
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
    LargeQueue.create(store.inner, "q", 3000, entries_per_record=10)
    return LargeQueue.open(store, "q")


def before(store, plan):
    """What happens at the calls with these numbers, counted from now."""
    store.plan = {store._number + call: act for call, act in plan.items()}


def overtaking(store, clock):
    """Another process waits until the lease has run out, and enqueues."""

    def overtake():
        clock.advance(1)
        LargeQueue.open(store.inner if isinstance(store, CountingStore) else store, "q").enqueue("other", timeout=5)

    return overtake


def values(queue):
    return [entry.value for entry in queue.dequeue_many(3000)]


# ---- holds


class Overtaken(CountingStore):
    """Something happens just before every commit."""

    act = None

    def _operate(self, update):
        if self.act and any(isinstance(op, MapPut) and op.bin == TXNS for op in update.ops):
            self.act()
        return super()._operate(update)


def test_who_loses_every_hold_is_told_to_use_a_longer_lease_and_has_changed_nothing(clock):
    store = Overtaken(MemoryStore(clock))
    queue = LargeQueue.create(store, "q", 100)
    store.act = overtaking(store, clock)
    with pytest.raises(LeaseLost, match="longer lease"):
        queue.enqueue("mine")
    store.act = None
    assert values(queue) == ["other"] * HOLDS


def test_an_id_that_is_used_again_is_judged_anew_though_the_hold_was_lost_in_between(store, queue, clock):
    assert queue.enqueue("first", txn_id="t") == 0
    before(store, {2: overtaking(store, clock)})
    store.reset()
    assert queue.enqueue("second", txn_id="t") == 2
    assert store.total == 7, "nothing is written under a hold that is known to be lost"
    assert queue.transaction("t").offsets == range(2, 3)
    assert values(queue) == ["first", "other", "second"]


def test_a_queue_is_called_empty_or_full_only_while_the_hold_that_saw_it_is(store, queue, clock):
    """Who asks after the hold was lost may join it, and would be told what was so long ago."""
    before(store, {2: overtaking(store, clock)})
    assert queue.dequeue().value == "other"
    other = LargeQueue.create(store.inner, "small", 1)
    other.enqueue("first")

    def emptied():
        clock.advance(1)
        assert other.dequeue(timeout=5).value == "first"

    small = LargeQueue.open(store, "small")
    before(store, {2: emptied})
    assert small.enqueue("second") == 1


def test_a_long_write_that_loses_its_hold_on_the_way_is_written_once(store, queue, clock):
    before(store, {3: overtaking(store, clock)})
    assert queue.enqueue_many(range(2000)) == range(1, 2001)
    assert store.calls["operate_many"] == 1 + 2, "it ends as soon as it is known to be lost"  # the last record: alone
    assert values(queue) == ["other", *range(2000)]


def test_a_long_read_that_loses_its_hold_on_the_way_takes_each_entry_once(store, queue, clock):
    queue.enqueue_many(range(2000))
    before(store, {3: overtaking(store, clock)})
    store.reset()
    assert values(queue) == [*range(2000), "other"]
    assert store.calls["operate_many"] == 1 + 2, "it ends as soon as it is known to be lost"
    assert queue.dequeue() is None


# ---- commits in doubt


def test_in_doubt_who_was_written_does_not_know_and_who_found_no_room_knows_of_nothing(store):
    queue = LargeQueue.create(store, "q", 4)
    store.policy = RetryPolicy(attempts=1)
    before(store, {3: "reply_lost", 4: "dropped"})
    fits, too_many = Request(ENQUEUE, "fits", values=[1, 2, 3]), Request(ENQUEUE, "not", values=[4, 5])
    in_one_hold(queue, [fits, too_many])
    assert type(fits.error) is OutcomeUnknown
    assert (fits.error.details["txn_id"], fits.error.details["offsets"]) == ("fits", range(3))
    assert type(too_many.error) is Unavailable
    assert "nothing was committed" in str(too_many.error)
    assert queue.transaction("fits").offsets == range(3)
    assert queue.transaction("not") is None


def test_a_commit_in_doubt_that_may_have_been_forgotten_is_unknown(store, queue):
    store.policy = RetryPolicy(attempts=1)

    def forget():
        store.inner.operate(queue.layout.meta, MapPut(TXNS, "", 2**62))

    before(store, {3: "request_lost", 5: forget})
    with pytest.raises(OutcomeUnknown, match=r"forgotten.*ask transaction"):
        queue.enqueue("a", txn_id="t")


# ---- records that are gone


def gone(store, queue):
    return lambda: store.inner.delete(queue.layout.meta)


def test_a_queue_that_goes_while_its_lock_is_awaited_is_not_found(store, queue):
    store.inner.operate(queue.layout.meta, Put("locked", 1))
    before(store, {2: gone(store, queue)})
    with pytest.raises(NotFound, match="gone"):
        queue.enqueue("a", timeout=5)


def test_a_queue_that_goes_before_the_commit_is_not_found(store, queue):
    before(store, {3: gone(store, queue)})
    with pytest.raises(NotFound):
        queue.enqueue("a", timeout=5)


def test_an_entry_whose_buffer_record_is_missing_cannot_be_written(store, queue):
    store.inner.delete(Key("q", "queue-buffer-0"))
    with pytest.raises(Corrupt, match="missing"):
        queue.enqueue("a")
    assert queue.info().size == 0


def test_a_group_that_reads_a_damaged_slot_says_so(store, queue):
    queue.enqueue_many("abc")
    group = queue.group("g")
    assert repr(group) == "ConsumerGroup('q', 'g')"
    store.inner.operate(Key("q", "queue-buffer-0"), Put("entries", [[0, "a"]]))
    with pytest.raises(Corrupt, match="offset 2 is not in its slot"):
        group.read(3)
    assert queue.read_at(0) == Entry(0, "a")
    with pytest.raises(Corrupt, match="offset 2 is not in its slot"):
        queue.read_at(2)


@pytest.mark.parametrize("overtaken", ["by a dequeue and an enqueue", "by an overwrite"])
def test_an_entry_that_is_overwritten_while_it_is_read_at_its_offset_is_not_there(store, queue, overtaken):
    other = LargeQueue.open(store.inner, "q")
    other.enqueue_many(range(other.layout.capacity))

    def meanwhile():
        if overtaken != "by an overwrite":
            other.dequeue()
        other.enqueue("new", overwrite_if_full=True)

    before(store, {2: meanwhile})
    assert queue.read_at(0) is None


# ---- making one


class Away(MemoryStore):
    """A store that does not even say what it is."""

    def describe(self):
        raise Unavailable("away")


@pytest.mark.parametrize("make", [LargeQueue.create, LargeQueue.open_or_create])
@pytest.mark.parametrize(
    ("name", "capacity", "options"),
    [("", 9, {}), ("q", 0, {}), ("q", 9, {"entries_per_record": 0}), ("q", 9, {"lease": -1})],
)
def test_what_no_queue_can_have_is_refused_though_the_store_is_away(clock, make, name, capacity, options):
    with pytest.raises(InvalidRequest):
        make(Away(clock), name, capacity, **options)


def test_what_is_not_a_store_is_refused_though_the_store_of_the_entries_is_away(clock):
    with pytest.raises(InvalidRequest):
        LargeQueue.create("memory:", "q", 9, buffer_store=Away(clock))


@pytest.mark.parametrize(("fault", "said"), [("dropped", "dropped at call"), ("request_lost", "create it again")])
def test_buffer_records_that_cannot_be_made_are_said_and_made_by_the_next(store, fault, said):
    store.policy = RetryPolicy(attempts=1)
    before(store, {2: fault})
    with pytest.raises(Unavailable, match=said):
        LargeQueue.create(store, "q", 20, entries_per_record=10)
    queue = LargeQueue.create(store, "q", 20, entries_per_record=10)
    queue.enqueue_many(range(20))
    assert values(queue) == list(range(20))


@pytest.mark.parametrize("capacity", [20, 15])
def test_a_creation_whose_reply_was_lost_is_recognised(store, capacity):
    before(store, {4: "reply_lost"})
    queue = LargeQueue.create(store, "q", capacity, entries_per_record=10)
    assert store.fired == {"reply_lost": 1}
    assert queue.enqueue("a") == 0


def test_a_creation_in_doubt_that_finds_anothers_queue_is_refused(store):
    def other():
        LargeQueue.create(store.inner, "q", 30, entries_per_record=10)

    before(store, {4: "request_lost", 5: other})
    with pytest.raises(AlreadyExists):
        LargeQueue.create(store, "q", 20, entries_per_record=10)


def test_more_entries_per_record_than_records_have_room_for_are_refused():
    with pytest.raises(InvalidRequest, match="leave no room"):
        Layout.planned("q", 10_000, 10_000, 128 * 1024)


def test_a_value_that_fits_is_taken_though_its_text_might_have_been_longer(queue):
    text = "ä" * 40_000
    queue.enqueue(text)
    assert values(queue) == [text]


# ---- overwrites that fail


@pytest.mark.parametrize(
    ("plan", "dropped", "head"),
    [
        ({2: "dropped"}, None, 0),
        ({2: "request_lost"}, 15, 0),
        ({2: "reply_lost"}, 15, 15),
        ({3: "dropped"}, 15, 15),
        ({3: "request_lost"}, 15, 15),
        ({4: "dropped"}, 15, 15),
    ],
    ids=["head", "head in doubt", "head, no reply", "slots", "slots in doubt", "tail"],
)
def test_an_overwrite_that_fails_says_how_many_entries_it_has_dropped(store, plan, dropped, head):
    store.policy = RetryPolicy(attempts=1)
    queue = LargeQueue.create(store, "q", 20, entries_per_record=5)
    queue.enqueue_many(range(20))
    before(store, plan)
    with pytest.raises(Unavailable) as failed:
        queue.enqueue_many(range(15), overwrite_if_full=True)
    assert failed.value.details.get("dropped") == dropped
    info = queue.info()
    assert (info.head_offset, info.tail_offset) == (head, 20)


def test_an_overwrite_that_moved_head_without_a_reply_and_then_lost_its_hold_says_what_it_has_dropped(store, clock):
    """Head is moved, the reply is lost, another process takes the lock and keeps it, and the repeat is refused."""
    queue = LargeQueue.create(store, "q", 20, entries_per_record=5)
    queue.enqueue_many(range(20))

    def stolen():
        meta = Key("q", "queue-metadata")
        store.inner.operate(meta, Put("lock-owner", "thief"), Put("lease-ms", 10**6), Add("fencing-ctr", 1))

    before(store, {2: "reply_lost", 3: stolen})
    with pytest.raises(LockUnavailable) as failed:
        queue.enqueue_many(range(15), overwrite_if_full=True, timeout=5)
    assert failed.value.details["dropped"] == 15
    assert queue.info().head_offset == 15


# ---- threads


def test_a_forked_child_does_not_wait_for_a_thread_that_led_in_its_parent(store, queue):
    queue._work.line.led = True
    child = os.fork()
    if not child:
        done = 1
        try:
            done = int(queue.enqueue("child", timeout=5) != 0)
        finally:
            os._exit(done)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_was_answered_before_a_failure_stays_answered(queue, monkeypatch):
    def run(ticket):
        (request,) = queue._work.line.take(ticket, [])
        request.result = "done"
        raise Unavailable("after that")

    monkeypatch.setattr(queue._work, "_run", run)
    assert queue._work.submit(Request(ENQUEUE, None), None) == "done"
