"""A value that another program has stored in place of ours: who asks for it gets an answer or an error of ours."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest

from latchwork.coord import RateLimiter, ReadWriteLock, Semaphore
from latchwork.errors import LatchworkError
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore, Put
from latchwork.testing.clock import ManualClock

VALUES = ("x", b"\xff", 1.5, float("inf"), True, -1, 2**62, [], ["a", 1], {}, {"a": []}, {7: "x"}, None)


def of_a_limiter(store):
    return RateLimiter(store, "l", 1, 60).try_acquire  # which is refused the second time, and reads why


def of_a_semaphore(store):
    Semaphore(store, "s", permits=3).acquire(timeout=0)
    return lambda: Semaphore(store, "s", permits=3).acquire(3, timeout=0.5)  # it leaves a wish


def of_a_lock_for_readers(store):
    ReadWriteLock(store, "r").read(timeout=0)
    return lambda: ReadWriteLock(store, "r").write(timeout=0.5)


def of_a_dedup_key(store):
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    return lambda: queue.publish("a", dedup="d")


@pytest.mark.parametrize("made", [of_a_limiter, of_a_semaphore, of_a_lock_for_readers, of_a_dedup_key])
def test_whatever_a_bin_holds_its_verb_answers_or_raises_an_error_of_ours(made):
    def world():
        store = MemoryStore(ManualClock())
        verb = made(store)
        outcome(verb)
        return store, verb

    records = {key: record.bins for key, record in world()[0]._records.items() if key.set in SETS}
    assert records
    for key, (bin, value) in ((key, pair) for key, bins in records.items() for pair in product(bins, VALUES)):
        store, verb = world()
        store.operate(key, Put(bin, value))
        outcome(verb)


SETS = ("latchwork_limits", "latchwork_semaphores", "latchwork_rwlocks", "c_ledger_set")


def outcome(verb):
    with suppress(LatchworkError):
        verb()
