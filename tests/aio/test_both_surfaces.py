"""One suite for both surfaces: what is promised of a store and of each primitive, run by the awaited verbs."""

from __future__ import annotations

import pytest

from latchwork import aio
from latchwork.errors import InvalidRequest, Refused
from latchwork.queue import Publish, QueueConfig, State
from latchwork.store import Bin, Exists, Key, MemoryStore, Put, SQLiteStore
from latchwork.store.contract import StoreContract
from latchwork.testing import ManualClock
from tests import test_capabilities as capabilities
from tests.support.backends import store as backend  # noqa: F401 - a fixture

from . import adapter

WITHOUT_TWIN = ("circular queue", "local queue and outbox")
ELSEWHERE = ("functions as tasks", "a message that goes with a write")
"""Their programs hand an object of one surface to another, which the adapter cannot dress: `test_tasks.py` has the
tasks, and the test below the message."""


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


@pytest.mark.parametrize(
    "primitive", [name for name in capabilities.PROGRAMS if name not in (*WITHOUT_TWIN, *ELSEWHERE)]
)
def test_each_row_of_the_capabilities_runs_by_its_twin(primitive, backend, tmp_path, dressed):  # noqa: F811
    assert capabilities.run(primitive, backend, tmp_path)


@pytest.mark.parametrize(
    "primitive",
    [name for name in capabilities.PROGRAMS if name not in (*WITHOUT_TWIN, *ELSEWHERE, *capabilities.UNDECIDED)],
)
def test_a_lost_reply_counts_once_or_is_said_to_be_unknown_by_the_twin_as_well(primitive, tmp_path, dressed):
    capabilities.test_a_lost_reply_counts_once_or_is_said_to_be_unknown(primitive, tmp_path)


def test_a_message_goes_with_an_awaited_write_and_with_none_that_is_refused(run, memory):
    async def main():
        queue = await aio.QueueRegistry(memory, "c").create(QueueConfig("mails", shards=1))
        order = Key("orders", "7")
        await memory.operate(order, Put("state", "new"), exists=Exists.ANY)
        paid = Publish({"order": 7}, queue=queue)
        (sent,) = await memory.operate(order, Put("state", "paid"), when=Bin("state", str).eq("new"), publish=paid)
        assert (await queue.status(sent)).state is State.DELAYED, "until the leader has seen the write"
        with pytest.raises(Refused):
            await memory.operate(order, Put("state", "lost"), when=Bin("state", str).eq("new"), publish=paid)
        assert (await memory.get(order)).bins["state"] == "paid"

    run(main())


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
