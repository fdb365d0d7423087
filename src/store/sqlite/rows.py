"""Records as rows of a SQLite store's table: one at a time, and the rows of a batch together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from functools import lru_cache
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace

from ...errors import Corrupt, LatchworkError
from ...logs import Log
from ..local import apply as local
from ..model import values
from ..model.ops import check_row
from ..port import Exists, Key, Removal, Update, Values
from .file import FAILURES, Connection, only_damage
from .seal import Columns, opened, sealed

log = Log(__name__)

AT_ONCE = 500
"""Records that one statement reads; older versions of SQLite take 999 parameters."""

KNOWN, KNOWN_BYTES = 64, 65_536
"""Records that a connection knows, and bytes that one of them has at most."""
_UNKNOWN: tuple[None, None] = None, None

_LOAD = "SELECT id, generation, updated, expires, bins FROM records WHERE set_name = ? AND name = ?"
_ANY = "SELECT name, id, generation, updated, expires, bins FROM records"
_EVERY = "SELECT set_name, name, id, generation, updated, expires, bins FROM records NOT INDEXED"
_LOAD_MANY = f"{_ANY} WHERE set_name = ? AND name IN"
_LOAD_MANY_PAST_THE_INDEX = f"{_ANY} NOT INDEXED WHERE set_name = ? AND name IN"
_CREATE = "INSERT INTO records (generation, updated, expires, bins, set_name, name) VALUES (?, ?, ?, ?, ?, ?)"
_CREATE_IF_ABSENT = f"{_CREATE} ON CONFLICT (set_name, name) DO NOTHING"
_CHANGE = "UPDATE records SET generation = ?, updated = ?, expires = ?, bins = ? WHERE id = ?"
_CHANGE_IN_TIME = "UPDATE records SET generation = ?, updated = ?, bins = ? WHERE id = ?"
"""Of a record that expires when it did: the index of that is left alone."""
_WHOLE = (
    "SELECT CAST(set_name AS BLOB), CAST(name AS BLOB), generation, updated, expires, bins FROM records WHERE id = ?"
)
_AROUND = 100
"""Bytes in a page that no row has, and of a row's own header; more than there are."""
REMOVE = "DELETE FROM records WHERE id = ?"


class FoundRow(Struct, frozen=True):
    """A record's row as it was read; it is looked into where it is needed, since it may be damaged."""

    connection: Connection
    key: Key
    number: int
    row: Columns

    def record(self, bins: Collection[str] = (), *, rest: bool = False) -> local.Stored:
        """Return the record, expired or not, as `opened` does. Raises `Corrupt`."""
        try:
            return opened(self.key, self.row, bins, rest=rest)
        except Corrupt as failure:
            raise Corrupt(f"{file_of(self.connection)}, {self.key}: {failure}", key=self.key) from None

    def is_sound(self) -> bool:
        """Whether there is a record of this key in the row."""
        try:
            opened(self.key, self.row)
        except Corrupt:
            return False
        return True


def find(connection: Connection, key: Key) -> FoundRow | None:
    """Return the record's row, if there is one."""
    row = connection.execute(_LOAD, key).fetchone()
    return None if row is None else FoundRow(connection, key, row[0], Columns(*row[1:]))


def find_many(connection: Connection, keys: Iterable[Key]) -> Iterator[FoundRow]:
    """Yield the rows of the records that exist, in no order."""
    by_set: dict[str, dict[str, Key]] = defaultdict(dict)
    for key in keys:
        by_set[key.set][key.name] = key
    for set, named in by_set.items():
        rest = iter(named)
        while some := list(islice(rest, AT_ONCE)):
            question = f"{_LOAD_MANY} ({','.join('?' * len(some))})"
            rows = connection.execute(question, (set, *some)).fetchall()
            by_name = {name: Columns(*columns) for name, _, *columns in rows}
            if len(by_name) == len(rows) and by_name.keys() <= named.keys():
                yield from (FoundRow(connection, named[name], number, by_name[name]) for name, number, *_ in rows)
            else:
                rows += _past_the_index(connection, set, [name for name in some if name not in by_name])
                yield from _recognised(connection, rows, [named[name] for name in some])


