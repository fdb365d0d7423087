"""A lease whose bins are damaged is neither free nor held for who reads it: `Corrupt`, with the record and the bin."""

from __future__ import annotations

import pytest

from latchwork.coord import FencedLock
from latchwork.coord.election.term import Term
from latchwork.coord.lease import LeaseView
from latchwork.coord.lock import LOCKS
from latchwork.errors import Corrupt
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock

KEY = Key(LOCKS, "lock")
NUMBERS = ("text", b"bytes", 1.5, True, -1, 2**63 - 1, [1], {"a": 1})
TEXTS = (1, b"bytes", 1.5, True, [1], {"a": 1})
DAMAGE = [(bin, bad) for bin in ("locked", "fencing-ctr", "renewals", "lock-time-ms", "lease-ms") for bad in NUMBERS]
DAMAGE += [(bin, bad) for bin in ("lock-owner", "grant-id") for bad in TEXTS]
DAMAGE += [("locked", 2), ("lease-ms", 86_400_001)]


@pytest.fixture
def store():
    return MemoryStore(ManualClock())


@pytest.fixture
def grant(store):
    return FencedLock(store, "lock", owner="holder", lease=10).acquire(5)


@pytest.mark.matrix
@pytest.mark.parametrize(("bin", "bad"), DAMAGE, ids=repr)
def test_a_damaged_lease_is_never_taken_for_a_free_one(store, grant, bin, bad):
    store.operate(KEY, Put(bin, bad))
    with pytest.raises(Corrupt, match="lock is damaged") as raised:
        LeaseView.of(KEY, store.get(KEY).bins)
    assert bin in str(raised.value)
    other = FencedLock(store, "lock", owner="other", lease=10)
    with pytest.raises(Corrupt, match=bin):
        other.try_acquire()
    with pytest.raises(Corrupt, match=bin):
        other.acquire(5)
    with pytest.raises(Corrupt, match=bin):
        Term(store, "lock", grant.fence).check()


def test_what_a_lease_leaves_is_no_damage(store, grant):
    held = LeaseView.of(KEY, store.get(KEY).bins)
    assert (held.locked, held.owner, held.fence, held.lease) == (True, "holder", grant.fence, 10.0)
    grant.release()
    assert not LeaseView.of(KEY, store.get(KEY).bins).locked
    assert LeaseView.of(KEY, {"locked": None, "lock-owner": None}) == LeaseView.of(KEY, {})
