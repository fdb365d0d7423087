"""The fixture `store`: a test that takes it runs over every backend."""

from __future__ import annotations

import pytest

from latchwork.store import MemoryStore, SQLiteStore

BACKENDS = ("memory", "sqlite", "aerospike")


@pytest.fixture(params=BACKENDS)
def store(request, tmp_path):
    """A store of each kind, new and empty; the real server's is shared, so a test names its own records."""
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "store.db", synchronous="off")
        yield made
        made.close()
    else:
        yield request.getfixturevalue("aerospike_store")
