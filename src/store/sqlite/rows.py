"""Records as rows of a SQLite store's tables: one at a time, and the rows of a batch together.

Messages of sharded queues stand in a table of their own (`messages.py`), all other records in `records`. Here they are
records like any other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace

from ...errors import Corrupt, LatchworkError
from ...logs import Log
from ..local import apply as local
from ..model import values
from ..model.messages import LOAD
from ..model.ops import check_row
from ..port import Exists, Key, Removal, Update, Values
from . import messages
from .file import FAILURES, Connection, only_damage
from .messages import MAX_POINTER, MessageRow, place_of
from .seal import Columns, opened
from .seal import sealed as sealed_columns

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
_OF_LANE = f"{messages.ANY} WHERE id BETWEEN ? AND ?"
_NUMBERS_OF_LANE = "SELECT id FROM messages WHERE id BETWEEN ? AND ?"
_AROUND = 100
"""Bytes in a page that no row has, and of a row's own header; more than there are."""
_REMOVE = "DELETE FROM records WHERE id = ?"


class FoundRow(Struct, frozen=True):
    """A record's row as it was read; it is looked into where it is needed, since it may be damaged."""

    connection: Connection
    key: Key
    number: int
    row: Columns | MessageRow

    def record(self, bins: Collection[str] = (), *, rest: bool = False) -> local.Stored:
        """Return the record, expired or not, as `opened` does. Raises `Corrupt`."""
        try:
            if isinstance(self.row, MessageRow):
                return self.row.opened(self.key)
            lane = messages.lane_behind(self.key) if type(self.key.name) is str else None
            if lane is None:
                return opened(self.key, self.row, bins, rest=rest)
            return _counting(
                self.connection, lane, opened(self.key, self.row, (*bins, LOAD) if bins else (), rest=rest)
            )
        except Corrupt as failure:
            raise Corrupt(f"{file_of(self.connection)}, {self.key}: {failure}", key=self.key) from None

    def is_sound(self) -> bool:
        """Whether there is a record of this key in the row."""
        try:
            self.record()
        except Corrupt:
            return False
        return True


def _counting(connection: Connection, lane: tuple[str, str], record: local.Stored) -> local.Stored:
    """Return a shard's record with all slots that were loaded: each message that was published in one step, and that it
    does not count itself, has reserved one, in a write of its own.
    """
    load = record.bins.get(LOAD)
    if type(load) is not int or not 0 <= load < MAX_POINTER:
        return record
    number = messages.lane_of(connection, *lane, is_new=not load)
    if number is None:
        return record
    first = number << messages.BITS
    last = connection.execute(messages.LAST_AHEAD, (first + load + 1, first + MAX_POINTER)).fetchone()
    if last is None:
        return record
    loaded, updated = last[0] - first, last[1] if type(last[1]) is int else 0
    return replace(
        record,
        bins={**record.bins, LOAD: loaded},
        generation=local.next_generation(record.generation, loaded - load),
        updated=max(record.updated, updated),
    )


def _count(found: FoundRow | None) -> None:
    """Let the record of a shard itself count a message that was published in one step, before that is changed."""
    if found is None or not isinstance(found.row, MessageRow) or found.row.ahead is None:
        return
    shard = find(found.connection, messages.pointers_of(found.key))
    if shard is not None:
        with suppress(Corrupt):  # which then counts nothing
            found.connection.execute(*writing(found.connection, shard.key, shard, sealed(shard.key, shard.record())))


def _count_no_more(connection: Connection, key: Key, after: local.Stored | None) -> None:
    """Let no message add to a shard's record what it does not say itself, now that it was written."""
    lane = messages.lane_behind(key)
    number = None if lane is None else messages.lane_of(connection, *lane)
    if number is not None:
        load = after.bins.get(LOAD) if after is not None else None
        counted = load if type(load) is int and 0 <= load < MAX_POINTER else 0
        first = number << messages.BITS
        connection.execute(messages.COUNTED, (first + counted + 1, first + MAX_POINTER))


def find(connection: Connection, key: Key) -> FoundRow | None:
    """Return the record's row, if there is one."""
    place = place_of(key)
    if place is not None:
        number = messages.number_of(connection, place)
        row = None if number is None else connection.execute(messages.LOAD, (number,)).fetchone()
        return None if row is None else FoundRow(connection, key, row[0], MessageRow(*row[1:]))
    row = connection.execute(_LOAD, key).fetchone()
    return None if row is None else FoundRow(connection, key, row[0], Columns(*row[1:]))


