"""The verbs of sharded queues that are one step each: few statements on the table of messages, and on their shard's
record (docs/protocols/port.md).

A publish of one message is one statement, which is a transaction by itself. It says itself what it relies on: the
shard's record is, byte for byte, the one that was checked here, and no message is behind the last one that is known.
Where that is not so any more, the step is made again in a transaction that reads both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from ...errors import Corrupt, Refused
from ..decode import MAX_COUNTER
from ..local.apply import Stored, next_generation
from ..local.operations import RECORD_SIZE_LIMIT
from ..model.messages import FIRE, FROM, GROUPS, LOAD, MAX_UNFIRED, STREAM, Fresh, Part, ShardAt, Took
from ..port import Key
from . import messages, rows
from .file import Connection
from .messages import (
    BITS,
    BYTES,
    CREATE_IF_ABSENT,
    HEAD,
    MAX_POINTER,
    PLAIN,
    TEXT,
    bins_of,
    checksum,
    lane_of,
    lane_seal,
)
from .pool import SQLitePool
from .rows import FoundRow
from .seal import Columns, sealed

A = TypeVar("A")
T = TypeVar("T")
MOST_KNOWN = 4_096
"""Shards that are known."""
SMALL = 200_000
"""Bytes of a message's data that leave room in a record for all else."""
IN_PAGE = 2_000
"""Bytes of data, and of other bins, with which a row surely stands in one page, so that it can be deleted unread: where
the file is damaged, the further pages of a row may be another's (`rows.py`)."""

ROOM = 2_048
"""Bytes that a stamp adds to a record at most, and its bins with columns take."""

_APPEND = f"""INSERT OR IGNORE INTO messages (id, {messages.COLUMNS}) VALUES (
    ?1,
    CASE WHEN (SELECT bins FROM records WHERE id = ?17) = ?18
    AND NOT EXISTS (SELECT 1 FROM messages WHERE id BETWEEN ?1 AND ?19) THEN ?2 END,
    {", ".join(f"?{n}" for n in range(3, 17))}
)"""  # noqa: S608 - names of columns
"""Where that is not so, the generation is NULL, which no row can have, and the row is left out."""
_BETWEEN = f"{messages.ANY} WHERE id BETWEEN ? AND ?"
_STAMPED = """UPDATE messages
    SET generation = ?, updated = ?, delivery = ?, fired = ?, attempts = ?, seal = ?, ahead = NULL WHERE id = ?"""
_REMOVE = f"""DELETE FROM messages WHERE id = ? AND delivery = ? AND grouped IS NULL
    AND (expires IS NULL OR expires > ?) AND length(data) < {IN_PAGE} AND coalesce(length(more), 0) < {IN_PAGE}"""  # noqa: S608 - a number of ours
_NAMES = (LOAD, FIRE, FROM, STREAM, GROUPS)


class Shard(Struct):
    """A shard as it is known: the row of its record, and the bytes there by which a message may be appended, None if
    none may; its lane, and the pointer of the next message.
    """

    number: int
    data: bytes | None
    lane: int
    seal: int
    next: int


class Write(Protocol):
    """Makes a transaction: `SQLiteStore._write`."""

    def __call__(self, change: Callable[[Connection, A, int], T], about: A, *, late: bool = False) -> T: ...


