"""The SQLite store: many processes, sudden death, other writers, full and failing disks, files that are not ours."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from latchwork.deadline import Deadline
from latchwork.errors import (
    BinMismatch,
    Corrupt,
    InvalidRequest,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Refused,
    StorageFailed,
    Unavailable,
)
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.retry import RetryPolicy
from latchwork.store import NEVER, Add, Bin, Exists, Key, Once, Put, Read, SQLiteStore, Update
from latchwork.store.contract.records import raises
from latchwork.store.sqlite import file as sqlite_file
from latchwork.store.sqlite import pool as sqlite_pool
from latchwork.store.sqlite import rows as sqlite_rows
from latchwork.store.sqlite import seal as sqlite_seal
from latchwork.store.sqlite import sweep as sqlite_sweep
from latchwork.testing.clock import ManualClock
from tests.support.scale import SEEDS, length

KEY = Key("s", "k")
ONE_TRY = RetryPolicy(attempts=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def store(path):
    store = SQLiteStore(path, synchronous="off", busy_timeout=0.05)
    store.policy = ONE_TRY
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    yield store
    store.close()


def add(store):
    return store.operate(KEY, Add("n", 1), Read("n"))[0]


# ---- the file


def test_nothing_is_opened_before_the_first_call(path):
    store = SQLiteStore(path)
    pickle.loads(pickle.dumps(store))
    repr(store), store.describe(), store.close()
    assert not path.exists()


def test_only_its_owner_can_read_the_files(store, path):
    files = sorted(path.parent.iterdir())
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_store_ships_as_its_url_and_finds_the_same_records(store, path, monkeypatch, tmp_path):
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.url, copy.get(KEY).bins) == (store.url, {"n": 0})
    assert (copy.synchronous, copy.busy_timeout) == ("off", 0.05)
    monkeypatch.chdir(tmp_path)
    relative = SQLiteStore("store.db")
    monkeypatch.chdir("/")
    assert relative.get(KEY).bins == {"n": 0}


def test_the_default_syncs_every_commit(path):
    store = SQLiteStore(path)
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    (connection,) = store._pool._idle
    assert [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")] == [
        2,
        "wal",
    ]


def test_all_but_claims_of_messages_wait_for_the_disk(path):
    store = SQLiteStore(path)
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    queue.publish_many(["a", "b"])
    assert store._pool._idle_late == []
    queue.receive()[0].ack()
    modes = [one.execute("PRAGMA synchronous").fetchone()[0] for one in (*store._pool._idle, *store._pool._idle_late)]
    assert modes == [2] * len(store._pool._idle) + [1]
    (late,) = store._pool._idle_late
    assert late.execute("PRAGMA fullfsync").fetchone() == (1,), "as its checkpoints are for all"


@pytest.mark.parametrize("options", [{"synchronous": "maybe"}, {"busy_timeout": -1}, {"busy_timeout": float("nan")}])
def test_a_bad_option_is_refused_before_any_file_is_made(path, options):
    raises(InvalidRequest, SQLiteStore, path, **options)
    assert not path.exists()


@pytest.mark.parametrize(("name", "said"), [("a\0b.db", "NUL"), (os.fsdecode(b"a\xffb.db"), "UTF-8")])
def test_a_name_that_sqlite_cannot_open_is_refused_before_any_file_is_made(tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    for bad in (name, tmp_path / name):
        assert said in str(raises(InvalidRequest, SQLiteStore, bad))
    assert list(tmp_path.iterdir()) == []


def _digest(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def _foreign(path, *statements):
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE other (x)", "INSERT INTO other VALUES (1)"),
        ("PRAGMA journal_mode = WAL", "CREATE TABLE other (x)"),
        ("PRAGMA application_id = 7",),
        ("PRAGMA user_version = 1",),
        (f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}", f"PRAGMA user_version = {sqlite_file.LAYOUT + 1}"),
    ],
)
def test_another_programs_or_a_later_versions_file_is_refused_and_left_as_it_was(path, statements):
    _foreign(path, *statements)
    before = _digest(path.parent)
    store = SQLiteStore(path)
    for call in (store.get, add_to(store)):
        assert str(path) in str(raises(Misconfigured, call, KEY))
    assert _digest(path.parent) == before


def add_to(store):
    return lambda key: store.operate(key, Put("n", 1), exists=Exists.ANY)


def test_a_file_that_is_no_database_is_corrupt_and_left_as_it_was(path):
    path.write_bytes(b"hello, world " * 1000)
    before = _digest(path.parent)
    raises(Corrupt, SQLiteStore(path).get, KEY)
    assert _digest(path.parent) == before


def test_an_empty_file_becomes_a_store(path):
    path.touch()
    add_to(SQLiteStore(path))(KEY)
    assert SQLiteStore(path).get(KEY).bins == {"n": 1}


def test_a_place_where_no_file_can_be_is_misconfigured(tmp_path):
    for bad in (tmp_path / "none" / "store.db", tmp_path):
        raises(Misconfigured, SQLiteStore(bad).get, KEY)


def test_bytes_that_are_no_record_are_corrupt(store, path):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE records SET bins = x'c1ff'")
    connection.commit()
    for call in (lambda: store.get(KEY), lambda: add(store), lambda: store.get_many([KEY])):
        raises(Corrupt, call)
    store.operate(Key("s", "other"), Put("n", 1), exists=Exists.CREATE)


# ---- other writers


def test_a_verb_waits_no_longer_for_other_writers_than_it_has_time(path):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", busy_timeout=5, seams=clock)
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    began = clock.monotonic()
    with Deadline(clock, 1), pytest.raises(Unavailable):
        add(store)
    assert 1 <= clock.monotonic() - began < 2
    writer.close()


def test_a_write_whose_turn_it_is_to_remove_what_has_expired_waits_for_other_writers_once(path):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", busy_timeout=1, seams=clock).with_policy(ONE_TRY)
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    store.operate(Key("s", "expired"), Put("n", 0), exists=Exists.CREATE, ttl=1)
    clock.advance(60)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    began = clock.monotonic()
    raises(Unavailable, add, store)
    assert 1 <= clock.monotonic() - began < 1.2
    writer.close()


def test_a_busy_wait_is_bounded_and_ends_in_unavailable(store, path):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "busy_timeout" in str(raises(Unavailable, add, store))
    assert store.get(KEY).bins == {"n": 0}, "a reader waits for no writer"
    other.execute("COMMIT")
    assert add(store) == 1


@pytest.mark.parametrize("busy", [0, 1, 3])
def test_only_another_writer_is_waited_for_and_any_other_failure_is_raised_at_once(store, busy):
    failures = [BUSY] * busy + [IOERR]

    def attempt():
        raise failures.pop(0)

    assert raises(sqlite3.OperationalError, store._pool.patiently, attempt) is IOERR
    assert not failures


def test_a_batch_that_only_reads_waits_for_no_writer(store, path):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    reads = [
        Update(KEY, (Read("n"),)),
        Update(KEY, (Read("n"),), when=Bin("n").eq(1)),
        Update(Key("s", "absent"), (Read("n"),)),
    ]
    read, refused, absent = store.operate_many(reads)
    assert (read, type(refused), type(absent)) == ((0,), Refused, NotFound)
    rows = store.operate_many([*reads, Update(KEY, (Add("n", 1),))])
    assert {type(row) for row in rows} == {Unavailable}, "one that writes makes it one transaction of all"
    other.close()


def test_the_policy_waits_longer_than_one_attempt(path):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", busy_timeout=5, seams=clock)
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    clock.at(7.0, lambda: other.execute("COMMIT"))
    assert add(store) == 1
    assert 7 <= clock.monotonic() < 8


def test_a_writer_that_waited_for_long_looks_again_each_millisecond_as_others_would_keep_it_out(path):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", busy_timeout=5, seams=clock)
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    clock.at(0.3, lambda: other.execute("COMMIT"))
    assert add(store) == 1
    assert 0.3 <= clock.monotonic() < 0.302
    assert clock.slept[0] >= 0.002, "a look takes time from the one that writes: the first is not at once"
    assert len(clock.slept) < 260


def test_threads_of_one_process_queue_and_give_up_in_time(store):
    with store._pool._writing, ThreadPoolExecutor(1) as another:
        another.submit(raises, Unavailable, add, store).result()
    assert add(store) == 1


def test_threads_that_come_and_go_do_not_pile_up_connections(store):
    for _ in range(20):
        thread = threading.Thread(target=add, args=(store,))
        thread.start()
        thread.join()
    assert len(store._pool._idle) == 1
    assert add(store) == 21


def test_the_data_version_tells_of_a_write_by_a_connection_that_was_asked_before(store, monkeypatch):
    beside = []

    class Asked:
        """A connection at which another thread asks as well, at the moment it is asked for the data version."""

        def __init__(self, *place):
            self._inner = sqlite_file.open_file(*place)

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def execute(self, statement, *parameters):
            if statement == "PRAGMA data_version" and not beside:
                beside.append(None)
                beside.append(store.data_version())
            return self._inner.execute(statement, *parameters)

    def asked_beside():
        beside.clear()
        store.data_version()
        return beside[1]

    monkeypatch.setattr(sqlite_pool, "open_file", Asked)
    store.close()  # the connections from before
    before = asked_beside()
    store.operate(KEY, Add("n", 1))
    assert asked_beside() != before


def test_closing_lets_go_and_the_next_call_opens_again(store, path):
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["store.db"], "closed cleanly, nothing is left in the log"
    assert add(store) == 1


def _race_to_create(path, barrier, answers):
    store = SQLiteStore(path, synchronous="off", busy_timeout=20)
    barrier.wait()
    answers.put(store.operate(KEY, Add("n", 1), Read("n"), exists=Exists.ANY)[0])


def test_processes_that_make_the_file_at_the_same_moment_share_it(path):
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(6), context.Queue()
    workers = [context.Process(target=_race_to_create, args=(path, barrier, answers)) for _ in range(6)]
    for worker in workers:
        worker.start()
    assert sorted(answers.get(timeout=60) for _ in workers) == [1, 2, 3, 4, 5, 6]
    for worker in workers:
        worker.join(60)


# ---- forks


def forked(answer):
    """A child that answers and ends: its process id, and where to read the answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, answer())
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def test_no_connection_is_open_while_a_process_forks_and_both_sides_go_on(store):
    assert store._pool._idle

    def answer():
        return b"%d %d" % (len(store._pool._idle), add(store))

    child, reading = forked(answer)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"0 1"
    assert store._pool._idle == []
    assert add(store) == 2


