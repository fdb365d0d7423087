"""`store` is each backend in turn, `shared_store` those that processes can share; `memory` counts, on a `clock`."""

from __future__ import annotations

import uuid

import pytest

from latchwork.store import MemoryStore
from latchwork.testing import CountingStore, ManualClock
from tests.support.backends import store

__all__ = ["store"]


@pytest.fixture
def name():
    """The real server is shared, so each test names its own records."""
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def memory(clock):
    return CountingStore(MemoryStore(clock))


@pytest.fixture(params=["sqlite", "aerospike"])
def shared_store(request, tmp_path):
    from latchwork.store import SQLiteStore

    if request.param == "aerospike":
        yield request.getfixturevalue("aerospike_store")
        return
    made = SQLiteStore(tmp_path / "store.db", synchronous="normal")
    yield made
    made.close()
