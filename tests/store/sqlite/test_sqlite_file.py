"""A SQLite store's file at odd moments: made by two at once, on the wrong file system, failing while it is awaited."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from latchwork.errors import Corrupt, Misconfigured, Refused, StorageFailed
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Bin, Exists, Key, Param, Put, Read, SQLiteStore
from latchwork.store.local.apply import Stored
from latchwork.store.model.form import Form
from latchwork.store.model.ops import Touch
from latchwork.store.sqlite import file as sqlite_file
from latchwork.store.sqlite import messages as sqlite_messages
from latchwork.store.sqlite import pool as sqlite_pool
from latchwork.store.sqlite.seal import sealed
from latchwork.testing.clock import ManualClock
from tests.fuzz.sqlite_cells import cells, trees

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


FIRST_LAYOUT = """
    CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        set_name TEXT NOT NULL,
        name TEXT NOT NULL,
        generation INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        expires INTEGER,
        bins BLOB NOT NULL,
        UNIQUE (set_name, name)
    );
    CREATE INDEX records_expires ON records (expires) WHERE expires IS NOT NULL;
    PRAGMA application_id = 0x4C415443;
    PRAGMA user_version = 1;
    INSERT INTO records VALUES
        (1, 's', 'k', 3, 1000, NULL, X'83A16E07A474657874A461C3A962A16D81A161920102'),
        (2, 's', 'expired', 1, 1000, 2000, X'81A16E01');
"""
"""As the first version of this file's layout was written."""


def test_a_file_of_the_first_layout_is_read_and_its_records_are_sealed_as_they_are_written(path):
    connection = sqlite3.connect(path)
    connection.executescript(FIRST_LAYOUT)
    connection.close()
    store = SQLiteStore(path)
    assert store.get(KEY).bins == {"n": 7, "text": "a\u00e9b", "m": {"a": [1, 2]}}
    assert store.get(Key("s", "expired")) is None
    assert store.operate(KEY, Add("n", 1), Read("n")) == (8,)
    store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (sqlite_file.LAYOUT,)
    assert connection.execute("SELECT hex(substr(bins, 1, 1)) FROM records").fetchall() == [("C1",)]
    connection.close()
    assert SQLiteStore(path).get(KEY).bins["n"] == 8


@pytest.mark.parametrize("seal_first", [True, False], ids=["sealed", "first layout"])
def test_an_update_by_a_form_leaves_the_bins_that_it_does_not_name_as_they_were(path, seal_first):
    connection = sqlite3.connect(path)
    connection.executescript(FIRST_LAYOUT)
    connection.close()
    store, form = SQLiteStore(path), Form(Add("n", Param("by")), Read("n"), when=Bin("n") < Param("end"))
    if seal_first:
        store.operate(KEY, Touch())
    assert store.repeat(form.fill(KEY, by=1, end=9)) == (8,)
    assert store.repeat(form.fill(KEY, by=1, end=9)) == (9,)
    with pytest.raises(Refused):
        store.repeat(form.fill(KEY, by=1, end=9))
    assert SQLiteStore(path).get(KEY).bins == {"n": 9, "text": "a\u00e9b", "m": {"a": [1, 2]}}


@pytest.mark.parametrize("text", ["malformed database schema (secret)", "no such table: records"])
def test_a_damaged_schema_is_corrupt_and_is_not_quoted(text):
    for code in (None, 1, 11):
        failure = sqlite3.DatabaseError(text)
        if code:
            failure.sqlite_errorcode = code
        error = sqlite_file.meaning(failure, Path("/x/store.db"))
        assert type(error) is Corrupt
        assert "secret" not in str(error)


def test_a_schema_that_is_no_text_is_corrupt_and_is_not_quoted(path):
    store = SQLiteStore(path)
    store.operate(KEY, Put("n", 1), exists=Exists.CREATE)
    store.close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE records", b"CREATE \xf2\xe9\xff\xfe\xa0 records"))
    for call in (store.get, lambda key: store.operate(key, Add("n", 1))):
        with pytest.raises(Corrupt, match="database disk image is malformed"):
            call(KEY)


def test_python_310_which_tells_no_number_knows_what_breaks_a_constraint_for_damage():
    assert type(sqlite_file.meaning(sqlite3.IntegrityError("UNIQUE constraint failed"), Path("/x"))) is Corrupt


def test_a_file_system_without_shared_memory_is_refused():
    """A database in memory has no write-ahead log either."""
    with pytest.raises(Misconfigured, match=r"/net/store\.db.*local disk"):
        sqlite_file._configure(sqlite3.connect(":memory:"), Path("/net/store.db"), "full", late=False)


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


def test_a_file_that_another_process_makes_at_this_moment_is_not_another_programs(tmp_path):
    """It is made between two of the questions that are asked about it."""
    path = tmp_path / "store.db"

    class Asking(sqlite3.Connection):
        def execute(self, question, *given):
            if question == "PRAGMA user_version" and not self.in_transaction:
                SQLiteStore(path, synchronous="off").get(KEY)
            return super().execute(question, *given)

    connection = sqlite3.connect(path, isolation_level=None, factory=Asking)
    sqlite_file._claim(connection, path)
    sqlite_file._claim(connection, path)
    connection.close()
    assert SQLiteStore(path, synchronous="off").get(KEY) is None


# ---- a file of the layout that had no table of messages

