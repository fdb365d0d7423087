"""The record of a shard on SQLite, which counts messages in rows of their own: read as it is at one moment."""

from __future__ import annotations

import pytest

from latchwork.store import NEVER, Exists, Key, Put, Read, SQLiteStore, Update
from latchwork.store.model.messages import Fresh, ShardAt
from latchwork.store.sqlite import rows as sqlite_rows

SHARD = ShardAt(0, Key("c_q_meta_set", "q_SHARD_0_POINTERS"), "c_q_data_set", "q_SHARD_0")
LOAD = "LOAD_POINTER"


@pytest.fixture
def store(tmp_path):
    """With a shard, to which two messages were published in one step each."""
    store = SQLiteStore(tmp_path / "store.db", synchronous="off")
    store.operate(SHARD.pointers, Put(LOAD, 1), Put("FIRE_POINTER", 0), exists=Exists.CREATE, ttl=NEVER)
    store.operate(Key(SHARD.set, "q_SHARD_0_1"), Put("data", b"data"), Put("attempts", 0), exists=Exists.CREATE)
    for number in (2, 3):
        made = store.steps.append(
            [(SHARD, [Fresh(b"data", "u", 1)])], lambda _at, _one, pointer: f"id{pointer}", 1, 100
        )
        assert made == [[f"id{number}"]]
    yield store
    store.close()


READS = {
    "get": lambda store: store.get(SHARD.pointers).bins[LOAD],
    "get of a bin": lambda store: store.get(SHARD.pointers, LOAD).bins[LOAD],
    "get_many": lambda store: store.get_many([Key("s", "k"), SHARD.pointers])[1].bins[LOAD],
    "operate": lambda store: store.operate(SHARD.pointers, Read(LOAD))[0],
    "operate_many": lambda store: store.operate_many([Update(SHARD.pointers, (Read(LOAD),))])[0][0],
    "scan": lambda store: next(one for one in store.scan(SHARD.pointers.set)).bins[LOAD],
    "query": lambda store: next(one for one in store.query(SHARD.pointers.set, "FIRE_POINTER", 0)).bins[LOAD],
}


@pytest.mark.parametrize("read", READS)
def test_load_never_goes_down_for_a_reader_while_another_process_takes_the_messages(store, monkeypatch, read):
    """The record counts them from then on, and their rows no more: what was read of both is of one moment."""
    store.ensure_index(SHARD.pointers.set, "FIRE_POINTER", int)
    before = store.get(SHARD.pointers)
    assert before.bins[LOAD] == READS[read](store) == 3
    other, counting, took = SQLiteStore(store.path, synchronous="off"), sqlite_rows._counting, []

    def taken_first(*given):
        monkeypatch.undo()
        took.append(other.steps.take(SHARD, 10, "me", 1))
        return counting(*given)

    monkeypatch.setattr(sqlite_rows, "_counting", taken_first)
    assert READS[read](store) == 3
    assert [step.last for step in took] == [3]
    after = store.get(SHARD.pointers)
    assert (after.bins[LOAD], after.bins["FIRE_POINTER"]) == (3, 3)
    assert after.generation > before.generation
    other.close()
