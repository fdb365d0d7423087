"""The depth of a queue, by its pointers."""

from __future__ import annotations

from dataclasses import dataclass

from .pointers import ShardPointers


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The depth of a queue, by its pointers.

    ready: slots reserved and not received yet, including slots that hold no message.
    sideline, parked: as `ready`, for messages that failed and for parked ones.
    expired: received slots that held no message: it had expired unread, or its publisher never wrote it there. For a
        group also the queue's own messages that failed, were brought back for the queue alone, and were acknowledged
        before the group came to their new slots.
    loaded, fired: slots reserved and received since the queue's name was first used.
    delayed: messages published and not due yet. Only roughly, as a lost reply may count one twice.
    damaged: shards of the three whose pointers are damaged, which count as empty; and one more if the record with the
        number of delayed messages cannot be read. See `latchwork doctor`.
    """

    ready: int
    sideline: int
    parked: int
    expired: int
    loaded: int
    fired: int
    delayed: int = 0
    damaged: int = 0


def depth_of(main: list[ShardPointers], sideline: list[ShardPointers], parked: list[ShardPointers]) -> QueueDepth:
    """Return the depth that these pointers show."""
    return QueueDepth(
        _waiting(main),
        _waiting(sideline),
        _waiting(parked),
        sum(state.expired for state in main + sideline),
        sum(state.loaded for state in main),
        sum(state.fired for state in main),
        damaged=sum(state.damage is not None for state in main + sideline + parked),
    )


def _waiting(states: list[ShardPointers]) -> int:
    return sum(state.loaded - state.fired for state in states)
