"""The ids of the messages of batches, by their ordinals, where results are kept (docs/protocols P18).

A row that notes ids goes with the creates of the messages, so that no message counts whose id is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ....errors import LatchworkError, OutcomeUnknown
from ....store import Exists, Key, MapPut, Update
from ....store.rows import Rows
from ..envelope import Envelope
from .blocks import BLOCK, place_of

IDS = "ids"


class Names(Struct, frozen=True):
    """The ids of a block, by the ordinals within it."""

    ids: dict[int, str] = {}


def names_key(client_id: str, batch: str, number: int) -> Key:
    """Return the key of the ids of a block."""
    return Key(f"{client_id}_batch_set", f"N/{batch}/{number}")


class Naming:
    """The rows by which messages that are created now note their ids in their batches. Not to be shared."""

    def __init__(self, client_id: str, envelopes: Sequence[Envelope]) -> None:
        ids: dict[tuple[str, int, int], dict[int, str]] = defaultdict(dict)
        self._rows: dict[int, tuple[str, int, int]] = {}
        for n, one in enumerate(envelopes):
            if one.batch is not None and (place := place_of(one)) is not None:
                self._rows[n] = row = (place.batch, place.life, place.ordinal // BLOCK)
                ids[row][place.ordinal % BLOCK] = one.msg_id
        self.updates = [
            Update(
                names_key(client_id, batch, number), tuple(MapPut(IDS, *one) for one in some.items()),
                exists=Exists.ANY, ttl=life,
            )
            for (batch, life, number), some in ids.items()
        ]  # fmt: skip
        self._numbers = {row: n for n, row in enumerate(ids)}

    def taken_from(self, sent: Rows[Any]) -> Mapping[int, LatchworkError]:
        """Take the outcomes of these rows, which are the last ones; return the messages that have no name, and why."""
        if not self.updates:
            return {}
        outcomes = sent[-len(self.updates) :]
        del sent[-len(self.updates) :]
        failures = ((n, outcomes[self._numbers[row]]) for n, row in self._rows.items())
        return {
            n: OutcomeUnknown(f"the message may be delivered; its batch does not know of it: {failure}")
            for n, failure in failures
            if isinstance(failure, LatchworkError)
        }
