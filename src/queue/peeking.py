"""Looking at messages that nobody has received yet; nothing changes."""

from __future__ import annotations

from collections.abc import Sequence

from .envelope import BINS, Codec, Message, from_bins, message_of
from .pointers import PointerQueue, Slot

CHUNK = 1_000
"""Slots that are read in one batch."""


def peek(queue: PointerQueue, codec: Codec, limit: int) -> list[Message]:
    """What `QueueView.peek` does."""
    slots: list[Slot] = []
    for state in queue.states():
        first, last = state.fired + 1, min(state.loaded, state.fired + limit - len(slots))
        slots += [Slot(state.shard, pointer) for pointer in range(first, last + 1)]
    return _messages(queue, codec, slots)


def peek_all(queue: PointerQueue, codec: Codec) -> list[Message]:
    """What `QueueView.peek_all` does."""
    found: list[Message] = []
    for state in queue.states():
        for first in range(state.fired + 1, state.loaded + 1, CHUNK):
            last = min(first + CHUNK - 1, state.loaded)
            found += _messages(queue, codec, [Slot(state.shard, pointer) for pointer in range(first, last + 1)])
    return found


def _messages(queue: PointerQueue, codec: Codec, slots: Sequence[Slot]) -> list[Message]:
    records = queue.store.get_many([queue.key(slot) for slot in slots], *BINS)
    found = [(slot, from_bins(record.bins)) for slot, record in zip(slots, records, strict=True) if record]
    return [message_of(envelope, codec, *slot) for slot, envelope in found if envelope]
