"""The places at which features take part in the way of a message, which knows nothing more of them.

`Readers`: who else reads the slots of a queue; groups do. `Counting`: who counts its messages; batches do. The way of a
message asks them where slots are reserved, where messages are written, handed out and extended, and where they go. As
they are here they do nothing, and make no call. `Target`: where a message is moved to; the delayed messages are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import LatchworkError, OutcomeUnknown
from ...store import Put, Update
from ...store.rows import Rows
from .envelope import Envelope
from .slots import Slot, Stamped

Target = Callable[[Sequence[Stamped], Sequence[Envelope]], Rows[Any]]
"""Stores messages in hand, as the given envelopes; the outcome of each is an error where it is not safe there."""


class Readers:
    """The readers of a queue's slots beside its own consumers: nobody."""

    # ---- where slots are reserved

    def loaded(self, shard: int) -> int:  # noqa: ARG002 - nobody needs to know
        """Return how many slots of a shard are reserved, as far as this process knows. No call."""
        return 0

    def note(self, shard: int, loaded: int, stored: Any) -> None:
        """Take note of what the pointers of a shard say of other readers, `stored`, when LOAD was `loaded`."""

    def forget(self) -> None:
        """Forget everything: a noted reservation was undone, and LOAD is lower than noted."""

    # ---- where messages are written

    def waiting(self, slots: Sequence[tuple[int, int]]) -> Rows[tuple[str, ...]]:
        """Return who else waits for each slot, or why that cannot be read."""
        return Rows([()] * len(slots))

    def tags(self, names: tuple[str, ...], envelope: Envelope, *, moved: bool) -> tuple[Put, ...]:  # noqa: ARG002 - nobody waits
        """Return the operations that say in a new message who else waits for it. moved: it comes from another slot."""
        return ()

    # ---- where messages go

    def settle(self, held: Sequence[Stamped]) -> Rows[bool]:
        """Remove messages that this reader is done with, and for which others may wait."""
        return Rows([False] * len(held))

    def discard(self, slots: Sequence[Slot]) -> Rows[bool]:
        """Remove messages for a stream, which holds none of them, and for which others may wait."""
        return Rows([False] * len(slots))

    def finish(self, slots: Sequence[Slot]) -> None:
        """Delete messages that no reader waits for, and whose last reader died before it deleted them."""


class Counting:
    """The count of a queue's messages by what their bin `batch` says: of none."""

    def rows(self, envelopes: Sequence[Envelope]) -> Mapping[int, Update]:  # noqa: ARG002 - it counts nothing
        """Return the row that is written with each of these new messages, if there is one; many share one."""
        return {}

    def cancelled(self, envelopes: Sequence[Envelope]) -> set[int]:  # noqa: ARG002 - it counts nothing
        """Return which of these messages are not wanted any more. Raises the store's errors."""
        return set()

    def done(self, counted: Sequence[object]) -> None:
        """Count messages as done, by what their bins say, before they are deleted."""

    def gone(self, counted: Sequence[object]) -> None:
        """Count no more on messages that were dropped, by what their bins say. Raises the store's errors."""


NOBODY, UNCOUNTED = Readers(), Counting()


class RowsBeside:
    """The rows of `Counting` that are sent in the call that creates messages."""

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
