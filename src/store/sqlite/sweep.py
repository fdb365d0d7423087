"""The removal of a SQLite store's expired records, beside the updates of others."""

from __future__ import annotations

import logging
import sqlite3

from ...errors import Corrupt
from ..port import Key
from .rows import REMOVE, Found, apart, file_of
from .seal import Row

log = logging.getLogger(__name__)

EVERY = 5_000
"""Milliseconds between two removals by one process, where one has removed all that there were."""
AT_MOST = 200
"""Expired records that are removed at once."""

_EXPIRED = "SELECT id FROM records WHERE expires <= ? ORDER BY expires LIMIT ?"
_ROW = "SELECT set_name, name, generation, updated, expires, bins FROM records WHERE id = ?"


class Sweep:
    """Removes expired records within transactions of others, who never fail by what it comes upon.

    A record goes if it is sound and says itself that it has expired, whatever the index says. Of a damaged one nobody
    knows whether it has; it stays, and fails those who ask for it. It is named in the log once, and not tried again.
    """

    def __init__(self) -> None:
        self._next = 0
        self._left: set[int] = set()
        self._failed = False

    def run(self, connection: sqlite3.Connection, now: int) -> None:
        """Remove some, where it is time to."""
        # A clock that was set back puts nothing off: the next sweep is never further away than this.
        if self._next - EVERY <= now < self._next:
            return
        self._next = now + EVERY
        try:
            with apart(connection):
                more = self._remove(connection, now)
        except Corrupt as failure:
            if not self._failed:
                log.warning("expired records stay there: %s", failure)
            self._failed = True
        else:
            self._next = now if more else self._next

    def _remove(self, connection: sqlite3.Connection, now: int) -> bool:
        """Whether there may be more to remove."""
        # As many more as are passed over, so that these, the oldest, are never all that is looked at.
        expired = connection.execute(_EXPIRED, (now, AT_MOST + len(self._left))).fetchall()
        rows = [number for (number,) in expired if number not in self._left][:AT_MOST]
        damaged = [number for number in rows if not _removed(connection, number, now)]
        if damaged:
            log.warning(
                "%s: expired records stay there, since they or their indexes are damaged: rows %s; restore it from a "
                "copy", file_of(connection), damaged,
            )  # fmt: skip
            self._left.update(damaged)
        return len(rows) == AT_MOST


def _removed(connection: sqlite3.Connection, number: int, now: int) -> bool:
    """Whether the row is gone now."""
    try:
        with apart(connection):
            row = connection.execute(_ROW, (number,)).fetchone()
            if row is None:
                return False
            found = Found(connection, Key(row[0], row[1]), number, Row(*row[2:]))
            if not found.record().expired(now):
                return False
            connection.execute(REMOVE, (number,))
    except Corrupt:
        return False
    return True
