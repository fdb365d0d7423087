"""A SQLite store some of whose records are damaged: the others are read, written and swept as if they were not."""

from __future__ import annotations

import logging
import sqlite3
from types import SimpleNamespace
from typing import ClassVar

import pytest

from latchwork.errors import Corrupt, StorageFailed
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.slots import Slot
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Bin, Exists, Key, Put, Read, Removal, SQLiteStore, Update
from latchwork.store.contract.records import raises
from latchwork.store.sqlite import file as sqlite_file
from latchwork.store.sqlite import messages as sqlite_messages
from latchwork.store.sqlite import rows as sqlite_rows
from latchwork.store.sqlite import sweep as sqlite_sweep
from latchwork.testing.clock import ManualClock
from tests.fuzz.sqlite_cells import cells, trees
from tests.support.sqlite_damage import damage_row

SET, OTHER = "q", Key("other", "x")
BAD, GOOD, LAST = (Key(SET, name) for name in ("bad", "good", "last"))
LIFE = 60
AUTOMATIC = "sqlite_autoindex_records_1"
"""The index by set and name."""


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
    damage_row(store, key, active)


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
            clock.advance(sqlite_sweep.EVERY / 1000)
    (told,) = caplog.messages
    assert str(store.path) in told


def test_many_damaged_records_do_not_end_the_sweep_of_those_that_expired_after_them(store, clock, monkeypatch, caplog):
    monkeypatch.setattr(sqlite_sweep, "AT_MOST", 2)
    store.ensure_index(SET, "active")
    names = [f"bad{n}" for n in range(4)]
    for name in names:
        store.operate(Key(SET, name), Put("active", "yes"), exists=Exists.CREATE, ttl=LIFE - 1)
        damage(store, Key(SET, name))
    clock.advance(LIFE)
    for _ in range(5):
        store.operate(OTHER, Add("n", 1))
        clock.advance(sqlite_sweep.EVERY / 1000)
    assert left(store) == {"x", *names}
    assert len(caplog.messages) == 2, "of two damaged records each"


def test_a_damaged_record_that_says_that_it_has_expired_is_not_absent(store, clock):
    """Nobody knows whether it has."""
    damage(store)
    clock.advance(LIFE)
    store.operate(OTHER, Add("n", 1))
    assert left(store) == {"x", "bad"}
    raises(Corrupt, store.get, BAD)
    assert store.delete(BAD)


def changed(store, tree, old, new):
    """Bytes of one row, or of one entry of an index, turn to others."""
    store.close()
    root = trees(store.path)[tree]
    data = bytearray(store.path.read_bytes())
    (place,) = [
        cell.start + at for cell in cells(data, root) if (at := bytes(data[cell.start : cell.end]).find(old)) >= 0
    ]
    data[place : place + len(old)] = new
    store.path.write_bytes(data)


def test_a_living_record_whose_index_entry_says_that_it_has_expired_is_not_swept(store, clock):
    expires, past = (int((clock.wall() + seconds) * 1000).to_bytes(6, "big") for seconds in (LIFE, -1))
    store.delete_many([Removal(GOOD), Removal(LAST)])
    changed(store, "records_expires", expires, past)
    clock.advance(sqlite_sweep.EVERY / 1000)
    store.operate(OTHER, Add("n", 1))
    assert left(store) == {"x", "bad"}
    assert store.get(BAD).bins["n"] == 1


def test_a_value_that_damage_has_changed_is_never_read(store):
    changed(store, "records", b"bad\x01", b"bad\x02")  # its generation
    raises(Corrupt, store.get, BAD)
    store.operate(LAST, Put("n", 77))
    changed(store, "records", b"\xa1n\x4d", b"\xa1n\x4c")
    raises(Corrupt, store.operate, LAST, Add("n", 1))
    assert store.get(GOOD).bins["n"] == 1


def test_an_index_entry_that_leads_to_another_record_gives_no_wrong_one(store):
    changed(store, AUTOMATIC, b"good", b"g\0od")
    changed(store, AUTOMATIC, b"last", b"good")
    raises(Corrupt, store.get, GOOD)
    raises(Corrupt, store.operate, GOOD, Add("n", 1))
    assert store.get(BAD).bins["n"] == 1


