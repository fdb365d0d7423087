"""Looking at messages that were not received yet, without changing anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from ...errors import InvalidRequest
from ..rows import readable
from .envelope import Codec, Message, message_of
from .shards import Shards
from .slots import Slot

CHUNK = 1_000
"""Slots that are read in one batch."""
MOST_SLOTS = 1_000_000
"""Slots that one call looks at: a damaged number of messages must not keep a person waiting for hours."""


class Look(NamedTuple):
    """What a look at a part of the slots has found. after: the slot after which the next look begins.

    more: whether there is more to look at. Of delayed messages there is no slot to go on from.
    """

    messages: list[Message]
    after: Slot | None = None
    more: bool = False


def look(
    queue: Shards, codec: Codec, limit: int, matches: Callable[[Message], bool], *, most: int, after: Slot | None = None
) -> Look:
    """Return up to `limit` messages that match, in at most `most` slots that come after the slot `after`.

    A call for each 1,000 slots, and one for the pointers, whatever the slots hold.
    """
    slots, found, left, size = unfired(queue, after), list[Message](), most, min(limit, CHUNK)
    last = after
    while some := list(islice(slots, min(size, left))):
        for message in messages_in(queue, codec, some):
            if len(found) == limit:
                return Look(found, last, more=True)
            if matches(message):
                found.append(message)
            last = Slot(message.shard, message.pointer)
        last, left, size = some[-1], left - len(some), CHUNK
        if not left or len(found) == limit:
            return Look(found, last, more=next(slots, None) is not None)
    return Look(found)


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


def unfired(queue: Shards, after: Slot | None = None) -> Iterator[Slot]:
    """Yield the slots that were not received yet, or were given back, by shard; the ones after that slot.

    Raises `InvalidRequest` where there are more than 1,000,000.
    """
    slots = (
        Slot(state.shard, n)
        for state in queue.states()
        for n in chain(sorted(state.returned), range(state.fired + 1, state.loaded + 1))
        if after is None or (state.shard, n) > after
    )
    for number, slot in enumerate(slots):
        if number == MOST_SLOTS:
            raise InvalidRequest(
                f"{queue.name} has more than {MOST_SLOTS:,} slots to look at, or the record "
                f"{queue.pointers_key(slot.shard)} is damaged: look with a lower limit; to name messages, give "
                "the ones that search has found"
            )
        yield slot


def messages_in(queue: Shards, codec: Codec, slots: Sequence[Slot]) -> list[Message]:
    """Return the messages in these slots; one that cannot be read is left out, with a warning."""
    found = zip(slots, readable(queue.look(slots)), strict=True)
    return [message_of(envelope, codec, *slot) for slot, envelope in found if envelope]
