"""Threads that share a handle: what they hand in is done once each, in few calls, and nobody waits for ever."""

from __future__ import annotations

import threading
import time

import pytest

from latchwork.errors import LatchworkError, LockUnavailable, QueueFull, Unavailable
from latchwork.queue import LargeQueue
from latchwork.queue.circular import group_commit
from latchwork.queue.circular.plan import ENQUEUE, OVERWRITE, Request
from latchwork.store import MemoryStore, Put
from latchwork.testing.stores import CountingStore, FaultyStore

from .together import in_one_hold

THREADS = 8


def together(acts):
    """Run them in threads; what each returned or raised."""
    outcomes = [None] * len(acts)

    def run(place):
        try:
            outcomes[place] = acts[place]()
        except LatchworkError as failure:
            outcomes[place] = failure

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


def until_waiting(queue, count):
    """Spin until so many threads have handed in their work; an error where they do not."""
    end = time.monotonic() + 10
    while len(queue._work.line.waiting) < count:
        assert time.monotonic() < end, f"{len(queue._work.line.waiting)} of {count} have handed in their work"
        time.sleep(0.0001)


def slowly(store, verb, until):
    """Let the first call of a kind wait until the others have handed in their work."""
    first, done = getattr(store, verb), threading.Event()

    def waits(*request):
        if not done.is_set():
            done.set()
            assert until.wait(10)
        return first(*request)

    setattr(store, verb, waits)


def test_nothing_is_lost_or_doubled_between_threads(store, name):
    queue = LargeQueue.create(store, name, 1000, entries_per_record=20)
    each = 25

    def producer(number):
        return [queue.enqueue(number * each + place) for place in range(each)]

    offsets = together([lambda number=number: producer(number) for number in range(THREADS)])
    assert sorted(offset for mine in offsets for offset in mine) == list(range(THREADS * each))
    assert all(mine == sorted(mine) for mine in offsets)
    placed = {offset: number * each + place for number, mine in enumerate(offsets) for place, offset in enumerate(mine)}

    def consumer():
        found = []
        while (entry := queue.dequeue()) is not None:
            found.append(entry)
        return found

    taken = together([consumer] * THREADS)
    assert {entry.offset: entry.value for mine in taken for entry in mine} == placed
    assert sum(map(len, taken)) == len(placed)


def test_work_handed_in_meanwhile_is_done_under_one_hold():
    store = CountingStore(MemoryStore())
    queue = LargeQueue.create(store, "q", 100)
    store.reset()
    handed_in = threading.Event()
    slowly(store, "_operate", handed_in)

    def last(number):
        if number == THREADS - 1:
            until_waiting(queue, THREADS - 1)
            handed_in.set()
        return queue.enqueue(number, txn_id=f"t{number}" if number % 2 else None)

    outcomes = together([lambda number=number: last(number) for number in range(THREADS)])
    assert sorted(outcomes) == list(range(THREADS))
    assert store.total <= 9
    for number in range(1, THREADS, 2):
        assert queue.transaction(f"t{number}").offsets == range(outcomes[number], outcomes[number] + 1)


def test_one_that_does_not_fit_fails_alone():
    queue = LargeQueue.create(MemoryStore(), "q", 4)
    outcomes = together([lambda: queue.enqueue_many([1, 2, 3]), lambda: queue.enqueue_many([4, 5, 6])])
    assert sum(isinstance(outcome, QueueFull) for outcome in outcomes) == 1
    assert queue.info().size == 3


def test_overwrites_of_one_hold_that_together_exceed_the_capacity():
    queue = LargeQueue.create(MemoryStore(), "q", 4, entries_per_record=2)
    queue.enqueue("old")
    requests = [Request(OVERWRITE, None, values=["a", "b", "c"]), Request(OVERWRITE, None, values=["d", "e", "f"])]
    in_one_hold(queue, requests)
    assert [request.result for request in requests] == [range(1, 4), range(4, 7)]
    assert [(entry.offset, entry.value) for entry in queue.dequeue_many(9)] == [(3, "c"), (4, "d"), (5, "e"), (6, "f")]


