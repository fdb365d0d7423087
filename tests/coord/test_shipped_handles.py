"""A lock handle that was made on one host and is used on another, whose clock counts from another beginning."""

from __future__ import annotations

import pickle

import pytest

from latchwork.coord import FencedLock
from latchwork.coord.contender import Contender
from latchwork.errors import LockUnavailable
from latchwork.store import Key, MemoryStore, Put, SQLiteStore
from latchwork.testing.clock import ManualClock, SkewedClock
from latchwork.testing.stores import CountingStore

DAYS = 10 * 86_400


class Host(SkewedClock):
    """The same time; this host has been up for so many seconds longer."""

    def __init__(self, clock, up):
        super().__init__(clock, 0)
        self.monotonic = self.boottime = lambda: clock.monotonic() + up


class Client(CountingStore):
    """A client of the one server; it is made anew on the host that a handle is shipped to."""

    server, arrives_at = None, None

    def __init__(self, host):
        super().__init__(Client.server, seams=host)

    def __reduce__(self):
        return _arrive, ()


def _arrive():
    return Client(Client.arrives_at)


@pytest.fixture
def clock(monkeypatch):
    clock = ManualClock()
    monkeypatch.setattr(Client, "server", MemoryStore(clock))
    return clock


def lock(host, lease=2.0):
    return FencedLock(Client(host), "lock", lease=lease)


def shipped(handle, host):
    Client.arrives_at = host
    return pickle.loads(pickle.dumps(handle))


@pytest.mark.parametrize(("here", "there"), [(DAYS, 0), (0, DAYS)])
def test_a_dead_holders_lock_is_broken_within_one_lease_of_the_arrival(clock, here, there):
    dead = lock(Host(clock, 0)).acquire()
    handle = lock(Host(clock, here))
    assert handle.try_acquire() is None
    arrived = shipped(handle, Host(clock, there))
    assert arrived.acquire(timeout=2.5).fence > dead.fence


@pytest.mark.parametrize(("here", "there"), [(DAYS, 0), (0, DAYS)])
def test_a_lock_that_ran_out_by_the_servers_clock_alone_is_not_broken_on_arrival(clock, here, there):
    holder = lock(Host(clock, 0)).acquire()
    handle = lock(Host(clock, here))
    assert handle.try_acquire() is None
    clock.step(60)
    assert shipped(handle, Host(clock, there)).try_acquire() is None
    holder.renew()


def test_a_free_lock_is_taken_at_once_by_a_handle_that_was_polite_where_it_came_from(clock):
    handle = lock(Host(clock, DAYS))
    grant = handle.acquire()
    with pytest.raises(LockUnavailable):
        lock(Host(clock, 0)).acquire(timeout=0.05)
    grant.release()
    arrived, began = shipped(handle, Host(clock, 0)), clock.monotonic()
    arrived.acquire()
    assert clock.monotonic() == began


def test_a_shipped_handle_is_the_same_party(clock):
    handle = lock(Host(clock, DAYS))
    arrived = shipped(handle, Host(clock, 0))
    assert (arrived.name, arrived.owner, arrived.lease) == (handle.name, handle.owner, handle.lease)
    assert arrived.acquire().owner == handle.owner


def test_who_wants_a_lease_ships_with_what_is_written_beside_it(tmp_path):
    """Without its observations, which are of this host's clock."""
    store, key = SQLiteStore(tmp_path / "store.db"), Key("s", "lease")
    contender = Contender(store, key, "me", 5.0, extra=(Put("taken", 1),))
    contender.observed = object()
    twin = pickle.loads(pickle.dumps(contender))
    assert (twin.key, twin.owner, twin.lease, twin.extra) == (key, "me", 5.0, contender.extra)
    assert twin.observed is None
