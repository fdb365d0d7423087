"""How much is in a queue, by its pointers."""

from __future__ import annotations

from dataclasses import dataclass

from .pointers import ShardState


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How much is in a queue, by its pointers.

    ready: reserved and not received yet, slots that hold no message included.  sideline, parked: the same for those.
    expired: received slots that held no message: it had expired unread, or its publisher never wrote it there.
    loaded, fired: slots reserved and received since the queue's name was first used.  delayed: published and not due
    yet; about right only, as a lost reply may count one twice.  damaged: shards of the three whose pointers are
    damaged, which count as empty; `latchwork doctor` says more of them.
    """

    ready: int
    sideline: int
    parked: int
    expired: int
    loaded: int
    fired: int
    delayed: int = 0
    damaged: int = 0


def depth_of(main: list[ShardState], sideline: list[ShardState], parked: list[ShardState]) -> QueueDepth:
    """The depth that these pointers show."""
    return QueueDepth(
        _waiting(main),
        _waiting(sideline),
        _waiting(parked),
        sum(state.expired for state in main + sideline),
        sum(state.loaded for state in main),
        sum(state.fired for state in main),
        damaged=sum(state.damage is not None for state in main + sideline + parked),
    )


def _waiting(states: list[ShardState]) -> int:
    return sum(state.loaded - state.fired for state in states)
