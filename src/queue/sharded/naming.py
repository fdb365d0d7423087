"""The rows that go with the creates of messages of batches: their ids, by their ordinals (docs/protocols P18)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ...errors import LatchworkError, OutcomeUnknown
from ...store import Update
from ...store.rows import Rows
from .envelope import Envelope

Naming: TypeAlias = Callable[[Sequence[Envelope]], Mapping[int, Update]]
"""Returns the row that notes the id of each message that is of a batch; many share one."""


def no_names(_: Sequence[Envelope]) -> Mapping[int, Update]:
    """Note no id: no results are kept."""
    return {}


class NameRows:
    """The rows that note the ids of messages which are created by the same call."""

    def __init__(self, named: Mapping[int, Update]) -> None:
        self._named = named
        self.updates = list({one.key: one for one in named.values()}.values())

    def taken_from(self, sent: Rows[Any]) -> Mapping[int, LatchworkError]:
        """Take the outcomes of these rows, which are the last ones; return the messages without a name, and why."""
        if not self.updates:
            return {}
        outcomes = {one.key: outcome for one, outcome in zip(self.updates, sent[-len(self.updates) :], strict=True)}
        del sent[-len(self.updates) :]
        failures = ((n, outcomes[one.key]) for n, one in self._named.items())
        return {
            n: OutcomeUnknown(f"the message may be delivered; its batch does not know of it: {failure}")
            for n, failure in failures
            if isinstance(failure, LatchworkError)
        }