def find_many(connection: Connection, keys: Iterable[Key]) -> Iterator[FoundRow]:
    """Yield the rows of the records that exist, in no order."""
    by_set: dict[str, dict[str, Key]] = defaultdict(dict)
    numbered: dict[int, Key] = {}
    for key in keys:
        place = place_of(key)
        if place is None:
            by_set[key.set][key.name] = key
        elif (number := messages.number_of(connection, place)) is not None:
            numbered[number] = key
    left = iter(numbered)
    while numbers := list(islice(left, AT_ONCE)):
        for number, *row in connection.execute(f"{messages.LOAD_MANY} ({','.join('?' * len(numbers))})", numbers):
            yield FoundRow(connection, numbered[number], number, MessageRow(*row))
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
    connection: Connection, set: str, bin: str | None, equals: str | int | None, pass_over: Callable[[int], None]
) -> list[FoundRow]:
    """Return the rows of the set's records whose bin has that value, by the index if there is one; without a bin of
    all.

    pass_over: is called with the numbers of rows that cannot be read because they are damaged.
    """
    # The set and the bin stand in the text, since only so does SQLite see that the index of `ensure_index` fits.
    where, values = f"WHERE set_name = {quoted(set)}", () if bin is None else (equals,)
    if bin is not None:
        where += f" AND latchwork_bin(bins, {quoted(bin)}) = ?"
    questions = f"{_ANY} {where}", f"SELECT id FROM records {where}", _ANY  # noqa: S608 - names are quoted
    rows = each_readable(connection, questions, values, pass_over)
    found = [FoundRow(connection, Key(set, name), number, Columns(*row)) for name, number, *row in rows]
    for name, *between in messages.lanes_of(connection, set):  # no index has the bins of messages: all are read
        rows = each_readable(connection, (_OF_LANE, _NUMBERS_OF_LANE, messages.ANY), between, pass_over)
        found += [
            FoundRow(connection, messages.key(set, name, number), number, MessageRow(*row)) for number, *row in rows
        ]
    return found


def each_readable(
    connection: Connection, questions: tuple[str, str, str], values: Sequence[Any], pass_over: Callable[[int], None]
) -> list[tuple[Any, ...]]:
    """Return the rows of a question; if the file is damaged, the ones that can be read one by one.

    questions: for the rows; for their numbers alone; for any row.
    """
    question, numbers, one = questions
    try:
        return connection.execute(question, values).fetchall()
    except FAILURES as failure:
        only_damage(failure)
    rows = []
    for (number,) in connection.execute(numbers, values).fetchall():
        try:
            rows += connection.execute(f"{one} WHERE id = ?", (number,)).fetchall()
        except FAILURES as failure:
            only_damage(failure)
            pass_over(number)
    return rows


def every(connection: Connection) -> Iterator[FoundRow]:
    """Yield all rows, whatever the indexes say."""
    for set, name, number, *row in connection.execute(_EVERY):
        yield FoundRow(connection, Key(set, name), number, Columns(*row))
    for number, *row in connection.execute(messages.ANY):
        yield FoundRow(connection, messages.key_of(connection, number), number, MessageRow(*row))


def quoted(text: str) -> str:
    """Return a name as SQL has it; the port has seen to it that there is no NUL in it, at which SQLite would stop."""
    return "'" + text.replace("'", "''") + "'"


def is_known(found: FoundRow) -> bool:
    """Whether the index has the row under its name, which was read from the row itself and may be anything."""
    name = found.key.name
    if type(name) is not str or not name.isprintable():  # what is no UTF-8 is not printable
        return False
    try:
        by_name = find(found.connection, found.key)
    except Corrupt:  # the index has not even its lane
        return False
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
    form = update.form
    bins = form.bins if form is not None and update.ops is form.ops else ()  # none = all, or it is not known
    before = None if found is None else known(connection, found, bins)
    after, results = local.apply(before, update, now)
    _count(found)
    if after is None:
        connection.execute(*_removing(found))
    else:
        row = sealed(update.key, after)
        connection.execute(*writing(connection, update.key, found, row))
        keep(connection, update.key, row, after)
    _count_no_more(connection, update.key, after)
    return results


def sealed(key: Key, record: local.Stored) -> Columns | MessageRow:
    """Return the row of a record."""
    return sealed_columns(key, record) if place_of(key) is None else messages.sealed(key, record)


