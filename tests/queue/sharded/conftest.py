"""Fixtures of the sharded queue: `world` is one per backend; `simulated` has a clock of its own, so it is fast."""

from __future__ import annotations

import pytest

from latchwork.store import MemoryStore, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore
from tests.conftest import _sets

from .world import World


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite", "aerospike"])
def world(request, clock, tmp_path):
    if request.param == "memory":
        yield World(MemoryStore(clock), clock)
    elif request.param == "sqlite":
        store = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=clock)
        yield World(store, clock)
        store.close()
    else:
        store = request.getfixturevalue("aerospike_store")
        world = World(store, clock, real=True)
        yield world
        # The sets are the same in every test, and a truncation may be a moment behind: remove what there is now.
        client = store._link.connect()
        for name in _sets(store):
            if world.client in name:
                found = client.query(store.namespace, name).results()
                client.batch_remove([row[0] for row in found])


@pytest.fixture(params=["memory", "sqlite"])
def store(request, clock, tmp_path):
    """A store that counts its calls, on the clock of the test."""
    made = (
        MemoryStore(clock)
        if request.param == "memory"
        else SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock)
    )
    yield CountingStore(made)
    made.close()


@pytest.fixture(params=["memory", "sqlite"])
def simulated(request, clock, tmp_path):
    if request.param == "memory":
        yield World(MemoryStore(clock), clock)
        return
    store = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=clock)
    yield World(store, clock)
    store.close()
