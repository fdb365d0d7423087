"""A group: a durable subscription to a sharded queue, which gets every message of its own (docs/protocols.md P17)."""

from __future__ import annotations

from typing import Any, NoReturn

from ....errors import InvalidRequest
from ..config import GroupConfig
from ..queue import Registry, ShardedQueue
from ..record import Live
from .making import end
from .pointers import GroupPointers

OF = "@"
"""Stands between the names of a queue and of its group."""


class QueueGroup(ShardedQueue):
    """A group of a queue, made by `ShardedQueue.group`. Groups, and the queue's own consumers, do not see one another.

    It has the verbs of a queue, but for publishing: `receive`, `ack_many`, `depth`, `peek`, `sideline`, `parked`,
    `redrive`, `pause`, `scale`, and a `Consumer` or a `Worker` of it. Its `name` is `{queue}@{group}`, under which
    `QueueRegistry.get` finds it, and the command does.

    At least once to each group. A message is stored once, and goes when the last of those that it was published to has
    acknowledged it, or when it expires; a group that stands still holds nobody up. One that fails in a group is copied
    into the group's sideline.

    Not promised: an order; messages that were published before the group was made come to it only if nobody has deleted
    them before it comes to them.
    """

    pointers: GroupPointers
    config: GroupConfig

    def __init__(self, registry: Registry, config: GroupConfig, live: Live) -> None:
        super().__init__(registry, config, live)
        self._queue_name = config.of

    @property
    def group_name(self) -> str:
        """The group's name within its queue."""
        return self.config.name.removeprefix(f"{self._queue_name}{OF}")

    @property
    def queue_name(self) -> str:
        """The name of the queue whose messages it gets."""
        return self._queue_name

    def follow(self, queue: ShardedQueue) -> None:
        """Notice at once what this process publishes to the queue."""
        queue.active.followers.add(self.active)
        self.pointers.shared.follow(queue.pointers.members)

    def drop(self) -> None:
        """End the subscription. Six calls, and one or two for each 1,000 messages that it had left.

        Messages that waited for it alone are deleted; what is in its sideline, or parked, is not to be had any more. An
        acknowledgement of a message that a consumer of it still has raises `LeaseLost`, and its consumers get
        `NotFound`. Where it is interrupted, or fails, the upkeep goes on with it; until that is done the name is not
        free. A message whose publisher was between its two calls may stay until it expires.

        Raises `NotFound` where it was dropped before, and the store's errors.
        """
        end(self.registry.records, self.config, self.pointers, [self.sideline.pointers, self.parked.pointers])
        self.registry.forget(self)

    def publish_many(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: publish to the queue itself."""
        raise InvalidRequest(f"{self.name!r} is a group: publish to {self.queue_name!r}, and it gets the message")

    def group(self, name: str, **_: Any) -> NoReturn:
        """Refused: make it of the queue itself."""
        raise InvalidRequest(f"{self.name!r} is a group: make {name!r} of the queue {self.queue_name!r}")
