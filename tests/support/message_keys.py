"""A SQLite store all of whose records are kept as messages of sharded queues are; and a file without any record."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from latchwork.store import Key, Record, SQLiteStore
from latchwork.store.sqlite import rows as sqlite_rows

SUFFIX = "_SHARD_0_1"


class MessageStore(SQLiteStore):
    """Each record stands in the table of messages, whatever its key is."""

    def _get(self, key, bins):
        return _given(super()._get(_kept(key), bins))

    def _get_many(self, keys, bins):
        return [_given(record) for record in super()._get_many([_kept(key) for key in keys], bins)]

    def _operate(self, update):
        return super()._operate(structs.replace(update, key=_kept(update.key)))

    def _operate_many(self, updates):
        return super()._operate_many([structs.replace(one, key=_kept(one.key)) for one in updates])

    def _delete(self, removal):
        return super()._delete(structs.replace(removal, key=_kept(removal.key)))

    def _delete_many(self, removals):
        return super()._delete_many([structs.replace(one, key=_kept(one.key)) for one in removals])

    def _query(self, set, bin, equals):
        return [_given(record) for record in super()._query(f"{set}_data_set", bin, equals)]

    def _scan(self, set):
        return [_given(record) for record in super()._scan(f"{set}_data_set")]

    def sets(self):
        return [name.removesuffix("_data_set") for name in super().sets()]

    def __reduce__(self):
        return _made, (str(self.path), self.synchronous)


def _made(path, synchronous):
    return MessageStore(path, synchronous=synchronous)


def _kept(key: Key) -> Key:
    return key if key.name.endswith(SUFFIX) else Key(f"{key.set}_data_set", key.name + SUFFIX)


def _given(record: Record | None) -> Record | None:
    if record is None:
        return None
    return replace(record, key=Key(record.key.set.removesuffix("_data_set"), record.key.name.removesuffix(SUFFIX)))


def empty(store: SQLiteStore) -> None:
    """Delete all records of the file."""
    for table in ("records", "messages"):
        store._pool.write(lambda connection, table=table: connection.execute(f"DELETE FROM {table}"))


def keys(store: SQLiteStore) -> list[Key]:
    """The keys of all records of the file."""
    return store._pool.read(lambda connection: [found.key for found in sqlite_rows.every(connection)])
