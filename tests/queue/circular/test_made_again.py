"""A queue that is made again once its metadata record was lost, over the buffer records of the earlier one."""

from __future__ import annotations

import pytest

from latchwork.errors import AlreadyExists, Corrupt, NotFound
from latchwork.queue import LargeQueue
from latchwork.queue.circular.lock import QueueLock
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore


def leave_behind(store, name, *, capacity):
    """Full buffer records of 10 entries each, of a queue without its metadata."""
    queue = LargeQueue.create(store, name, capacity, entries_per_record=10)
    queue.enqueue_many([b"x" * (queue.layout.room - 20)] * capacity)
    store.delete(queue.layout.meta)


@pytest.mark.parametrize("slots", [5, 10, 20])
def test_a_queue_made_again_takes_values_of_its_whole_room(store, name, slots):
    leave_behind(store, name, capacity=10)
    queue = LargeQueue.create(store, name, 10, entries_per_record=slots)
    value = b"y" * (queue.layout.room - 20)
    assert [queue.enqueue(value) for _ in range(10)] == list(range(10))
    assert [entry.value for entry in queue.dequeue_many(10)] == [value] * 10


@pytest.mark.parametrize("others", [5, 10])
def test_no_maker_takes_away_what_is_in_a_queue_made_meanwhile(others):
    """Another one makes the queue and fills it just before each of the calls of this one."""
    calls = CountingStore(MemoryStore(ManualClock()))
    leave_behind(calls.inner, "q", capacity=40)
    LargeQueue.create(calls, "q", 40, entries_per_record=5)
    assert calls.calls == {"get": 2, "operate_many": 3, "get_many": 1, "operate": 1}
    for call in range(1, calls.total + 1):
        inner = MemoryStore(ManualClock())
        leave_behind(inner, "q", capacity=40)

        def make_and_fill(inner=inner):
            LargeQueue.create(inner, "q", 40, entries_per_record=others).enqueue_many(range(33))

        with pytest.raises(AlreadyExists):
            LargeQueue.create(FaultyStore(inner, {call: make_and_fill}), "q", 40, entries_per_record=5)
        assert [entry.value for entry in LargeQueue.open(inner, "q").dequeue_many(40)] == list(range(33))


def test_a_queue_whose_metadata_is_lost_is_emptied_by_no_maker_of_the_same_layout():
    """Where it was made by mistake, what is in the buffer records can still be had from there."""
    inner = MemoryStore(ManualClock())
    leave_behind(inner, "q", capacity=10)
    queue = LargeQueue.create(inner, "q", 10, entries_per_record=10)
    assert len(inner.get(queue.layout.buffer(0)).bins["entries"]) == 10


@pytest.mark.parametrize(("capacity", "slots"), [(40, 10), (10, 10), (20, 4), (19, 5)])
def test_a_handle_from_before_takes_no_part_in_a_queue_made_again_with_another_layout(store, name, capacity, slots):
    old = LargeQueue.create(store, name, 20, entries_per_record=5)
    group = old.group("g")
    old.enqueue("of the old queue")
    store.delete(old.layout.meta)
    queue = LargeQueue.create(store, name, capacity, entries_per_record=slots)
    queue.group("g")
    queue.enqueue_many(range(7))
    for change in (
        lambda: old.enqueue("old"),
        lambda: old.enqueue("old", overwrite_if_full=True, timeout=5),
        old.dequeue,
        lambda: old.transaction("t"),
        lambda: old.read_at(6),
        old.info,
        lambda: group.read(7),
        group.lag,
    ):
        with pytest.raises(NotFound, match="made again, with capacity"):
            change()
    assert [entry.value for entry in LargeQueue.open(store, name).group("g").read(20)] == list(range(7))
    assert [entry.value for entry in queue.dequeue_many(20)] == list(range(7))
    assert old.open(store, name).enqueue("new") == 7


@pytest.mark.parametrize("capacity", [20, 18])
def test_a_handle_from_before_goes_on_in_a_queue_made_again_with_its_own_layout(store, name, capacity):
    old = LargeQueue.create(store, name, capacity, entries_per_record=5)
    old.enqueue("of the old queue")
    store.delete(old.layout.meta)
    queue = LargeQueue.create(store, name, capacity, entries_per_record=5)
    assert [queue.enqueue("a"), old.enqueue("b")] == [0, 1]
    assert [entry.value for entry in old.dequeue_many(3)] == ["a", "b"]


def test_a_handle_from_before_notices_it_while_it_waits_for_the_lock():
    """The new queue is made while the lock of the old one, which it waits for, is held by a process that died."""
    clock = ManualClock()
    inner = MemoryStore(clock)
    LargeQueue.create(inner, "q", 20, entries_per_record=5, lease=10)
    QueueLock(inner, LargeQueue.open(inner, "q").layout).take("died", [], None)

    def make_again():
        inner.delete(Key("q", "queue-metadata"))
        LargeQueue.create(inner, "q", 20, entries_per_record=10, lease=10)
        QueueLock(inner, LargeQueue.open(inner, "q").layout).take("also died", [], None)

    old = LargeQueue.open(FaultyStore(inner, {6: make_again}), "q")
    with pytest.raises(NotFound, match="made again"):
        old.enqueue("old")


@pytest.mark.parametrize("mark", [None, "text", 2**63 - 1])
def test_a_buffer_record_whose_mark_is_damaged_is_named(store, name, mark):
    """None: the bin is missing. Above a mark of that size no fence could be."""
    leave_behind(store, name, capacity=20)
    store.operate(Key(name, "queue-buffer-1"), Put("fencing-mark", mark))
    with pytest.raises(Corrupt, match=r"queue-buffer-1 is damaged: .*fencing-mark.*restore or delete it"):
        LargeQueue.create(store, name, 20, entries_per_record=10)
    store.delete(Key(name, "queue-buffer-1"))
    assert LargeQueue.create(store, name, 20, entries_per_record=10).enqueue("v") == 0
