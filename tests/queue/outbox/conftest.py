"""Fixtures of the outbox: `world` has a clock of its own, so it is fast; `everywhere` is one per backend."""

from __future__ import annotations

import pytest

from latchwork.store import MemoryStore, SQLiteStore
from latchwork.testing.clock import ManualClock

from .world import World


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def world(clock, tmp_path):
    return World(MemoryStore(clock), clock, tmp_path)


@pytest.fixture(params=["memory", "sqlite", "aerospike"])
def everywhere(request, clock, tmp_path):
    if request.param == "memory":
        yield World(MemoryStore(clock), clock, tmp_path)
    elif request.param == "sqlite":
        store = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=clock)
        yield World(store, clock, tmp_path)
        store.close()
    else:
        yield World(request.getfixturevalue("aerospike_store"), clock, tmp_path)
