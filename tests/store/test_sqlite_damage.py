"""A SQLite store some of whose records are damaged: the others are read, written and swept as if they were not."""

from __future__ import annotations

import logging
import sqlite3
from types import SimpleNamespace

import pytest

from latchwork.errors import Corrupt, StorageFailed
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Bin, Exists, Key, Put, Read, Removal, SQLiteStore, Update
from latchwork.store.contract.records import raises
from latchwork.store.sqlite import file as sqlite_file
from latchwork.store.sqlite import rows as sqlite_rows
from latchwork.store.sqlite import store as sqlite
from tests.support.clock import ManualClock

SET, OTHER = "q", Key("other", "x")
BAD, GOOD, LAST = (Key(SET, name) for name in ("bad", "good", "last"))
LIFE = 60


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(tmp_path, clock):
    store = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=clock)
    store.policy = RetryPolicy(attempts=1)
    store.operate(OTHER, Put("n", 0), exists=Exists.CREATE)
    for key in (BAD, GOOD, LAST):
        store.operate(key, Put("n", 1), Put("active", "yes"), exists=Exists.CREATE, ttl=LIFE)
    yield store
    store.close()


def damage(store, key=BAD, active="yes"):
    """Bytes of the record turn to others, below SQLite, which is why its indexes keep what they had."""
    connection = sqlite3.connect(store.path)
    connection.execute("PRAGMA trusted_schema = ON")
    connection.create_function("latchwork_bin", 2, lambda *_: active, deterministic=True)
    connection.execute("UPDATE records SET bins = x'c1ff' WHERE set_name = ? AND name = ?", key)
    connection.commit()
    connection.close()


def left(store):
    connection = sqlite3.connect(store.path)
    names = {name for (name,) in connection.execute("SELECT name FROM records")}
    connection.close()
    return names


def test_an_expired_damaged_record_keeps_nobody_from_writing_nor_other_records_from_the_sweep(store, clock, caplog):
    store.ensure_index(SET, "active")
    damage(store)
    clock.advance(LIFE)
    with caplog.at_level(logging.WARNING, "latchwork"):
        for n in range(1, 4):
            assert store.operate(OTHER, Add("n", 1), Read("n")) == (n,)
            assert left(store) == {"x", "bad"}
            clock.advance(sqlite.SWEEP_EVERY / 1000)
    (told,) = caplog.messages
    assert str(store.path) in told


def test_many_damaged_records_do_not_end_the_sweep_of_those_that_expired_after_them(store, clock, monkeypatch, caplog):
    monkeypatch.setattr(sqlite_rows, "SWEEP_AT_MOST", 2)
    store.ensure_index(SET, "active")
    names = [f"bad{n}" for n in range(4)]
    for name in names:
        store.operate(Key(SET, name), Put("active", "yes"), exists=Exists.CREATE, ttl=LIFE - 1)
        damage(store, Key(SET, name))
    clock.advance(LIFE)
    for _ in range(5):
        store.operate(OTHER, Add("n", 1))
        clock.advance(sqlite.SWEEP_EVERY / 1000)
    assert left(store) == {"x", *names}
    assert len(caplog.messages) == 2, "of two damaged records each"


def test_an_expired_damaged_record_that_no_index_needs_is_swept(store, clock):
    damage(store)
    clock.advance(LIFE)
    store.operate(OTHER, Add("n", 1))
    assert left(store) == {"x"}


def test_rows_of_a_batch_do_not_share_the_fate_of_a_damaged_one(store):
    damage(store)
    first, bad, last = store.operate_many([Update(key, (Add("n", 1), Read("n"))) for key in (GOOD, BAD, LAST)])
    assert (first, last) == ((2,), (2,))
    assert isinstance(bad, Corrupt)
    first, bad, last = store.delete_many([Removal(key, Bin("n").eq(2)) for key in (GOOD, BAD, LAST)])
    assert (first, type(bad), last) == (True, Corrupt, True)
    assert left(store) == {"x", "bad"}


