"""Looking at messages that were not received yet, without changing anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice

from ..rows import readable
from .envelope import Codec, Message, message_of
from .shards import Shards
from .slots import Slot

CHUNK = 1_000
"""Slots that are read in one batch."""


def peek(queue: Shards, codec: Codec, limit: int) -> list[Message]:
    """Return what `Subqueue.peek` returns."""
    return list(islice(waiting(queue, codec, min(limit, CHUNK)), min(limit, sys.maxsize)))


def sample(queue: Shards, codec: Codec, slots: int) -> list[Message]:
    """Return the messages in at most `slots` slots that were not fired: two calls, however many of them are empty."""
    return messages_in(queue, codec, list(islice(unfired(queue), slots)))


def peek_all(queue: Shards, codec: Codec) -> list[Message]:
    """Return what `Subqueue.peek_all` returns."""
    return list(waiting(queue, codec, CHUNK))


def waiting(queue: Shards, codec: Codec, first: int) -> Iterator[Message]:
    """Yield the messages in slots that were not fired, by shard: `first` slots at first, then 1,000 at a time."""
    slots, size = unfired(queue), first
    while some := list(islice(slots, size)):
        yield from messages_in(queue, codec, some)
        size = CHUNK


def unfired(queue: Shards) -> Iterator[Slot]:
    """Yield the slots that were not received yet, or were given back, by shard."""
    return (
        Slot(state.shard, n)
        for state in queue.states()
        for n in (*sorted(state.returned), *range(state.fired + 1, state.loaded + 1))
    )


def messages_in(queue: Shards, codec: Codec, slots: Sequence[Slot]) -> list[Message]:
    """Return the messages in these slots; one that cannot be read is left out, with a warning."""
    found = zip(slots, readable(queue.look(slots)), strict=True)
    return [message_of(envelope, codec, *slot) for slot, envelope in found if envelope]
