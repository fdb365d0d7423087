"""The removal of a SQLite store's expired records, by the processes that write to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from ...errors import Corrupt, LatchworkError
from ...logs import Log
from ..port import Key
from . import messages
from .file import Connection
from .messages import MessageRow
from .pool import SQLitePool
from .rows import FoundRow, each_readable, remove
from .seal import Columns

log = Log(__name__)

EVERY = 5_000
"""Milliseconds between two removals by one process, where one has removed all that there were."""
AT_MOST = 200
"""Expired records that are removed at once."""
PATIENCE = 0.1
"""Seconds for which it waits for other writers: the call that does it has its own change to make."""
LOOKED_AT = 1_000
"""Messages that are looked at each time, in their order: no index has when they expire, which would cost each more."""

_EXPIRED = "SELECT id FROM records WHERE expires <= ? ORDER BY expires LIMIT ?"
_ROW = "SELECT set_name, name, generation, updated, expires, bins FROM records WHERE id = ?"
_AFTER = "WHERE id > ? ORDER BY id LIMIT ?"
_EXPIRES = "SELECT id, expires FROM messages"
_MESSAGES = f"{_EXPIRES} {_AFTER}", f"SELECT id FROM messages {_AFTER}", _EXPIRES  # noqa: S608 - texts of ours
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
        self._next_message = -1
        self._left_messages: set[int] = set()
        self._failed = set[str]()

    def run(self, now: int) -> None:
        """Remove some, where it is time to."""
        # A clock that was set back puts nothing off: the next sweep is never further away than this.
        if self._next - EVERY <= now < self._next:
            return
        self._next = now + EVERY
        # Each table by itself: where pages of one are damaged, the other is swept.
        for what, find, removed, left in (
            ("rows", self._expired, _removed, self._left),
            ("messages", self._expired_messages, _removed_message, self._left_messages),
        ):
            try:
                with self._pool.waiting_at_most(PATIENCE):
                    expired = find(now)
                    left.update(self._remove(what, expired, removed, now))
            except Corrupt as failure:
                if what not in self._failed:
                    log.warning("expired records stay there (%s): %s", what, failure)
                self._failed.add(what)
            except LatchworkError:
                """A write finds it too, and raises the error."""
            else:
                self._next = now if len(expired) == AT_MOST else self._next

    def _expired(self, now: int) -> list[int]:
        """Return the rows that expired first, as the index says."""
        # As many more as were passed over, so that these are never all that is looked at.
        rows = self._pool.read(lambda one: one.execute(_EXPIRED, (now, AT_MOST + len(self._left))).fetchall())
        return [number for (number,) in rows if number not in self._left][:AT_MOST]

    def _expired_messages(self, now: int) -> list[int]:
        """Return some of the messages that have expired, each time from where the last one ended."""
        rows = self._messages()
        expired = [number for number, expires in rows if type(expires) is int and expires <= now]
        found = [number for number in expired if number not in self._left_messages][:AT_MOST]
        whole = len(found) < AT_MOST
        self._next_message = found[-1] if not whole else rows[-1][0] if len(rows) == LOOKED_AT else -1
        return found

    def _messages(self) -> list[tuple[int, Any]]:
        """Return the numbers of the messages that are looked at next, and when each expires; None = it is damaged."""
        damaged: list[int] = []
        about = (self._next_message, LOOKED_AT)
        rows = self._pool.read(lambda one: each_readable(one, _MESSAGES, about, damaged.append))
        self._left_messages.update(
            self._warned("messages", [number for number in damaged if number not in self._left_messages])
        )
        return sorted([*rows, *((number, None) for number in damaged)], key=itemgetter(0))

    def _remove(
        self, what: str, rows: list[int], removed: Callable[[Connection, int, int], bool], now: int
    ) -> Iterable[int]:
        """Remove the rows; return the ones that are damaged."""
        if not rows:
            return ()
        try:
            damaged = self._pool.write(lambda one: [number for number in rows if not removed(one, number, now)])
        except Corrupt:  # SQLite commits nothing after it has come upon damage, so each by itself
            damaged = [number for number in rows if not self._removed_alone(number, removed, now)]
        return self._warned(what, damaged)

    def _warned(self, what: str, damaged: list[int]) -> list[int]:
        if damaged:
            log.warning(
                "%s: expired records stay there, since they or their indexes are damaged: %s %s; restore it from a "
                "copy", self._pool.path, what, damaged,
            )  # fmt: skip
        return damaged

    def _removed_alone(self, number: int, removed: Callable[[Connection, int, int], bool], now: int) -> bool:
        try:
            return self._pool.write(lambda one: removed(one, number, now))
        except Corrupt:
            return False


def _removed(connection: Connection, number: int, now: int) -> bool:
    """Whether the row is deleted now; False if it is damaged, or has not expired, whatever the index says."""
    row = connection.execute(_ROW, (number,)).fetchone()
    if row is None:  # another process was here, unless the index is damaged
        return connection.execute(_LISTED, (now, number)).fetchone() is None
    return _gone(FoundRow(connection, Key(row[0], row[1]), number, Columns(*row[2:])), now)


def _removed_message(connection: Connection, number: int, now: int) -> bool:
    """Whether the message is deleted now, or was by another process; False if it is damaged, or has not expired."""
    row = connection.execute(messages.LOAD, (number,)).fetchone()
    if row is None:
        return True
    key = messages.key_of(connection, number)
    return _gone(FoundRow(connection, key, number, MessageRow(*row[1:])), now)


def _gone(found: FoundRow, now: int) -> bool:
    """Whether a row says itself that it has expired, and so is deleted."""
    try:
        record = found.record()
    except Corrupt:
        return False
    if record.expired(now):
        remove(found)
    return record.expired(now)