def with_a_damaged_name(store, name):
    """The keys of forty records, of which the index has n17 under this name."""
    store.delete_many([Removal(key) for key in (BAD, GOOD, LAST, OTHER)])
    keys = [Key(SET, f"n{number:02}") for number in range(40)]
    store.operate_many([Update(key, (Put("n", key.name),), exists=Exists.CREATE) for key in keys])
    changed(store, AUTOMATIC, b"n17", name)
    return keys


def test_a_record_that_the_index_has_under_the_name_of_another_hides_none_but_itself(store):
    """SQLite 3.40 gives it out for the other name, and so it is found; SQLite 3.53 does not."""
    keys = with_a_damaged_name(store, b"n16")
    found = {record.key for record in store.get_many(keys) if record is not None}
    assert set(keys) - found <= {Key(SET, "n17")}
    assert any("index" in text for text in store.damage())


@pytest.mark.parametrize("name", [b"n1X", b"n1\xff"])
def test_a_damaged_name_in_an_index_keeps_no_batch_from_its_other_records(store, name, caplog):
    """SQLite gives out the entry for another name that the batch asks for."""
    keys = with_a_damaged_name(store, name)
    for _ in range(2):
        assert [record.bins["n"] for record in store.get_many(keys)] == [key.name for key in keys]
        outcomes = store.operate_many([Update(key, (Put("m", 1), Read("n"))) for key in keys])
        assert outcomes == [(key.name,) for key in keys]
    (told,) = caplog.messages
    assert str(store.path) in told
    assert store.delete_many([Removal(key) for key in keys])[:14] == [True] * 14


def test_what_is_damaged_is_named_and_an_index_is_made_anew(store):
    assert store.damage() == []
    damage(store)
    assert store.damage() == [str(BAD)]
    store.delete(BAD)
    changed(store, AUTOMATIC, b"last", b"past")
    assert store.get(LAST) is None, "which no store in SQLite can help"
    assert any("index" in text for text in store.damage())
    store.reindex()
    assert store.damage() == []
    assert store.get(LAST).bins["n"] == 1


def with_a_damaged_lane(store, tree):
    """A queue of two shards with three messages each; one shard's name is another in the lanes, or in their index."""
    queue = QueueRegistry(store, "c").create(QueueConfig("jobs", shards=2))
    for n in range(6):
        queue.publish(n, key="da"[n % 2])
    shards = [queue.shard_of(key) for key in "da"]
    assert shards == [0, 1]
    changed(store, tree, f"jobs_SHARD_{shards[1]}".encode(), b"jobs_SHARD_7")
    again = SQLiteStore(store.path, synchronous="off", seams=store.seams)
    again.policy = RetryPolicy(attempts=1)
    return again, QueueRegistry(again, "c").get("jobs")


def test_an_index_that_hides_the_messages_of_a_shard_is_corrupt_and_costs_none(store):
    """They would be taken for absent, and others would get their slots, which no `reindex` could put right."""
    store, queue = with_a_damaged_lane(store, "sqlite_autoindex_lanes_1")
    sound, hidden = (queue.shard_of(key) for key in "da")
    raises(Corrupt, queue.publish, "m", key="a")
    raises(Corrupt, store.get, queue.pointers.key(Slot(hidden, 1)))
    assert {state.shard: type(state.damage) for state in queue.pointers.states()} == {
        sound: type(None),
        hidden: Corrupt,
    }
    queue.publish("m", key="d")
    assert [one.payload for one in queue.receive(10)] == [0, 2, 4, "m"]
    assert any("index" in text for text in store.damage())
    store.reindex()
    assert store.damage() == []
    assert [one.payload for one in queue.receive(10)] == [1, 3, 5]
    store.close()


def test_a_lane_whose_name_is_damaged_gives_no_message_under_another_name(store):
    store, queue = with_a_damaged_lane(store, "lanes")
    assert sorted(one.payload for one in queue.receive(10)) == [0, 1, 2, 3, 4, 5], "the index has the right name"
    assert sorted(one.bins["data"] for one in store.scan("c_data_set")) == list("012345")
    index, *rows = store.damage()
    assert "index" in index
    assert [row.split()[0] for row in rows] == ["row"] * 3
    store.close()


