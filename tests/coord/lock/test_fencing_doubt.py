"""A repeatable write under a fence whose first reply was lost, and which is refused when it is sent again."""

from __future__ import annotations

import pytest

from latchwork.coord import FencedLock
from latchwork.errors import FencedOut, OutcomeUnknown, Refused
from latchwork.store import Add, Bin, Exists, Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore

RESOURCE = Key("accounts", "42")
HIGHER = 2**62


@pytest.fixture
def store():
    return FaultyStore(MemoryStore(ManualClock()))


@pytest.fixture
def grant(store):
    return FencedLock(store, "lock").acquire()


def taken_over(store):
    store.inner.operate(RESOURCE, Put("fence", HIGHER), exists=Exists.ANY)


def planned(store, *faults):
    """What becomes of the calls from the next one on."""
    store.plan = {store.total + place: fault for place, fault in enumerate(faults, 1)}


def test_a_write_that_is_refused_after_it_was_in_doubt_says_so(store, grant):
    planned(store, "reply_lost", lambda: taken_over(store))
    with pytest.raises(FencedOut) as refusal:
        grant.operate(RESOURCE, Add("n", 1), repeatable=True)
    assert refusal.value.details["doubt"] is True
    assert refusal.value.details["seen"] == HIGHER
    assert store.inner.get(RESOURCE).bins["n"] == 1


def test_a_write_that_was_refused_at_once_was_never_in_doubt(store, grant):
    taken_over(store)
    with pytest.raises(FencedOut) as refusal:
        grant.operate(RESOURCE, Add("n", 1), repeatable=True)
    assert refusal.value.details["doubt"] is False


def test_a_write_in_doubt_is_unknown_where_the_resource_cannot_be_read_after_the_refusal(store, grant):
    planned(store, "reply_lost", lambda: taken_over(store), *["dropped"] * store.policy.attempts)
    with pytest.raises(OutcomeUnknown, match="may have been applied"):
        grant.operate(RESOURCE, Add("n", 1), repeatable=True)
    assert store.inner.get(RESOURCE).bins["n"] == 1


def test_a_refused_write_is_refused_where_the_resource_cannot_be_read(store, grant):
    grant.operate(RESOURCE, Put("n", 1))
    planned(store, None, *["dropped"] * store.policy.attempts)
    with pytest.raises(Refused) as refusal:
        grant.operate(RESOURCE, Add("n", 1), when=Bin("n") >= 5, exists=Exists.UPDATE, repeatable=True)
    assert refusal.value.details["doubt"] is False
