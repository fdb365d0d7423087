"""Which messages of a queue consumers have in hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import NotFound
from ...inputs import is_int
from ...store import Update
from ...store.rows import chunked
from .slots import Slot, process_in
from .subscription import Subscription
from .sweep_record import SubqueueKind, pointer_bin

CLAIMED = 1_000
"""Slots that were claimed last, in which messages that consumers hold are counted."""
STEP = 1_000
"""Slots in one call."""


class InHand(NamedTuple):
    """A message that a consumer holds.

    delivery: its own; None = it was claimed, and nobody has stamped it yet.
    stamped: when its consumer last said that it holds it, ms by that one's clock; None = not known.
    """

    slot: Slot
    delivery: str | None
    stamped: int | None

    @property
    def worker(self) -> str | None:
        """The process that holds it, `host:pid`; None = not known."""
        return process_in(self.delivery) if self.delivery else None


class InFlight(NamedTuple):
    """The messages that consumers hold.

    looked: slots that were looked at, those that were claimed last.
    is_all: whether no message in flight can be in another slot, or in one that could not be read.
    """

    held: tuple[InHand, ...]
    looked: int
    is_all: bool

    @property
    def messages(self) -> int:
        """How many there are."""
        return len(self.held)


def in_flight(queue: Subscription, bins: Mapping[str, Any] | None = None, most: int = CLAIMED) -> InFlight:
    """Return what consumers hold, as far as it is among the `most` slots that were claimed last. A call, and one for
    each 1,000 slots.

    bins: of the queue's record, with which no slot is looked at that a sweep has found to be settled.
    """
    pointers = queue.pointers
    bins = {} if bins is None or queue.reader else bins  # whose shards are numbered otherwise there
    states, swept = pointers.states(), bins.get(pointer_bin(SubqueueKind.MAIN))
    each, is_all = max(1, most // pointers.shards), True
    slots = []
    for state in states:
        settled: Any = swept.get(str(state.shard)) if isinstance(swept, Mapping) else None
        begin = max(state.before, settled if is_int(settled) and settled <= state.fired else 0)
        is_all = is_all and state.fired - each <= begin and state.damage is None
        slots += [Slot(state.shard, one) for one in range(max(begin, state.fired - each) + 1, state.fired + 1)]
    ready = {Slot(state.shard, pointer) for state in states for pointer in state.returned}  # given back
    held: list[InHand] = []
    for some in chunked(slots, STEP):
        rows = queue.store.repeat_many(
            [Update(pointers.key(slot), pointers.stamp_rules_at(slot).state) for slot in some]
        )
        is_all = is_all and all(isinstance(failure, NotFound) for failure in rows.errors())
        for slot, (delivery, stamped, is_there, *_) in zip(some, rows.values((None, None, False)), strict=True):
            if is_there and slot not in ready:
                known = delivery if isinstance(delivery, str) and delivery else None
                held.append(InHand(slot, known, stamped if is_int(stamped) else None))
    return InFlight(tuple(held), len(slots), is_all)
