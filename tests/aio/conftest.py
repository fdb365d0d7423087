"""`store`: an `aio.Store` on each backend in turn, closed at the end; `run`: a coroutine in a loop of its own."""

from __future__ import annotations

import asyncio

import pytest

from latchwork import aio
from latchwork.store import MemoryStore, SQLiteStore


@pytest.fixture(params=["memory", "sqlite", "aerospike"])
def sync_store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "store.db", synchronous="off")
        yield made
        made.close()
    else:
        yield request.getfixturevalue("aerospike_store")


@pytest.fixture
def store(sync_store):
    made = aio.Store(sync_store)
    yield made
    made._pool.close()


@pytest.fixture
def memory():
    return aio.Store(MemoryStore())


@pytest.fixture
def run():
    """Run a coroutine in a loop, for half a minute at most."""

    def run(work):
        async def limited():
            return await asyncio.wait_for(work, 30)

        return asyncio.run(limited())

    return run
