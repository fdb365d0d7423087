"""How a lock ends for its caller where it is not simply had: overtaken, or not given back."""

from __future__ import annotations

import pytest

from latchwork.coord import FencedLock
from latchwork.errors import LockUnavailable, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.store import MemoryStore
from tests.clock import ManualClock
from tests.faulty import FaultyStore


@pytest.fixture
def store():
    made = FaultyStore(MemoryStore(ManualClock()))
    made.policy = RetryPolicy(attempts=1)
    return made


def test_who_was_overtaken_between_two_looks_is_told_so(store):
    others = FencedLock(store.inner, "lock", owner="others")
    held = others.acquire()
    store.plan = {2: held.release, 3: others.acquire}  # it looks free, and is taken again before it can be had
    with pytest.raises(LockUnavailable, match="not acquired in 0 s; others were faster"):
        FencedLock(store, "lock").acquire(timeout=0)


def test_a_release_that_fails_is_told_where_the_block_went_well(store):
    with pytest.raises(Unavailable, match="dropped"), FencedLock(store, "lock").acquire() as grant:
        store.next("dropped")
    assert grant.lost.is_set()
    assert grant.release() is True, "it may be given back once more"


def test_a_release_that_fails_does_not_hide_how_the_block_failed(store):
    store.plan = {2: "dropped"}
    with pytest.raises(ZeroDivisionError), FencedLock(store, "lock").acquire():
        raise ZeroDivisionError
    assert store.fired["dropped"] == 1