def test_a_damaged_record_is_named_with_its_file(store):
    store.ensure_index(SET, "active")
    damage(store)
    for call in (
        lambda: store.get(BAD), lambda: store.get(BAD, "n"), lambda: store.get_many([GOOD, BAD]),
        lambda: store.operate(BAD, Read("n")), lambda: store.operate(BAD, Add("n", 1)),
        lambda: store.delete(BAD, when=Bin("n").eq(1)),
    ):  # fmt: skip
        failure = raises(Corrupt, call)
        assert str(store.path) in str(failure)
        assert failure.details["key"] == BAD
    assert str(store.path) in str(raises(Corrupt, lambda: store.delete(BAD)))
    assert store.get(GOOD).bins["n"] == 1


def test_a_query_passes_over_a_damaged_record_and_names_it_with_its_file_once_in_the_log(store, caplog):
    store.ensure_index(SET, "active")
    damage(store)
    for _ in range(2):
        assert {record.key for record in store.query(SET, "active", "yes")} == {GOOD, LAST}
    (told,) = caplog.messages
    assert str(store.path) in told
    assert str(BAD) in told


def test_the_queues_beside_one_whose_record_is_damaged_are_listed(store):
    registry = QueueRegistry(store, "shop")
    for name in ("bad", "good"):
        registry.create(QueueConfig(name, shards=1))
    damage(store, registry.records.key("bad"), active="true")
    assert [queue.name for queue in QueueRegistry(store, "shop").queues(active=None)] == ["good"]


def test_the_queues_beside_one_whose_record_is_damaged_live_on_while_they_are_used(store):
    registry = QueueRegistry(store, "shop")
    queues = [registry.create(QueueConfig(name, shards=1)) for name in ("bad", "good", "other")]
    damage(store, registry.records.key("bad"), active="true")
    for _ in range(10):
        store.seams.advance(24 * 3600)
        for queue in queues:
            queue.publish("x")
    assert [queue.name for queue in QueueRegistry(store, "shop").queues()] == ["good", "other"]


def test_a_query_that_no_index_serves_says_that_it_met_a_damaged_record(store):
    damage(store)
    assert str(store.path) in str(raises(Corrupt, lambda: store.query(SET, "active", "yes")))


def test_a_damaged_record_that_no_index_needs_can_be_deleted_and_made_anew(store):
    damage(store)
    assert store.delete(BAD) is True
    assert store.delete(BAD) is False
    store.operate(BAD, Put("n", 9), exists=Exists.CREATE)
    assert store.get(BAD).bins == {"n": 9}


# ---- interrupts, which SQLite tells as it tells damage


@pytest.fixture
def interrupts(monkeypatch):
    """What the next reading of a record for an index ends with, as by a signal's handler."""
    pending, decode = [], sqlite_file.values.decode

    def interrupted(*args):
        if pending:
            raise pending.pop()
        return decode(*args)

    monkeypatch.setattr(sqlite_file, "values", SimpleNamespace(decode=interrupted))
    return pending


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_an_interrupt_within_an_index_is_raised_as_it_is_and_writes_nothing(store, interrupts, stop):
    store.ensure_index(SET, "active")
    interrupts.append(stop("now"))
    with pytest.raises(stop, match="now"):
        store.operate(GOOD, Add("n", 1))
    assert not interrupts
    assert store.operate(GOOD, Add("n", 1), Read("n")) == (2,)


def test_an_interrupt_within_the_sweep_is_raised_and_nothing_of_that_update_is_written(store, clock, interrupts):
    store.ensure_index(SET, "active")
    clock.advance(LIFE)
    interrupts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.operate(OTHER, Add("n", 1))
    assert left(store) == {"x", "bad", "good", "last"}
    clock.advance(sqlite.SWEEP_EVERY / 1000)
    assert store.operate(OTHER, Add("n", 1), Read("n")) == (1,)
    assert left(store) == {"x"}


def test_an_interrupt_that_only_sqlite_has_seen_is_not_taken_for_damage(store, monkeypatch):
    store.ensure_index(SET, "active")
    store.close()
    monkeypatch.setattr(sqlite_file, "_indexed", lambda _data, _bin: 1 // 0)
    failure = raises(StorageFailed, lambda: store.operate(GOOD, Add("n", 1)))
    assert "interrupted" in str(failure)
    store.close()
    monkeypatch.undo()
    assert store.operate(GOOD, Add("n", 1), Read("n")) == (2,)
