"""The embedded store: one SQLite file that many threads and processes share.

Each update is one transaction that takes the write lock first, and is on the disk when it is acknowledged
(`synchronous=full`, the default; docs/design.md section 2). Reads take no lock that a writer waits for.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ...errors import Corrupt, InvalidRequest, LatchworkError
from ...inputs import checked_choice, checked_number
from ...logs import Log
from ...plain import shown
from ...seams import SYSTEM, Seams
from ..local import apply as local
from ..local.memory import outcome
from ..local.operations import RECORD_SIZE_LIMIT
from ..model.ops import check_row, writes
from ..port import Key, Record, RecordStore, Removal, Row, StoreInfo, Update, Values
from . import messages
from . import rows as sqlite_rows
from .file import Connection, reindexing
from .pool import SQLitePool
from .rows import FoundRow, RecordBatch, quoted
from .steps import Steps
from .sweep import EVERY, Sweep

log = Log(__name__)

A = TypeVar("A")
T = TypeVar("T")

SYNCHRONOUS = ("full", "normal", "off")
"""How surely an acknowledged write survives a power cut: always; all but the newest; no promise."""

_SETS = """WITH RECURSIVE found (one) AS (
    SELECT min(set_name) FROM records
    UNION ALL SELECT (SELECT min(set_name) FROM records WHERE set_name > found.one) FROM found
    WHERE found.one IS NOT NULL
) SELECT one FROM found WHERE one IS NOT NULL"""
"""The names of the sets in `records`, each found by one step in the index."""
NAMED = 20
"""Damaged places of each kind that `damage` names."""


class SQLiteStore(RecordStore):
    """Records in the file `path`, which is made, readable by its owner only, at the first call; its directory must be
    there. Safe to share between threads. Pickles as its URL; every process makes its own connections.

    synchronous: `full` survives a power cut with every acknowledged write, `normal` may lose the newest, `off` may lose
        the file. All survive the death of the process.
    busy_timeout: seconds that one attempt waits for other writers before it raises `Unavailable`; the retry policy may
        make several attempts.
    """

    tells_of_writes = True

    def __init__(
        self, path: str | os.PathLike[str], *, synchronous: str = "full", busy_timeout: float = 5.0,
        seams: Seams = SYSTEM,
    ) -> None:  # fmt: skip
        super().__init__()
        checked_choice("synchronous", synchronous, SYNCHRONOUS)
        checked_number("busy_timeout", busy_timeout, 0, 3600)
        self.path = _absolute(path)
        self.synchronous, self.busy_timeout, self.seams = synchronous, busy_timeout, seams
        self._pool = SQLitePool(self.path, synchronous, busy_timeout, seams)
        self._sweep = Sweep(self._pool)
        self.steps = Steps(self._pool, self._now, self._sweep_some, self._write)
        self._passed_over: set[int] = set()

    @property
    def url(self) -> str:
        """The URL by which `connect` opens this file from anywhere on this machine."""
        return f"sqlite:{quote(str(self.path))}?synchronous={self.synchronous}&busy_timeout={self.busy_timeout:g}"

    @property
    def where(self) -> str:
        """The store as errors name it: its URL, without options."""
        return f"sqlite:{quote(str(self.path))}"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SQLiteStore, synchronous=self.synchronous, busy_timeout=self.busy_timeout), (str(self.path),)

    def __repr__(self) -> str:
        return f"SQLiteStore({self.url!r})"

    def describe(self) -> StoreInfo:
        """Return the facts: one file, one copy, one writer at a time, so strongly consistent."""
        extra = {"path": str(self.path), "synchronous": self.synchronous, "sqlite": sqlite3.sqlite_version}
        return StoreInfo("sqlite", "local", True, EVERY // 1000, 0, 1, RECORD_SIZE_LIMIT, extra)

    def damage(self) -> list[str]:
        """Return what is wrong with the file, and with which records; an empty list if it is sound. Reads the whole
        file.

        Reading a damaged record fails, but a damaged index may hide sound records, which then seem to be absent: only
        this finds that, and `reindex` repairs it.
        """

        def look(connection: Connection) -> list[str]:
            problems = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({NAMED})")]
            damaged = [found for found in sqlite_rows.every(connection) if not found.is_sound()]
            names = [str(found.key) if sqlite_rows.is_known(found) else f"row {found.number}" for found in damaged]
            more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
            return [*(text for text in problems if text != "ok"), *names[:NAMED], *more]

        try:
            with reindexing():
                return self._pool.read(look)
        except Corrupt as failure:
            return [str(failure)]

    def sets(self) -> list[str]:
        """Return the names of the sets that have records, sorted; expired ones may still count."""

        def ask(connection: Connection) -> list[str]:
            names = {name for question in (_SETS, messages.SETS) for (name,) in connection.execute(question)}
            return sorted(map(str, names))

        return self._pool.read(ask)

    def reindex(self) -> None:
        """Rebuild the file's indexes from its records, which are not changed. Raises `Corrupt` if two records have one
        name, or a record cannot be read.
        """
        with reindexing():
            self._pool.write(lambda connection: connection.execute("REINDEX") and None)

    def together(self) -> AbstractContextManager[None]:
        if self._pool.mine.together is None:
            self._sweep.run(self._now())  # by itself: no damage that it comes upon undoes the others' work
        return self._pool.together()

    def data_version(self) -> object:
        return self._pool.data_version()

    def close(self) -> None:
        """Close this process's idle connections; the next call makes another."""
        self._pool.close()

    # ---- reading

    def _get(self, key: Key, bins: Sequence[str]) -> Record | None:
        def ask(connection: Connection, key: Key, now: int) -> Record | None:
            return _record(sqlite_rows.find(connection, key), bins, now)

        return self._read(ask, key, counting=counts(key))

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        def ask(connection: Connection, keys: Sequence[Key], now: int) -> list[Record | None]:
            found = {row.key: row for row in sqlite_rows.find_many(connection, keys)}
            return [_record(found.get(key), bins, now) for key in keys]

        return self._read(ask, keys, counting=any(map(counts, keys)))

    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        def ask(connection: Connection, set: str, now: int) -> list[Record]:
            rows = sqlite_rows.matching(connection, set, bin, equals, self._pass_over)
            records = (self._readable(one, now) for one in rows)
            # A damaged index may lead to records that say otherwise, and SQL takes 1, 1.0 and true for equal.
            return [record for record in records if record is not None and _is_equal(record.bins.get(bin), equals)]

        return self._read(ask, set, counting=messages.has_shards(set))

    def _scan(self, set: str) -> list[Record]:
        def ask(connection: Connection, set: str, now: int) -> list[Record]:
            rows = sqlite_rows.matching(connection, set, None, None, self._pass_over)
            return [record for one in rows if (record := self._readable(one, now)) is not None]

        return self._read(ask, set, counting=messages.has_shards(set))

    def _readable(self, found: FoundRow, now: int) -> Record | None:
        """Return a record that a query has found, if it is sound and lives."""
        try:
            return _record(found, (), now)
        except Corrupt as failure:
            # The name was read from the row, and may be anything where no index knows it.
            self._pass_over(found.number, str(failure) if sqlite_rows.is_known(found) else None)
            return None

    def _pass_over(self, number: int, why: str | None = None) -> None:
        """Log a damaged record by name, once; the others do not wait for it."""
        if number not in self._passed_over:
            self._passed_over.add(number)
            log.warning("passed over by queries: %s", why or f"{self.path}, row {number}")

    # ---- writing

    def _operate(self, update: Update) -> Values:
        if writes(update.ops):
            return self._write(sqlite_rows.operate, update)
        return self._read(sqlite_rows.read, update, counting=counts(update.key))

    def _operate_many(self, updates: Sequence[Update]) -> list[Row]:
        if any(writes(update.ops) for update in updates):
            call = self._write
        else:
            call = partial(self._read, counting=any(counts(update.key) for update in updates))
        return self._batch(call, updates, RecordBatch.operate, self._operate_row)

    def _operate_row(self, update: Update) -> Values:
        check_row(update.key, update.ops)
        return self._operate(update)

    def _delete(self, removal: Removal) -> bool:
        return self._write(sqlite_rows.delete, removal)

    def _delete_many(self, removals: Sequence[Removal]) -> list[bool | LatchworkError]:
        return self._batch(self._write, removals, RecordBatch.delete, self._delete)

    def _batch(
        self,
        call: Callable[[Callable[[Connection, Sequence[Any], int], list[Any]], Sequence[Any]], list[Any]],
        rows: Sequence[Any],
        each: Callable[[RecordBatch, Any], Any],
        alone: Callable[[Any], Any],
    ) -> list[Any]:
        """Return the outcome of each row; all rows are one `call`, unless the file is damaged.

        call: `_write`, in one transaction; `_read`, which takes no lock, if every row only reads.
        """

        def change(connection: Connection, rows: Sequence[Any], now: int) -> list[Any]:
            batch = RecordBatch(connection, rows, now)
            outcomes = [outcome(lambda row: each(batch, row), row) for row in rows]
            batch.write()
            return outcomes

        try:
            return call(change, rows)
        except Corrupt:  # SQLite has undone it all, since it has come upon damage
            return [outcome(alone, row) for row in rows]

    def _ensure_index(self, set: str, bin: str, kind: type) -> None:  # noqa: ARG002 - one index serves both kinds
        name = "by_" + f"{set}\0{bin}".encode().hex()  # any two differ, though SQLite ignores case
        make = (
            f"CREATE INDEX IF NOT EXISTS {name} ON records (latchwork_bin(bins, {quoted(bin)})) "
            f"WHERE set_name = {quoted(set)}"
        )
        with reindexing():
            self._write(lambda connection, make, _: connection.execute(make) and None, make)

    # ---- transactions

    def _now(self) -> int:
        return int(self.seams.wall() * 1000)

    def _read(self, ask: Callable[[Connection, A, int], T], about: A, *, counting: bool) -> T:
        """Return what `ask` returns. counting: whether it may read the record of a shard, which two statements do."""
        if counting:
            return self._pool.read(lambda connection: at_one_moment(connection, ask, about, self._now()))
        return self._pool.read(lambda connection: ask(connection, about, self._now()))

    def _sweep_some(self, now: int) -> None:
        """Remove some expired records, where it is time to; not within a transaction, whose work damage would undo."""
        if self._pool.mine.together is None:
            self._sweep.run(now)

    def _write(self, change: Callable[[Connection, A, int], T], about: A, *, late: bool = False) -> T:
        self._sweep_some(self._now())
        return self._pool.write(lambda connection: change(connection, about, self._now()), late=late)


