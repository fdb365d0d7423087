"""What a consumer has in hand, noted where another process can read it, should this one be killed.

The notes are in memory that both processes share, so they cost no call and survive SIGKILL. They are hints: whoever
settles a message by them does it in the name of the delivery that is noted, and is refused if that has settled it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from enum import IntEnum
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from msgspec.structs import replace

from ....store.rows import Rows
from ..delivery import Delivery, Outcome, ack_each
from ..envelope import Envelope, Reason
from ..queue import ShardedQueue
from ..slots import Slot, Stamped
from ..transfer import CHUNK

_ENTRY = Struct("<BBHIQ40s")
_MOST_NAME = 40
"""Bytes of a delivery's id."""
ENTRIES = 16_384
"""Messages that one process can note. More than that are left to the sweep, should it be killed."""
SIZE = ENTRIES * _ENTRY.size
"""Bytes of the memory."""


class Stage(IntEnum):
    """How far the work on a message is. FREE: there is none in this place."""

    FREE = 0
    CLAIMED = 1
    BEGUN = 2
    DONE = 3


class Noted(NamedTuple):
    """A message that a process had in hand: whose it is, and how far the work on it was.

    queue: its number, in the order of the names.
    """

    queue: int
    stage: Stage
    shard: int
    pointer: int
    delivery: str


class Hand:
    """The messages that one consumer has in hand. This one notes nothing."""

    def took(self, deliveries: Iterable[Delivery]) -> None:
        """Note messages that were claimed."""

    def began(self, deliveries: Iterable[Delivery]) -> None:
        """Note that a handler begins with these, of which some may not be noted."""

    def done(self, deliveries: Iterable[Delivery]) -> None:
        """Note that a handler is done with these: they are to be acknowledged."""

    def let_go(self, deliveries: Iterable[Delivery]) -> None:
        """Forget messages that are settled, or that are left to the sweep."""


class Notes:
    """The memory in which the consumers of one process note what they have in hand. Safe to share between threads."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.free = list(range(0, SIZE, _ENTRY.size))

    def hand(self, queue: int) -> NotedHand:
        """Return the hand of the consumer of the queue of this number."""
        return NotedHand(self, queue)


class NotedHand(Hand):
    """The messages that one consumer has in hand, as they are noted. Some 2 µs a message."""

    def __init__(self, notes: Notes, queue: int) -> None:
        self._memory, self._free, self._queue = notes.memory, notes.free, queue
        self._places: dict[Delivery, int] = {}

    def took(self, deliveries: Iterable[Delivery]) -> None:
        """Note messages that were claimed, as far as there is room."""
        for one in deliveries:
            me = one.held.delivery.encode()
            if len(me) > _MOST_NAME:
                continue
            try:
                place = self._free.pop()
            except IndexError:
                return
            _ENTRY.pack_into(self._memory, place, Stage.FREE, 0, self._queue, one.shard, one.pointer, me)
            self._memory[place] = Stage.CLAIMED  # last: before that, the entry is not whole
            self._places[one] = place

    def began(self, deliveries: Iterable[Delivery]) -> None:
        """Note that a handler begins with these."""
        self._mark(deliveries, Stage.BEGUN)

    def done(self, deliveries: Iterable[Delivery]) -> None:
        """Note that a handler is done with these."""
        self._mark(deliveries, Stage.DONE)

    def let_go(self, deliveries: Iterable[Delivery]) -> None:
        """Forget these."""
        for one in deliveries:
            place = self._places.pop(one, None)
            if place is not None:
                self._memory[place] = Stage.FREE
                self._free.append(place)

    def _mark(self, deliveries: Iterable[Delivery], stage: Stage) -> None:
        for one in deliveries:
            place = self._places.get(one)
            if place is not None:
                self._memory[place] = stage


def noted_in(memory: mmap.mmap) -> list[Noted]:
    """Return what is noted, by queue, and in the order of the shard."""
    found = (
        Noted(queue, Stage(stage), shard, pointer, me.rstrip(b"\0").decode())
        for stage, _, queue, shard, pointer, me in _ENTRY.iter_unpack(memory[:])
        if stage != Stage.FREE
    )
    return sorted(found, key=attrgetter("queue", "shard", "pointer"))


def settle_for(queue: ShardedQueue, noted: Sequence[Noted], why: str, *, counts: bool) -> dict[str, int]:
    """Settle what a process that has died had in hand of this queue; return how many were acknowledged, failed, given
    back, and handed back.

    A message that its handler was done with is acknowledged. One that a handler had begun with fails, as `swept` and
    with `why` as its error. One that was not begun goes back to the queue, uncounted.

    counts: whether the attempts that had begun count, but for those that the process had taken back as it stopped; if
        not, these messages go back to the front, uncounted.

    Up to seven calls per 1,000. What cannot be settled, as the store is away, is left to the sweep; so is what another
    process has taken meanwhile.
    """
    told = dict.fromkeys(("acknowledged", "failed", "given back", "handed back"), 0)
    for begin in range(0, len(noted), CHUNK):
        some = noted[begin : begin + CHUNK]
        held = _still_held(queue, some)
        done = [one for one, stage in held if stage is Stage.DONE]
        claimed = [one for one, stage in held if stage is Stage.CLAIMED]
        begun = [one for one, stage in held if stage is Stage.BEGUN]
        fails = [one for one in begun if counts and one.held.envelope.interrupted is None]
        cut = [_with_attempt(one) for one in begun if one not in fails]
        if done:
            told["acknowledged"] += _settled(ack_each(done))
        if fails:
            queue.message_log.failed(fails[0].held.envelope, len(fails) - 1, "was cut at", why)
            told["failed"] += _settled(queue.fail_many(fails, [(Reason.SWEPT, why)] * len(fails)))
        if cut:
            told["given back"] += _settled(queue.give_back(cut))
        if claimed:
            told["handed back"] += _settled(queue.hand_back(claimed))
    return told


def _still_held(queue: ShardedQueue, noted: Sequence[Noted]) -> list[tuple[Delivery, Stage]]:
    """Return the messages that those deliveries still hold, and how far the work on each was."""
    slots = [Slot(one.shard, one.pointer) for one in noted]
    received = queue.store.seams.monotonic()
    found = queue.pointers.held_by(slots, [one.delivery for one in noted])
    return [
        (Delivery(None, Stamped(slot, one.delivery, envelope), queue, received), one.stage)
        for one, slot, envelope in zip(noted, slots, found, strict=True)
        if isinstance(envelope, Envelope)
    ]


def _with_attempt(delivery: Delivery) -> Delivery:
    """Return the delivery with its attempt, where that was taken back before the process died; so that it is taken back
    once.
    """
    held, was = delivery.held, delivery.held.envelope
    if was.interrupted != held.delivery:
        return delivery
    again = replace(was, attempts=was.attempts + 1, interrupts=max(0, was.interrupts - 1))
    return replace(delivery, held=held._replace(envelope=again))


def _settled(outcomes: Rows[Outcome] | Rows[bool]) -> int:
    return sum(outcome is True for outcome in outcomes)
