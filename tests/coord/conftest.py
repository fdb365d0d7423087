"""`store` is each backend in turn, `shared_store` those that processes can share."""

from __future__ import annotations

import pytest

from tests.support.backends import store

__all__ = ["store"]


@pytest.fixture(params=["sqlite", "aerospike"])
def shared_store(request, tmp_path):
    from latchwork.store import SQLiteStore

    if request.param == "aerospike":
        yield request.getfixturevalue("aerospike_store")
        return
    made = SQLiteStore(tmp_path / "store.db", synchronous="normal")
    yield made
    made.close()