def known(connection: Connection, found: FoundRow, bins: Collection[str]) -> local.Stored:
    """Return the record, with these bins decoded, or all where none is named; decode nothing twice.

    Raises `Corrupt`.
    """
    row, record = connection.known.get(found.key, _UNKNOWN)
    if record is None or row != found.row:
        return found.record(bins, rest=True)
    lane = messages.lane_behind(found.key)
    there = values.decoded(record.bins, bins if lane is None or not bins else (*bins, LOAD))
    if there is not record.bins:
        record = replace(record, bins=there)
    return record if lane is None else _counting(connection, lane, record)


def keep(connection: Connection, key: Key, row: Columns | MessageRow, record: local.Stored) -> None:
    """Let the record be known, and forget the one that was changed longest ago where there are many."""
    if isinstance(row, MessageRow):
        return
    known = connection.known
    known.pop(key, None)
    if len(row.data) <= KNOWN_BYTES:
        known[key] = row, record
        if len(known) > KNOWN:
            del known[next(iter(known))]


def created(connection: Connection, update: Update, now: int) -> tuple[local.Stored, Values] | None:
    """Make a record without looking for it first: the record, and what was read; None where its row is taken.

    What is there may have expired, so that says nothing yet.
    """
    try:
        record, results = local.apply(None, update, now)
    except LatchworkError:
        return None  # where there is a record, another error comes first
    assert record is not None  # noqa: S101 - an update that leaves nothing of a record that is absent has raised
    create, values = _making(connection, update.key, sealed(update.key, record))
    if not connection.execute(_IF_ABSENT[create], values).rowcount:
        return None
    _count_no_more(connection, update.key, record)
    return record, results


def delete(connection: Connection, removal: Removal, now: int) -> bool:
    """Delete a record; whether it was there."""
    found = find(connection, removal.key)
    there = _removable(found, removal, now)
    if there:
        remove(found)
    return there


def remove(found: FoundRow | None) -> None:
    """Remove a row."""
    assert found is not None  # noqa: S101 - there is one
    _count(found)
    found.connection.execute(*_removing(found))
    _count_no_more(found.connection, found.key, None)


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
    if isinstance(found.row, MessageRow):
        return messages.key_of(found.connection, found.number) != found.key
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
    row: Iterable[Any] = found.row if isinstance(found.row, MessageRow) else ()
    row = row or found.connection.execute(_WHOLE, (found.number,)).fetchone()
    bytes_of = (len(value) if type(value) in (str, bytes) else values.HEADER for value in row)
    return sum(bytes_of) + _AROUND > int(size)


def _removing(found: FoundRow | None) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that removes a row."""
    assert found is not None  # noqa: S101 - of a record that was there
    return messages.REMOVE if isinstance(found.row, MessageRow) else _REMOVE, (found.number,)


def writing(
    connection: Connection, key: Key, found: FoundRow | None, row: Columns | MessageRow
) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that writes a row."""
    if found is None:
        return _making(connection, key, row)
    if isinstance(row, MessageRow):
        return messages.CHANGE, (*row, found.number)
    if isinstance(found.row, Columns) and row.expires == found.row.expires:
        return _CHANGE_IN_TIME, (row.generation, row.updated, row.data, found.number)
    return _CHANGE, (*astuple(row), found.number)


def _making(connection: Connection, key: Key, row: Columns | MessageRow) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that makes a row."""
    if isinstance(row, MessageRow):
        return messages.CREATE, (messages.made_number(connection, key), *row)
    return _CREATE, (*astuple(row), *key)


_IF_ABSENT = {_CREATE: _CREATE_IF_ABSENT, messages.CREATE: messages.CREATE_IF_ABSENT}
_ORDER = (_REMOVE, messages.REMOVE, _CREATE, messages.CREATE, _CHANGE, _CHANGE_IN_TIME, messages.CHANGE)
"""The statements of a batch, in the order in which they are made."""


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
            found = self._found.get(key)
            _count(found)
            if record is None and found is None:  # one row has made it, and another one has removed its last bin
                continue
            if record is None:
                statement, parameters = _removing(found)
            else:
                statement, parameters = writing(self._connection, key, found, sealed(key, record))
            statements[statement].append(parameters)
        for statement in _ORDER:
            if rows := statements[statement]:
                self._connection.executemany(statement, rows)
        for key, record in self._changed.items():
            _count_no_more(self._connection, key, record)

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