def test_a_childs_acknowledged_writes_outlive_a_parent_that_closes_its_store(store, path):
    """The last connection to close deletes the log: a child that holds no lock would go on writing to it unseen."""
    reading, writing = os.pipe()

    def answer():
        add(store)
        os.write(told, b"x")
        os.close(writing)
        os.read(reading, 1)
        return b"%d" % add(store)

    begun, told = os.pipe()
    child, answered = forked(answer)
    os.read(begun, 1)
    store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["store.db", "store.db-shm", "store.db-wal"]
    assert add(store) == 2
    os.write(writing, b"x")
    os.waitpid(child, 0)
    assert os.read(answered, 100) == b"3"
    assert store.operate(KEY, Read("n")) == (3,)


def test_a_fork_waits_for_the_connections_that_other_threads_read_through(store, monkeypatch):
    monkeypatch.setattr(sqlite_pool, "FORK_PATIENCE", 60)
    waited, begun = threading.Event(), threading.Event()
    thread = threading.Thread(target=store._pool.read, args=(lambda _: (begun.set(), waited.wait(60)),))
    thread.start()
    assert begun.wait(60)
    pause = store.seams.sleep
    monkeypatch.setattr(store._pool, "seams", seams := ManualClock())
    monkeypatch.setattr(seams, "sleep", lambda seconds: (waited.set(), pause(seconds)))
    child, reading = forked(lambda: b"%d" % add(store))
    thread.join()
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"1"
    assert add(store) == 2


