"""Records as rows of a SQLite store's table: one at a time, or those of a batch, read and written together."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any

from . import local, values
from .port import Key, Removal, Update, Values

AT_ONCE = 500
"""Records that one statement reads; older versions of SQLite take 999 parameters."""

_COLUMNS = "SELECT name, id, generation, updated, expires, bins FROM records WHERE set_name = ?"
_LOAD = f"{_COLUMNS} AND name = ?"
_CREATE = "INSERT INTO records (generation, updated, expires, bins, set_name, name) VALUES (?, ?, ?, ?, ?, ?)"
_CHANGE = "UPDATE records SET generation = ?, updated = ?, expires = ?, bins = ? WHERE id = ?"
_REMOVE = "DELETE FROM records WHERE id = ?"


def load(
    connection: sqlite3.Connection, key: Key, bins: Collection[str] = ()
) -> tuple[int | None, local.Stored | None]:
    """The row's number and the record in it, expired or not; with these bins only, or all where none is named."""
    row = connection.execute(_LOAD, key).fetchone()
    if row is None:
        return None, None
    _, number, generation, updated, expires, data = row
    return number, stored(generation, updated, expires, data, bins)


def load_many(
    connection: sqlite3.Connection, keys: Iterable[Key], bins: Collection[str] = ()
) -> Iterator[tuple[Key, int, local.Stored]]:
    """The same for those of the records that are there, in no order."""
    by_set: dict[str, dict[str, Key]] = defaultdict(dict)
    for key in keys:
        by_set[key.set][key.name] = key
    for set, named in by_set.items():
        rest = iter(named)
        while some := list(islice(rest, AT_ONCE)):
            question = f"{_COLUMNS} AND name IN ({','.join('?' * len(some))})"
            for name, number, generation, updated, expires, data in connection.execute(question, (set, *some)):
                yield named[name], number, stored(generation, updated, expires, data, bins)


def stored(generation: int, updated: int, expires: int | None, data: bytes, bins: Collection[str] = ()) -> local.Stored:
    """The record in a row's columns."""
    return local.Stored(values.decode(data, bins), generation, updated, expires, len(data))


def operate(connection: sqlite3.Connection, update: Update, now: int) -> Values:
    """Apply an update that writes; what it read."""
    number, before = load(connection, update.key)
    after, results = local.apply(before, update, now)
    if after is None:  # of a record that was there: an absent one is not made without a bin
        connection.execute(_REMOVE, (number,))
    elif number is None:
        connection.execute(_CREATE, (*_columns(after), *update.key))
    else:
        connection.execute(_CHANGE, (*_columns(after), number))
    return results


def delete(connection: sqlite3.Connection, removal: Removal, now: int) -> bool:
    """Delete a record; whether it was there."""
    number, found = load(connection, removal.key)
    found = local.live(found, now)
    if found is None:
        return False
    local.check_guard(found, removal.when, now, removal.key)
    connection.execute(_REMOVE, (number,))
    return True


class Batch:
    """The records of a batch on their way from one state to the next."""

    def __init__(self, connection: sqlite3.Connection, keys: Iterable[Key], now: int) -> None:
        self._connection, self._now = connection, now
        self._numbers: dict[Key, int] = {}
        self._held: dict[Key, local.Stored | None] = {}
        self._changed: dict[Key, None] = {}
        for key, number, record in load_many(connection, keys):
            self._numbers[key], self._held[key] = number, record

    def operate(self, update: Update) -> Values:
        """Apply an update; what it read."""
        before = self._held.get(update.key)
        after, results = local.apply(before, update, self._now)
        if after is not before:
            self._hold(update.key, after)
        return results

    def delete(self, removal: Removal) -> bool:
        """Delete a record; whether it was there."""
        record = local.live(self._held.get(removal.key), self._now)
        if record is None:
            return False
        local.check_guard(record, removal.when, self._now, removal.key)
        self._hold(removal.key, None)
        return True

    def write(self) -> None:
        """Write what has changed."""
        created, changed, removed = [], [], []
        for key in self._changed:
            record, number = self._held[key], self._numbers.get(key)
            if record is None:
                removed.append((number,))
            elif number is None:
                created.append((*_columns(record), *key))
            else:
                changed.append((*_columns(record), number))
        for statement, rows in ((_REMOVE, removed), (_CREATE, created), (_CHANGE, changed)):
            if rows:
                self._connection.executemany(statement, rows)

    def _hold(self, key: Key, record: local.Stored | None) -> None:
        self._held[key] = record
        self._changed[key] = None


def _columns(record: local.Stored) -> tuple[Any, ...]:
    return record.generation, record.updated, record.expires, values.encode(record.bins)
