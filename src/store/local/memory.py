"""A store in this process's memory: for tests and simulations, with whatever clock they inject."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import InvalidRequest, LatchworkError
from ...forks import reset_in_child
from ...seams import SYSTEM, Seams
from ..model.ops import check_row
from ..port import Key, Record, RecordStore, Removal, Row, StoreInfo, Update, Values
from . import apply as local
from .operations import RECORD_SIZE_LIMIT


class MemoryStore(RecordStore):
    """Records in a dictionary, which end with the process; two stores share nothing. `seams.wall` is the server's
    clock.

    server: seams that give the server's clock, if it is to differ from the client's.

    Safe to share between threads. Refuses to be pickled, since a copy in another process would be another store. A
    forked child has such a copy, which works.
    """

    def __init__(self, seams: Seams = SYSTEM, *, server: Seams | None = None) -> None:
        super().__init__()
        self.seams = seams
        self._server = server or seams
        self._records: dict[Key, local.Stored] = {}
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child: another thread of the parent may have held it."""
        self._lock = threading.RLock()

    def __reduce__(self) -> Any:
        raise InvalidRequest("a memory: store lives in one process; use sqlite:PATH or aerospike:// to share one")

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._records)} records)"

    @property
    def where(self) -> str:
        """The store as errors name it: its URL."""
        return "memory:"

    def describe(self) -> StoreInfo:
        """Return the facts: one process, one copy, so strongly consistent; expired records are deleted at once."""
        return StoreInfo("memory", "local", True, 0, 0, 1, RECORD_SIZE_LIMIT)

    def sets(self) -> list[str]:
        """Return the names of the sets that have records, sorted."""
        with self._lock:
            now = self._now()
            return sorted({key.set for key in filter(lambda key: self._live(key, now), list(self._records))})

    def _now(self) -> int:
        return int(self._server.wall() * 1000)

    def _get(self, key: Key, bins: Sequence[str]) -> Record | None:
        with self._lock:
            now = self._now()
            stored = self._live(key, now)
            return None if stored is None else local.as_record(key, stored, bins, now)

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        there = self._records  # most of the records that a queue looks for are not there
        return [self._get(key, bins) if key in there else None for key in keys]

    def _operate(self, update: Update) -> Values:
        with self._lock:
            now = self._now()
            before = self._live(update.key, now)
            after, values = local.apply(before, update, now)
            if after is None:
                self._records.pop(update.key, None)
            elif after is not before:
                self._records[update.key] = after
            return values

    def _operate_many(self, updates: Sequence[Update]) -> list[Row]:
        return [outcome(self._row, update) for update in updates]

    def _row(self, update: Update) -> Row:
        check_row(update.key, update.ops)
        if update.key not in self._records and update.form is None and not local.writes(update.ops):
            return local.absent(update.key)  # returned: to raise it costs more than all else, and most are not there
        return self._operate(update)

    def _delete(self, removal: Removal) -> bool:
        with self._lock:
            now = self._now()
            stored = self._live(removal.key, now)
            if stored is None:
                return False
            local.check_guard(stored, removal.when, now, removal.key)
            del self._records[removal.key]
            return True

    def _delete_many(self, removals: Sequence[Removal]) -> list[bool | LatchworkError]:
        return [outcome(self._delete, removal) for removal in removals]

    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        found = ((record, record.bins.get(bin)) for record in self._scan(set))
        return [record for record, value in found if type(value) is type(equals) and value == equals]

    def _scan(self, set: str) -> list[Record]:
        with self._lock:
            now, records = self._now(), tuple(self._records.items())
        return [
            local.as_record(key, stored, (), now)
            for key, stored in records
            if key.set == set and not stored.expired(now)
        ]

    def _ensure_index(self, set: str, bin: str, kind: type) -> None:
        """Do nothing: every bin can be queried in this store."""

    def _live(self, key: Key, now: int) -> local.Stored | None:
        stored = self._records.get(key)
        if stored is not None and stored.expired(now):
            del self._records[key]
            return None
        return stored


def outcome(attempt: Callable[[Any], Any], row: Any) -> Any:
    """Return the outcome of one row of a batch: its result or its error.

    An error without its traceback: that would keep the frames of all callers, which keep the error, until the garbage
    collector finds them; most rows of a queue that are looked for are not there, so it would have much to do.
    """
    try:
        return attempt(row)
    except LatchworkError as failure:
        return failure.with_traceback(None)
