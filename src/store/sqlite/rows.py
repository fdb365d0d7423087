"""Records as rows of a SQLite store's table: one at a time, those of a batch together, and those that have expired."""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from ...errors import Corrupt
from ..local import apply as local
from ..model import values
from ..model.ops import check_row
from ..port import Key, Removal, Update, Values
from .file import is_unreadable

log = logging.getLogger(__name__)

AT_ONCE = 500
"""Records that one statement reads; older versions of SQLite take 999 parameters."""
SWEEP_AT_MOST = 200
"""Expired records that are removed at once."""

_COLUMNS = "SELECT name, id, generation, updated, expires, bins FROM records WHERE set_name = ?"
_LOAD = f"{_COLUMNS} AND name = ?"
_CREATE = "INSERT INTO records (generation, updated, expires, bins, set_name, name) VALUES (?, ?, ?, ?, ?, ?)"
_CHANGE = "UPDATE records SET generation = ?, updated = ?, expires = ?, bins = ? WHERE id = ?"
_REMOVE = "DELETE FROM records WHERE id = ?"
_EXPIRED = "SELECT id FROM records WHERE expires <= ? ORDER BY expires LIMIT ?"
_SWEEP = f"DELETE FROM records WHERE id IN ({_EXPIRED})"  # noqa: S608 - a constant


class Found(NamedTuple):
    """A record's row as it was read; its bins are decoded where they are needed, since they may be damaged."""

    connection: sqlite3.Connection
    key: Key
    number: int
    generation: int
    updated: int
    expires: int | None
    data: bytes

    def expired(self, now: int) -> bool:
        """Whether its time to live is over."""
        return self.expires is not None and self.expires <= now

    def record(self, bins: Collection[str] = ()) -> local.Stored:
        """The record, expired or not; with these bins only, or all where none is named. Raises `Corrupt`."""
        try:
            decoded = values.decode(self.data, bins)
        except Corrupt as failure:
            raise Corrupt(f"{file_of(self.connection)}, {self.key}: {failure}", key=self.key) from None
        return local.Stored(decoded, self.generation, self.updated, self.expires, len(self.data))


def find(connection: sqlite3.Connection, key: Key) -> Found | None:
    """The record's row, if there is one."""
    row = connection.execute(_LOAD, key).fetchone()
    return None if row is None else Found(connection, key, *row[1:])


def find_many(connection: sqlite3.Connection, keys: Iterable[Key]) -> Iterator[Found]:
    """The rows of those of the records that are there, in no order."""
    by_set: dict[str, dict[str, Key]] = defaultdict(dict)
    for key in keys:
        by_set[key.set][key.name] = key
    for set, named in by_set.items():
        rest = iter(named)
        while some := list(islice(rest, AT_ONCE)):
            question = f"{_COLUMNS} AND name IN ({','.join('?' * len(some))})"
            for name, *columns in connection.execute(question, (set, *some)):
                yield Found(connection, named[name], *columns)


def read(connection: sqlite3.Connection, update: Update, now: int) -> Values:
    """What an update that only reads has read."""
    found = find(connection, update.key)
    return local.apply(found and found.record(), update, now)[1]


def operate(connection: sqlite3.Connection, update: Update, now: int) -> Values:
    """Apply an update that writes; what it read."""
    found = find(connection, update.key)
    after, results = local.apply(found and found.record(), update, now)
    if after is None:  # of a record that was there: an absent one is not made without a bin
        connection.execute(_REMOVE, (found and found.number,))
    elif found is None:
        connection.execute(_CREATE, (*_columns(after), *update.key))
    else:
        connection.execute(_CHANGE, (*_columns(after), found.number))
    return results


def delete(connection: sqlite3.Connection, removal: Removal, now: int) -> bool:
    """Delete a record; whether it was there."""
    found = find(connection, removal.key)
    if found is None or found.expired(now):
        return False
    if removal.when is not None:  # without a guard, a damaged record can be deleted
        local.check_guard(found.record(), removal.when, now, removal.key)
    connection.execute(_REMOVE, (found.number,))
    return True


def sweep(connection: sqlite3.Connection, now: int, told: set[int]) -> bool:
    """Remove some expired records; whether there may be more. A damaged one that an index needs to read is left alone.

    told: the rows that were found to be damaged, each of which is logged once, and not tried again by itself.
    """
    removed = _removed(connection, _SWEEP, (now, SWEEP_AT_MOST))
    if removed is not None:
        return removed == SWEEP_AT_MOST
    # As many more as are passed over, so that these, the oldest, are never all that is looked at.
    expired = connection.execute(_EXPIRED, (now, SWEEP_AT_MOST + len(told)))
    rows = [number for (number,) in expired if number not in told][:SWEEP_AT_MOST]
    damaged = {number for number in rows if _removed(connection, _REMOVE, (number,)) is None}
    if damaged:
        file, found = file_of(connection), sorted(damaged)
        log.warning(
            "%s: expired records stay there, since they are damaged: rows %s; restore it from a copy", file, found
        )
        told |= damaged
    return len(rows) == SWEEP_AT_MOST


def _removed(connection: sqlite3.Connection, statement: str, parameters: tuple[int, ...]) -> int | None:
    """How many rows the statement has removed, or None where a damaged one stopped it, which then has done nothing.

    It runs within the transaction of somebody who has nothing to do with that row.
    """
    connection.execute("SAVEPOINT sweep")
    try:
        return connection.execute(statement, parameters).rowcount
    except sqlite3.Error as failure:
        if not is_unreadable(failure):
            raise
        connection.execute("ROLLBACK TO sweep")
        return None
    finally:
        if connection.in_transaction:  # SQLite has rolled back by itself after some errors
            connection.execute("RELEASE sweep")


class Batch:
    """The records of a batch on their way from one state to the next."""

    def __init__(self, connection: sqlite3.Connection, keys: Iterable[Key], now: int) -> None:
        self._connection, self._now = connection, now
        self._found = {found.key: found for found in find_many(connection, keys)}
        self._changed: dict[Key, local.Stored | None] = {}

    def operate(self, update: Update) -> Values:
        """Apply an update; what it read."""
        check_row(update.key, update.ops)
        before = self._record(update.key)
        after, results = local.apply(before, update, self._now)
        if after is not before:
            self._changed[update.key] = after
        return results

    def delete(self, removal: Removal) -> bool:
        """Delete a record; whether it was there."""
        record = local.live(self._record(removal.key), self._now)
        if record is None:
            return False
        local.check_guard(record, removal.when, self._now, removal.key)
        self._changed[removal.key] = None
        return True

    def write(self) -> None:
        """Write what has changed."""
        created, changed, removed = [], [], []
        for key, record in self._changed.items():
            found = self._found.get(key)
            if record is None:
                removed.append((found and found.number,))
            elif found is None:
                created.append((*_columns(record), *key))
            else:
                changed.append((*_columns(record), found.number))
        for statement, rows in ((_REMOVE, removed), (_CREATE, created), (_CHANGE, changed)):
            if rows:
                self._connection.executemany(statement, rows)

    def _record(self, key: Key) -> local.Stored | None:
        if key in self._changed:
            return self._changed[key]
        found = self._found.get(key)
        return found and found.record()


def file_of(connection: sqlite3.Connection) -> str:
    """The path of the file that the connection is to."""
    return str(connection.execute("PRAGMA database_list").fetchone()[2])


def _columns(record: local.Stored) -> tuple[Any, ...]:
    return record.generation, record.updated, record.expires, values.encode(record.bins)
