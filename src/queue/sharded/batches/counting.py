"""What batches do at the places of `hooks.Counting`: they count messages, and keep their ids (docs/protocols P18).

A row that notes ids goes with the creates of the messages, so that no message counts whose id is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ....store import Exists, Key, MapPut, RecordStore, Update
from ....store.rows import Rows
from ..envelope import Envelope
from ..hooks import Counting
from ..shards import Shards
from ..slots import Stamped, slot_text
from .blocks import BLOCK, GONE, BatchPlace, Blocks, place_of, place_of_text

IDS = "ids"


class Names(Struct, frozen=True):
    """The ids of a block, by the ordinals within it."""

    ids: dict[int, str] = {}


def names_key(client_id: str, batch: str, number: int) -> Key:
    """Return the key of the ids of a block."""
    return Key(f"{client_id}_batch_set", f"N/{batch}/{number}")


class BatchCounting(Counting):
    """The count of a queue's messages in their batches. Safe to share between threads.

    names: whether the ids of its messages are kept, for their results.
    """

    def __init__(self, store: RecordStore, client_id: str, *, names: bool) -> None:
        self._blocks, self._client_id, self._names = Blocks(store, client_id), client_id, names

    def rows(self, envelopes: Sequence[Envelope]) -> Mapping[int, Update]:
        """Return the row that notes the id of each of these messages that is of a batch: one row a block."""
        ids: dict[tuple[str, int, int], dict[int, str]] = defaultdict(dict)
        block_of: dict[int, tuple[str, int, int]] = {}
        for n, one in enumerate(envelopes if self._names else ()):
            if one.batch is not None and (place := place_of(one)) is not None:
                block_of[n] = block = (place.batch, place.life, place.ordinal // BLOCK)
                ids[block][place.ordinal % BLOCK] = one.msg_id
        rows = {
            (batch, life, number): Update(
                names_key(self._client_id, batch, number), tuple(MapPut(IDS, *one) for one in some.items()),
                exists=Exists.ANY, ttl=life,
            )
            for (batch, life, number), some in ids.items()
        }  # fmt: skip
        return {n: rows[block] for n, block in block_of.items()}

    def cancelled(self, envelopes: Sequence[Envelope]) -> set[int]:
        """Return which of these messages are of a batch that was cancelled. One call where any is of a batch."""
        batches = {n: place.batch for n, one in enumerate(envelopes) if (place := place_of(one)) is not None}
        cancelled = self._blocks.cancelled(batches.values())
        return {n for n, batch in batches.items() if batch in cancelled}

    def done(self, counted: Sequence[object]) -> None:
        """Count messages in their batches. No call if none is of a batch. Raises the error of the first that could not
        be counted.
        """
        for failure in filter(None, self._blocks.mark(_places(counted)).failures):
            raise failure

    def gone(self, counted: Sequence[object]) -> None:
        """Let their batches wait no more for these messages. No call if none is of a batch."""
        self._blocks.take_out(_places(counted), GONE)


def count_and_remove(queue: Shards, held: Sequence[Stamped]) -> tuple[Rows[bool], set[str]]:
    """Delete messages that were handled, each once its batch has counted it; return the outcomes, and the batches that
    may be done now. One call; one more where any is of a batch.

    queue: where they are: the home of their batches, or a side of it.

    A message that its batch could not count is not deleted: it comes again.
    """
    if all(one.envelope.batch is None for one in held):
        return queue.remove(held), set()
    counted = {n: place for n, one in enumerate(held) if (place := place_of(one.envelope)) is not None}
    at = {place: slot_text(held[n].slot) for n, place in counted.items()} if queue.results else {}
    failures, whole = Blocks(queue.store, queue.client_id).mark(list(counted.values()), at)
    marked = Rows[bool]([True] * len(held)).merge(counted, [failure or True for failure in failures])
    return marked.then(lambda places: queue.remove([held[n] for n in places])), whole


def _places(counted: Sequence[object]) -> list[BatchPlace]:
    """Return the places in batches that these bins name; one that is damaged names none."""
    return [place for text in counted if isinstance(text, str) and (place := place_of_text(text))]
