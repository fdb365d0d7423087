"""A SQLite store's file at odd moments: made by two at once, on the wrong file system, failing while it is awaited."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from latchwork.errors import Misconfigured, StorageFailed
from latchwork.retry import RetryPolicy
from latchwork.store import Exists, Key, Put, SQLiteStore
from latchwork.store.sqlite import file as sqlite_file
from latchwork.store.sqlite import pool as sqlite_pool
from tests.support.clock import ManualClock

KEY = Key("s", "k")


class Between:
    """A connection that does something just before a statement that begins so."""

    def __init__(self, connection, statement, act):
        self._connection, self._statement, self._act = connection, statement, act

    def execute(self, statement, *parameters):
        if statement.startswith(self._statement):
            self._act()
        return self._connection.execute(statement, *parameters)

    def __getattr__(self, name):
        return getattr(self._connection, name)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def test_who_comes_second_to_make_the_table_finds_the_firsts_records(path):
    path.touch()
    first = SQLiteStore(path, synchronous="off")
    connection = sqlite3.connect(path, isolation_level=None)
    late = Between(connection, "BEGIN", lambda: first.operate(KEY, Put("n", 1), exists=Exists.CREATE))
    sqlite_file._claim(late, path)
    assert not connection.in_transaction
    assert SQLiteStore(path).get(KEY).bins == {"n": 1}


def test_a_file_system_without_shared_memory_is_refused():
    """A database in memory has no write-ahead log either."""
    with pytest.raises(Misconfigured, match=r"/net/store\.db.*local disk"):
        sqlite_file._configure(sqlite3.connect(":memory:"), Path("/net/store.db"), "full")


def test_a_disk_that_fails_while_another_writer_is_awaited_is_said_at_once(path, monkeypatch):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", busy_timeout=60, seams=clock)
    store.policy = RetryPolicy(attempts=1)
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    store.close()
    answers = [sqlite3.OperationalError("database is locked")] * 3 + [sqlite3.OperationalError("disk I/O error")]

    def answer():
        raise answers.pop(0)

    opened = sqlite_file.open_file
    monkeypatch.setattr(sqlite_pool, "open_file", lambda *args: Between(opened(*args), "BEGIN", answer))
    with pytest.raises(StorageFailed, match="disk I/O error"):
        store.operate(KEY, Put("n", 1))
    assert answers == []
    assert clock.monotonic() < 1
    monkeypatch.undo()
    assert store.get(KEY).bins == {"n": 0}
