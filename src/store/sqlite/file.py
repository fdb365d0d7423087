"""The file of a SQLite store: made, checked and opened; and what its failures mean.

One table, `records`: set and key, generation, times in ms since the epoch, and the bins in MessagePack. The file says
whose it is (`application_id`) and which layout it has (`user_version`); one that says something else is left alone.
Its bytes are only ever touched through SQLite: to open and close the file otherwise would cancel the locks that this
process holds on it (sqlite.org/howtocorrupt.html, 2.2).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path
from urllib.parse import quote

from ...errors import Corrupt, LatchworkError, Misconfigured, StorageFailed, Unavailable
from ..model import values

APPLICATION_ID = 0x4C415443
"""`LATC`, in the header of every file of ours."""
LAYOUT = 1
"""The version of the table; it goes up when the table changes."""

_SCHEMA = (
    """CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        set_name TEXT NOT NULL,
        name TEXT NOT NULL,
        generation INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        expires INTEGER,
        bins BLOB NOT NULL,
        UNIQUE (set_name, name)
    )""",
    "CREATE INDEX records_expires ON records (expires) WHERE expires IS NOT NULL",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {LAYOUT}",
)
_opening = threading.Lock()
"""One thread at a time makes the file, so that none has it open when the maker closes it."""


def _after_fork() -> None:
    global _opening  # another thread of the parent may have held it
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def open_file(path: Path, synchronous: str) -> sqlite3.Connection:
    """A connection to the file, which is made where there is none. Raises `sqlite3.Error`, `Misconfigured`."""
    with _opening:
        _make_private(path)
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw", uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )
    try:
        _claim(connection, path)
        _configure(connection, path, synchronous)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as failure:
        raise Misconfigured(
            f"cannot make the store {path}: {failure.strerror}; its directory must exist and be writable"
        ) from None


def _claim(connection: sqlite3.Connection, path: Path) -> None:
    """Make the table in an empty file; refuse a file that is not ours or that a later version wrote."""
    if _is_empty(connection, path):
        connection.execute("BEGIN EXCLUSIVE")
        if _is_empty(connection, path):
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")


def _is_empty(connection: sqlite3.Connection, path: Path) -> bool:
    def ask(question: str) -> int:
        return int(connection.execute(question).fetchone()[0])

    owner, layout = ask("PRAGMA application_id"), ask("PRAGMA user_version")
    if owner == APPLICATION_ID and layout == LAYOUT:
        return False
    if owner == APPLICATION_ID:
        raise Misconfigured(f"{path} has layout {layout}, this version reads {LAYOUT}: use the version that wrote it")
    if owner or layout or ask("SELECT count(*) FROM sqlite_master"):
        raise Misconfigured(f"{path} is another program's database; it was left as it is: name another file")
    return True


def _configure(connection: sqlite3.Connection, path: Path, synchronous: str) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise Misconfigured(f"{path} is on a file system without shared memory: put it on a local disk")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA fullfsync = {int(synchronous == 'full')}")  # macOS needs it for the disk's own cache
    connection.execute("PRAGMA trusted_schema = ON")  # the indexes of `ensure_index` call the function below
    connection.create_function("latchwork_bin", 2, _indexed, deterministic=True)


def _indexed(data: bytes, bin: str) -> str | int | None:
    """What an index keeps of a record: the bin's value where it is text or an integer."""
    try:
        value = values.decode(data, (bin,)).get(bin)
        return value if type(value) in (str, int) else None
    except BaseException as failure:
        _raised.failure = failure
        raise


_raised = threading.local()
"""What has ended `_indexed` in this thread: SQLite says only that something has, of a signal's exception as well."""


# ---- failures

_BUSY, _LOCKED, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 5, 6, 8, 10, 11, 13, 14, 26
_BY_TEXT = {
    "database is locked": _BUSY,
    "database table is locked": _LOCKED,
    "attempt to write a readonly database": _READONLY,
    "disk I/O error": _IOERR,
    "database disk image is malformed": _CORRUPT,
    "database or disk is full": _FULL,
    "unable to open database file": _CANTOPEN,
    "file is not a database": _NOTADB,
}
"""SQLite's own texts, for Python 3.10, which does not tell the number."""

_RAISED = "user-defined function raised exception"
"""SQLite's text for all that has ended a function of ours."""


def primary_code(failure: sqlite3.Error) -> int:
    """SQLite's primary result code; 1 (a generic error) where it cannot be told."""
    code = getattr(failure, "sqlite_errorcode", None)
    return _BY_TEXT.get(str(failure), 1) if code is None else int(code) & 0xFF


def is_busy(failure: sqlite3.Error) -> bool:
    """Whether another connection holds the lock, so that waiting helps."""
    return primary_code(failure) in (_BUSY, _LOCKED)


def is_unreadable(failure: sqlite3.Error) -> bool:
    """Whether an index, or a query, came upon a record whose bytes are no bins.

    Raises what has ended that instead, where it was something else: a `KeyboardInterrupt`, say.
    """
    if str(failure) != _RAISED:  # SQLite's number for it stands for many things
        return False
    raised, _raised.failure = getattr(_raised, "failure", None), None
    if raised is not None and not isinstance(raised, Corrupt):
        raise raised
    return raised is not None


def never_commits(failure: sqlite3.Error) -> bool:
    """Whether a COMMIT that failed so was surely undone: the frame that commits is the last one written."""
    return primary_code(failure) in (_BUSY, _FULL)


def meaning(failure: sqlite3.Error, path: Path) -> LatchworkError:
    """The error of ours for a failure after which nothing was written."""
    code = primary_code(failure)
    if is_unreadable(failure):
        return Corrupt(f"{path}: an index needs a record whose bytes are no bins; restore the file from a copy")
    if str(failure) == _RAISED:  # before its first line, where only SQLite has seen it
        return StorageFailed(f"{path}: interrupted, by a signal's handler as a rule; nothing was written: do it again")
    make, advice = _MEANING.get(code, (StorageFailed, "nothing was written"))
    error = make(f"{path}: {failure}; {advice}", sqlite=code)
    if isinstance(error, Unavailable):
        error.slow = code == _FULL
    return error


_MEANING: dict[int, tuple[type[LatchworkError], str]] = {
    _BUSY: (Unavailable, "another writer held the store for longer than busy_timeout; try again later"),
    _LOCKED: (Unavailable, "another writer held the store for longer than busy_timeout; try again later"),
    _FULL: (Unavailable, "nothing was written; free some space"),
    _READONLY: (Misconfigured, "make the file and its directory writable"),
    _CANTOPEN: (Misconfigured, "make the file and its directory readable and writable"),
    _CORRUPT: (Corrupt, "restore it from a copy"),
    _NOTADB: (Corrupt, "it is not a store: name another file, or restore it from a copy"),
}
