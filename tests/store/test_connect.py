"""connect(): argument, then environment, then the user's data folder; bad URLs say what is wrong and hide secrets."""

from __future__ import annotations

import pickle
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

import latchwork
from latchwork.coord import CountDownLatch, Semaphore
from latchwork.errors import InvalidRequest, Misconfigured, NotFound, StorageFailed
from latchwork.queue import LargeQueue, QueueRegistry
from latchwork.retry import LATCH_POLICY
from latchwork.store import Exists, Key, MemoryStore, Put, SQLiteStore
from latchwork.store.aerospike import AerospikeStore
from latchwork.store.connect import VARIABLE, as_store, hidden, register
from latchwork.store.contract.records import raises

KEY = Key("s", "k")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No test sees, or writes to, the real user's folders or environment."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_argument_comes_before_the_environment_and_that_before_the_users_folder(home, monkeypatch):
    default = latchwork.connect()
    assert home in default.path.parents
    monkeypatch.setenv(VARIABLE, "sqlite:from-environment.db")
    assert latchwork.connect().path == home / "from-environment.db"
    assert latchwork.connect("sqlite:argument.db").path == home / "argument.db"
    monkeypatch.setenv(VARIABLE, "")
    assert latchwork.connect().path == default.path


def test_the_default_store_is_private_and_works(home):
    store = latchwork.connect()
    store.operate(KEY, Put("n", 1), exists=Exists.CREATE)
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert latchwork.connect().get(KEY).bins == {"n": 1}


def test_a_data_folder_that_cannot_be_made_names_the_way_out(home):
    (home / "data").write_text("in the way")
    assert VARIABLE in str(raises(Misconfigured, latchwork.connect))


def test_each_memory_store_is_a_new_one():
    one, other = latchwork.connect("memory:"), latchwork.connect("memory:")
    one.operate(KEY, Put("n", 1), exists=Exists.CREATE)
    assert isinstance(one, MemoryStore)
    assert other.get(KEY) is None
    raises(InvalidRequest, pickle.dumps, one)


@pytest.mark.parametrize(
    ("url", "path", "synchronous", "busy_timeout"),
    [
        ("sqlite:a.db", "a.db", "full", 5),
        ("sqlite:sub/a.db?synchronous=normal", "sub/a.db", "normal", 5),
        ("sqlite:a.db?busy_timeout=0.5&synchronous=OFF", "a.db", "off", 0.5),
        ("sqlite:a%3Fb%25.db", "a?b%.db", "full", 5),
        ("sqlite:~/a.db", "a.db", "full", 5),
        ("sqlite:/abs/a.db", "/abs/a.db", "full", 5),
        ("sqlite:///abs/a.db", "/abs/a.db", "full", 5),
        ("sqlite:naïve ☃.db", "naïve ☃.db", "full", 5),
    ],
)
def test_sqlite_urls(home, url, path, synchronous, busy_timeout):
    store = latchwork.connect(url)
    assert (store.path, store.synchronous, store.busy_timeout) == (home / path, synchronous, busy_timeout)
    again = latchwork.connect(store.url)
    assert (again.path, again.synchronous, again.busy_timeout) == (store.path, synchronous, busy_timeout)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://h", "redis"),
        ("sqlit:/tmp/x", "there is no scheme 'sqlit' (did you mean 'sqlite'?); use memory:, sqlite:PATH or aero"),
        ("aerospik:me:s3cret@h/ns", "there is no scheme 'aerospik' (did you mean 'aerospike'?)"),
        ("file:/tmp/x", "there is no scheme 'file'; use memory:"),
        ("me:s3cret@h/ns", "'***'; use memory:"),
        ("store.db", "sqlite:PATH"),
        (":x", "sqlite:PATH"),
        ("/var/lib/shop.db", "'sqlite:/var/lib/shop.db'"),
        ("~/shop.db", "'sqlite:~/shop.db'"),
        ("/me:s3cret@h/ns", "sqlite:/path"),
        ("sqlite:", "names no file"),
        ("sqlite:?synchronous=full", "names no file"),
        ("sqlite::memory:", "memory:"),
        ("sqlite://host/x.db", "/absolute/path"),
        ("sqlite:a.db?sync=full", "'sync'"),
        ("sqlite:a.db?synchronous=", "'synchronous'"),
        ("sqlite:a.db?synchronous=full&synchronous=off", "twice"),
        ("sqlite:a.db?synchronous=full&busy_timeout=1&busy_timeout=2", "option 'busy_timeout' of"),
        ("sqlite:a.db?synchronous=sometimes", "sometimes"),
        ("sqlite:a.db?busy_timeout=soon", "busy_timeout"),
        ("sqlite:a.db?busy_timeout=-1", "-1"),
        ("sqlite:a.db?busy_timeout=nan", "nan"),
        ("memory:name", "memory:"),
        ("sqlite:~nobody-of-that-name/x.db", "write the path in full"),
        ("sqlite:a%00b", "NUL"),
        ("sqlite:a%FFb.db", "UTF-8"),
        ("aerospike://h:²/ns", "1 to 65535"),
        ("aerospike://h/ns?connections=²", "whole number"),
        ("aerospike://h/ns?connections=" + "9" * 5000, "whole number"),
    ],
)
def test_a_url_that_is_wrong_says_what_is_wrong_before_anything_is_opened(home, url, named):
    assert named in str(raises(InvalidRequest, latchwork.connect, url))
    assert list(home.iterdir()) == []


