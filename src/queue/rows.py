"""Rows that may be sent again: batches and single updates whose repeat is harmless, each row classified alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ..errors import LatchworkError, OutcomeUnknown
from ..store.port import RecordStore, Removal, Row, Update

T = TypeVar("T")


def settle(store: RecordStore, updates: Sequence[Update]) -> list[Row]:
    """The outcome of each update. A row in doubt is sent again, as often as the store's policy says.

    Only for updates whose guard, or whose nature, makes a repeat harmless. An error that a row got after doubt has
    `details["doubt"]`: an earlier attempt may have done it. One update goes as a single call, several as one batch.
    """
    if len(updates) != 1:
        return _insist(store, updates, store.operate_many)
    try:
        return [store.repeat(updates[0])]
    except LatchworkError as failure:
        return [failure]


def delete_rows(store: RecordStore, removals: Sequence[Removal]) -> list[bool | LatchworkError]:
    """The outcome of each guarded delete: True = done, or absent after doubt; False = it was not there."""
    if len(removals) != 1:
        outcomes = _insist(store, removals, store.delete_many)
        return [True if outcome is _ABSENT_AFTER_DOUBT else outcome for outcome in outcomes]
    try:
        return [store.delete(removals[0].key, when=removals[0].when, repeatable=True)]
    except LatchworkError as failure:
        return [failure]


def as_one(
    together: AbstractContextManager[None], calls: Callable[[], T], undone: Callable[[], None] = lambda: None
) -> T:
    """What `calls` returns: all its store calls as one transaction, where the store has any (`RecordStore.together`).

    Where that was begun and came to nothing, as over one damaged page, the calls are made again, each by itself.
    undone: is called first where the transaction may have come to nothing, or an interrupt came.
    """
    try:
        with together:
            return calls()
    except BaseException as failure:
        undone()
        if not isinstance(failure, LatchworkError) or not failure.details.get("rolled_back"):
            raise
    return calls()


_ABSENT_AFTER_DOUBT = object()


def _insist(store: RecordStore, rows: Sequence[Any], send: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
    outcomes = send(rows)
    for attempt in range(1, store.policy.attempts):
        doubtful = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, OutcomeUnknown)]
        if not doubtful:
            break
        store.seams.note("retries", reason="in_doubt")
        store.seams.sleep(store.policy.pause(attempt, store.seams))
        if outcomes[doubtful[0]].details.get("alone"):  # with the others it would come to the same
            found = [outcome for place in doubtful for outcome in send([rows[place]])]
        else:
            found = send([rows[place] for place in doubtful])
        for place, outcome in zip(doubtful, found, strict=True):
            outcomes[place] = _after_doubt(outcome)
    return outcomes


def _after_doubt(outcome: Any) -> Any:
    if isinstance(outcome, LatchworkError):
        outcome.details["doubt"] = True
    return _ABSENT_AFTER_DOUBT if outcome is False else outcome