class Steps:
    """The steps of one store."""

    def __init__(
        self, pool: SQLitePool, now: Callable[[], int], sweep: Callable[[int], None], write: Write
    ) -> None:  # fmt: skip
        self._pool, self._now, self._sweep, self._write = pool, now, sweep, write
        self._known: dict[Key, Shard] = pool.shards

    # ---- publishing

    def append(
        self, parts: Sequence[Part], name: Callable[[ShardAt, Fresh, int], str], now: int, ttl: int
    ) -> list[list[str]] | None:
        """Publish messages, as `MessageSteps.append` says. Raises `Unavailable`, `OutcomeUnknown`, `Corrupt`."""
        if self._pool.mine.together is not None:
            return None
        at, some = parts[0]
        known = self._known.get(at.pointers)
        if known is not None and known.data is not None and len(parts) == len(some) == 1 and len(some[0].data) <= SMALL:
            pointer, id = known.next, name(at, some[0], known.next)
            store_now = self._now()
            row = _fresh(known, pointer, some[0], id, (now, store_now, ttl))
            self._sweep(store_now)
            if self._pool.write_alone(_APPEND, (*row, known.number, known.data, known.lane + MAX_POINTER)):
                known.next = pointer + 1
                return [[id]]
        if any(len(one.data) > SMALL for _, some in parts for one in some):
            return None

        def append(connection: Connection, _: None, store_now: int) -> list[tuple[list[str], Shard]]:
            return [_append(connection, one, name, (now, store_now, ttl)) for one in parts]

        try:
            made = self._write(append, None)
        except _NotSimple:
            return None
        for (at, _), (_, shard) in zip(parts, made, strict=True):
            self._know(at, shard)
        return [ids for ids, _ in made]

    # ---- taking

    def take(self, at: ShardAt, n: int, me: str, now: int) -> Took | None:
        """Claim and stamp, as `MessageSteps.take` says. Raises `Unavailable`, `OutcomeUnknown`, `Corrupt`."""
        if self._pool.mine.together is not None:
            return None
        try:
            took, shard = self._write(
                lambda connection, _, now_: _take(connection, at, n, (me, now), now_), None, late=True
            )
        except _NotSimple:
            return None
        if shard is not None:
            self._know(at, shard)
        return took

    # ---- acknowledging

    def remove(self, held: Sequence[tuple[ShardAt, int, str]]) -> bool:
        """Delete messages, as `MessageSteps.remove` says. Raises `Unavailable`, `OutcomeUnknown`, `Corrupt`."""
        if self._pool.mine.together is not None:
            return False
        now, known = self._now(), self._known
        gone = [
            (shard.lane + pointer, delivery, now)
            for at, pointer, delivery in held
            if (shard := known.get(at.pointers)) is not None
        ]
        if len(gone) != len(held):
            return False
        if len(gone) == 1:
            self._sweep(now)
            return self._pool.write_alone(_REMOVE, gone[0])
        try:
            return self._write(_remove_all, gone)
        except _NotSimple:
            return False

    def _know(self, at: ShardAt, shard: Shard) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[at.pointers] = shard


class _NotSimple(Refused):
    """The step is not made, and what it has done so far is undone."""

    def __init__(self) -> None:
        super().__init__("the shard, or a message, is not such that one step does it")


def _append(
    connection: Connection, part: Part, name: Callable[[ShardAt, Fresh, int], str], when: tuple[int, int, int]
) -> tuple[list[str], Shard]:
    """Publish the messages of one shard; return their ids, and the shard as it is now.

    when: the time of the queue, the time of the store, and seconds to live.
    """
    (at, fresh), store_now = part, when[1]
    # 1. The shard's record, and the end of its lane.
    found, record = _read(connection, at, store_now)
    load, fire, count, row = record.bins.get(LOAD, 0), record.bins.get(FIRE, 0), len(fresh), found.row
    if not (_takes_messages(record.bins) and load + count < MAX_POINTER and load + count - fire <= MAX_UNFIRED):
        raise _NotSimple
    lane = lane_of(connection, at.set, at.lane)
    if lane is None:
        raise _NotSimple
    # 2. Several are counted in the record; the slot of one is counted by the message itself.
    if count > 1:
        row = _write(found, record, {LOAD: load + count}, store_now)
    assert isinstance(row, Columns)  # noqa: S101 - of a shard's record
    shard = Shard(found.number, row.data, lane << BITS, lane_seal(at.set, at.lane), load + count + 1)
    # 3. The messages.
    ids = [name(at, one, pointer) for pointer, one in enumerate(fresh, load + 1)]
    made = [
        _fresh(shard, pointer, one, id, when, ahead=1 if count == 1 else None)
        for pointer, (one, id) in enumerate(zip(fresh, ids, strict=True), load + 1)
    ]
    if connection.executemany(CREATE_IF_ABSENT, made).rowcount != count:
        raise _NotSimple  # a slot that was given up before
    return ids, shard


