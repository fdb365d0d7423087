"""The file of a SQLite store: made, checked and opened; and what its failures mean.

The table `records` has of each record its set and key, generation, times in ms since the epoch, and the sealed bins;
messages of sharded queues have a table of their own (`messages.py`). The file says whose it is (`application_id`) and
which layout it has (`user_version`); one that says something else is left alone.
Its bytes are only ever touched through SQLite: to open and close the file otherwise would cancel the locks that this
process holds on it (sqlite.org/howtocorrupt.html, 2.2).
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

from ...errors import Corrupt, LatchworkError, Misconfigured, StorageFailed, Unavailable
from ...forks import members
from ...ownership import warn_of_others
from ..local.apply import Stored
from ..port import Key
from . import messages
from .seal import Columns, bin_of
from .upgrade import messages_in, move_messages

APPLICATION_ID = 0x4C415443
"""`LATC`, in the header of every file that Latchwork made."""
LAYOUT = 3
"""The version of the table; it goes up when the table changes, or what stands in it."""
EARLIER = (1, 2)
"""The versions that have no table of messages; rows of the first one have no checksum. A file of theirs becomes one of
this layout when it is opened, if no other process has it open: the program of that version would not find what is
written here."""

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
    *messages.SCHEMA,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {LAYOUT}",
)
_opening = threading.Lock()
"""One thread at a time makes the file, so that none has it open when the maker closes it."""


def _after_fork() -> None:
    global _opening  # another thread of the parent may have held it
    _opening = threading.Lock()
    for connection in members(_OPEN):
        connection.__class__ = Inherited
        connection.file = NO_FILE
        _INHERITED.append(connection)


os.register_at_fork(after_in_child=_after_fork)


class Connection(sqlite3.Connection):
    """A connection to the file of a store.

    known: the records that were changed through it lately, each with its row: what stands in the same row now need not
        be decoded again.
    lanes: the numbers of lanes of messages, by set and name.
    file: what tells its file from every other; the pool sets it.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.known: dict[Key, tuple[Columns, Stored]] = {}
        self.lanes: dict[tuple[str, str], int] = {}
        self.file: tuple[int, int] | None = None
        _OPEN.add(self)

    def close(self) -> None:
        """Close it."""
        super().close()
        _OPEN.discard(self)

    def forget(self) -> None:
        """Forget what was read within a transaction that is undone."""
        self.known.clear()
        self.lanes.clear()


class Inherited(Connection):
    """A connection of the parent's, in a forked child whose thread goes on in the middle of a call of the parent's, or
    of a block.

    The transaction is the parent's, which goes on with it: the child would commit it again, or undo it, over what the
    parent has written since. So it makes no statement here, and is not closed, which would end the parent's locks.
    """

    def execute(self, *_: Any) -> Any:
        """Raise `OfTheParent`."""
        raise OfTheParent

    executemany = execute

    def close(self) -> None:
        """Leave that to the parent."""


class OfTheParent(sqlite3.OperationalError):
    """A statement of a forked child on a connection of the parent's."""


_OPEN: WeakSet[Connection] = WeakSet()
_INHERITED: list[Connection] = []
"""The parent's connections in a forked child; kept, since one that is collected is closed, which drops the parent's
locks (sqlite.org/howtocorrupt.html, 2.6)."""
NO_FILE = (-1, -1)
"""What an inherited connection is to, so that no call borrows it."""


def open_file(path: Path, synchronous: str, late: bool = False) -> Connection:
    """Return a connection to the file, which is made where there is none. Raises `sqlite3.Error`, `Misconfigured`.

    late: its commits do not wait for the disk.
    """
    with _opening:
        _make_private(path)
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw", uri=True, timeout=0, isolation_level=None, check_same_thread=False,
            factory=Connection,
        )  # fmt: skip
    connection.text_factory = _text
    connection.create_function("latchwork_bin", 2, _indexed, deterministic=True)
    try:
        connection.execute("PRAGMA trusted_schema = ON")  # the indexes of `ensure_index` call this function
        _claim(connection, path)
        _configure(connection, path, synchronous, late)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        try:
            warn_of_others(path)
        except OSError as failure:
            raise Misconfigured(
                f"cannot open the store {path}: {failure.strerror}; it is a link to a file that cannot be reached: "
                "make that file's directory, or name the file itself"
            ) from None
    except OSError as failure:
        raise Misconfigured(
            f"cannot make the store {path}: {failure.strerror}; its directory must exist and be writable"
        ) from None