def _past_the_index(connection: Connection, set: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of these names that a damaged index hides, if the table itself can be read."""
    try:
        question = f"{_LOAD_MANY_PAST_THE_INDEX} ({','.join('?' * len(names))})"
        return connection.execute(question, (set, *names)).fetchall()
    except FAILURES as failure:
        only_damage(failure)
        return []


def _recognised(connection: Connection, rows: list[tuple[Any, ...]], keys: list[Key]) -> Iterator[FoundRow]:
    """Yield the rows of these records, if a damaged index has some twice, or under names that were not asked for."""
    _warn_once(file_of(connection))
    for key in keys:
        found = [(name == key.name, FoundRow(connection, key, number, Columns(*row))) for name, number, *row in rows]
        sound = [one for _, one in found if one.is_sound()]
        yield from (sound or [one for has_its_name, one in found if has_its_name])[:1]


def matching(
    connection: Connection,
    set: str,
    bin: str | None,
    equals: str | int | None,
    pass_over: Callable[[int], None],
) -> list[FoundRow]:
    """Return the rows of the set's records whose bin has that value, by the index if there is one; without a bin of
    all.

    pass_over: is called with the numbers of rows that cannot be read because they are damaged.
    """
    # The set and the bin stand in the text, since only so does SQLite see that the index of `ensure_index` fits.
    where, values = f"WHERE set_name = {quoted(set)}", () if bin is None else (equals,)
    if bin is not None:
        where += f" AND latchwork_bin(bins, {quoted(bin)}) = ?"
    try:
        rows = connection.execute(f"{_ANY} {where}", values).fetchall()
    except FAILURES as failure:
        only_damage(failure)
        rows = []
        for (number,) in connection.execute(f"SELECT id FROM records {where}", values).fetchall():  # noqa: S608 - names are quoted
            try:
                rows += connection.execute(f"{_ANY} WHERE id = ?", (number,)).fetchall()
            except FAILURES as failure:
                only_damage(failure)
                pass_over(number)
    return [FoundRow(connection, Key(set, name), number, Columns(*row)) for name, number, *row in rows]


def every(connection: Connection) -> Iterator[FoundRow]:
    """Yield all rows, whatever the indexes say."""
    for set, name, number, *row in connection.execute(_EVERY):
        yield FoundRow(connection, Key(set, name), number, Columns(*row))


def quoted(text: str) -> str:
    """Return a name as SQL has it; the port has seen to it that there is no NUL in it, at which SQLite would stop."""
    return "'" + text.replace("'", "''") + "'"


def is_known(found: FoundRow) -> bool:
    """Whether the index has the row under its name, which was read from the row itself and may be anything."""
    name = found.key.name
    if type(name) is not str or not name.isprintable():  # what is no UTF-8 is not printable
        return False
    by_name = find(found.connection, found.key)
    return by_name is not None and by_name.number == found.number


def read(connection: Connection, update: Update, now: int) -> Values:
    """Return the results of an update that only reads."""
    found = find(connection, update.key)
    return local.apply(None if found is None else found.record(), update, now)[1]


def operate(connection: Connection, update: Update, now: int) -> Values:
    """Apply an update that writes; what it read."""
    if update.exists is Exists.CREATE and (made := created(connection, update, now)) is not None:
        return made[1]
    found = find(connection, update.key)
    before = None if found is None else _known(connection, found, _bins_of(update))
    after, results = local.apply(before, update, now)
    if after is None:
        connection.execute(REMOVE, (found and found.number,))
        return results
    row = sealed(update.key, after)
    connection.execute(*_writing(update.key, found, row))
    _keep(connection, update.key, row, after)
    return results


def _known(connection: Connection, found: FoundRow, bins: Collection[str]) -> local.Stored:
    """Return the record, with these bins decoded, or all where none is named; decode nothing twice."""
    row, record = connection.known.get(found.key, _UNKNOWN)
    if record is None or row != found.row:
        return found.record(bins, rest=True)
    there = values.decoded(record.bins, bins)
    return record if there is record.bins else replace(record, bins=there)


def _keep(connection: Connection, key: Key, row: Columns, record: local.Stored) -> None:
    """Let the record be known, and forget the one that was changed longest ago where there are many."""
    known = connection.known
    known.pop(key, None)
    if len(row.data) <= KNOWN_BYTES:
        known[key] = row, record
        if len(known) > KNOWN:
            del known[next(iter(known))]


def _bins_of(update: Update) -> Collection[str]:
    """Return the bins that an update needs decoded; none = all, or it is not known."""
    form = update.form
    return form.bins if form is not None and update.ops is form.ops else ()


def created(connection: Connection, update: Update, now: int) -> tuple[local.Stored, Values] | None:
    """Make a record without looking for it first: the record, and what was read; None where its row is taken.

    What is there may have expired, so that says nothing yet.
    """
    try:
        record, results = local.apply(None, update, now)
    except LatchworkError:
        return None  # where there is a record, another error comes first
    assert record is not None  # noqa: S101 - an update that leaves nothing of a record that is absent has raised
    row = sealed(update.key, record)
    made = connection.execute(_CREATE_IF_ABSENT, (*astuple(row), *update.key)).rowcount
    return (record, results) if made else None


def delete(connection: Connection, removal: Removal, now: int) -> bool:
    """Delete a record; whether it was there."""
    found = find(connection, removal.key)
    there = _removable(found, removal, now)
    if there:
        connection.execute(*_statement(removal.key, found, None))
    return there


def _removable(found: FoundRow | None, removal: Removal, now: int) -> bool:
    """Whether there is something to delete. Without a guard, a damaged record can be deleted, if it is in one page."""
    if found is None:
        return False
    try:
        record = local.live(found.record(), now)
    except Corrupt as failure:
        if removal.when is not None or _is_of_another(found):
            raise
        if _spans_pages(found):
            message = f"{failure}; it is not deleted, as it has several pages, of which some may be others' now"
            raise Corrupt(message, key=found.key) from None
        return True
    if record is not None:
        local.check_guard(record, removal.when, now, removal.key)
    return record is not None


def _is_of_another(found: FoundRow) -> bool:
    """Whether the row holds a sound record of another key: it is the index that is damaged."""
    set, name, *_ = found.connection.execute(_WHOLE, (found.number,)).fetchone()
    if type(set) is not bytes or type(name) is not bytes:
        return False
    key = Key(set.decode(errors="replace"), name.decode(errors="replace"))
    return key != found.key and replace(found, key=key).is_sound()


def _spans_pages(found: FoundRow) -> bool:
    """Whether the row continues in other pages. If their numbers are damaged, these may be pages of other rows.

    Only a row of which SQLite has found the end can be measured, but it gives out no other to the last column.
    """
    (size,) = found.connection.execute("PRAGMA page_size").fetchone()
    row = found.connection.execute(_WHOLE, (found.number,)).fetchone()
    bytes_of = (len(value) if type(value) in (str, bytes) else values.HEADER for value in row)
    return sum(bytes_of) + _AROUND > int(size)


def _statement(key: Key, found: FoundRow | None, record: local.Stored | None) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that writes the record into its row, or removes the row."""
    if record is None:  # of a record that was there: an absent one is not made without a bin
        return REMOVE, (found and found.number,)
    return _writing(key, found, sealed(key, record))


def _writing(key: Key, found: FoundRow | None, row: Columns) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that writes a row."""
    if found is None:
        return _CREATE, (*astuple(row), *key)
    if row.expires == found.row.expires:
        return _CHANGE_IN_TIME, (row.generation, row.updated, row.data, found.number)
    return _CHANGE, (*astuple(row), found.number)


class RecordBatch:
    """The records of a batch on their way from one state to the next."""

    def __init__(self, connection: Connection, rows: Sequence[Update | Removal], now: int) -> None:
        self._connection, self._now = connection, now
        self._unseen = _made_once(rows)
        """Records to be made, which were not looked for."""
        keys = [row.key for row in rows if row.key not in self._unseen]
        self._found = {found.key: found for found in find_many(connection, keys)}
        self._changed: dict[Key, local.Stored | None] = {}

    def operate(self, update: Update) -> Values:
        """Apply an update; what it read."""
        check_row(update.key, update.ops)
        if update.key in self._unseen:
            made = created(self._connection, update, self._now)
            if made is not None:
                return made[1]
            found = find(self._connection, update.key)
            if found is not None:
                self._found[update.key] = found
        before = self._record(update.key)
        after, results = local.apply(before, update, self._now)
        if after is not before:
            self._changed[update.key] = after
        return results

    def delete(self, removal: Removal) -> bool:
        """Delete a record; whether it was there."""
        if removal.key in self._changed:
            return False
        there = _removable(self._found.get(removal.key), removal, self._now)
        if there:
            self._changed[removal.key] = None
        return there

    def write(self) -> None:
        """Write what has changed."""
        statements: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for key, record in self._changed.items():
            statement, parameters = _statement(key, self._found.get(key), record)
            statements[statement].append(parameters)
        for statement in (REMOVE, _CREATE, _CHANGE, _CHANGE_IN_TIME):
            if rows := statements[statement]:
                self._connection.executemany(statement, rows)

    def _record(self, key: Key) -> local.Stored | None:
        if key in self._changed:
            return self._changed[key]
        found = self._found.get(key)
        return None if found is None else found.record()


def _made_once(rows: Sequence[Update | Removal]) -> Set[Key]:
    """Return the records that a batch makes and has no other row of."""
    makes = {row.key for row in rows if isinstance(row, Update) and row.exists is Exists.CREATE}
    if len(makes) == len(rows):
        return makes
    often = Counter(row.key for row in rows)
    return {key for key in makes if often[key] == 1}


def file_of(connection: Connection) -> str:
    """Return the path of the file that the connection is to."""
    return str(connection.execute("PRAGMA database_list").fetchone()[2])


@lru_cache(maxsize=64)
def _warn_once(file: str) -> None:
    """Log it once a process."""
    log.warning("%s: an index is damaged, and records may seem to be absent; restore it from a copy", file)
