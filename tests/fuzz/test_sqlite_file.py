"""The file of a SQLite store, damaged anywhere: bad bytes are never data, and never in an error.

Whatever is damaged, each call gives what was written or an error of ours. Where it is a row that is damaged, or one
column of it, nobody but who asks for that record notices: every other one is read, written, listed and swept.
"""

from __future__ import annotations

import logging
import pickle
import sqlite3
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from latchwork.errors import Corrupt, LatchworkError
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Bin, Exists, Key, Put, Read, Removal, SQLiteStore, Update
from latchwork.store.model.values import encode
from latchwork.store.sqlite import sweep as sqlite_sweep
from latchwork.store.sqlite.messages import BITS
from latchwork.store.sqlite.messages import key as message_key
from latchwork.store.sqlite.seal import _HEAD
from latchwork.testing.clock import ManualClock
from tests.support import matrix
from tests.support.scale import FIRST, scaled

from .damage import IN_PLACE, cut, flipped
from .sqlite_cells import cells, trees

DAMAGES = scaled(3)
"""Of each kind, in each test."""
SECRET = "canary"
"""In every value, and in no name."""
LIFE = 1_000
ONE_TRY = RetryPolicy(attempts=1)
QUEUES, OTHERS, BRIEF = (
    [Key(set, f"record {n} of a name that takes room in the pages of the index") for n in range(count)]
    for set, count in (("q", 30), ("other", 30), ("brief", 6))
)
MESSAGES = [Key("c_data_set", f"q_SHARD_{n % 2}_{1 + n // 2}") for n in range(30)]
KEYS = [*QUEUES, *OTHERS, *BRIEF, *MESSAGES]
UNRELATED = Key("unrelated", "k")


