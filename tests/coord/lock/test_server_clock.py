"""Leases on a real server whose clock is set: a dead holder's is free soon, a live one's is nobody else's.

That is so on every store (`test_rules.py`); here a real server counts the time.
"""

from __future__ import annotations

import time
import uuid

import pytest

from latchwork.coord import FencedLock, LeaseElection
from latchwork.queue import LargeQueue
from latchwork.store.aerospike.store import AerospikeStore

HOUR = 3600
SHORT = 0.5
ENOUGH = 30
"""Seconds that are many leases, and much less than the hour."""
steps = pytest.mark.parametrize("ahead", [-HOUR, HOUR], ids=["back", "forward"])


@pytest.fixture
def store(server_with_clock):
    made = AerospikeStore.from_url(server_with_clock.url)
    yield made
    made.close()


@pytest.fixture
def name():
    return f"clock-{uuid.uuid4().hex[:8]}"


@steps
def test_a_dead_holders_lock_is_free_soon_though_the_servers_clock_was_set(store, server_with_clock, name, ahead):
    dead = FencedLock(store, name, lease=SHORT).acquire(timeout=5)
    server_with_clock.set_clock(ahead)
    assert FencedLock(store, name, lease=SHORT).acquire(timeout=ENOUGH).fence > dead.fence


@steps
def test_a_dead_leaders_office_is_free_soon_though_the_servers_clock_was_set(store, server_with_clock, name, ahead):
    dead = FencedLock(store, name, lease=SHORT).acquire(timeout=5)  # an election's record is a lock's
    server_with_clock.set_clock(ahead)
    epoch = LeaseElection(store, name, lease=SHORT).run(lambda leadership: leadership.epoch, timeout=ENOUGH)
    assert epoch > dead.fence


@steps
def test_a_dead_process_holds_up_a_large_queue_no_longer_though_the_servers_clock_was_set(
    store, server_with_clock, name, ahead
):
    queue = LargeQueue.create(store, name, 10)
    queue.enqueue("before")
    queue._lock.take("grant", [], 5, owner="dead")
    server_with_clock.set_clock(ahead)
    queue.enqueue("after", timeout=ENOUGH)
    assert [entry.value for entry in queue.dequeue_many(10, timeout=ENOUGH)] == ["before", "after"]


def test_who_renews_in_time_keeps_the_lock_whatever_becomes_of_the_servers_clock(store, server_with_clock, name):
    held, challenger = FencedLock(store, name, lease=3).acquire(timeout=5), FencedLock(store, name, lease=3)
    began = time.monotonic()
    for ahead in (HOUR, -HOUR, 2 * HOUR, 0) * 4:
        server_with_clock.set_clock(ahead)
        held.renew()
        assert challenger.try_acquire() is None
        time.sleep(0.3)
    assert time.monotonic() - began > 3
    held.check()
