"""Fixtures of the sharded queue: `world` is one per backend; `simulated` has a clock of its own, so it is fast."""

from __future__ import annotations

import pytest

from latchwork.store import MemoryStore, SQLiteStore
from tests.clock import ManualClock

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
        yield World(store, clock, real=True)


@pytest.fixture(params=["memory", "sqlite"])
def simulated(request, clock, tmp_path):
    if request.param == "memory":
        yield World(MemoryStore(clock), clock)
        return
    store = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=clock)
    yield World(store, clock)
    store.close()
