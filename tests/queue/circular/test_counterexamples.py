"""Each hole of the illustrative protocol: shut in ours, and shown to be open in the naive one by the same steps."""

from __future__ import annotations

from contextlib import suppress

import pytest

from latchwork.errors import LatchworkError, LeaseLost, LockUnavailable, OutcomeUnknown, RecordTooBig
from latchwork.queue import Entry, LargeQueue
from latchwork.store import Key, MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, Fault, FaultyStore
from tests.queue.circular.naive import NaiveQueue

LONG = 1.0
"""Seconds; longer than any lease here."""


class World:
    """A queue of three on one store, and processes that each have a store of their own."""

    def __init__(self, kind):
        self.kind, self.clock = kind, ManualClock()
        self.inner = MemoryStore(self.clock)
        kind.create(self.inner, "q", 3, entries_per_record=3)

    def process(self, plan=None, seams=None):
        store = FaultyStore(self.inner, plan, seams=seams)
        queue = self.kind.open(self.inner, "q")
        return type(queue).open(store, "q"), store

    def queue(self):
        return self.kind.open(self.inner, "q")

    def crash(self, act, call):
        """A process that dies before the call with that number of its work."""
        queue, store = self.process()
        store.plan[len(store.history) + call] = "crash_before"
        with pytest.raises(Crash):
            act(queue)

    def drained(self):
        self.clock.advance(LONG)
        queue, found = self.queue(), []
        while (entry := queue.dequeue(txn_id="drain")) is not None:
            found.append(entry.value)
        return found


def before(store, call, act):
    """Do something just before the call with that number, counted from now."""
    store.plan[len(store.history) + call] = act


def outcome(act):
    try:
        return act()
    except LatchworkError as failure:
        return failure


def reused_id_does_not_commit_anothers_hold(kind):
    """A is paused before its commit; B breaks its lock and commits; C, with the same id again, has the lock now."""
    world = World(kind)
    paused, store = world.process()

    def meanwhile():
        world.clock.advance(LONG)
        world.queue().enqueue("b", txn_id="1")
        world.crash(lambda queue: queue.enqueue("c", txn_id="1"), call=3)

    before(store, 3, meanwhile)
    done = outcome(lambda: paused.enqueue("a", txn_id="1"))
    found = world.drained()
    return "b" in found and ("a" in found) == (not isinstance(done, LatchworkError)) and "c" not in found


def overwrite_that_dies_leaves_the_head(kind):
    """A dies in the middle of an overwrite: what it would have overwritten may be gone, all else is as it was."""
    world = World(kind)
    for value in "xyz":
        world.queue().enqueue(value)
    world.crash(lambda queue: queue.enqueue("new", overwrite_if_full=True), call=4 if kind is LargeQueue else 3)
    return world.drained() in (["x", "y", "z"], ["y", "z"])


def stale_dequeue_does_not_move_head(kind):
    """A is paused before the commit of a dequeue; B takes two entries; C, with the same id, has the lock now."""
    world = World(kind)
    for value in "xyz":
        world.queue().enqueue(value)
    paused, store = world.process()
    taken = []

    def meanwhile():
        world.clock.advance(LONG)
        taken.extend(world.queue().dequeue(txn_id="1").value for _ in range(2))
        world.crash(lambda queue: queue.dequeue(txn_id="1"), call=3)

    before(store, 3, meanwhile)
    done = outcome(lambda: paused.dequeue(txn_id="1"))
    if isinstance(done, Entry):
        taken.append(done.value)
    return sorted(taken + world.drained()) == ["x", "y", "z"]


def skewed_clock_does_not_break_a_live_lock(kind):
    """A is in the middle of its work, within its lease; B's clock is half a minute ahead."""
    world = World(kind)
    live, store = world.process()
    other, _ = world.process(seams=world.clock.skewed(30))
    seen = []
    before(store, 3, lambda: seen.append(outcome(lambda: other.enqueue("b", txn_id="2", timeout=0.05))))
    done = outcome(lambda: live.enqueue("a", txn_id="1"))
    return done == 0 and isinstance(seen[0], LockUnavailable)


@pytest.mark.parametrize("fault", ["reply_lost", "request_lost"])
def test_commit_in_doubt_is_resolved(fault):
    assert commit_in_doubt(LargeQueue, fault) == (0, ["a"])
    assert isinstance(commit_in_doubt(NaiveQueue, fault)[0], OutcomeUnknown)


def commit_in_doubt(kind, fault):
    world = World(kind)
    queue, store = world.process()
    before(store, 3, fault)
    return outcome(lambda: queue.enqueue("a")), world.drained()


