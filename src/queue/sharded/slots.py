"""The content of a slot of a subqueue, as values: where it is, who claimed it, what was written or found there."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from ...seams import Seams
from .envelope import Envelope

MADE_BY = "@"
"""Stands in a delivery id before the process that made it."""
MAX_PROCESS = 32
"""Characters of the process's name in it; the end of a long one, which has the process's number."""


def delivery_of(seams: Seams) -> str:
    """Return a new delivery id, with the name of this process, `host:pid`."""
    return f"{seams.unique()}{MADE_BY}{process_as_stored(seams.process_name())}"


def process_as_stored(name: str) -> str:
    """Return the name of a process, `host:pid`, as delivery ids have it: two processes may share it."""
    return name[-MAX_PROCESS:]


def process_in(delivery: str) -> str | None:
    """Return the process that made a delivery id; None where it has no name."""
    return delivery.partition(MADE_BY)[2] or None


class Slot(NamedTuple):
    """The place of a message within a subqueue."""

    shard: int
    pointer: int


def slot_text(slot: Slot) -> str:
    """Return a slot as it is stored."""
    return f"{slot.shard}:{slot.pointer}"


def slot_of_text(text: object) -> Slot | None:
    """Return the slot that is stored so; None for anything else."""
    parts = text.split(":") if isinstance(text, str) else []
    if len(parts) != 2 or not all(one.isascii() and one.isdigit() and len(one) < 19 for one in parts):
        return None
    return Slot(int(parts[0]), int(parts[1]))


class Claim(NamedTuple):
    """Pointers `after + 1` to `last` of a shard, which this caller may stamp now; `loaded` were reserved in all."""

    after: int
    last: int
    loaded: int


class ShardHolder(NamedTuple):
    """The holder of a shard's lock, by its fence, in claims of the shard."""

    fence: int
    more: bool


class WriteResult(Enum):
    """The outcome of writing a data record."""

    DONE = "done"
    SPENT = "spent"  # something else is at the pointer; it has to go to another


class StampMiss(Enum):
    """The result of a stamp that found no message."""

    ABSENT = "absent"
    TAKEN = "taken"  # a tombstone, a message that is done, or one that another delivery holds


class Stamped(NamedTuple):
    """A message that was stamped with a delivery id.

    result: what is left of it once it is acknowledged, as it is stored (docs/protocols P31); None = nothing.
    """

    slot: Slot
    delivery: str
    envelope: Envelope
    result: Any = None