def test_full_is_said_only_with_the_commit_that_makes_it_so():
    """What is refused for want of room is so because of what comes before it in the same hold."""
    store = FaultyStore(MemoryStore())
    queue = LargeQueue.create(store, "q", 4)
    store.policy = type(store.policy)(attempts=1)
    store.plan[len(store.history) + 3] = "dropped"
    requests = [Request(ENQUEUE, None, values=[1, 2, 3]), Request(ENQUEUE, None, values=[4, 5])]
    with pytest.raises(Unavailable):
        in_one_hold(queue, requests)
    assert requests[1].error is None


def test_one_that_fails_to_get_the_lock_does_not_fail_the_others():
    store = MemoryStore()
    queue = LargeQueue.create(store, "q", 10, lease=60)
    key = queue.layout.meta
    store.operate(key, Put("locked", 1), Put("lock-time-ms", int(store.seams.wall() * 1000)))
    waits = threading.Thread(target=lambda: queue.enqueue("patient", timeout=30), daemon=True)
    waits.start()
    with pytest.raises(LockUnavailable):
        queue.enqueue("hasty", timeout=0.05)
    store.operate(key, Put("locked", 0))
    waits.join(30)
    assert [entry.value for entry in queue.dequeue_many(10)] == ["patient"]


def test_error_of_a_hold_reaches_all_who_were_in_it():
    store = FaultyStore(MemoryStore())
    queue = LargeQueue.create(store, "q", 10)
    store.policy = type(store.policy)(attempts=1)
    store.plan[len(store.history) + 2] = "dropped"
    with pytest.raises(Unavailable):
        queue.enqueue("a")
    assert queue.enqueue("b") == 0


def test_interrupted_leader_leaves_the_lead():
    store = FaultyStore(MemoryStore())
    queue = LargeQueue.create(store, "q", 10)

    def interrupt():
        raise KeyboardInterrupt

    store.plan[len(store.history) + 1] = interrupt
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue("a")
    assert queue.enqueue("b", timeout=5) == 0


def test_interrupted_thread_that_was_given_the_lead_hands_it_on(monkeypatch):
    store = MemoryStore()
    queue = LargeQueue.create(store, "q", 10, lease=60)
    leading, may_go_on, seen = threading.Event(), threading.Event(), []

    class Interrupted(BaseException):
        pass

    class Wake(threading.Event):
        """The first thread that waits is interrupted once it has been woken to lead."""

        def wait(self, timeout=None):
            super().wait(timeout)
            if not seen:
                seen.append(self)
                raise Interrupted

    operate = store._operate

    def paused(update):
        if not leading.is_set():
            leading.set()
            assert may_go_on.wait(10)
        return operate(update)

    store._operate = paused
    leader = threading.Thread(target=lambda: queue.enqueue("a"), daemon=True)
    leader.start()
    assert leading.wait(10)
    store.seams = type("Wakes", (type(store.seams),), {"event": lambda self: Wake()})()
    queue._work.line._seams = store.seams
    monkeypatch.setattr(group_commit, "MOST", 1)
    errors = []

    def interrupted():
        try:
            queue.enqueue("b")
        except Interrupted as failure:
            errors.append(failure)

    second = threading.Thread(target=interrupted, daemon=True)
    third = threading.Thread(target=lambda: queue.enqueue("c"), daemon=True)
    for number, thread in enumerate((second, third), 2):
        thread.start()
        until_waiting(queue, number)
    may_go_on.set()
    for thread in (leader, second, third):
        thread.join(10)
        assert not thread.is_alive()
    assert len(errors) == 1
    assert [entry.value for entry in queue.dequeue_many(9)] == ["a", "c"]