def _claim(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in an empty file, and those that a file of an earlier version lacks; refuse a file of another
    program or of a later version.
    """
    connection.execute("BEGIN")  # what is read at one moment: another process may be making the tables
    try:
        layout = _layout(connection, path)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if layout == LAYOUT:
        return
    to_move = {}
    if layout in EARLIER:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # nobody opens the file, and writes, between the steps
        try:  # the write-ahead log is given up, which only the one connection to a file can do
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        except sqlite3.OperationalError as failure:
            raise (InUse(layout) if is_busy(failure) else failure) from None
        to_move = messages_in(connection, only_damage)  # first, as nothing is committed after SQLite has met damage
    connection.execute("BEGIN EXCLUSIVE")
    layout = _layout(connection, path)
    if layout in EARLIER:
        move_messages(connection, to_move)
        connection.execute(_SCHEMA[-1])
    elif layout != LAYOUT:
        for statement in _SCHEMA:
            connection.execute(statement)
    connection.execute("COMMIT")
    connection.execute("PRAGMA locking_mode = NORMAL")


def _layout(connection: sqlite3.Connection, path: Path) -> int:
    """Return the layout of the file; 0 of an empty one. Raises `Misconfigured`."""

    def ask(question: str) -> int:
        return int(connection.execute(question).fetchone()[0])

    owner, layout = ask("PRAGMA application_id"), ask("PRAGMA user_version")
    if owner == APPLICATION_ID and layout not in (*EARLIER, LAYOUT):
        raise Misconfigured(f"{path} has layout {layout}, this version reads {LAYOUT}: use the version that wrote it")
    if owner != APPLICATION_ID and (owner or layout or ask("SELECT count(*) FROM sqlite_master")):
        raise Misconfigured(f"{path} is another program's database; it was left as it is: name another file")
    return layout


class InUse(sqlite3.OperationalError):
    """A file of an earlier layout that another process has open."""

    def __init__(self, layout: int) -> None:
        super().__init__("database is locked")
        self.layout, self.sqlite_errorcode = layout, _BUSY


def _configure(connection: sqlite3.Connection, path: Path, synchronous: str, late: bool) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise Misconfigured(f"{path} is on a file system without shared memory: put it on a local disk")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute(f"PRAGMA synchronous = {'normal' if late else synchronous}")
    # macOS needs it for the disk's own cache; at a checkpoint on a connection for late commits, too.
    connection.execute(f"PRAGMA fullfsync = {int(synchronous == 'full')}")
    connection.execute("PRAGMA cell_size_check = ON")  # finds a page that is damaged before anything is made of it


def _text(data: bytes) -> str:
    """Return text of the file. SQLite's own error for one that is no UTF-8 would quote it."""
    return data.decode(errors="surrogateescape")


def _indexed(data: bytes, bin: str) -> str | int | None:
    """Return what an index keeps of a record: the bin's value if it is text or an integer."""
    try:
        return bin_of(data, bin)
    except BaseException as failure:
        if isinstance(failure, Corrupt) and getattr(_indexing, "rebuilding", False):
            return None
        _raised.failure = failure
        raise


@contextmanager
def reindexing() -> Iterator[None]:
    """Leave damaged records out of an index while it is made, so that it can be made.

    Afterwards every change of a damaged record fails, as SQLite would not find its entry in the index.
    """
    _indexing.rebuilding = True
    try:
        yield
    finally:
        _indexing.rebuilding = False


_indexing = threading.local()
_raised = threading.local()
"""The exception that has ended `_indexed` in this thread: SQLite says only that there was one, also of a signal's
exception.
"""


# ---- failures

FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""The exceptions of a statement; the second one if SQLite's message would quote damaged text of the schema."""
_BUSY, _LOCKED, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN = 5, 6, 8, 10, 11, 13, 14
_TOOBIG, _CONSTRAINT, _MISMATCH, _NOTADB = 18, 19, 20, 26
_DAMAGE = (_CORRUPT, _TOOBIG, _CONSTRAINT, _MISMATCH, _NOTADB)
"""A row can be too big, or break a constraint of the table, only where the file is damaged."""
_BY_TEXT = {
    "database is locked": _BUSY,
    "database table is locked": _LOCKED,
    "attempt to write a readonly database": _READONLY,
    "disk I/O error": _IOERR,
    "database disk image is malformed": _CORRUPT,
    "database or disk is full": _FULL,
    "unable to open database file": _CANTOPEN,
    "string or blob too big": _TOOBIG,
    "datatype mismatch": _MISMATCH,
    "file is not a database": _NOTADB,
    "": _CORRUPT,  # the text would quote damaged text of the schema, and so is no UTF-8
}
"""SQLite's own texts, for Python 3.10, which does not give the number."""

_RAISED = "user-defined function raised exception"
"""SQLite's text for everything that has ended a function of Latchwork's."""
_SCHEMA_IS_DAMAGED = re.compile(r"(malformed database schema|no such (table|column|index|function|collation)|unknown )")
"""The beginning of SQLite's text if a correct statement does not fit to what the file says about itself."""


def primary_code(failure: Exception) -> int:
    """Return SQLite's primary result code; 1 (a generic error) if it is unknown."""
    code, text = getattr(failure, "sqlite_errorcode", None), str(failure)
    if isinstance(failure, UnicodeDecodeError) or (code in (None, 1) and _SCHEMA_IS_DAMAGED.match(text)):
        return _CORRUPT
    if code is not None:
        return int(code) & 0xFF
    return _CONSTRAINT if isinstance(failure, sqlite3.IntegrityError) else _BY_TEXT.get(text, 1)


def is_busy(failure: sqlite3.Error) -> bool:
    """Whether another connection holds the lock, so that waiting helps."""
    return primary_code(failure) in (_BUSY, _LOCKED)


def only_damage(failure: Exception) -> None:
    """Raise the failure, unless it is SQLite's for damage, as by `is_unreadable`."""
    if not is_unreadable(failure) and primary_code(failure) not in _DAMAGE:
        raise failure


def is_unreadable(failure: Exception) -> bool:
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
    """Whether a COMMIT that failed so was surely undone: the frame that commits is the last one written. A child's that
    belongs to its parent was not made.
    """
    return primary_code(failure) in (_BUSY, _FULL) or isinstance(failure, OfTheParent)


def in_doubt(failure: Exception) -> bool:
    """Whether a statement that is a transaction by itself, and failed so, may have been committed: the disk failed."""
    return primary_code(failure) == _IOERR


def meaning(failure: Exception, path: Path | str) -> LatchworkError:
    """Return the error for a failure after which nothing was written."""
    code = primary_code(failure)
    if isinstance(failure, InUse):
        return Misconfigured(
            f"{path} has layout {failure.layout}, and another process has it open: stop all processes that use it; the "
            f"first that opens it then moves its messages once, for layout {LAYOUT}"
        )
    if isinstance(failure, OfTheParent):
        return of_the_parent(path)
    if is_unreadable(failure):
        return Corrupt(f"{path}: an index needs a record whose bytes are no bins; restore the file from a copy")
    if str(failure) == _RAISED:  # before its first line, where only SQLite has seen it
        return StorageFailed(f"{path}: interrupted, by a signal's handler as a rule; nothing was written: do it again")
    make, advice = _MEANING.get(code, (StorageFailed, "nothing was written"))
    text = "database disk image is malformed" if code == _CORRUPT else failure  # it may quote the schema
    error = make(f"{path}: {text}; {advice}", sqlite=code)
    if isinstance(error, Unavailable):
        error.slow = code == _FULL
    return error


def of_the_parent(path: Path | str) -> Misconfigured:
    """Return the error of a forked child that cannot use the file, as a connection of its parent's was lent."""
    return Misconfigured(
        f"{path}: this process was forked within a call of the store, or a block of `together`, or while a call of "
        "another thread went on for long; the call is the parent's: fork before the store is used, or start processes "
        "by spawn"
    )


_MEANING: dict[int, tuple[type[LatchworkError], str]] = {
    _BUSY: (Unavailable, "another writer held the store for longer than busy_timeout; try again later"),
    _LOCKED: (Unavailable, "another writer held the store for longer than busy_timeout; try again later"),
    _FULL: (Unavailable, "nothing was written; free some space"),
    _READONLY: (Misconfigured, "make the file and its directory writable"),
    _CANTOPEN: (Misconfigured, "make the file and its directory readable and writable"),
    _NOTADB: (Corrupt, "it is not a store: name another file, or restore it from a copy"),
    **dict.fromkeys((_CORRUPT, _TOOBIG, _CONSTRAINT, _MISMATCH), (Corrupt, "restore it from a copy")),
}
