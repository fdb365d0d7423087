"""Calls of the queues: many records, each read by itself, and several calls in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from ..errors import LatchworkError
from ..logs import Log
from ..store.port import Key, Record, RecordStore
from ..store.rows import Rows

log = Log(__name__)

T = TypeVar("T")

MOST_LOGGED = 1_000
"""Records that a process warns of, each once; then each may be warned of once more."""
_logged: set[str] = set()


def read_each(store: RecordStore, keys: Sequence[Key], *bins: str) -> Rows[Record | None]:
    """Return the record of each key, None where there is none, or the error of a row that cannot be read, alone.

    One call; if a row cannot be read, some more (`RecordStore.get_many`). Raises the other errors of the store.
    """
    return Rows(store.get_many(keys, *bins, each=True))


def readable(rows: Rows[T | None]) -> list[T | None]:
    """Return the rows with None in place of each error, for a list that people read.

    Each record that cannot be read is logged as a warning, once a process.
    """
    for failure in rows.errors():
        text = str(failure)
        if text in _logged:
            continue
        if len(_logged) >= MOST_LOGGED:
            _logged.clear()
        _logged.add(text)
        log.warning("left out, as it cannot be read (%s): %s", failure.code, text, extra={"code": failure.code})
    return rows.values(None)


def as_one(
    together: AbstractContextManager[None], calls: Callable[[], T], undone: Callable[[], None] = lambda: None
) -> T:
    """Return what `calls` returns, with all its store calls in one transaction, if the store has them
    (`RecordStore.together`).

    If a transaction failed without effect, as over one damaged page, the calls are made again, each by itself.

    undone: is called first if the transaction may have had no effect, or was interrupted.
    """
    try:
        with together:
            return calls()
    except BaseException as failure:
        undone()
        if not isinstance(failure, LatchworkError) or not failure.details.get("rolled_back"):
            raise
    return calls()