def test_no_password_is_shown():
    for url in ("/me:s3cret@host/ns", "aero://user:s3cret@host/ns", "aero://user:s3c@r/et@host:3000,b:3000/ns"):
        assert "s3c" not in str(raises(InvalidRequest, latchwork.connect, url))
    for url in ("aerospike://bob:s3c\u2100t@h:x/ns", "aerospike://bob:s3c[w@h", "aerospike://bob:s3c/w]@h/ns"):
        assert "s3c" not in str(raises(InvalidRequest, latchwork.connect, url))
    assert hidden("aerospike://u:p@h:3000/ns?x=1") == "aerospike://u:***@h:3000/ns?x=1"
    assert hidden("aerospike://h:3000/ns") == "aerospike://h:3000/ns"
    assert "s3c" not in str(raises(InvalidRequest, as_store, "aerospike://user:s3cret@host/ns"))


def test_an_aerospike_url_names_a_store_that_is_not_connected_yet():
    from latchwork.store.aerospike.store import AerospikeStore

    store = latchwork.connect("aerospike://nowhere.invalid:3100/ns?connections=4")
    assert isinstance(store, AerospikeStore)
    assert repr(store) == "AerospikeStore(aerospike://nowhere.invalid:3100/ns)"
    raises(InvalidRequest, latchwork.connect, "aerospike://host")


def test_another_backend_can_be_registered(monkeypatch):
    from latchwork.store import connect

    monkeypatch.setattr(connect, "_BACKENDS", dict(connect._BACKENDS))
    made = MemoryStore()
    register("mine", lambda url: made if url == "mine://here" else None)
    assert latchwork.connect("mine://here") is made
    raises(InvalidRequest, register, "My Scheme", lambda url: made)


def test_only_a_store_is_taken_for_one():
    store = MemoryStore()
    assert as_store(store) is store
    for other in ("sqlite:a.db", None, 7, object(), SQLiteStore, Path("x")):
        assert "latchwork.connect" in str(raises(InvalidRequest, as_store, other))


def test_a_store_is_closed_at_the_end_of_its_block_however_that_ends():
    closed = []

    class Closed(MemoryStore):
        def close(self):
            closed.append(self)

    made = Closed()
    with made as store:
        assert store is made
        assert not closed
    with pytest.raises(NotFound), made.with_policy(LATCH_POLICY) as view:
        view.operate(KEY, Put("n", 1), exists=Exists.UPDATE)
    assert closed == [made, made]


def test_the_log_says_which_store_is_used_where_none_is_named(caplog):
    with caplog.at_level("INFO", "latchwork"):
        store = latchwork.connect()
        latchwork.connect("memory:")
    (said,) = caplog.records
    assert said.levelname == "INFO"
    assert str(store.path) in said.message
    assert VARIABLE in said.message


def test_what_is_not_found_names_the_store(home):
    store = latchwork.connect()
    for look in (
        lambda: CountDownLatch.get(store, "jobs", "night").count(),
        lambda: QueueRegistry(store, "shop").get("orders"),
        lambda: LargeQueue.open(store, "orders"),
        Semaphore(store, "database", permits=2).size,
    ):
        assert str(store.path) in str(raises(NotFound, look))


def test_an_aerospike_url_that_is_no_text_is_refused():
    raises(InvalidRequest, AerospikeStore.from_url, 5)


