"""A signal's handler may release and acknowledge at any instruction of its own thread: it waits for no lock that
this thread has.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from latchwork.coord import FencedLock, ReadWriteLock, Semaphore
from latchwork.errors import LockUnavailable
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from tests.support import matrix
from tests.support.interrupts import Interrupts, points_of

STRIDE = 9
"""Of the points of a wait each ninth is tried: it goes through the poller's steps many times."""
LEAST = 20
"""Points that a sample has."""


class OwnedLock:
    """A lock that says so where a thread would wait for itself, without end."""

    def __init__(self):
        self._lock, self._owner = threading.Lock(), None

    def acquire(self, blocking=True, timeout=-1):
        if self._owner == threading.get_ident():
            raise AssertionError("this thread waits for itself")
        taken = self._lock.acquire(blocking, timeout)
        self._owner = threading.get_ident() if taken else self._owner
        return taken

    def release(self):
        self._owner = None
        self._lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class OwnedLocks(ManualClock):
    """A manual clock with such locks."""

    def lock(self):
        return OwnedLock()


def lock(store, name):
    return FencedLock(store, name, lease=50.0)


def semaphore(store, name):
    one = Semaphore(store, name, permits=1, lease=50.0)
    return SimpleNamespace(acquire=lambda timeout: one.acquire(timeout=timeout))


def writers(store, name):
    return SimpleNamespace(acquire=ReadWriteLock(store, name, lease=50.0).write)


def released_in_a_wait(make, interrupts):
    store = MemoryStore(OwnedLocks())
    held, others = make(store, "mine").acquire(5), make(store, "theirs").acquire(5)
    freed = []
    interrupts.handler = lambda: freed.append(held.release())
    with pytest.raises(LockUnavailable):
        interrupts.run(lambda: make(store, "theirs").acquire(0.004))
    others.release()
    assert freed == [True] * held.lost.is_set()


@pytest.mark.parametrize("make", [lock, semaphore, writers])
def test_a_signals_handler_releases_at_any_point_of_a_wait_of_its_thread(make):
    points = points_of(lambda interrupts: released_in_a_wait(make, interrupts))
    for at in matrix.sample(range(0, points, STRIDE), make.__name__, LEAST):
        released_in_a_wait(make, Interrupts(at))


def released_for_a_waiting_thread(interrupts):
    """The lock that the handler releases is the one that its own thread waits for."""
    store = MemoryStore(OwnedLocks())
    held = lock(store, "one").acquire(5)
    interrupts.handler = held.release
    try:
        interrupts.run(lambda: lock(store, "one").acquire(0.004).release())
    except LockUnavailable:
        assert interrupts.at is None or held.lost.is_set() or interrupts.points <= interrupts.at


def test_a_signals_handler_releases_the_very_lock_that_its_thread_waits_for():
    for at in matrix.sample(range(0, points_of(released_for_a_waiting_thread), STRIDE), "the very lock", LEAST):
        released_for_a_waiting_thread(Interrupts(at))


def acknowledged_in_a_receive(interrupts):
    queue = QueueRegistry(MemoryStore(OwnedLocks()), "signals").create(QueueConfig("orders", shards=2))
    queue.publish_many(["first"])
    (delivery,) = queue.receive(1)
    interrupts.handler = delivery.ack
    interrupts.run(lambda: queue.receive(1, timeout=0.004))
    assert interrupts.at is None or delivery.settled or interrupts.points <= interrupts.at


def test_a_signals_handler_acknowledges_at_any_point_of_a_receive_of_its_thread():
    for at in matrix.sample(range(points_of(acknowledged_in_a_receive)), "a receive", LEAST):
        acknowledged_in_a_receive(Interrupts(at))
