"""A group of a queue: a durable subscription that gets every message (docs/protocols P17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ...errors import InvalidRequest
from ...plain import shown
from ...store.rows import Rows
from .config import OF, GroupConfig
from .delayed.stored import MAX_NAME
from .delivery import Delivery
from .envelope import checked_id, interrupted
from .groups.making import DROPPED, check_there, complete, end, was_dropped
from .groups.pointers import GroupPointers
from .selection import Outcome
from .shards import Shards
from .slots import Stamped
from .subscription import Subscription
from .transfer import into


def _refused(name: str, remedy: str) -> Callable[..., NoReturn]:
    """Return a verb of queues that a group refuses. remedy: what to do instead, with {} for the queue."""

    def verb(group: QueueGroup, *_: Any, **__: Any) -> NoReturn:
        raise InvalidRequest(f"{shown(group.name)} is a group: {remedy.format(f'the queue {shown(group.queue_name)}')}")

    verb.__name__, verb.__doc__ = name, f"Refuse: {remedy.format('the queue')}."
    return verb


class QueueGroup(Subscription):
    """A group of a queue, made by `ShardedQueue.group`. Groups, and the queue's own consumers, are independent of each
    other. Safe to share between threads; share it, as they look for messages together.

    It has the verbs of a queue, except publishing: `receive`, `ack_many`, `depth`, `peek`, `sideline`, `parked`,
    `redrive`, `pause`, `scale`, and a `Consumer` or a `Worker` of it. `QueueRegistry.get` and the command find it as
    `{queue}@{group}`.

    At least once for each group. A message is stored once, and deleted when the last group that it was published to has
    acknowledged it, or when it expires; a group that does not consume blocks no other. One that fails in a group is
    stored once more, for the group alone. Not promised: an order; and a message published before the group was made
    reaches it only if it still exists then.
    """

    pointers: GroupPointers
    config: GroupConfig

    @property
    def group_name(self) -> str:
        """The group's name within its queue."""
        return self.config.name.removeprefix(f"{self.config.of}{OF}")

    @property
    def reader(self) -> str:
        """The group's name within its queue."""
        return self.group_name

    @property
    def queue_name(self) -> str:
        """The name of the queue whose messages it gets."""
        return self.config.of

    def settle_in(self, part: Shards, held: Sequence[Stamped]) -> tuple[Rows[bool], Callable[[], None]]:
        """Delete messages that were handled; batches count them for the queue's own consumers alone."""
        return part.remove(held), lambda: None

    def cancel(self, message_id: str) -> Outcome:
        """Cancel a message of the group that comes later, as after it has failed: `delayed.discard` of one id."""
        name = checked_id(message_id, MAX_NAME)
        return self.delayed.discard([name])[name]

    def groups(self) -> list[QueueGroup]:
        """Return no groups: only a queue has them."""
        return []

    def list_batches(self) -> list[Any]:
        """Return no batches: they are of the queue."""
        return []

    def _given_back(self, deliveries: Sequence[Delivery]) -> Rows[bool]:
        """Return messages to the tail of the group's own shards: the slots of the queue are not the group's alone."""
        back = [interrupted(delivery.held.envelope) for delivery in deliveries]
        outcomes = self._move(deliveries, into(self.pointers), back)
        self.active.look_soon()
        return outcomes

    def follow(self, queue: Subscription) -> None:
        """Notice at once what this process publishes to the queue."""
        self.active.follow(queue.active)
        self.pointers.shared.follow(queue.pointers.readers)

    def check_there(self) -> None:
        """Raise `NotFound` if the group was dropped, or made again under another tag. One call."""
        check_there(self.registry.records, self.config)

    def was_dropped(self) -> bool:
        """Whether another process has dropped the group; False where the store has lost its record. Two calls."""
        return was_dropped(self.registry.records, self.config, self.pointers.shared, self.made_at)

    def make_again(self) -> None:
        """Join the queue's shards again, from their beginning. Some six calls."""
        complete(self.registry.records, self.config, self.pointers.shared, "oldest", [0] * self.config.shards)

    def made_again(self) -> QueueGroup | None:
        """Return the group that was made under its name after it was dropped; None while there is none. One call."""
        found: QueueGroup | None = self.registry.made_again(self)
        return found

    def ends(self, record: Mapping[str, Any]) -> bool:
        """Go on with the end of the group if its record says that it was dropped; whether it was."""
        if DROPPED in record:
            self.drop()  # the process that dropped it has died, or still does, or has left much of it to the upkeep
        return DROPPED in record

    def drop(self) -> bool:
        """End the subscription; whether nothing of it is left. Seven calls, and one or two for each 1,000 messages that
        it had left.

        Messages that waited for this group alone are deleted, also in its sideline and parked. Its consumers get
        `NotFound`, and `LeaseLost` for a message that they still hold. A message whose publisher was between its two
        calls may stay until it expires.

        A call looks at 100,000 slots of each shard at most. False: there are more, and the upkeep goes on with as
        many in each of its sweeps; so does another call. It also goes on if this call is interrupted, or fails. Until
        the end the name is not free.

        Raises `NotFound` if it was dropped before, and the store's errors.
        """
        others = [self.sideline.pointers, self.parked.pointers]
        over = end(self.registry.records, self.config, self.pointers, others, self.delayed)
        self.registry.forget(self)
        return over

    # ---- the verbs of a queue that a group refuses

    publish = _refused("publish", "publish to {}, and it gets the message")
    publish_many = _refused("publish_many", "publish to {}, and it gets the messages")
    publisher = _refused("publisher", "publish to {}, and it gets the messages")
    for_publishing = _refused("for_publishing", "publish to {}, and it gets the message")
    batch = _refused("batch", "a batch is of {}, which it reads")
    group = _refused("group", "make another one of {}")
    status = _refused("status", "ask {} for a message")
    result = _refused("result", "ask {} for a message")