def test_a_child_forked_while_a_connection_was_lent_for_too_long_refuses_to_use_that_file(store, monkeypatch):
    """It would take no lock, and lose what it acknowledges."""
    monkeypatch.setattr(sqlite_pool, "FORK_PATIENCE", 0)
    done, begun = threading.Event(), threading.Event()
    thread = threading.Thread(target=store._pool.read, args=(lambda _: (begun.set(), done.wait(60)),))
    thread.start()
    assert begun.wait(60)

    def answer():
        again = SQLiteStore(store.path)
        return str(raises(Misconfigured, add, store)).encode() + str(raises(Misconfigured, add, again)).encode()

    child, reading = forked(answer)
    os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.read(reading, 1000).count(b"start processes by spawn") == 2
    assert add(store) == 1


class Told:
    """A lock that says when somebody asks for it."""

    def __init__(self, lock) -> None:
        self._lock, self.asked, self.release = lock, threading.Event(), lock.release

    def acquire(self, timeout):
        self.asked.set()
        return self._lock.acquire(timeout=timeout)


def test_a_fork_waits_for_the_write_of_another_thread(store, monkeypatch):
    """A child made in the middle of it could never write: for its copy of SQLite the write would have no end."""
    monkeypatch.setattr(sqlite_pool, "FORK_PATIENCE", 60)
    told, begun = Told(store._pool._writing), threading.Event()
    thread = threading.Thread(target=store._pool.write, args=(lambda _: (begun.set(), told.asked.wait(60)),))
    thread.start()
    assert begun.wait(60)
    monkeypatch.setattr(store._pool, "_writing", told)
    child, reading = forked(lambda: b"%d" % add(store))
    told.asked.set()
    thread.join()
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"1"
    assert add(store) == 2