def test_commit_in_doubt_that_landed_before_another_one_took_the_lock():
    """The reply is lost, another process commits, then the doubt is resolved from the transaction map."""
    world = World(LargeQueue)
    queue, store = world.process()
    before(store, 3, "reply_lost")
    before(store, 4, lambda: world.queue().enqueue("b"))
    assert queue.enqueue("a") == 0
    assert world.drained() == ["a", "b"]


def test_commit_in_doubt_cannot_land_after_it_was_resolved():
    world = World(LargeQueue)
    queue, store = world.process()
    before(store, 3, Fault("late"))
    assert queue.enqueue("a") == 0
    assert store.pending == 1
    queue.enqueue("b")
    store.deliver()
    assert world.drained() == ["a", "b"]


def mark_is_not_reset(kind):
    """A slot write is on its way while the metadata is lost and the queue made again; then it arrives."""
    world = World(kind)
    queue, store = world.process()
    store.policy = type(store.policy)(attempts=1)
    queue.enqueue("w")
    while queue.dequeue() is not None:
        pass  # each hold is another fence
    before(store, 2, Fault("late"))
    before(store, 3, "crash_before")
    with suppress(Crash):
        outcome(lambda: queue.enqueue("old"))
    world.inner.delete(Key("q", "queue-metadata"))
    world.clock.advance(LONG)
    kind.create(world.inner, "q", 3, entries_per_record=3)
    for value in "xy":
        world.queue().enqueue(value)
    store.deliver()
    return world.drained() == ["x", "y"]


def reader_never_gets_another_offsets_value(kind):
    """The slot is overwritten between the reader's look at head and tail and its read of the slot."""
    world = World(kind)
    for value in "xyz":
        world.queue().enqueue(value)
    reader, store = world.process()
    before(store, 2, lambda: world.queue().enqueue("new", overwrite_if_full=True))
    return reader.read_at(0) in (None, Entry(0, "x"))


HOLES = [
    reused_id_does_not_commit_anothers_hold,
    overwrite_that_dies_leaves_the_head,
    stale_dequeue_does_not_move_head,
    skewed_clock_does_not_break_a_live_lock,
    mark_is_not_reset,
    reader_never_gets_another_offsets_value,
]


@pytest.mark.parametrize("holds", HOLES, ids=lambda holds: holds.__name__)
def test_hole_is_shut(holds):
    assert holds(LargeQueue), "the queue has the hole"
    assert not holds(NaiveQueue), "the steps do not show the hole any more"


def test_not_committed_is_final():
    """A is paused before its commit when somebody is told that its transaction is not committed."""
    world = World(LargeQueue)
    paused, store = world.process()
    told = []
    before(store, 3, lambda: told.append(world.queue().transaction("t")))
    with pytest.raises(LeaseLost, match="not committed"):
        paused.enqueue("a", txn_id="t")
    assert told == [None]
    assert world.queue().transaction("t") is None
    assert world.drained() == []


def test_not_committed_is_final_for_a_dead_holder_whose_commit_is_on_its_way():
    world = World(LargeQueue)
    dying, store = world.process()
    store.policy = type(store.policy)(attempts=1)
    before(store, 3, Fault("late"))
    before(store, 4, "crash_before")
    with pytest.raises(Crash):
        dying.enqueue("a", txn_id="t")
    assert world.queue().transaction("t") is None
    store.deliver()
    assert world.queue().transaction("t") is None
    assert world.drained() == []


def test_id_of_a_transaction_that_failed_does_not_answer_for_an_older_one():
    world = World(LargeQueue)
    world.queue().enqueue("a", txn_id="t")
    world.crash(lambda queue: queue.enqueue("b", txn_id="t"), call=4)
    assert world.queue().transaction("t") is None
    assert world.drained() == ["a"]


def test_acquisition_that_lands_late_takes_no_transaction_away():
    """The first attempt to take the lock lands long after the transaction that it began is committed."""
    world = World(LargeQueue)
    queue, store = world.process()
    before(store, 1, Fault("late"))
    assert queue.enqueue("a", txn_id="t") == 0
    world.queue().enqueue("b")
    store.deliver()
    assert world.queue().transaction("t").offsets == range(1)
    assert world.drained() == ["a", "b"]


def test_too_large_entry_is_refused_before_anything_is_written():
    store = FaultyStore(MemoryStore(ManualClock()))
    queue = LargeQueue.create(store, "q", 1000, entries_per_record=100)
    calls = store.total
    with pytest.raises(RecordTooBig, match="entries_per_record"):
        queue.enqueue_many(["fits", "x" * 10_500])
    assert store.total == calls
    for _ in range(10):
        queue.enqueue_many(["x" * 10_400] * 100)
    assert queue.info().size == 1000