def test_an_index_is_made_anew_beside_a_damaged_record(store):
    store.ensure_index(SET, "active")
    damage(store)
    store.reindex()
    assert store.damage() == [str(BAD)]
    assert {record.key for record in store.query(SET, "active", "yes")} == {GOOD, LAST}


def test_what_is_damaged_is_named_up_to_a_number_and_never_by_its_content(store):
    for number in range(25):
        store.operate(Key(SET, f"n{number}"), Put("text", "canary"), exists=Exists.CREATE)
    store.close()
    data = store.path.read_bytes()
    store.path.write_bytes(data.replace(b"canary", b"damage"))
    *named, more = store.damage()
    assert (len(named), more) == (20, "and 5 more")
    store.close()
    store.path.write_bytes(data[: len(data) // 4096 // 2 * 4096])
    (told,) = store.damage()
    assert str(store.path) in told


@pytest.fixture
def payload(store):
    """A record whose row says that its name goes on into its bins."""
    key = Key(SET, "nm")
    store.operate(key, Put("active", "yes"), Put("secret", "canary" * 20 + "\xe9"), exists=Exists.CREATE)
    store.ensure_index(SET, "active")
    size = len(store._pool.read(lambda one: one.execute("SELECT bins FROM records WHERE name = 'nm'").fetchone()[0]))
    name, bins = 13 + 2 * 2, 12 + 2 * size
    more = 2 * 30
    assert bins > 128, "two bytes"
    header = lambda name, bins: bytes([name, 9, 5, 0, 0x80 | bins >> 7, bins & 0x7F])  # noqa: E731 - of all columns
    changed(store, "records", header(name, bins), header(name + more, bins - more))
    return key


def test_a_row_whose_name_is_no_text_any_more_is_passed_over_by_its_number(store, caplog):
    store.ensure_index(SET, "active")
    header = bytes([0, 13 + 2 * len(SET), 13 + 2 * len("bad"), 9])
    changed(store, "records", header, header.replace(bytes([13 + 2 * 3]), bytes([12 + 2 * 3])))  # one bit
    assert {record.key for record in store.query(SET, "active", "yes")} == {GOOD, LAST}
    assert caplog.messages == [f"passed over by queries: {store.path}, row 2"]
    assert store.get(BAD).bins["n"] == 1, "the index has its name"


def test_nothing_of_a_record_is_in_the_error_or_the_log_of_its_damage(store, payload, caplog):
    failures = [raises(Corrupt, call) for call in (lambda: store.get(payload), lambda: store.get_many([payload]))]
    assert {record.key for record in store.query(SET, "active", "yes")} == {BAD, GOOD, LAST}
    (told,) = caplog.messages
    for text in (told, *(f"{failure} {failure.details}" for failure in failures)):
        assert "canary" not in text
        assert str(store.path) in text


def test_a_row_that_sqlite_cannot_read_fails_those_who_ask_for_it_alone(store, clock, caplog):
    """It takes no transaction further in which it has come upon damage."""
    store.ensure_index(SET, "active")
    size = len(store._pool.read(lambda one: one.execute("SELECT bins FROM records WHERE name = 'bad'").fetchone()[0]))
    end = lambda size: bytes([9, 5, 5, 12 + 2 * size])  # noqa: E731 - of the row's header: generation, times, bins
    store.delete_many([Removal(GOOD), Removal(LAST)])
    changed(store, "records", end(size), end(size + 1))
    for key in (GOOD, LAST):
        store.operate(key, Put("n", 1), Put("active", "yes"), exists=Exists.CREATE, ttl=LIFE)
    for call in (store.get, store.delete, lambda key: store.operate(key, Add("n", 1))):
        raises(Corrupt, call, BAD)
    first, bad, last = store.operate_many([Update(key, (Add("n", 1), Read("n"))) for key in (GOOD, BAD, LAST)])
    assert (first, type(bad), last) == ((2,), Corrupt, (2,))
    assert {record.key for record in store.query(SET, "active", "yes")} == {GOOD, LAST}
    clock.advance(LIFE)
    for n in range(1, 4):
        assert store.operate(OTHER, Add("n", 1), Read("n")) == (n,)
        clock.advance(sqlite_sweep.EVERY / 1000)
    assert left(store) == {"x", "bad"}
    assert len(caplog.messages) == 2, "by the query, and by the sweep"


def test_a_message_that_sqlite_cannot_read_keeps_no_other_from_the_sweep(store, clock, caplog):
    """Neither a message nor a record, and it is named once."""
    keys = [Key("c_data_set", f"q_SHARD_0_{n}") for n in range(1, 4)]
    for n, key in enumerate(keys):
        store.operate(key, Put("data", f"text {n}"), exists=Exists.CREATE, ttl=LIFE)
    store.close()
    data = bytearray(store.path.read_bytes())
    cell = next(cell for cell in cells(data, trees(store.path)["messages"]) if b"text 1" in data[cell.start : cell.end])
    data[cell.start + 1 : cell.start + 9] = b"\xff" * 8  # the types of its columns
    store.path.write_bytes(data)
    clock.advance(LIFE)
    for n in range(1, 4):
        assert store.operate(OTHER, Add("n", 1), Read("n")) == (n,)
        clock.advance(sqlite_sweep.EVERY / 1000)
    assert left(store) == {"x"}
    connection = sqlite3.connect(store.path)
    assert len(connection.execute("SELECT id FROM messages").fetchall()) == 1
    connection.close()
    raises(Corrupt, store.get, keys[1])
    (told,) = caplog.messages
    assert "messages" in told


def test_a_lane_that_another_process_makes_while_it_is_looked_for_is_no_damage(store):
    """Its first message came between the look into the index and the one into the table: an index was said to be
    damaged.
    """
    made, set, lane = Key("c_data_set", "q_SHARD_0_1"), "c_data_set", "q_SHARD_0"
    connection = sqlite3.connect(store.path)

    class Between:
        lanes: ClassVar = {}

        def execute(self, *given):
            found = connection.execute(*given).fetchone()
            if store.get(made) is None:
                store.operate(made, Put("data", "text"), exists=Exists.CREATE)
            return SimpleNamespace(fetchone=lambda: found)

    number = sqlite_messages.lane_of(Between(), set, lane)
    assert connection.execute("SELECT id FROM lanes").fetchall() == [(number,)]
    connection.close()


@pytest.mark.parametrize(("damaged", "swept"), [("messages", "records"), ("records_expires", "messages")])
def test_a_damaged_page_of_one_table_keeps_the_other_one_from_no_sweep(store, clock, damaged, swept, caplog):
    store.operate(Key("c_data_set", "q_SHARD_0_1"), Put("data", "text"), exists=Exists.CREATE, ttl=LIFE)
    store.close()
    data = bytearray(store.path.read_bytes())
    data[(trees(store.path)[damaged] - 1) * int.from_bytes(data[16:18], "big")] = 0xFF  # the kind of its first page
    store.path.write_bytes(data)
    clock.advance(LIFE)
    for n in range(1, 4):
        assert store.operate(OTHER, Add("n", 1), Read("n")) == (n,)
        clock.advance(sqlite_sweep.EVERY / 1000)
    connection = sqlite3.connect(store.path)
    assert connection.execute(f"SELECT count(*) FROM {swept} WHERE expires IS NOT NULL").fetchone() == (0,)
    connection.close()
    (told,) = caplog.messages
    assert str(store.path) in told


def test_an_index_entry_of_a_row_that_is_not_there_is_passed_over_by_the_sweep(store, clock, caplog):
    store.delete_many([Removal(GOOD), Removal(LAST)])
    expires = int((clock.wall() + LIFE) * 1000).to_bytes(6, "big")
    changed(store, "records_expires", expires + b"\x02", expires + b"\x63")
    clock.advance(LIFE)
    for n in range(1, 4):
        assert store.operate(OTHER, Add("n", 1), Read("n")) == (n,)
        clock.advance(sqlite_sweep.EVERY / 1000)
    (told,) = caplog.messages
    assert "rows [99]" in told


def test_a_query_that_fails_for_another_reason_than_damage_says_so(store, monkeypatch):
    store.ensure_index(SET, "active")
    monkeypatch.setattr(sqlite_rows, "_ANY", "NO STATEMENT")
    raises(StorageFailed, store.query, SET, "active", "yes")


@pytest.mark.parametrize(
    "bins", [7, 1.5, "text", b"\x81\xa6active" + b"\x91" * 200_000 + b"\x01", b"\x81\xa6active\xcf" + b"\xff" * 8]
)
def test_whatever_an_expired_record_holds_others_write_as_before(store, clock, bins, caplog):
    store.ensure_index(SET, "active")
    connection = sqlite3.connect(store.path)
    connection.execute("PRAGMA trusted_schema = ON")
    connection.create_function("latchwork_bin", 2, lambda *_: "yes", deterministic=True)
    connection.execute("UPDATE records SET bins = ? WHERE name = 'bad'", (bins,))
    connection.commit()
    connection.close()
    clock.advance(LIFE)
    for n in range(1, 4):
        assert store.operate(OTHER, Add("n", 1), Read("n")) == (n,)
        clock.advance(sqlite_sweep.EVERY / 1000)
    assert left(store) == {"x", "bad"}
    assert len(caplog.messages) == 1
    raises(Corrupt, store.get, BAD)


def test_an_index_is_made_beside_a_damaged_record(store):
    damage(store)
    store.ensure_index(SET, "active")
    assert {record.key for record in store.query(SET, "active", "yes")} == {GOOD, LAST}
    raises(Corrupt, store.delete, BAD)


def test_a_damaged_record_of_several_pages_is_not_deleted_as_some_of_these_may_be_of_others(store):
    for key in (BAD, GOOD):
        store.operate(key, Put("text", key.name * 2000))
    store.close()
    data = bytearray(store.path.read_bytes())
    ends = [
        slice(cell.end - 4, cell.end)
        for cell in cells(data, trees(store.path)["records"])
        if cell.end - cell.start > 999
    ]
    data[ends[0]] = data[ends[1]]
    store.path.write_bytes(data)
    assert "several pages" in str(raises(Corrupt, store.delete, BAD))
    (row,) = store.delete_many([Removal(BAD)])
    assert isinstance(row, Corrupt)
    store.operate(OTHER, Put("text", "x" * 20_000))
    assert store.get(GOOD).bins["text"] == "good" * 2000


def test_rows_of_a_batch_do_not_share_the_fate_of_a_damaged_one(store):
    damage(store)
    first, bad, last = store.operate_many([Update(key, (Add("n", 1), Read("n"))) for key in (GOOD, BAD, LAST)])
    assert (first, last) == ((2,), (2,))
    assert isinstance(bad, Corrupt)
    first, bad, last = store.delete_many([Removal(key, Bin("n").eq(2)) for key in (GOOD, BAD, LAST)])
    assert (first, type(bad), last) == (True, Corrupt, True)
    assert left(store) == {"x", "bad"}
    assert store.delete_many([Removal(OTHER), Removal(BAD), Removal(BAD)]) == [True, True, False]
    assert left(store) == set()


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
    pending, read = [], sqlite_file.bin_of

    def interrupted(*args):
        if pending:
            raise pending.pop()
        return read(*args)

    monkeypatch.setattr(sqlite_file, "bin_of", interrupted)
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
    clock.advance(sqlite_sweep.EVERY / 1000)
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


def test_a_row_whose_name_is_gone_is_not_taken_for_another_records():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE records (id, set_name, name, generation, updated, expires, bins)")
    connection.execute("INSERT INTO records VALUES (1, 's', NULL, 1, 1, NULL, x'c1')")
    found = sqlite_rows.FoundRow(connection, BAD, 1, sqlite_rows.Columns(1, 1, None, b"\xc1"))
    assert sqlite_rows._is_of_another(found) is False