def value_of(key: Key, version: int) -> dict[str, Any]:
    """What the record holds; some records are larger than a page."""
    size = 4_000 if " 7 " in key.name or key.name.endswith("_7") else 40
    if key in MESSAGES:
        data = f"{SECRET} {key.name} " * (size // 20)
        headers = {"h": SECRET} if key.name.endswith("_3") else {}
        return {
            "data": data, "msgId": SECRET, "attempts": 0, "n": version, "modified_at": 10**12, "delivery": SECRET,
            "v": 1, "headers": headers,
        }  # fmt: skip
    return {"active": "yes", "n": version, "text": f"{SECRET} {key.name} " * (size // 20), "map": {"a": [SECRET, 1]}}


@dataclass
class Original:
    """A sound file with all its records, of which some stand only in its log."""

    file: bytes
    log: bytes
    trees: dict[str, int]
    numbers: dict[int, Key]
    is_sealed: bool


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Original:
    return _made(tmp_path_factory.mktemp("original"), sealed=True)


@pytest.fixture(scope="module")
def unsealed(tmp_path_factory) -> Original:
    """As the first version of the layout was written."""
    return _made(tmp_path_factory.mktemp("unsealed"), sealed=False)


def _made(folder, *, sealed: bool) -> Original:
    path = folder / "made.db"
    store = SQLiteStore(path, synchronous="off", seams=ManualClock())
    store.ensure_index("q", "active")
    rows = [Update(key, _puts(key, 1), exists=Exists.CREATE, ttl=LIFE if key.set == "brief" else -1) for key in KEYS]
    assert all(not isinstance(row, LatchworkError) for row in store.operate_many(rows))
    if not sealed:
        connection = _plain(path)
        for number, data in connection.execute("SELECT id, bins FROM records").fetchall():
            connection.execute("UPDATE records SET bins = ? WHERE id = ?", (data[_HEAD.size :], number))
        connection.execute("DROP TABLE messages")
        connection.execute("DROP TABLE lanes")
        insert = "INSERT INTO records (set_name, name, generation, updated, bins) VALUES (?, ?, 1, 1, ?)"
        connection.executemany(insert, [(*key, encode(value_of(key, 1))) for key in MESSAGES])
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
        connection.close()
    store.close()
    file, where = path.read_bytes(), trees(path)
    connection = _plain(path)
    numbers = {number: Key(*key) for number, *key in connection.execute("SELECT id, set_name, name FROM records")}
    if sealed:
        lanes = {number: names for number, *names in connection.execute("SELECT id, set_name, name FROM lanes")}
        for (number,) in connection.execute("SELECT id FROM messages"):
            numbers[number] = message_key(*lanes[number >> BITS], number)
    connection.close()
    store = SQLiteStore(path, synchronous="off", seams=ManualClock())
    store.operate_many([Update(key, _puts(key, 2)) for key in OTHERS[::3]])
    log = path.with_name("made.db-wal").read_bytes()
    store.close()
    return Original(file, log, where, numbers, sealed)


def _puts(key: Key, version: int) -> tuple[Put, ...]:
    return tuple(Put(bin, value) for bin, value in value_of(key, version).items())


def _plain(path) -> sqlite3.Connection:
    """A connection beside the store, whose writes leave the indexes as they are."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA trusted_schema = ON")
    connection.create_function("latchwork_bin", 2, lambda *_: "yes", deterministic=True)
    return connection


# ---- what is checked


@dataclass
class Trial:
    """One damaged file, and what calls on it come to."""

    store: SQLiteStore
    clock: ManualClock
    checked: bool = True
    """Whether its rows have checksums, so that what is read must have been written."""
    calls: Counter[str] = field(default_factory=Counter)

    def call(self, name: str, run: Callable[[], Any]) -> Any:
        """What it comes to; an error must be ours, and must not have anything of a record in it."""
        self.calls["calls"] += 1
        try:
            came = run()
        except LatchworkError as failure:
            came = failure
        for failure in came if isinstance(came, list) else [came]:
            if isinstance(failure, LatchworkError):
                self.calls["errors"] += 1
                told = "".join(traceback.format_exception(failure, limit=0)) + repr((failure, failure.details))
                assert SECRET not in told, f"{name}: an error has something of a record in it"
                assert SECRET.encode() not in pickle.dumps(failure)
        return came

    def read(self, key: Key, record: Any) -> bool:
        """Whether it was read; what was read must be what was written."""
        if record is None or isinstance(record, LatchworkError):
            return False
        if self.checked:
            written = [value_of(key, version) for version in (1, 2)]
            assert record.key == key
            assert any(record.bins.items() <= version.items() for version in written), f"{key} is not what was written"
        return True


def every_verb(trial: Trial) -> dict[Key, Any]:
    """Each verb on records of all sets; what became of each record when it was asked for by itself."""
    store = trial.store
    alone = {key: trial.call("get", lambda key=key: store.get(key)) for key in KEYS}
    for key, record in alone.items():
        trial.read(key, record)
    for some in (QUEUES[:10], OTHERS[10:20], QUEUES[::7] + OTHERS[::7]):
        together = trial.call("get_many", lambda some=some: store.get_many(some, "n", "text"))
        if isinstance(together, list):
            for key, record in zip(some, together, strict=True):
                trial.read(key, record)
    for equals in ("yes", "no", 7):
        for set in ("q", "other"):  # one of them has an index
            found = trial.call("query", lambda set=set, equals=equals: store.query(set, "active", equals))
            if isinstance(found, list):
                assert all(trial.read(record.key, record) for record in found)
                assert not found or equals == "yes"
    key = QUEUES[7]
    trial.call("operate", lambda: store.operate(key, Read("text"), when=Bin("active", str).eq("yes")))
    trial.call("operate", lambda: store.operate(key, Put("text", SECRET), when=Bin("n").eq(77)))
    return alone


def every_change(trial: Trial) -> dict[Key, Any]:
    """Each verb that writes, on every record; what became of each row."""
    store, rows = trial.store, {}
    for some in (QUEUES[:15], OTHERS[:15], MESSAGES[:15]):
        updates = [Update(key, (Put("n", 2), Read("n"))) for key in some]
        rows |= dict(zip(some, _rows(trial, "operate_many", lambda: store.operate_many(updates), some), strict=True))  # noqa: B023
    for key in (*QUEUES[15:20], *OTHERS[15:20], *MESSAGES[15:20]):
        rows[key] = trial.call("operate", lambda key=key: store.operate(key, Put("n", 2), Read("n")))
    trial.call("operate", lambda: store.operate(Key("q", "new"), Put("active", "no"), exists=Exists.ANY))
    for bin in ("active", "n"):
        trial.call("ensure_index", lambda bin=bin: store.ensure_index("other", bin, str))
    trial.clock.advance(LIFE + 1)
    for _ in range(3):
        trial.call("sweep", lambda: store.operate(UNRELATED, Add("n", 1), exists=Exists.ANY))
        trial.clock.advance(sqlite_sweep.EVERY / 1000)
    for key in (*QUEUES[:5], *OTHERS[:5]):
        rows[key] = trial.call("delete", lambda key=key: store.delete(key))
    some = [*QUEUES[5:15], *OTHERS[5:15], *MESSAGES[5:15]]
    removals = [Removal(key, Bin("n") >= 1 if number % 2 else None) for number, key in enumerate(some)]
    rows |= dict(zip(some, _rows(trial, "delete_many", lambda: store.delete_many(removals), some), strict=True))
    return rows


def _rows(trial: Trial, name: str, run: Callable[[], Any], some: list[Key]) -> list[Any]:
    came = trial.call(name, run)
    return came if isinstance(came, list) else [came] * len(some)


# ---- damage


def page_for_another(data: bytearray, start: int, end: int, random: Random) -> None:
    pages = range(start, end - 4095, 4096)
    source, target = random.choice(pages), random.choice(pages)
    data[target : target + 4096] = data[source : source + 4096]


ANYWHERE = (*IN_PLACE, cut, page_for_another)


@pytest.fixture
def trial(tmp_path, caplog):
    """Opens a damaged file; when all is done, nothing of a record may stand in the log either."""
    caplog.set_level(logging.WARNING, "latchwork")
    calls: Counter[str] = Counter()
    numbers = iter(range(10**9))

    def begin(file: bytes, log: bytes = b"", *, checked: bool = True) -> Trial:
        calls["files"] += 1
        path = tmp_path / f"{next(numbers)}.db"
        path.write_bytes(file)
        if log:
            path.with_name(path.name + "-wal").write_bytes(log)
        clock = ManualClock()
        store = SQLiteStore(path, synchronous="off", seams=clock)
        store.policy = ONE_TRY
        trial = Trial(store, clock, checked, calls)
        trials.append(trial)
        if len(trials) > 5:  # their files take room
            _end(trials.pop(0))
        return trial

    trials: list[Trial] = []
    begin.calls = calls
    yield begin
    for one in trials:
        _end(one)
    assert SECRET not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def _end(trial: Trial) -> None:
    trial.store.close()
    for path in trial.store.path.parent.glob(trial.store.path.name + "*"):
        path.unlink()


def seeds(times: int = 1) -> range:
    """As many seeds as there are damages of a kind."""
    return range(FIRST * DAMAGES, FIRST * DAMAGES + times * DAMAGES)


def rows_left(trial: Trial) -> set[int]:
    connection = sqlite3.connect(trial.store.path)
    numbers = {number for (number,) in connection.execute("SELECT id FROM records NOT INDEXED")}
    connection.close()
    return numbers


def only_the_victim_notices(trial: Trial, original: Original, number: int) -> None:
    """All verbs on a file of which one row is damaged."""
    victim = original.numbers[number]
    alone = every_verb(trial)
    if trial.checked:
        assert alone[victim] is not None, "what is damaged is not absent"
    assert isinstance(alone[victim], Corrupt | None) or trial.read(victim, alone[victim])
    assert [key for key in KEYS if key != victim and not trial.read(key, alone[key])] == []
    listed = trial.call("query", lambda: trial.store.query("q", "active", "yes"))
    assert {record.key for record in listed} >= {*QUEUES} - {victim}
    scanned = trial.call("scan", lambda: trial.store.scan("c_data_set"))
    assert {record.key for record in scanned} >= {*MESSAGES} - {victim}
    rows = every_change(trial)
    assert [key for key, came in rows.items() if key != victim and isinstance(came, LatchworkError)] == []
    assert [key for key, came in rows.items() if key != victim and came not in ((2,), True)] == []
    assert trial.call("get", lambda: trial.store.get(UNRELATED)).bins == {"n": 3}
    brief = {number for number, key in original.numbers.items() if key.set == "brief"}
    assert rows_left(trial) & brief <= {number}


@pytest.mark.parametrize("damage", IN_PLACE)
@pytest.mark.parametrize("made", ["original", "unsealed"])
def test_a_damaged_row_fails_those_who_ask_for_it_alone(request, trial, made, damage, proved):
    whole: Original = request.getfixturevalue(made)
    rows = cells(whole.file, whole.trees["records"])
    for seed in seeds():
        random, data = Random(f"{damage.__name__} {seed}"), bytearray(whole.file)
        cell = random.choice(rows)
        damage(data, cell.start, cell.end, random)
        only_the_victim_notices(trial(bytes(data), checked=whole.is_sealed), whole, cell.number)
    proved("damaged files", f"SQLite, rows, {made}", **trial.calls)


@pytest.mark.parametrize("damage", IN_PLACE)
def test_a_damaged_message_fails_those_who_ask_for_it_alone(original, trial, damage, proved):
    rows = cells(original.file, original.trees["messages"])
    assert len(rows) == len(MESSAGES)
    for seed in seeds(2):
        random, data = Random(f"{damage.__name__} {seed}"), bytearray(original.file)
        cell = random.choice(rows)
        damage(data, cell.start, cell.end, random)
        only_the_victim_notices(trial(bytes(data)), original, cell.number)
    proved("damaged files", "SQLite, messages", **trial.calls)


ODD_IN_MESSAGES = {
    "generation": ("a text", b"bytes", 1.5, -1, 2**62),
    "updated": ("a text", b"bytes", 1.5, -(2**62)),
    "expires": ("a text", b"bytes", 1.5, -1, 1, 2**62),
    "seal": ("a text", b"bytes", 1.5, -1, 1),
    "delivery": (7, b"bytes", "\udcff", "another", None),
    "fired": ("a text", 1.5, 7),
    "attempts": ("a text", 1.5, 7, None),
    "modified": ("a text", b"bytes", 7, None),
    "grouped": ("a text", 1),
    "kind": (1, 7, None, "a text"),
    "msg_id": (7, b"\xff", "another", None),
    "more": (7, "a text", b"", b"\xc1", b"\x81\xa1n" + b"\x91" * 200_000 + b"\x01", None),
    "data": (7, "a text", b"", b"\xff", None),
}
"""What a column of a message may come to hold."""


@pytest.mark.parametrize("column", ODD_IN_MESSAGES)
def test_a_column_of_a_message_that_holds_something_else_fails_those_who_ask_for_it_alone(
    original, trial, column, proved
):
    for seed, value in matrix.sample(list(enumerate(ODD_IN_MESSAGES[column])), column, least=2):
        begun = trial(original.file)
        number = Random(seed + FIRST).choice([number for number, key in original.numbers.items() if key in MESSAGES])
        connection = _plain(begun.store.path)
        if value == "\udcff":
            connection.execute(f"UPDATE messages SET {column} = CAST(x'ff' AS TEXT) WHERE id = ?", (number,))
        else:
            connection.execute(f"UPDATE messages SET {column} = ? WHERE id = ?", (value, number))
        connection.commit()
        connection.close()
        only_the_victim_notices(begun, original, number)
    proved("damaged files", "SQLite, columns of messages", **trial.calls)


NESTED = b"\x81\xa1n" + b"\x91" * 200_000 + b"\x01"
"""As MessagePack: more levels of lists than any reader takes."""
ODD = {
    "generation": ("a text", b"bytes", 1.5, -1, 2**62),
    "updated": ("a text", b"bytes", 1.5, -(2**62)),
    "expires": ("a text", b"bytes", 1.5, -1, 1, 2**62),
    "bins": (
        7, 1.5, "a text", b"", b"\xc1", b"\xc1\0\0\0\0", b"\x80", b"\x91\x01", NESTED,
        b"\xc1\0\0\0\0" + NESTED, b"\x81\xa1n" + b"\x91" * 300 + b"\x01", b"\x81\xa1n\xcf" + b"\xff" * 8,
        b"\x81\xa6active\xcf" + b"\xff" * 8, b"\x81\xa1n\xd6\xff\0\0\0\1", b"\x81\xa1n\xd4\x05a",
        b"\x81\xa1n\x81\x91\x01\x01", b"\x81\xa1n\xa1\xff", b"\x81\xa1n\xdd\xff\xff\xff\xff", b"\x81\xc0\x01",
    ),
}  # fmt: skip
"""What a column may come to hold, of another type as well."""


@pytest.mark.parametrize("column", ODD)
@pytest.mark.parametrize("made", ["original", "unsealed"])
def test_a_column_that_holds_something_else_fails_those_who_ask_for_it_alone(request, trial, made, column, proved):
    whole: Original = request.getfixturevalue(made)
    for seed, value in matrix.sample(list(enumerate(ODD[column])), f"{made} {column}", least=2):
        begun = trial(whole.file, checked=whole.is_sealed)
        number = Random(seed + FIRST).choice([number for number, key in whole.numbers.items() if key.set != "brief"])
        connection = _plain(begun.store.path)
        connection.execute(f"UPDATE records SET {column} = ? WHERE id = ?", (value, number))
        connection.commit()
        connection.close()
        only_the_victim_notices(begun, whole, number)
    proved("damaged files", f"SQLite, columns, {made}", **trial.calls)


@pytest.mark.parametrize("damage", IN_PLACE)
@pytest.mark.parametrize("tree", ["sqlite_autoindex_records_1", "records_expires", "by_"])
def test_a_damaged_index_gives_no_wrong_record_and_sweeps_none_that_lives(original, trial, tree, damage, proved):
    (root,) = [page for name, page in original.trees.items() if name.startswith(tree)]
    entries = cells(original.file, root)
    living = {number for number, key in original.numbers.items() if key.set == "other" and key not in OTHERS[:15]}
    for seed in seeds():
        random, data = Random(f"{damage.__name__} {seed}"), bytearray(original.file)
        cell = random.choice(entries)
        damage(data, cell.start, cell.end, random)
        begun = trial(bytes(data))
        every_verb(begun)
        every_change(begun)
        assert living <= rows_left(begun)
    proved("damaged files", "SQLite, indexes", **trial.calls)


def test_a_delete_that_an_index_leads_to_another_record_leaves_it_there(original, trial):
    data, (asked, other) = bytearray(original.file), OTHERS[4:6]
    numbers = {key: number for number, key in original.numbers.items()}
    entries = cells(original.file, original.trees["sqlite_autoindex_records_1"])
    (entry,) = [one for one in entries if "".join(asked).encode() in original.file[one.start : one.end]]
    assert data[entry.end - 1] == numbers[asked]
    data[entry.end - 1] = numbers[other]
    begun = trial(bytes(data))
    with pytest.raises(Corrupt):
        begun.store.delete(asked)
    assert isinstance(begun.store.delete_many([Removal(asked)])[0], Corrupt)
    assert numbers[other] in rows_left(begun)


@pytest.mark.parametrize("damage", ANYWHERE)
@pytest.mark.parametrize("made", ["original", "unsealed"])
def test_a_file_damaged_anywhere_gives_what_was_written_or_an_error_of_ours(request, trial, made, damage, proved):
    whole: Original = request.getfixturevalue(made)
    for seed in seeds(2):
        random, data = Random(f"{damage.__name__} {seed}"), bytearray(whole.file)
        where = (0, 100) if seed % 4 == 0 and damage is flipped else (0, len(data))
        damage(data, *where, random)
        begun = trial(bytes(data), checked=whole.is_sealed)
        every_verb(begun)
        every_change(begun)
    proved("damaged files", f"SQLite, anywhere, {made}", **trial.calls)


@pytest.mark.parametrize("damage", [*IN_PLACE, cut])
def test_a_damaged_log_gives_what_was_written_or_an_error_of_ours(original, trial, damage, proved):
    for seed in seeds():
        random, data = Random(f"{damage.__name__} {seed}"), bytearray(original.log)
        damage(data, 0, len(data), random)
        begun = trial(original.file, bytes(data))
        every_verb(begun)
        every_change(begun)
    proved("damaged files", "SQLite, log", **trial.calls)
