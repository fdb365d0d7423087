"""What a consumer has in hand, noted where another process can read it, should this one be killed.

The notes are in memory that both processes share, so they cost no call and survive SIGKILL. They are hints: whoever
settles a message by them does it in the name of the delivery that is noted, and is refused if that has settled it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from msgspec.structs import replace

from ....errors import LatchworkError
from ....logs import Log
from ....store.once import TOKEN
from ....store.rows import Rows
from ..delivery import Delivery, Outcome, ack_each
from ..envelope import Envelope, Reason
from ..pending import ClaimedSlot
from ..results import WITH_ITS_PROCESS
from ..shards import CHUNK
from ..slots import Slot, Stamped
from ..subqueue import GRACE, ClaimNotes
from ..subscription import Subscription

log = Log("latchwork.worker")

_ENTRY = Struct("<BBHIQ128s")
_MOST_NAME = 128
"""Bytes of a delivery's id, and of the token of a claim."""
ENTRIES = 16_384
"""Messages that one process can note. More than that are left to the sweep, should it be killed."""
SIZE = ENTRIES * _ENTRY.size
"""Bytes of the memory."""
LEFT = "left to the sweep"
"""What became of a message of a process that has died, where nothing could be done with it."""


class Stage(IntEnum):
    """What is noted in a place. FREE: nothing. CLAIMED, BEGUN, DONE: a message, and how far the work on it is.

    ASKED: a claim that is under way, of `pointer` messages.
    AWAITED: a slot that was claimed, and whose message is not read yet.
    """

    FREE = 0
    CLAIMED = 1
    BEGUN = 2
    DONE = 3
    ASKED = 4
    AWAITED = 5


class Noted(NamedTuple):
    """What a process had in hand.

    queue: its number, in the order of the names.
    delivery: the one that has it, or is to have it.
    token: of a claim, in hexadecimal digits.
    """

    queue: int
    stage: Stage
    shard: int
    pointer: int
    delivery: str
    token: str = ""


class Hand:
    """What one consumer has in hand. This one notes nothing."""

    def claims(self) -> AbstractContextManager[ClaimNotes | None]:
        """Return a block in which claims are noted, until what they have brought is noted."""
        return nullcontext()

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

    def put(self, queue: int, stage: Stage, slot: Slot, me: str, token: bytes = b"") -> int | None:
        """Note something; return its place. None if there is no room for it."""
        name = me.encode()
        if len(name) + len(token) > _MOST_NAME:
            return None
        try:
            place = self.free.pop()
        except IndexError:
            return None
        _ENTRY.pack_into(self.memory, place, Stage.FREE, len(name), queue, *slot, name + token)
        self.memory[place] = stage  # last: before that, the entry is not whole
        return place

    def remove(self, place: int | None) -> None:
        """Forget what is noted there."""
        if place is not None:
            self.memory[place] = Stage.FREE
            self.free.append(place)


class NotedHand(Hand):
    """What one consumer has in hand, as it is noted. Some 2 microseconds a message, and a claim."""

    def __init__(self, notes: Notes, queue: int) -> None:
        self._notes, self._queue = notes, queue
        self._places: dict[Delivery, int] = {}
        self.awaited: dict[tuple[Slot, str], int | None] = {}

    def claims(self) -> AbstractContextManager[ClaimNotes | None]:
        """Return a block in which claims are noted, until what they have brought is noted."""
        return _Claims(self._notes, self._queue, self.awaited)

    def took(self, deliveries: Iterable[Delivery]) -> None:
        """Note messages that were claimed, as far as there is room."""
        for one in deliveries:
            held = one.held
            place = self._notes.put(self._queue, Stage.CLAIMED, held.slot, held.delivery)
            if place is not None:
                self._places[one] = place
            if self.awaited:
                self._notes.remove(self.awaited.pop((held.slot, held.delivery), None))

    def began(self, deliveries: Iterable[Delivery]) -> None:
        """Note that a handler begins with these."""
        self._mark(deliveries, Stage.BEGUN)

    def done(self, deliveries: Iterable[Delivery]) -> None:
        """Note that a handler is done with these."""
        self._mark(deliveries, Stage.DONE)

    def let_go(self, deliveries: Iterable[Delivery]) -> None:
        """Forget these."""
        for one in deliveries:
            self._notes.remove(self._places.pop(one, None))

    def _mark(self, deliveries: Iterable[Delivery], stage: Stage) -> None:
        for one in deliveries:
            place = self._places.get(one)
            if place is not None:
                self._notes.memory[place] = stage


class _Claims:
    """The claims of one look for messages, noted until the block ends; and the slots that the consumer waits for."""

    def __init__(self, notes: Notes, queue: int, awaited: dict[tuple[Slot, str], int | None]) -> None:
        self._notes, self._queue, self._awaited = notes, queue, awaited
        self._open: list[int | None] = []

    def __enter__(self) -> _Claims:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._notes.remove(self._open.pop())

    def asks(self, shard: int, n: int, me: str, token: bytes) -> object:
        """Note a claim that is about to be sent."""
        place = self._notes.put(self._queue, Stage.ASKED, Slot(shard, n), me, token)
        self._open.append(place)
        return place

    def in_vain(self, note: object) -> None:
        """Forget a claim that brought nothing."""
        if isinstance(note, int):
            self._open.remove(note)
            self._notes.remove(note)

    def awaits(self, slots: Iterable[ClaimedSlot]) -> None:
        """Note slots whose messages were not read yet."""
        for one in slots:
            if (one.slot, one.me) not in self._awaited:
                self._awaited[one.slot, one.me] = self._notes.put(self._queue, Stage.AWAITED, one.slot, one.me)

    def awaits_no_more(self, slots: Iterable[ClaimedSlot]) -> None:
        """Forget slots that have no message."""
        for one in slots:
            self._notes.remove(self._awaited.pop((one.slot, one.me), None))