def test_a_fork_while_another_thread_writes_for_long_does_not_stop_the_child(store, monkeypatch):
    monkeypatch.setattr(sqlite_pool, "FORK_PATIENCE", 0)
    writing, over = threading.Event(), threading.Event()

    def for_long():
        with store._pool._writing:
            writing.set()
            over.wait(60)

    another = threading.Thread(target=for_long)
    another.start()
    assert writing.wait(60)
    with sqlite_file._opening:
        child, reading = forked(lambda: b"%d" % add(store))
    over.set()
    another.join()
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"1"


def test_a_fork_that_is_interrupted_while_it_waits_leaves_a_store_that_works(store, monkeypatch):
    def interrupted(*_args, **_rest):
        raise KeyboardInterrupt

    store.operate(KEY, Put("n", 0), exists=Exists.ANY)
    monkeypatch.setattr(type(sqlite_pool._WAIT), "until", interrupted)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    child, _reading = forked(lambda: b"")
    os.waitpid(child, 0)
    monkeypatch.undo()
    assert add(store) == 1
    assert store.get(KEY).bins["n"] == 1


# ---- sudden death

CYCLES = length(7, least=3)
"""Writers that are killed in each mode."""

_WRITER = """
import sys
from latchwork.store import Add, Exists, Key, Once, Put, SQLiteStore, Update, Bin
store = SQLiteStore(sys.argv[1], synchronous=sys.argv[2], busy_timeout=20)
once = Once(8, result=Bin("n"))
while True:
    n = store.operate(Key("s", "k"), Add("n", 1), once=once)[0]
    store.operate_many([Update(Key("s", f"{n}/{row}"), (Put("n", n),), exists=Exists.CREATE) for row in range(3)])
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()
"""