def _take(
    connection: Connection, at: ShardAt, n: int, stamp: tuple[str, int], store_now: int
) -> tuple[Took, Shard | None]:
    """Claim and stamp.

    stamp: the delivery, and its date.
    """
    # 1. Claim: FIRE goes up by the slots.
    found, record = _read(connection, at, store_now)
    load, fire = record.bins.get(LOAD), record.bins.get(FIRE)
    if not (type(load) is int and type(fire) is int and STREAM not in record.bins and 0 <= load - fire <= MAX_UNFIRED):
        raise _NotSimple
    if fire == load:
        return Took(fire, fire, load, ()), None
    last, lane = min(fire + n, load), lane_of(connection, at.set, at.lane)
    if lane is None:
        raise _NotSimple
    row = _write(found, record, {FROM: fire, FIRE: last}, store_now)
    data = row.data if _takes_messages(record.bins) else None
    shard = Shard(found.number, data, lane << BITS, lane_seal(at.set, at.lane), load + 1)
    # 2. Stamp what is there.
    (me, now), first = stamp, shard.lane + fire + 1
    there = {number: row for number, *row in connection.execute(_BETWEEN, (first, shard.lane + last))}
    taken: list[dict[str, Any] | None] = []
    stamps = []
    for number in range(first, shard.lane + last + 1):
        message = there.get(number)
        bins = None if message is None else _bins(shard, number, message, store_now)
        taken.append(bins)
        if message is not None and bins:
            stamps.append(_stamp(shard, number, message, (me, now, bins["attempts"]), store_now))
            bins["delivery"], bins["fireTS"] = me, now
    connection.executemany(_STAMPED, stamps)
    return Took(fire, last, load, taken), shard


def _takes_messages(bins: dict[str, Any]) -> bool:
    """Whether messages that name no group may be appended to a shard with these bins, in one step."""
    load, fire = bins.get(LOAD), bins.get(FIRE)
    counted = type(load) is int and type(fire) is int and 0 <= fire <= load
    return counted and not bins.get(GROUPS) and type(bins.get(STREAM, "")) is str


def _read(connection: Connection, at: ShardAt, now: int) -> tuple[FoundRow, Stored]:
    """Return the row of a shard's record, and the record with all slots that were loaded."""
    found = rows.find(connection, at.pointers)
    if found is None:
        raise _NotSimple
    try:
        record = rows.known(connection, found, _NAMES)
    except Corrupt:
        raise _NotSimple from None
    if record.expires is not None:
        raise _NotSimple
    return found, record


def _write(found: FoundRow, record: Stored, bins: dict[str, int], now: int) -> Columns:
    """Write some bins of a shard's record, which never expires; its row."""
    after = Stored({**record.bins, **bins}, next_generation(record.generation), max(now, record.updated))
    row = sealed(found.key, after)
    found.connection.execute(*rows.writing(found.connection, found.key, found, row))
    rows.keep(found.connection, found.key, row, after)
    return row


def _fresh(
    shard: Shard, pointer: int, one: Fresh, id: str, when: tuple[int, int, int], *, ahead: int | None = 1
) -> tuple[Any, ...]:
    """Return the row of a new message, with its number; `when` as of `_append`."""
    now, store_now, ttl = when
    kind, data = (TEXT, one.data.encode()) if isinstance(one.data, str) else (BYTES, one.data)
    head = (1, store_now, store_now + ttl * 1000, None, None, 0, one.enqueued_at, now, None, kind, id)
    return shard.lane + pointer, *head, checksum(shard.seal, pointer, head, PLAIN, data), ahead, PLAIN, data


def _bins(shard: Shard, number: int, row: Sequence[Any], now: int) -> dict[str, Any] | None:
    """Return all bins of a message, with this attempt counted; empty if it is not to be taken, None if it expired."""
    try:
        bins = bins_of(shard.seal, number - shard.lane, tuple(row))
    except Corrupt:
        raise _NotSimple from None
    if row[2] is not None and row[2] <= now:
        return None
    if "data" not in bins or "interrupted" in bins:
        return {}
    attempts = bins.get("attempts", 0)
    in_columns = all(
        (row[n] is not None) == (bin in bins) for n, bin in enumerate(("delivery", "fireTS", "attempts"), 3)
    )
    if type(attempts) is not int or not 0 <= attempts < MAX_COUNTER or not in_columns:
        raise _NotSimple
    if len(row[-1] or b"") + len(row[-2] or b"") > RECORD_SIZE_LIMIT - ROOM:
        raise _NotSimple
    bins["attempts"] = attempts + 1
    return bins


def _stamp(shard: Shard, number: int, row: Sequence[Any], stamp: tuple[str, int, int], now: int) -> tuple[Any, ...]:
    """Return what a message's row gets: the values of the statement.

    stamp: the delivery, its date, and the number of attempts.
    """
    generation, updated = next_generation(row[0]), max(now, row[1])
    head = (generation, updated, row[2], *stamp, *row[6:HEAD])
    return generation, updated, *stamp, checksum(shard.seal, number - shard.lane, head, *row[-2:]), number


def _remove_all(connection: Connection, gone: list[tuple[Any, ...]], now: int) -> bool:
    if connection.executemany(_REMOVE, gone).rowcount != len(gone):
        raise _NotSimple
    return True
