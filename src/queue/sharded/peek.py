"""Looking at messages that nobody has received yet; nothing changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice

from ...errors import InvalidRequest
from ...inputs import is_int
from ...plain import shown
from .envelope import Codec, Message, message_of
from .shards import PointerQueue, Slot

CHUNK = 1_000
"""Slots that are read in one batch."""


def checked_count(what: str, number: int) -> None:
    """Whether it is a number of messages that can be asked for. Raises `InvalidRequest`."""
    if not is_int(number) or number < 1:
        raise InvalidRequest(f"{what} is {shown(number)}; it must be a whole number from 1")


def peek(queue: PointerQueue, codec: Codec, limit: int) -> list[Message]:
    """What `QueueView.peek` does."""
    return list(islice(waiting(queue, codec, min(limit, CHUNK)), min(limit, sys.maxsize)))


def sample(queue: PointerQueue, codec: Codec, slots: int) -> list[Message]:
    """The messages in so many slots, at most, that were not fired: two calls, however many of them are empty."""
    return _messages(queue, codec, list(islice(unfired(queue), slots)))


def peek_all(queue: PointerQueue, codec: Codec) -> list[Message]:
    """What `QueueView.peek_all` does."""
    return list(waiting(queue, codec, CHUNK))


def waiting(queue: PointerQueue, codec: Codec, first: int) -> Iterator[Message]:
    """The messages in slots that were not fired, by shard: in so many at first, then in 1,000 at a time."""
    slots, size = unfired(queue), first
    while some := list(islice(slots, size)):
        yield from _messages(queue, codec, some)
        size = CHUNK


def unfired(queue: PointerQueue) -> Iterator[Slot]:
    """The slots that nobody has received, by shard."""
    return (Slot(state.shard, n) for state in queue.states() for n in range(state.fired + 1, state.loaded + 1))


def _messages(queue: PointerQueue, codec: Codec, slots: Sequence[Slot]) -> list[Message]:
    found = zip(slots, queue.look(slots), strict=True)
    return [message_of(envelope, codec, *slot) for slot, envelope in found if envelope]