def _killed(path, mode, lines):
    """The last number that a writer acknowledged before it was killed in the middle of its work."""
    with subprocess.Popen([sys.executable, "-c", _WRITER, path, mode], stdout=subprocess.PIPE, text=True) as writer:
        last = 0
        for _ in range(lines):
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split("\n")
    # The last line may have been cut; one that ends in a line break was acknowledged.
    return int(rest[-2]) if len(rest) >= 2 and rest[-2] else last


@pytest.mark.slow  # more on a busy machine
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["full", "normal", "off"])
def test_every_acknowledged_write_survives_the_death_of_its_process(path, mode, seed, proved):
    store = SQLiteStore(path, synchronous="off")
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    n = 0
    for cycle in range(CYCLES):
        before, acknowledged = n, _killed(path, mode, 3 + seed % 5 + 9 * (cycle % 5))
        n = store.get(KEY).bins["n"]
        assert acknowledged <= n <= acknowledged + 1
        rows = [Key("s", f"{number}/{row}") for number in range(before + 1, acknowledged + 1) for row in range(3)]
        assert all(store.get_many(rows))
        torn = [record is not None for record in store.get_many([Key("s", f"{n}/{row}") for row in range(3)])]
        assert torn in ([True] * 3, [False] * 3), "a batch is one transaction"
        connection = sqlite3.connect(path)
        connection.create_function("latchwork_bin", 2, sqlite_file._indexed, deterministic=True)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
    proved("processes", "SQLite store", killed=CYCLES)


# ---- disks that fail

_FILLING = """
import resource, signal, sys
from latchwork.errors import LatchworkError
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Exists, Key, Put, Read, SQLiteStore
store = SQLiteStore(sys.argv[1])
store.policy = RetryPolicy(attempts=1)
key = Key("s", "k")
store.operate(key, Put("n", 0), exists=Exists.CREATE)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
done = 0
try:
    while True:
        done = store.operate(key, Add("n", 1), Read("n"))[0]
except LatchworkError as failure:
    print(done, type(failure).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.operate(key, Add("n", 1), Read("n"))[0])
"""


