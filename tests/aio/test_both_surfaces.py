"""One suite for both surfaces: what is promised of a store and of each primitive, run by the awaited verbs."""

from __future__ import annotations

import pytest

from latchwork import aio
from latchwork.errors import InvalidRequest
from latchwork.queue import QueueConfig
from latchwork.store import MemoryStore, SQLiteStore
from latchwork.store.contract import StoreContract
from latchwork.testing import ManualClock
from tests import test_capabilities as capabilities
from tests.support.backends import store as backend  # noqa: F401 - a fixture

from . import adapter

WITHOUT_TWIN = ("circular queue", "local queue and outbox")


class TestMemory(StoreContract):
    shared = False
    clock = ManualClock()

    @pytest.fixture
    def store(self):
        return adapter.AwaitedStore(MemoryStore(self.clock))

    def pass_time(self, seconds):
        self.clock.advance(seconds)


class TestSQLite(StoreContract):
    shared = False  # its processes get a store of the sync surface, pickled
    clock = ManualClock()

    @pytest.fixture
    def store(self, tmp_path):
        store = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=self.clock)
        yield adapter.AwaitedStore(store)
        store.close()

    def pass_time(self, seconds):
        self.clock.advance(seconds)


class TestAerospike(StoreContract):
    shared = False  # as above

    @pytest.fixture
    def store(self, aerospike_store):
        return adapter.AwaitedStore(aerospike_store)


@pytest.fixture
def dressed(monkeypatch):
    adapter.dress(capabilities, monkeypatch)


@pytest.mark.parametrize("primitive", [name for name in capabilities.PROGRAMS if name not in WITHOUT_TWIN])
def test_each_row_of_the_capabilities_runs_by_its_twin(primitive, backend, tmp_path, dressed):  # noqa: F811
    assert capabilities.run(primitive, backend, tmp_path)


@pytest.mark.parametrize(
    "primitive",
    [name for name in capabilities.PROGRAMS if name not in (*WITHOUT_TWIN, *capabilities.UNDECIDED)],
)
def test_a_lost_reply_counts_once_or_is_said_to_be_unknown_by_the_twin_as_well(primitive, tmp_path, dressed):
    capabilities.test_a_lost_reply_counts_once_or_is_said_to_be_unknown(primitive, tmp_path)


def test_a_verb_is_that_of_the_objects_own_class(run, memory):
    """`release` of a membership leaves; that of a grant would have let it count as lost. A group cannot publish."""

    async def main():
        group = aio.Group(memory, "g")
        membership = await group.join("m")
        await membership.release()
        assert await group.lost() == set()
        queue = await aio.QueueRegistry(memory, "c").create(QueueConfig("q", shards=1))
        audit = await queue.group("audit")
        with pytest.raises(InvalidRequest, match="is a group"):
            await audit.publish(1)

    run(main())