def _is_equal(value: object, equals: str | int) -> bool:
    return type(value) is type(equals) and value == equals


def counts(key: Key) -> bool:
    """Whether it is the record of a shard, which counts messages that stand in rows of their own."""
    return messages.lane_behind(key) is not None


def at_one_moment(connection: Connection, ask: Callable[[Connection, A, int], T], about: A, now: int) -> T:
    """Return what `ask` returns, with all its statements about the file as it is when the first of them is made."""
    within = connection.in_transaction
    if within:
        return ask(connection, about, now)
    connection.execute("BEGIN")
    try:
        return ask(connection, about, now)
    finally:
        if connection.in_transaction:  # SQLite has ended it by itself, after some errors
            connection.execute("ROLLBACK")


def _record(found: FoundRow | None, bins: Sequence[str], now: int) -> Record | None:
    stored = None if found is None else local.live(found.record(bins), now)
    return None if found is None or stored is None else local.as_record(found.key, stored, bins, now)


def _absolute(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InvalidRequest(f"path is {shown(path)}; it must be the path of a file, as text")
    try:
        absolute = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - `resolve` would read the disk
    except RuntimeError:
        raise InvalidRequest(f"{shown(str(path))}: ~ names no user's folder here; write the path in full") from None
    if "\0" in str(absolute):
        raise InvalidRequest(f"{shown(str(path))}: no file has a NUL in its name")
    try:
        str(absolute).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{shown(str(absolute))}: SQLite opens files by names in UTF-8 only; use another name"
        ) from None
    return absolute
