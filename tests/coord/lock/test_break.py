"""An operator takes a lock from its holder: the holder is refused from then on, and the next one knows (P2.9)."""

from __future__ import annotations

import pytest

from latchwork.coord import FencedLock
from latchwork.coord.lock import LOCKS
from latchwork.errors import FencedOut, InvalidRequest, LeaseLost
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore

RESOURCE = Key("resources", "r")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return CountingStore(MemoryStore(clock))


@pytest.fixture
def operator(store):
    return FencedLock(store, "lock", owner="anna")


def test_a_broken_holder_is_refused_wherever_it_asks(store, operator):
    grant, before = FencedLock(store, "lock", lease=60).acquire(), store.total
    assert operator.break_lease(grant.fence) is True
    assert store.total == before + 1
    with pytest.raises(LeaseLost, match="was lost in the block"):
        grant.__exit__(None, None, None)
    with pytest.raises(FencedOut):
        grant.renew()
    assert grant.release() is False
    assert operator.break_lease(grant.fence) is False, "it is not held under that fence any more"


def test_the_next_holder_waits_for_the_broken_ones_whole_lease_and_its_fence_is_higher(store, clock, operator):
    held = FencedLock(store, "lock", lease=60).acquire()
    operator.break_lease(held.fence)
    began = clock.monotonic()
    grant = FencedLock(store, "lock").acquire(120)
    assert clock.monotonic() - began >= 60
    assert held.lost.is_set(), "it does not believe in it any more"
    assert grant.broken
    assert grant.fence > held.fence


def test_at_once_whoever_tries_has_it_and_what_the_broken_holder_writes_is_refused(store, operator):
    held = FencedLock(store, "lock", lease=3600).acquire()
    operator.break_lease(held.fence, at_once=True)
    grant = FencedLock(store, "lock").try_acquire()
    assert grant is not None, "also a handle that looks for the first time"
    assert grant.broken
    assert not held.lost.is_set(), "nobody has told it"
    grant.seal(RESOURCE)
    with pytest.raises(FencedOut):
        held.operate(RESOURCE, Put("by", "held"))
    grant.renew()


def test_a_lock_that_is_free_or_was_never_taken_is_not_broken(store, operator):
    assert operator.break_lease(7) is False
    assert store.get(Key(LOCKS, "lock")) is None
    fence = FencedLock(store, "lock").acquire().fence
    assert operator.break_lease(fence - 1) is False
    assert store.get(Key(LOCKS, "lock")).bins["locked"] == 1


def test_a_break_whose_answer_is_lost_is_repeated_and_says_that_it_was_done(clock):
    store = FaultyStore(MemoryStore(clock), seams=clock)
    fence = FencedLock(store, "lock").acquire().fence
    store.next("reply_lost")
    assert FencedLock(store, "lock").break_lease(fence) is True
    assert FencedLock(store, "lock").break_lease(fence) is False


def test_what_is_no_fence_is_refused_before_any_call(store, operator):
    for bad in (0, -1, True, "7", 2**63):
        with pytest.raises(InvalidRequest, match="fence"):
            operator.break_lease(bad)
    with pytest.raises(InvalidRequest, match="at_once"):
        operator.break_lease(7, at_once="yes")
    assert store.total == 0