def test_a_disk_that_fails_at_the_commit_leaves_the_outcome_unknown_and_the_store_usable(path):
    """The limit on the size of a file makes the write of the log fail with an I/O error, in the middle of a commit."""
    answer = subprocess.run(
        [sys.executable, "-c", _FILLING, path, "300000"], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    acknowledged, error, after = int(answer[0]), answer[1], int(answer[2])
    assert error == OutcomeUnknown.__name__
    assert acknowledged > 10
    assert after - 1 in (acknowledged, acknowledged + 1)
    assert SQLiteStore(path).get(KEY).bins == {"n": after}


class Failing:
    """A connection whose statements fail as told."""

    def __init__(self, connection, statement, failure):
        self._connection, self._statement, self._failure = connection, statement, failure

    def execute(self, statement, *parameters):
        if statement.startswith(self._statement):
            raise self._failure
        return self._connection.execute(statement, *parameters)

    def __getattr__(self, name):
        return getattr(self._connection, name)


def _failure(kind, code, text):
    made = kind(text)
    made.sqlite_errorcode = code
    return made


FULL = _failure(sqlite3.OperationalError, 13, "database or disk is full")
IOERR = _failure(sqlite3.OperationalError, 778, "disk I/O error")  # SQLITE_IOERR_WRITE, an extended code
CORRUPT = _failure(sqlite3.DatabaseError, 11, "database disk image is malformed")
READONLY = _failure(sqlite3.OperationalError, 8, "attempt to write a readonly database")
BUSY = _failure(sqlite3.OperationalError, 5, "database is locked")
OLD_PYTHON = sqlite3.OperationalError("database or disk is full")
ODD = sqlite3.OperationalError("something new")


@pytest.mark.parametrize(
    ("statement", "failure", "expected"),
    [
        ("UPDATE", FULL, Unavailable),
        ("UPDATE", OLD_PYTHON, Unavailable),
        ("UPDATE", IOERR, StorageFailed),
        ("UPDATE", ODD, StorageFailed),
        ("UPDATE", CORRUPT, Corrupt),
        ("BEGIN", READONLY, Misconfigured),
        ("SELECT", CORRUPT, Corrupt),
        ("SELECT", IOERR, StorageFailed),
        ("COMMIT", FULL, Unavailable),
        ("COMMIT", IOERR, OutcomeUnknown),
        ("COMMIT", CORRUPT, OutcomeUnknown),
        ("COMMIT", ODD, OutcomeUnknown),
    ],
)
def test_each_failure_of_sqlite_has_its_error_and_the_store_goes_on(store, monkeypatch, statement, failure, expected):
    opened = sqlite_file.open_file
    monkeypatch.setattr(sqlite_pool, "open_file", lambda *args: Failing(opened(*args), statement, failure))
    store.close()
    found = raises(expected, add, store)
    assert type(found) is expected
    assert str(store.path) in str(found)
    assert getattr(found, "slow", False) == (expected is Unavailable)
    monkeypatch.undo()
    assert add(store) == 1, "nothing was written, and the failed connection is not used again"


def test_a_full_database_is_unavailable_and_keeps_what_it_has(store):
    store.close()
    connection = store._pool._borrow()
    connection.execute("PRAGMA max_page_count = 8")
    store._pool._idle.append(connection)
    failure = raises(Unavailable, store.operate, KEY, Put("big", b"x" * 100_000))
    assert failure.slow
    assert store.get(KEY).bins == {"n": 0}


def test_an_interrupted_update_writes_nothing_and_blocks_nobody(store, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("latchwork.store.sqlite.store.local.apply", interrupt)
    with pytest.raises(KeyboardInterrupt):
        add(store)
    monkeypatch.undo()
    assert add(store) == 1


class Interrupted(Told):
    """A lock that was just taken when the interrupt came."""

    def acquire(self, timeout):
        super().acquire(timeout)
        raise KeyboardInterrupt


def test_a_writer_that_is_interrupted_as_it_takes_its_turn_keeps_no_other_from_writing(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store._pool, "_writing", Interrupted(store._pool._writing))
        with pytest.raises(KeyboardInterrupt):
            add(store)
    with ThreadPoolExecutor(1) as another:
        another.submit(add, store).result()
    assert store.get(KEY).bins == {"n": 1}


# ---- lifetimes and queries


def test_expired_records_are_swept_a_few_at_a_time(path):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", seams=clock)
    store.operate_many([Update(Key("s", str(n)), (Put("n", n),), exists=Exists.CREATE, ttl=10) for n in range(450)])
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    left = []
    for _ in range(4):
        clock.advance(10)
        add(store)
        left.append(sqlite3.connect(path).execute("SELECT count(*) FROM records").fetchone()[0])
    assert left == [251, 51, 1, 1]


def test_the_sweep_goes_by_the_time_to_live_that_the_last_update_has_set_or_kept(path):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", seams=clock)
    kept, sooner, never = (Key("s", name) for name in ("kept", "sooner", "never"))
    for key in (kept, sooner, never):
        store.operate(key, Put("n", 0), exists=Exists.CREATE, ttl=20)
    store.operate(kept, Add("n", 1))
    store.operate(sooner, Add("n", 1), ttl=10)
    store.operate(never, Add("n", 1), ttl=NEVER)
    left = []
    for _ in range(3):
        clock.advance(10)
        store.operate(never, Add("n", 1))
        rows = sqlite3.connect(path).execute("SELECT name, expires IS NULL FROM records ORDER BY name")
        left.append(rows.fetchall())
    assert left == [[("kept", 0), ("never", 1)], [("never", 1)], [("never", 1)]]


def test_more_expired_records_than_one_sweep_removes_are_gone_with_the_next_writes(path):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", seams=clock)
    store.operate_many([Update(Key("s", str(n)), (Put("n", n),), exists=Exists.CREATE, ttl=10) for n in range(450)])
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    clock.advance(10)
    for _ in range(3):
        add(store)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM records").fetchone() == (1,)


def test_expired_records_are_swept_after_the_clock_was_set_far_ahead_and_back(path):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", seams=clock)
    clock.step(10 * 365 * 86_400)
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    clock.step(-10 * 365 * 86_400)
    store.operate(Key("s", "brief"), Put("n", 1), exists=Exists.CREATE, ttl=10)
    clock.advance(10)
    add(store)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM records").fetchone() == (1,)


def test_a_query_uses_its_index(store):
    store.ensure_index("it's", "a'b")
    store.operate(Key("it's", "k"), Put("a'b", "x"), exists=Exists.CREATE)
    seen = []
    connection = store._pool._borrow()
    connection.set_trace_callback(seen.append)
    store._pool._idle.append(connection)
    assert [record.key for record in store.query("it's", "a'b", "x")] == [Key("it's", "k")]
    plan = connection.execute(f"EXPLAIN QUERY PLAN {seen[0]}").fetchall()
    assert "USING INDEX by_" in plan[0][3]


def test_names_that_differ_only_in_case_have_indexes_of_their_own(store):
    for name in ("Active", "active"):
        store.ensure_index("q", name)
        store.operate(Key("q", name), Put(name, "x"), exists=Exists.CREATE)
    assert [record.key.name for record in store.query("q", "Active", "x")] == ["Active"]
    raises(InvalidRequest, store.query, "q\0", "a", "x")


def test_once_is_one_transaction(store):
    statements = []
    (connection,) = store._pool._idle
    connection.set_trace_callback(statements.append)
    store.operate(KEY, Add("n", 1), once=Once(8, result=Bin("n")))
    assert [statement.split()[0] for statement in statements] == ["BEGIN", "SELECT", "UPDATE", "COMMIT"]


def test_a_row_of_a_batch_finds_what_the_rows_before_it_have_done(store):
    key = Key("s", "twice")
    rows = [Update(key, (Add("n", 1), Read("n")), exists=Exists.ANY)] * 2
    assert store.operate_many(rows) == [(1,), (2,)]
    assert store.get(key).bins == {"n": 2}


@pytest.mark.parametrize("failure", [StorageFailed("disk I/O error"), Unavailable("busy"), Corrupt("malformed")])
def test_whoever_writes_never_fails_by_the_sweep(path, monkeypatch, caplog, failure):
    clock = ManualClock()
    store = SQLiteStore(path, synchronous="off", seams=clock)
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    monkeypatch.setattr(sqlite_sweep.Sweep, "_expired", lambda *_: (_ for _ in ()).throw(failure))
    for n in (1, 2):
        clock.advance(sqlite_sweep.EVERY / 1000)
        assert add(store) == n
    assert len(caplog.messages) == (type(failure) is Corrupt), "damage is named, once"


def test_a_connection_that_is_borrowed_while_the_store_is_closed_stays_open(tmp_path, monkeypatch):
    store = SQLiteStore(tmp_path / "s.db")
    store.operate(KEY, Put("n", 1), exists=Exists.ANY)
    pool, borrowed = store._pool, []

    def meanwhile():
        borrowed.append(pool._borrow())
        return []

    monkeypatch.setattr(pool, "_watching", meanwhile)
    store.close()
    assert borrowed[0].execute("SELECT count(*) FROM records").fetchone() == (1,), "another thread uses it"
    borrowed[0].close()


def test_a_data_version_that_cannot_be_asked_for_is_another_one_each_time(store, monkeypatch):
    before, real = store.data_version(), sqlite_pool.open_file
    assert store.data_version() == before
    for opened in (lambda *place: Failing(real(*place), "PRAGMA data_version", IOERR), lambda *_: raised(IOERR)):
        monkeypatch.setattr(sqlite_pool, "open_file", opened)
        store.close()
        assert store.data_version() != store.data_version()


def raised(failure):
    raise failure


def test_a_write_of_a_signals_handler_at_the_begin_of_another_is_kept_beside_it(store, monkeypatch):
    """The handler runs in the thread whose turn it is."""
    real, handled = sqlite_pool.open_file, []

    class Interrupted:
        def __init__(self, *place):
            self._inner = real(*place)

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def execute(self, statement, *parameters):
            if statement == "BEGIN IMMEDIATE" and not handled:
                handled.append(True)
                store.operate(Key("s", "handler's"), Put("n", 1), exists=Exists.CREATE)
                store.operate(Key("s", "handler's"), Add("n", 1))
            return self._inner.execute(statement, *parameters)

    monkeypatch.setattr(sqlite_pool, "open_file", Interrupted)
    store.close()
    before = store.get(KEY).bins["n"]
    assert add(store) == before + 1
    assert store.get(Key("s", "handler's")).bins == {"n": 2}
    with ThreadPoolExecutor(1) as another:
        assert another.submit(add, store).result(20) == before + 2, "the turn was ended"


def test_a_path_that_is_no_text_is_refused():
    for path in (5, b"store.db"):
        raises(InvalidRequest, SQLiteStore, path)


def test_a_row_that_is_no_bytes_is_corrupt():
    raises(Corrupt, sqlite_seal.bin_of, 5, "n")


def test_a_row_of_a_batch_may_remove_the_record_that_a_row_before_it_has_made(store):
    key, other = Key("s", "made and gone"), Key("s", "other")
    rows = [Update(key, (Put("n", 1),), exists=Exists.ANY), Update(key, (Put("n", None),))]
    assert store.operate_many([*rows, Update(other, (Put("n", 1),), exists=Exists.ANY)]) == [(), (), ()]
    assert [record is None for record in store.get_many([key, other])] == [True, False]


def test_a_row_of_a_batch_that_cannot_make_its_record_says_why_and_keeps_no_other(store):
    refused, made = store.repeat_many([
        Update(Key("s", "new"), (Put("n", Bin("absent") + 1),), exists=Exists.CREATE),
        Update(Key("s", "newer"), (Put("n", 1),), exists=Exists.CREATE),
    ])  # fmt: skip
    assert (type(refused), made) == (BinMismatch, ())
    assert store.get(Key("s", "new")) is None
    assert store.get(Key("s", "newer")).bins == {"n": 1}


def test_a_record_that_was_not_changed_since_is_not_decoded_again_and_one_that_was_is(store, path, monkeypatch):
    store.operate(KEY, Put("more", "x"), Add("n", 1))
    decoded = []
    opened = sqlite_rows.opened
    monkeypatch.setattr(sqlite_rows, "opened", lambda *given, **rest: decoded.append(1) or opened(*given, **rest))
    assert add(store) == 2
    assert decoded == []  # what this connection has written itself
    another = SQLiteStore(path)
    assert add(another) == 3
    another.close()
    decoded.clear()
    assert add(store) == 4  # and not 3: the row says otherwise now
    assert decoded == [1]
    store.delete(KEY)
    with pytest.raises(NotFound):
        add(store)


def test_a_connection_knows_few_records_and_none_that_is_large(store, monkeypatch):
    monkeypatch.setattr(sqlite_rows, "KNOWN", 2)
    for name in "abc":
        store.operate(Key("s", name), Put("n", 1), exists=Exists.ANY)
        store.operate(Key("s", name), Put("n", 2))
    store.operate(KEY, Put("data", b"x" * sqlite_rows.KNOWN_BYTES))
    (connection,) = store._pool._idle
    assert [key.name for key in connection.known] == ["b", "c"]