def test_the_end_of_a_line_behind_a_url_is_no_part_of_the_files_name(tmp_path):
    for url in (f"sqlite:{tmp_path}/a.db\n", f"sqlite:{tmp_path}/a.db?synchronous=off\r\n"):
        latchwork.connect(url).operate(KEY, Put("n", 1), exists=Exists.ANY, repeatable=True)
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("a.db") and one.suffix == ".db"] == ["a.db"]


@pytest.mark.parametrize("url", [
    "sqlite:/x.db?password=hunter2", "sqlite:?password=hunter2", "sqlite://host/x?password=hunter2",
    "sqlite:/x.db?busy_timeout=hunter2", "aerospike://h/ns?tls=hunter2", "aerospike://h/ns?timeout=hunter2",
    "aerospike://h/ns?auth=hunter2", "aerospike://h/ns?password=hunter2",
])  # fmt: skip
def test_no_value_of_an_option_stands_in_an_error(url):
    with pytest.raises(InvalidRequest) as refused:
        latchwork.connect(url)
    assert "hunter2" not in str(refused.value)


def test_a_link_to_a_file_that_cannot_be_reached_is_named(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "away" / "real.db")
    with pytest.raises(Misconfigured, match="it is a link"):
        latchwork.connect(f"sqlite:{tmp_path}/link.db").get(KEY)


def test_a_file_that_is_deleted_under_a_running_process_is_missed_and_not_made_again(tmp_path):
    path = tmp_path / "a.db"
    store = latchwork.connect(f"sqlite:{path}")
    store.operate(KEY, Put("n", 1), exists=Exists.ANY, repeatable=True)
    shutil.copy(path, tmp_path / "copy.db")
    for one in tmp_path.glob("a.db*"):
        one.unlink()
    for call in (lambda: store.operate(KEY, Put("n", 2), exists=Exists.ANY, repeatable=True), lambda: store.get(KEY)):
        with pytest.raises(StorageFailed, match="was deleted while this process used it"):
            call()
    assert not path.exists()
    (tmp_path / "copy.db").rename(path)  # as one restores it
    store.operate(KEY, Put("n", 3), exists=Exists.ANY, repeatable=True)
    assert latchwork.connect(f"sqlite:{path}").get(KEY).bins == {"n": 3}


def test_a_file_that_a_running_process_cannot_reach_any_more_is_misconfigured(tmp_path):
    path = tmp_path / "folder" / "a.db"
    path.parent.mkdir()
    store = latchwork.connect(f"sqlite:{path}")
    store.operate(KEY, Put("n", 1), exists=Exists.ANY, repeatable=True)
    path.parent.rename(tmp_path / "away")
    (tmp_path / "folder").touch()
    for call in (lambda: store.operate(KEY, Put("n", 2)), lambda: store.get(KEY)):
        with pytest.raises(Misconfigured, match="Not a directory; make the file and its directory readable"):
            call()


def test_a_call_that_lasts_while_the_file_is_replaced_leaves_no_way_into_the_old_one(tmp_path):
    path = tmp_path / "a.db"
    store = latchwork.connect(f"sqlite:{path}")
    store.operate(KEY, Put("n", 1), exists=Exists.ANY, repeatable=True)

    def replaced(connection):
        put_back(path)
        assert store.get(KEY).bins == {"n": 1}, "the file that stands there now"
        return connection.execute("SELECT count(*) FROM records").fetchone()

    assert store._pool.read(replaced) == (1,)
    store.operate(KEY, Put("n", 2), repeatable=True)
    assert latchwork.connect(f"sqlite:{path}").get(KEY).bins == {"n": 2}


def test_the_data_version_tells_of_a_file_that_was_replaced_or_deleted(tmp_path):
    path = tmp_path / "a.db"
    store = latchwork.connect(f"sqlite:{path}")
    store.operate(KEY, Put("n", 1), exists=Exists.ANY, repeatable=True)
    before = store.data_version()
    assert store.data_version() == before
    put_back(path)
    assert store.data_version() != before
    before = store.data_version()
    assert store.data_version() == before
    path.unlink()
    assert store.data_version() != before
    assert store.data_version() != store.data_version(), "so that whoever waits reads, and hears that it is gone"


def put_back(path):
    """Put a copy of the file in its place, as one restores it."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(f"{path}.copy")) as copy:
        source.backup(copy)
    for log in (f"{path}-wal", f"{path}-shm"):
        Path(log).unlink()
    Path(f"{path}.copy").replace(path)
