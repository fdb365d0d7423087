"""The removal of a SQLite store's expired records, by the processes that write to it."""

from __future__ import annotations

from functools import partial

from ...errors import Corrupt, LatchworkError
from ...logs import Log
from ..port import Key
from .file import Connection
from .pool import SQLitePool
from .rows import REMOVE, FoundRow
from .seal import Columns

log = Log(__name__)

EVERY = 5_000
"""Milliseconds between two removals by one process, where one has removed all that there were."""
AT_MOST = 200
"""Expired records that are removed at once."""

_EXPIRED = "SELECT id FROM records WHERE expires <= ? ORDER BY expires LIMIT ?"
_ROW = "SELECT set_name, name, generation, updated, expires, bins FROM records WHERE id = ?"
_LISTED = "SELECT 1 FROM records INDEXED BY records_expires WHERE expires <= ? AND +id = ?"


class Sweep:
    """The removal of expired records, in transactions of its own: a writer never fails because of what the removal
    finds.

    A record is removed if it is sound and says itself that it has expired, whatever the index says. Whether a damaged
    one has expired is not known; it stays, and reading it fails. It is logged once, and not tried again.
    """

    def __init__(self, pool: SQLitePool) -> None:
        self._pool = pool
        self._next = 0
        self._left: set[int] = set()
        self._has_failed = False

    def run(self, now: int) -> None:
        """Remove some, where it is time to."""
        # A clock that was set back puts nothing off: the next sweep is never further away than this.
        if self._next - EVERY <= now < self._next:
            return
        self._next = now + EVERY
        try:
            expired = self._expired(now)
            self._remove(expired, now)
        except Corrupt as failure:
            if not self._has_failed:
                log.warning("expired records stay there: %s", failure)
            self._has_failed = True
        except LatchworkError:
            """A write finds it too, and raises the error."""
        else:
            self._next = now if len(expired) == AT_MOST else self._next

    def _expired(self, now: int) -> list[int]:
        """Return the rows that expired first, as the index says."""
        # As many more as were passed over, so that these are never all that is looked at.
        rows = self._pool.read(lambda one: one.execute(_EXPIRED, (now, AT_MOST + len(self._left))).fetchall())
        return [number for (number,) in rows if number not in self._left][:AT_MOST]

    def _remove(self, rows: list[int], now: int) -> None:
        if not rows:
            return
        try:
            damaged = self._pool.write(lambda one: [number for number in rows if not _removed(one, number, now)])
        except Corrupt:  # SQLite commits nothing after it has come upon damage, so each by itself
            damaged = [number for number in rows if not self._removed_alone(number, now)]
        if damaged:
            log.warning(
                "%s: expired records stay there, since they or their indexes are damaged: rows %s; restore it from a "
                "copy", self._pool.path, damaged,
            )  # fmt: skip
            self._left.update(damaged)

    def _removed_alone(self, number: int, now: int) -> bool:
        try:
            return self._pool.write(partial(_removed, number=number, now=now))
        except Corrupt:
            return False


def _removed(connection: Connection, number: int, now: int) -> bool:
    """Whether the row is deleted now; False if it is damaged, or has not expired, whatever the index says."""
    row = connection.execute(_ROW, (number,)).fetchone()
    if row is None:  # another process was here, unless the index is damaged
        return connection.execute(_LISTED, (now, number)).fetchone() is None
    try:
        record = FoundRow(connection, Key(row[0], row[1]), number, Columns(*row[2:])).record()
    except Corrupt:
        return False
    if record.expired(now):
        connection.execute(REMOVE, (number,))
    return record.expired(now)
