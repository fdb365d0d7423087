"""The depth of a queue, by its pointers, and what of it has expired unread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...store import Record
from ..rows import read_each
from .pointers import ShardPointers
from .shards import Shards
from .slots import Slot

GRACE = 0.25
"""Seconds that a waiting slot may be empty because its publisher is still writing."""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The depth of a queue.

    ready: messages that wait to be received. Slots among them that hold no message count too, as where a publisher
        died; the oldest ones in each shard do not.
    sideline, parked: as `ready`, for messages that failed and for parked ones.
    expired: slots, received or the oldest that wait, that held no message: it had expired unread, or its publisher
        never wrote it there. For a group also the queue's own messages that failed, were brought back for the queue
        alone, and were acknowledged before the group came to their new slots.
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
        sum(state.expired + state.gone for state in main + sideline) + sum(state.gone for state in parked),
        sum(state.loaded for state in main),
        sum(state.fired for state in main),
        damaged=sum(state.damage is not None for state in main + sideline + parked),
    )


def looked_through(parts: Sequence[tuple[Shards, list[ShardPointers]]]) -> list[list[ShardPointers]]:
    """Return the pointers with `gone`: how many of the oldest waiting slots of each shard are empty. One call; where
    some are, a wait of 0.25 s and about 20 calls more.

    Messages of a shard expire in the order of their slots, so the empty slots end where the first message is. An empty
    slot holds no message any more if its shard's FIRE, read after it, is still below it: nobody has claimed it.
    """
    # 1. Look at the oldest waiting slot of each shard; twice, as its publisher may be about to write it.
    store = parts[0][0].store
    spans = {
        (n, state.shard): (state.fired, state.loaded)
        for n, (_, states) in enumerate(parts)
        for state in states
        if state.fired < state.loaded
    }
    places = list(spans)

    def empty(pointers: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], bool]:
        keys = [parts[n][0].key(Slot(shard, pointer)) for (n, shard), pointer in pointers.items()]
        rows = [
            row
            for begin in range(0, len(keys), 1_000)
            for row in read_each(store, keys[begin : begin + 1_000], "msgId")
        ]
        return {
            place: row is None or (isinstance(row, Record) and "msgId" not in row.bins)
            for place, row in zip(pointers, rows, strict=True)
        }

    for look in (1, 2):
        heads = empty({place: spans[place][0] + 1 for place in places}) if places else {}
        places = [place for place, is_empty in heads.items() if is_empty]
        if places and look == 1:
            store.seams.sleep(GRACE)
    if not places:
        return [states for _, states in parts]
    # 2. Find the last empty slot before the first message, in all shards at once, by halves.
    low = {place: spans[place][0] + 1 for place in places}
    high = {place: spans[place][1] for place in places}
    while open_ := {place: (low[place] + high[place] + 1) // 2 for place in places if low[place] < high[place]}:
        for place, is_empty in empty(open_).items():
            if is_empty:
                low[place] = open_[place]
            else:
                high[place] = open_[place] - 1
    # 3. Count what nobody has claimed since.
    return [
        [
            state._replace(gone=max(0, low.get((n, state.shard), 0) - state.fired))
            for state in queue.states()
        ]
        for n, (queue, _) in enumerate(parts)
    ]  # fmt: skip


def _waiting(states: list[ShardPointers]) -> int:
    return sum(state.waiting for state in states)
