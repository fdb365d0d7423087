"""The fixture `store`: a test that takes it runs over every backend."""

from __future__ import annotations

import pytest

from latchwork.store import MemoryStore, SQLiteStore

BACKENDS = ("memory", "sqlite", "aerospike")
ON_EACH = (
    "tests/store/contract/",
    "tests/store/aerospike/",
    "tests/test_capabilities.py",
    "tests/coord/latch/test_latch.py",
    "tests/coord/lock/test_lock.py",
    "tests/coord/test_semaphore.py",
    "tests/coord/test_rwlock.py",
    "tests/coord/test_limiter.py",
    "tests/coord/barrier/",
    "tests/coord/presence/",
    "tests/coord/election/test_election.py",
    "tests/queue/circular/test_queue.py",
    "tests/coord/effects/test_steps.py",
    "tests/queue/sharded/test_promises.py",
    "tests/queue/sharded/test_effects.py",
    "tests/queue/sharded/groups/test_groups.py",
    "tests/queue/sharded/batches/test_batches.py",
    "tests/queue/ledger/test_dedup.py",
    "tests/queue/outbox/test_outbox.py",
)
"""Where `make test` runs on each backend, a real Aerospike too: the contract, by which all backends are alike, and the
promises of each primitive. All others run on memory or SQLite there, and, as those promises on the asyncio surface, on
each backend in `make long`."""


def is_left_to_long(item):
    """Whether the test is one on Aerospike of those that `make test` runs on the other backends only."""
    case = getattr(item, "callspec", None)
    if case is None:
        return False
    if case.params.get("surface") == "asyncio":
        return any(str(value).endswith("aerospike") for value in case.params.values())
    return "aerospike" in case.params.values() and not is_on_each(item)


def is_on_each(item):
    """Whether the test is one of those that `make test` runs on each backend."""
    return item.nodeid.startswith(ON_EACH)


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
