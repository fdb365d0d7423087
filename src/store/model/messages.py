"""The verbs of a sharded queue that a store may have besides those of single records: each is one step there.

They do what several calls of single records do elsewhere (docs/protocols/sharded-queue.md P5), for messages and shards
that have nothing but what nearly all have. Of any other they do nothing and say so, and the queue makes those calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .record import Key

LOAD, FIRE, FROM, STREAM, GROUPS = "LOAD_POINTER", "FIRE_POINTER", "claimed-from", "stream", "groups"
"""The bins of a shard's record: how many slots were loaded, how many fired, where the last claim began, the stream that
owns the shard, the groups that read it; the last one is also a bin of a message."""
MAX_UNFIRED = 1_000_000_000
"""Messages of one shard that wait to be fired. Their records alone would take a hundred gigabytes; pointers that say
that there are more are damaged, and a process that believed them would look at slots for years.
"""


class ShardAt(NamedTuple):
    """Where a shard of a queue is stored: its number, the key of its record, the set of its messages, and what their
    keys begin with.
    """

    number: int
    pointers: Key
    set: str
    lane: str


class Fresh(NamedTuple):
    """A message to be published, with nothing but what every message has.

    unique: what its id is made of.
    """

    data: str | bytes
    unique: str
    enqueued_at: int


Part = tuple[ShardAt, Sequence[Fresh]]
"""The messages that are published to one shard."""


class Took(NamedTuple):
    """What was taken of a shard: the slots from `after + 1` to `last` were claimed now, of `loaded` in all.

    found: of each slot all bins of its message, as they were stamped; empty of one that holds none to be taken; None
        of one where nothing is.
    """

    after: int
    last: int
    loaded: int
    found: Sequence[dict[str, Any] | None]


class MessageSteps(Protocol):
    """The steps; each is one attempt. `sqlite/steps.py` has them."""

    def append(
        self, parts: Sequence[Part], name: Callable[[ShardAt, Fresh, int], str], now: int, ttl: int
    ) -> list[list[str]] | None:
        """Reserve a slot for each message at the end of its shard, and write it there: the ids. None = not done.

        name: makes the id of a message from it, its shard and its pointer.
        now, ttl: ms since the epoch, for the message; seconds that it lives.
        """

    def take(self, at: ShardAt, n: int, me: str, now: int) -> Took | None:
        """Claim up to `n` slots, and stamp the messages there for this delivery, counting an attempt. None = not
        done.
        """

    def remove(self, held: Sequence[tuple[ShardAt, int, str]]) -> bool:
        """Delete messages that nobody waits for but these deliveries, each with its pointer and its delivery. False =
        nothing was done, as this is not so of one of them.
        """
