"""Consumer groups: cursors of their own, a head that waits, gaps that are reported."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest, NotFound, QueueFull
from latchwork.queue import Entry, LargeQueue
from latchwork.queue.circular.groups import MAX_GROUPS, MAX_NAME
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore


def values(batch):
    return [entry.value for entry in batch]


@pytest.fixture
def queue(store, name):
    made = LargeQueue.create(store, name, 6, entries_per_record=2)
    made.enqueue_many("abcd")
    return made


def test_groups_read_everything_each_on_its_own(queue):
    one, two = queue.group("one"), queue.group("two")
    assert values(one.read(3)) == ["a", "b", "c"]
    one.commit(2)
    assert values(one.read(3)) == ["d"]
    assert values(two.read(9)) == ["a", "b", "c", "d"]
    assert (one.lag(), two.lag()) == (1, 4)


def test_what_was_read_and_not_committed_is_read_again(queue):
    group = queue.group("g")
    assert values(group.read(2)) == values(group.read(2)) == ["a", "b"]
    group.commit(0)
    assert values(queue.group("g").read(2)) == ["b", "c"]


def test_groups_are_refused_before_they_fill_the_queues_record(store, name):
    """Their map is in the record that every change of the queue writes to."""
    queue = LargeQueue.create(store, name, 6, entries_per_record=2)
    groups = [queue.group(f"{number:03}" + "\U0001f600" * (MAX_NAME - 3)) for number in range(MAX_GROUPS)]
    with pytest.raises(InvalidRequest, match="has 256 consumer groups, the limit is 256: drop one"):
        queue.group("one more")
    assert queue.enqueue("a") == 0, "the queue goes on"
    assert values(queue.group(groups[0].name, hold_head=True).read(1)) == ["a"], "a group that is there is joined"
    groups[1].drop()
    assert values(queue.group("one more").read(1)) == ["a"]


def test_commit_never_goes_back_and_rewind_does(queue):
    group = queue.group("g")
    group.commit(2)
    group.commit(0)
    assert values(group.read(9)) == ["d"]
    group.rewind(1)
    assert values(group.read(9)) == ["b", "c", "d"]
    group.commit(3)
    assert group.read(9) == []
    assert group.lag() == 0


def test_commit_and_rewind_outside_of_the_queue_are_refused(queue):
    group = queue.group("g")
    queue.dequeue_many(2)
    with pytest.raises(InvalidRequest, match="ends at 3"):
        group.commit(4)
    for offset in (1, 5):
        with pytest.raises(InvalidRequest, match="2 to 4"):
            group.rewind(offset)
    assert values(group.read(9)) == ["c", "d"]


def test_what_was_taken_from_a_group_is_reported_as_a_gap_until_it_is_committed(queue):
    group = queue.group("g")
    group.commit(0)
    for value in "efghi":
        queue.enqueue(value, overwrite_if_full=True)
    batch = group.read(2)
    assert batch == [Entry(3, "d"), Entry(4, "e")]
    assert batch.gap == range(1, 3)
    assert group.read(2).gap == range(1, 3)
    group.commit(batch[-1].offset)
    assert group.read(1).gap == range(5, 5)
    assert not group.read(1).gap
    queue.dequeue_many(6)
    emptied = group.read(3)
    assert (emptied, emptied.gap) == ([], range(5, 9))


def test_head_waits_for_a_holding_group(queue):
    group = queue.group("g", hold_head=True)
    assert queue.dequeue() is None
    group.commit(1)
    assert [entry.value for entry in queue.dequeue_many(9)] == ["a", "b"]
    queue.enqueue_many("efgh")
    with pytest.raises(QueueFull, match="group"):
        queue.enqueue("i", overwrite_if_full=True)
    assert values(group.read(9)) == ["c", "d", "e", "f", "g", "h"]
    group.commit(2)
    assert queue.enqueue("i", overwrite_if_full=True) == 8
    assert not group.read(9).gap


def test_stalled_group_can_be_dropped(queue):
    stalled = queue.group("stalled", hold_head=True)
    queue.group("stalled").drop()
    assert queue.dequeue() == Entry(0, "a")
    for act in (stalled.lag, lambda: stalled.read(1), lambda: stalled.commit(2), lambda: stalled.rewind(2)):
        with pytest.raises(NotFound, match="dropped"):
            act()
    assert values(queue.group("stalled").read(9)) == ["b", "c", "d"]


def test_group_that_holds_keeps_holding_until_it_is_dropped(queue):
    queue.group("g", hold_head=True)
    queue.group("g")
    assert queue.dequeue() is None


def test_group_may_begin_to_hold_from_where_it_is(queue):
    group = queue.group("g")
    group.commit(0)
    queue.dequeue_many(2)
    queue.group("g", hold_head=True)
    assert queue.dequeue() is None
    assert values(group.read(9)) == ["c", "d"]


def test_a_gap_stays_reported_when_head_begins_to_wait_for_the_group(queue):
    group = queue.group("g")
    group.commit(0)
    queue.dequeue_many(3)
    queue.group("g", hold_head=True)
    batch = group.read(1)
    assert (values(batch), batch.gap, group.lag()) == (["d"], range(1, 3), 1)
    assert queue.dequeue() is None
    assert queue.enqueue_many("efghi").stop == 9  # what fits needs no head that moves
    with pytest.raises(QueueFull, match="group waits at offset 1"):
        queue.enqueue("j", overwrite_if_full=True)
    group.commit(1)
    assert (group.read(1).gap, queue.dequeue()) == (range(2, 3), None)
    group.commit(3)
    assert (values(group.read(1)), group.read(1).gap) == (["e"], range(4, 4))
    assert queue.enqueue("j", overwrite_if_full=True) == 9
    assert queue.dequeue() is None
    assert queue.info().head_offset == 4


def test_smallest_of_the_holding_groups_counts_and_no_other(queue):
    queue.group("free")
    slow, fast = queue.group("slow", hold_head=True), queue.group("fast", hold_head=True)
    fast.commit(3)
    slow.commit(0)
    assert [entry.value for entry in queue.dequeue_many(9)] == ["a"]


def test_calls():
    counting = CountingStore(MemoryStore(ManualClock()))
    queue = LargeQueue.create(counting, "q", 100)
    queue.enqueue_many(range(50))
    group = queue.group("g")
    counting.reset()
    group.read(50)
    group.commit(49)
    assert counting.calls == {"operate": 3}


def test_group_that_rewinds_while_head_is_about_to_pass_it_stops_head():
    """Head is committed by the same guard that the rewind changes: nothing is dropped under the group."""
    inner = MemoryStore(ManualClock())
    LargeQueue.create(inner, "q", 10)
    LargeQueue.open(inner, "q").enqueue_many("abc")
    group = LargeQueue.open(inner, "q").group("g", hold_head=True)
    group.commit(2)
    store = FaultyStore(inner)
    queue = LargeQueue.open(store, "q")
    store.plan[len(store.history) + 3] = lambda: group.rewind(1)
    assert [entry.value for entry in queue.dequeue_many(3)] == ["a"]
    assert values(group.read(9)) == ["b", "c"]


def test_reader_that_is_overtaken_by_an_overwrite_reports_the_gap():
    inner = MemoryStore(ManualClock())
    LargeQueue.create(inner, "q", 4, entries_per_record=2)
    writer = LargeQueue.open(inner, "q")
    writer.enqueue_many("abcd")
    store = FaultyStore(inner)
    group = LargeQueue.open(store, "q").group("g")
    store.plan[len(store.history) + 2] = lambda: writer.enqueue_many("efg", overwrite_if_full=True)
    batch = group.read(4)
    assert (values(batch), batch.gap) == (["d"], range(3))


@pytest.mark.parametrize("fault", ["reply_lost", "request_lost", "late"])
def test_commit_in_doubt_is_sent_again(fault):
    inner = MemoryStore(ManualClock())
    LargeQueue.create(inner, "q", 4)
    store = FaultyStore(inner)
    queue = LargeQueue.open(store, "q")
    queue.enqueue_many("abc")
    group = queue.group("g")
    store.next(fault)
    group.commit(1)
    store.deliver()
    assert values(group.read(9)) == ["c"]


# ---- refused after doubt: the first attempt may have done it, or another reader something else


@pytest.fixture
def doubtful():
    """A store whose queue has four entries, and another handle on it."""
    store = FaultyStore(MemoryStore(ManualClock()))
    other = LargeQueue.create(store.inner, "q", 4)
    other.enqueue_many("abcd")
    return store, LargeQueue.open(store, "q"), other


def in_doubt(store, fault, meanwhile):
    """The next call fails so, and others act before it is sent again."""
    store.plan = {store._number + 1: fault, store._number + 2: meanwhile}


@pytest.mark.parametrize("fault", ["reply_lost", "request_lost"])
def test_head_is_held_though_another_reader_joins_the_group_while_the_joining_is_in_doubt(doubtful, fault):
    store, queue, other = doubtful
    in_doubt(store, fault, lambda: other.group("g"))
    group = queue.group("g", hold_head=True)
    assert other.dequeue() is None
    assert values(group.read(9)) == list("abcd")


@pytest.mark.parametrize("fault", ["reply_lost", "request_lost"])
def test_a_rewind_in_doubt_is_done_or_refused_though_head_moves_on(doubtful, fault):
    store, queue, other = doubtful
    group = queue.group("g")
    group.commit(3)
    in_doubt(store, fault, other.dequeue)
    if fault == "request_lost":
        with pytest.raises(InvalidRequest, match="1 to 4"):
            group.rewind(0)
        assert group.lag() == 0
    else:
        group.rewind(0)
        assert values(group.read(9)) == list("bcd")


def test_a_commit_in_doubt_beyond_the_tail_is_refused(doubtful):
    store, queue, _ = doubtful
    group = queue.group("g")
    store.next("request_lost")
    with pytest.raises(InvalidRequest, match="ends at 3"):
        group.commit(10**6)
    assert group.lag() == 4