MESSAGE, TOMBSTONE = Key("c_data_set", "q_SHARD_3_7"), Key("c_data_set", "q_SHARD_0_1")
MOVED = {
    MESSAGE: {"data": "p\u00e4", "msgId": "m", "attempts": 2, "enqueuedAt": 5, "v": 1, "headers": {"h": "x"}},
    TOMBSTONE: {"modified_at": 1, "v": 1},
    Key("c_data_set", "another's"): {"n": 1},
    Key("c_meta_set", "q_SHARD_3_POINTERS"): {"LOAD_POINTER": 7},
}


def second_layout(path, damaged=None):
    """Write a file as that version did; a store that was its."""
    connection = sqlite3.connect(path)
    tables, _ = FIRST_LAYOUT.split("INSERT INTO")
    connection.executescript(tables.replace("user_version = 1", "user_version = 2"))
    for number, (key, bins) in enumerate(MOVED.items()):
        row = sealed(key, Stored(bins, 9, 1000, 9_000_000_000_000 if number else None))
        data = b"\xc1broken" if key == damaged else row.data
        connection.execute(
            "INSERT INTO records VALUES (NULL, ?, ?, ?, ?, ?, ?)",
            (*key, row.generation, row.updated, row.expires, data),
        )
    connection.create_function("latchwork_bin", 2, lambda *_: 1, deterministic=True)
    connection.execute("CREATE INDEX by_73006e ON records (latchwork_bin(bins, 'n')) WHERE set_name = 's'")
    connection.commit()
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def test_the_messages_of_a_file_of_the_second_layout_move_into_their_table_and_stay_as_they_were(path):
    second_layout(path)
    store = SQLiteStore(path)
    found = {key: store.get(key) for key in MOVED}
    assert {key: one.bins for key, one in found.items()} == MOVED
    assert {one.generation for one in found.values()} == {9}
    assert [found[key].ttl > 10**9 for key in MOVED] == [False, True, True, True]
    connection = sqlite3.connect(path)
    assert [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("records", "messages")] == [
        (2,), (2,),
    ]  # fmt: skip
    assert connection.execute("PRAGMA user_version").fetchone() == (sqlite_file.LAYOUT,)
    assert store.damage() == []


def test_a_message_that_was_damaged_before_it_moved_is_corrupt_and_its_neighbour_moves(path):
    second_layout(path, damaged=MESSAGE)
    store = SQLiteStore(path)
    with pytest.raises(Corrupt, match="q_SHARD_3_7"):
        store.get(MESSAGE)
    assert store.get(TOMBSTONE).bins == MOVED[TOMBSTONE]
    assert store.damage() == [str(MESSAGE)]


@pytest.mark.parametrize("row", [99, 3, 4], ids=["no row", "another record", "pointers"])
def test_a_message_that_only_the_index_has_is_corrupt_and_its_neighbours_are_as_they_were(path, row):
    """Nobody knows what it was; to take it for absent would hide that."""
    second_layout(path)
    data = bytearray(path.read_bytes())
    name = TOMBSTONE.name.encode()
    (cell,) = [
        cell for cell in cells(data, trees(path)["sqlite_autoindex_records_1"]) if name in data[cell.start : cell.end]
    ]
    assert data[cell.end - 1] == 2
    data[cell.end - 1] = row
    path.write_bytes(data)
    store = SQLiteStore(path)
    with pytest.raises(Corrupt, match="q_SHARD_0_1"):
        store.get(TOMBSTONE)
    assert {key: store.get(key).bins for key in MOVED if key != TOMBSTONE} == {
        key: bins for key, bins in MOVED.items() if key != TOMBSTONE
    }


def test_a_file_of_an_earlier_layout_that_another_process_has_open_is_left_as_it_is(path):
    second_layout(path)
    other = sqlite3.connect(path)
    assert other.execute("SELECT count(*) FROM records").fetchone() == (4,)
    store = SQLiteStore(path, busy_timeout=0)
    store.policy = RetryPolicy(attempts=1)
    with pytest.raises(Misconfigured, match="layout 2, and another process has it open: stop all processes"):
        store.get(MESSAGE)
    assert other.execute("PRAGMA user_version").fetchone() == (2,)
    other.close()
    assert store.get(MESSAGE).bins == MOVED[MESSAGE]


def test_nobody_opens_a_file_of_an_earlier_layout_while_its_messages_are_moved(path, monkeypatch):
    second_layout(path)
    others, found = [], sqlite_file.messages_in

    def look(connection, on_failure):
        moved = found(connection, on_failure)
        with closing(sqlite3.connect(path, timeout=0)) as other:  # a process of the earlier version
            try:
                other.execute("DELETE FROM records")
                other.commit()
            except sqlite3.OperationalError as failure:
                others.append(str(failure))
        return moved

    monkeypatch.setattr(sqlite_file, "messages_in", look)
    store = SQLiteStore(path)
    assert {key: store.get(key).bins for key in MOVED} == MOVED
    assert others == ["database is locked"]
    with closing(sqlite3.connect(path, timeout=0)) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (sqlite_file.LAYOUT,), "others may open it again"


def test_a_process_that_is_killed_while_it_moves_the_messages_leaves_the_earlier_layout(path, monkeypatch):
    second_layout(path)
    child = os.fork()
    if not child:
        made = sqlite_messages.made_number

        def die(connection, key):
            if key == TOMBSTONE:
                os.kill(os.getpid(), signal.SIGKILL)
            return made(connection, key)

        monkeypatch.setattr(sqlite_messages, "made_number", die)
        try:
            SQLiteStore(path).get(MESSAGE)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    assert connection.execute("SELECT count(*) FROM records").fetchone() == (4,)
    connection.close()
    assert SQLiteStore(path).get(MESSAGE).bins == MOVED[MESSAGE]
