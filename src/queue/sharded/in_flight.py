"""How many messages of a queue consumers have in hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...inputs import is_int
from ...store import Update
from .queue import QueueGroup, ShardedQueue
from .slots import Slot
from .sweep_record import SubqueueKind, pointer_bin

CLAIMED = 1_000
"""Slots that were claimed last, in which messages that consumers hold are counted."""


class InFlight(NamedTuple):
    """The messages that consumers hold.

    looked: slots that were looked at, those that were claimed last.
    is_all: whether no message in flight can be in another slot.
    """

    messages: int
    looked: int
    is_all: bool


def in_flight(queue: ShardedQueue, bins: Mapping[str, Any] | None = None) -> InFlight:
    """Return what consumers hold, as far as it is among the slots that were claimed last. Two calls.

    bins: of the queue's record, with which no slot is looked at that a sweep has found to be settled.
    """
    pointers = queue.pointers
    bins = {} if bins is None or isinstance(queue, QueueGroup) else bins  # whose shards are numbered otherwise there
    states, swept = pointers.states(), bins.get(pointer_bin(SubqueueKind.MAIN))
    each, is_all = max(1, CLAIMED // pointers.shards), True
    slots = []
    for state in states:
        settled: Any = swept.get(str(state.shard)) if isinstance(swept, Mapping) else None
        begin = max(state.before, settled if is_int(settled) and settled <= state.fired else 0)
        is_all = is_all and state.fired - each <= begin and state.damage is None
        slots += [Slot(state.shard, one) for one in range(max(begin, state.fired - each) + 1, state.fired + 1)]
    rows = queue.store.repeat_many([Update(pointers.key(slot), pointers.stamp_rules_at(slot).state) for slot in slots])
    there = {slot for slot, row in zip(slots, rows.values((None, None, False)), strict=True) if row[2]}
    ready = {Slot(state.shard, pointer) for state in states for pointer in state.returned}  # given back
    return InFlight(len(there - ready), len(slots), is_all)