def noted_in(memory: mmap.mmap) -> list[Noted]:
    """Return what is noted, by queue, and in the order of the shard."""
    found = []
    for stage, size, queue, shard, pointer, text in _ENTRY.iter_unpack(memory[:]):
        if stage != Stage.FREE:
            token = text[size : size + TOKEN].hex() if stage == Stage.ASKED else ""  # whole: it may end with zeros
            found.append(Noted(queue, Stage(stage), shard, pointer, text[:size].decode(), token))
    return sorted(found, key=attrgetter("queue", "shard", "pointer"))


def settle_for(queue: Subscription, noted: Sequence[Noted], why: str, *, counts: bool) -> dict[str, int]:
    """Settle what a process that has died had in hand of this queue; return how many were acknowledged, failed, given
    back, handed back, taken over, and left to the sweep.

    A message that its handler was done with is acknowledged. One that a handler had begun with fails, as `swept` and
    with `why` as its error. One that was not begun goes back to the queue, uncounted.

    counts: whether the attempts that had begun count, but for those that the process had taken back as it stopped; if
        not, these messages go back to the front, uncounted.

    Up to seven calls per 1,000, and one for each claim. What cannot be settled, as the store is away, is left to the
    sweep; so is what another process has taken meanwhile.
    """
    told = dict.fromkeys(("acknowledged", "failed", "given back", "handed back", "taken over", LEFT), 0)
    told["taken over"], told[LEFT] = _take_over(queue, noted)
    messages = [one for one in noted if one.stage in (Stage.CLAIMED, Stage.BEGUN, Stage.DONE)]
    for begin in range(0, len(messages), CHUNK):
        some = messages[begin : begin + CHUNK]
        held, unread = _still_held(queue, some)
        told[LEFT] += unread
        done = [one for one, stage in held if stage is Stage.DONE]
        claimed = [one for one, stage in held if stage is Stage.CLAIMED]
        begun = [one for one, stage in held if stage is Stage.BEGUN]
        fails = [one for one in begun if counts and one.held.envelope.interrupted is None]
        cut = [_with_attempt(one) for one in begun if one not in fails]
        if done:
            if queue.pointers.results:
                done = [replace(one, answer=WITH_ITS_PROCESS) for one in done]
            _count(told, "acknowledged", ack_each(done))
        if fails:
            queue.message_log.failed(fails[0].held.envelope, len(fails) - 1, "was cut at", why)
            _count(told, "failed", queue.fail_many(fails, [(Reason.SWEPT, why)] * len(fails)))
        if cut:
            _count(told, "given back", queue.give_back(cut))
        if claimed:
            _count(told, "handed back", queue.hand_back(claimed))
    return told


def _take_over(queue: Subscription, noted: Sequence[Noted]) -> tuple[int, int]:
    """Wait here for the slots that the process waited for, and for those of its claims; return how many there are, and
    how many more there may be.
    """
    until, unknown = queue.store.seams.monotonic() + GRACE, 0
    known = {Slot(one.shard, one.pointer) for one in noted if one.stage is not Stage.ASKED}
    over = [
        ClaimedSlot(Slot(one.shard, one.pointer), one.delivery, until) for one in noted if one.stage is Stage.AWAITED
    ]
    for one in noted:
        if one.stage is not Stage.ASKED:
            continue
        try:
            claim = queue.pointers.claim(one.shard, one.pointer, token=bytes.fromhex(one.token))
        except LatchworkError as failure:
            log.warning("%r: a claim of shard %d is left to the sweep: %s", queue.name, one.shard, failure)
            unknown += one.pointer
            continue
        slots = [Slot(one.shard, n) for n in range(claim.after + 1, claim.last + 1)] if claim else []
        over += [ClaimedSlot(slot, one.delivery, until) for slot in slots if slot not in known]
    queue.pending.add(over)
    return len(over), unknown


def _still_held(queue: Subscription, noted: Sequence[Noted]) -> tuple[list[tuple[Delivery, Stage]], int]:
    """Return the messages that those deliveries still hold, and how far the work on each was; and of how many that is
    not known.
    """
    slots = [Slot(one.shard, one.pointer) for one in noted]
    received = queue.store.seams.monotonic()
    found = queue.pointers.held_by(slots, [one.delivery for one in noted])
    return [
        (Delivery(None, Stamped(slot, one.delivery, envelope), queue, received), one.stage)
        for one, slot, envelope in zip(noted, slots, found, strict=True)
        if isinstance(envelope, Envelope)
    ], len(found.errors())


def _with_attempt(delivery: Delivery) -> Delivery:
    """Return the delivery with its attempt, where that was taken back before the process died; so that it is taken back
    once.
    """
    held, was = delivery.held, delivery.held.envelope
    if was.interrupted != held.delivery:
        return delivery
    again = replace(was, attempts=was.attempts + 1, interrupts=max(0, was.interrupts - 1))
    return replace(delivery, held=held._replace(envelope=again))


def _count(told: dict[str, int], what: str, outcomes: Rows[Outcome] | Rows[bool]) -> None:
    told[what] += sum(outcome is True for outcome in outcomes)
    told[LEFT] += len(outcomes.errors())
