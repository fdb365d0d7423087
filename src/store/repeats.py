"""Rows that may be sent again, as their repeat is harmless: each row of a batch is classified alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ..deadline import is_cut
from ..errors import LatchworkError, OutcomeUnknown, Unavailable
from ..retry import RetryPolicy
from ..seams import Seams
from .rows import Rows

T = TypeVar("T")


class Store(Protocol):
    """The part of a store that sending rows again needs: `RecordStore` has it."""

    policy: RetryPolicy
    seams: Seams


def send_until_known(
    store: Store,
    rows: Sequence[Any],
    send: Callable[[Sequence[Any]], Rows[T]],
    instead: Callable[[], Sequence[Any]] | None = None,
) -> Rows[T]:
    """Send a batch, then its rows in doubt again, as often as the store's policy says; return the outcomes.

    instead: makes the rows that are sent from the second time on, if these differ.
    """
    outcomes = send(rows)
    for attempt in range(1, store.policy.attempts):
        doubtful = {n: outcome for n, outcome in enumerate(outcomes) if isinstance(outcome, OutcomeUnknown)}
        if not doubtful or is_cut():
            break
        if instead is not None:
            rows, instead = instead(), None
        store.seams.note("retries", reason="in_doubt")
        store.seams.sleep(store.policy.pause(attempt, store.seams))
        if next(iter(doubtful.values())).details.get("alone"):  # a row that failed in the batch would fail again
            found = Rows(outcome for place in doubtful for outcome in send([rows[place]]))
        else:
            found = send([rows[place] for place in doubtful])
        outcomes.merge(doubtful, map(after_repeat, doubtful.values(), found))
    return outcomes


def after_repeat(before: Any, outcome: Any) -> Any:
    """Return what is known of a row that was sent again: a repeat that was not applied leaves it in doubt."""
    if not isinstance(before, OutcomeUnknown):
        return outcome
    if isinstance(outcome, Unavailable):
        return before
    if isinstance(outcome, LatchworkError):
        outcome.details["doubt"] = True
    return True if outcome is False else outcome  # what is absent after doubt was deleted by the earlier attempt


def reads_are_repeatable() -> None:
    """Allow a read in doubt to be sent again: it changes nothing."""
