"""One pointer queue as a consumer sees it: receive, acknowledge, fail, peek. Main, sideline and parked alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import compress

from msgspec.structs import replace

from ...deadline import Deadline
from ...errors import Corrupt, InvalidRequest, LatchworkError, OutcomeUnknown, Unavailable, Unreadable
from ...inputs import checked_some, checked_timeout
from ...plain import shown
from ...retry import Poll, may_pass, outlive
from ..rows import as_one
from .active import BUSY, IDLE_LOOK, ActiveShards
from .delivery import Delivery
from .envelope import Codec, Envelope, Message, Reason, reason_of
from .peek import checked_count, peek, peek_all
from .pending import Aside, Claimed, Doubt
from .settlement import Outcome, acknowledge, failed, raise_first, remember, tell, tell_each
from .shards import Claim, Found, Held, PointerQueue, Slot, Turn
from .transfer import CHUNK, move

GRACE = 0.25
"""Seconds that a claimed slot may stay empty before a tombstone refuses its producer (P5)."""
GRACE_POLL = 0.02
MAX_RECEIVE = 1_000
"""Messages that are claimed, stamped and read at once."""


@dataclass(frozen=True)
class Rules:
    """The rules for messages that fail: where they go, after how many deliveries they are parked, how long they wait.

    sideline: where failed ones go.  parked: where messages go that were delivered more than `max_deliveries` times;
    None = they are delivered for ever.
    """

    sideline: PointerQueue
    parked: PointerQueue | None
    max_deliveries: int
    backoff: Poll | None


@dataclass(frozen=True, slots=True)
class Ask:
    """From which shards messages are wanted, None = from all; in each shard's order, where they are named.

    turn: as the holder of the one shard's lock.
    one_shard: no more than the first shard has that has any: one claim, however many are wanted.
    """

    shards: Collection[int] | None = None
    turn: Turn | None = None
    one_shard: bool = False

    @property
    def in_order(self) -> bool:
        """Whether nothing may be handed out that is behind a message on its way."""
        return self.shards is not None

    def after(self, held: Collection[object]) -> Ask:
        """What is asked next, with these in hand."""
        return Ask(self.shards, self.turn._replace(more=True)) if self.turn and held else self


_Stamped = tuple[list[Held], LatchworkError | None]
"""The messages of some slots, and the first error of those that could not be read."""
_FOR_A_WHILE = (Unavailable, OutcomeUnknown)
"""Errors of a stamp after which it is worth while to try the same slot again."""


class QueueView:
    """Consume one pointer queue. Safe to share between threads; share it, for they look for messages together."""

    def __init__(self, pointers: PointerQueue, codec: Codec, rules: Rules, *, idle_look: float = IDLE_LOOK) -> None:
        self.pointers, self.codec, self.rules = pointers, codec, rules
        self.store = pointers.store
        self.active = ActiveShards(pointers, idle_look)
        self.aside = Aside(self.store.seams)

    @property
    def name(self) -> str:
        """The name in the keys of its records."""
        return self.pointers.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, shards={self.pointers.shards})"

    # ---- receiving

    def receive(
        self,
        max_messages: int = 1,
        *,
        timeout: float | None = 0,
        shards: Collection[int] | None = None,
    ) -> list[Delivery]:
        """Up to `max_messages` messages, at least one if there is any within `timeout` seconds (None = for ever).

        shards: from these only, and of each in its order: nothing that is behind a message which is on its way.
        It costs one call to claim and one to stamp and read for up to 1,000 messages, and the same again for each
        1,000 more, as long as they are there at once.
        With a timeout above 0, those who wait in a process share their looks for messages of other processes, which
        they notice within 0.1 s where the process waits for one queue (docs/scaling.md has the limits), or within 9 s
        (the registry's `idle_look`) where the publisher could not ring the queue's bell. A timeout of 0 looks at once.

        A slot whose message is not there yet is set aside and tried again for 250 ms, which a call with nothing else to
        return waits for even beyond its timeout; then the slot is given up, and its producer, if it still lives,
        publishes again. A message that was delivered too often is parked instead, and one that cannot be decoded is put
        into the sideline. A store that is away is asked again until the time is over.

        Raises `QueueOwned` where a stream owns the queue, and the store's errors where there is nothing to return;
        what was claimed before an error is tried again by later calls, or comes back through the sweeper.
        """
        checked_count("max_messages", max_messages)
        checked_some("shards", shards, self.pointers.shards)
        seams = self.store.seams
        with Deadline(seams, checked_timeout(timeout)) as deadline:
            return outlive(
                seams,
                deadline,
                lambda: self.await_messages(max_messages, deadline.left(), shards),
                passing=may_pass,
            )

    def await_messages(
        self,
        max_messages: int,
        timeout: float | None,
        shards: Collection[int] | None,
        turn: Turn | None = None,
        *,
        one_shard: bool = False,
    ) -> list[Delivery]:
        """What `receive` does, but each store call has the store's own time, and the first error of the store ends it.

        For workers, whom a call that hangs keeps from nothing: a claim that is cut short may have been made.
        turn: as who holds the lock of the one shard: nothing, once a later holder has taken the shard over.
        one_shard: no more than the first shard has that has any, so that it costs one claim.
        """
        ask, seams = Ask(shards, turn, one_shard), self.store.seams
        began = seams.monotonic()
        while True:
            opened, now = self._open(), timeout == 0 and not self.awaits(shards)
            deliveries = self._rounds(max_messages, ask, now=now) if opened else []
            left = None if timeout is None else began + timeout - seams.monotonic()
            if deliveries:
                return deliveries
            if opened and self.awaits(shards) and (left is None or left > -GRACE - GRACE_POLL):
                seams.sleep(GRACE_POLL)
            elif left is not None and left <= 0:
                return []
            else:
                self.active.wait(left, least=0.0 if opened else BUSY)  # nobody looks while none may be handed out

    def take_over(self, shard: int, fence: int, most: int = MAX_RECEIVE) -> None:
        """As the new holder of a shard's lock that was broken: hand out first what the last one had in hand.

        It may have died with it, or be handling it still; what it had acknowledged does not come again. What it had
        claimed and nobody had written is given up, and its publisher publishes again. Of more than `most` slots only
        the last ones: the others are left to the sweep. Two calls. Raises the store's errors; then nothing is known.
        """
        pointers = self.pointers.seal(shard, fence)[-most:]
        self.aside.drop(shard)
        me, end = self.store.seams.unique(), self.store.seams.monotonic() + GRACE
        for begin in range(0, len(pointers), CHUNK):
            part = [Slot(shard, pointer) for pointer in pointers[begin : begin + CHUNK]]
            empty = self.pointers.bury(part)
            self.aside.add(Claimed(slot, me, end) for slot, row in zip(part, empty, strict=True) if row is not True)

    def _open(self) -> bool:
        """Whether messages may be handed out now."""
        return True

    def awaits(self, shards: Collection[int] | None = None) -> bool:
        """Whether slots of these shards (None = of all) are claimed here, or perhaps, and not read yet."""
        return self.aside.any(shards)

    def _rounds(self, max_messages: int, ask: Ask, *, now: bool) -> list[Delivery]:
        """Round after round while each is full; where a later one fails there is something to return."""
        deliveries = more = self._round(min(max_messages, MAX_RECEIVE), ask, now=now)
        while len(more) == MAX_RECEIVE and (left := max_messages - len(deliveries)):
            try:
                more = self._round(min(left, MAX_RECEIVE), ask.after(deliveries), now=False)
            except LatchworkError:
                break
            deliveries = deliveries + more
        return deliveries

    def _round(self, max_messages: int, ask: Ask, *, now: bool) -> list[Delivery]:
        held, failure = self._revisit(max_messages, ask)
        if len(held) < max_messages and not (ask.in_order and self.aside.slots(ask.shards)):
            try:
                new, failed = self._fresh(max_messages - len(held), ask.after(held), now=now)
                held, failure = held + new, failure or failed
            except LatchworkError as failed:
                failure = failed
        if failure and not held:
            raise failure
        return self._deliverable(held)

    def _fresh(self, wanted: int, ask: Ask, *, now: bool) -> _Stamped:
        """Claim slots and stamp what is there: one transaction, on a store that has any; but not in order, where a
        claim in doubt is gone on with by its own token, which the end of a transaction does not tell.
        """
        me, end = self.store.seams.unique(), self.store.seams.monotonic() + GRACE

        claimed: list[Claimed] = []

        def claim_and_stamp() -> list[Envelope | Found | LatchworkError]:
            claimed[:] = [Claimed(slot, me, end) for slot in self._claim(wanted, ask, now=now)]
            return self._read(claimed[:wanted])

        try:
            found = claim_and_stamp() if ask.in_order else as_one(self.store.together(), claim_and_stamp)
        except BaseException:
            if claimed:
                self.active.look_soon()  # a shard that this has drained is not, if it was undone
            raise
        if len(claimed) > wanted:  # a claim that was in doubt may have been for more
            self.aside.add(claimed[wanted:])
        return self._classify(claimed[:wanted], found, in_order=ask.in_order)

    def _claim(self, wanted: int, ask: Ask, *, now: bool) -> list[Slot]:
        """Up to so many slots; `now`: look for them rather than believe that there is nothing."""
        doubted, believed = self.aside.doubted(ask.shards), self.active.believed
        shards = self.active.candidates(ask.shards, look=now and not believed)
        slots = self._claim_from(dict.fromkeys((*doubted, *shards)), wanted, ask)
        if not slots and now and believed:
            slots = self._claim_from(self.active.candidates(ask.shards, look=True), wanted, ask)
        return slots

    def _claim_from(self, shards: Iterable[int], wanted: int, ask: Ask) -> list[Slot]:
        slots: list[Slot] = []
        for shard in shards:
            news, doubted = self.active.news, self.aside.doubted((shard,))
            try:
                claim = self._claim_one(shard, wanted - len(slots), ask)
            except Corrupt as damage:
                self.active.damaged(shard, damage, news)
                continue
            except LatchworkError:
                if slots:
                    break  # what was claimed is handed out; the next look meets the same trouble
                raise
            if not doubted:  # whose answer may be an old one
                self.active.claimed(shard, claim, news)
            if claim is not None:
                slots += [Slot(shard, pointer) for pointer in range(claim.after + 1, claim.last + 1)]
            if len(slots) >= wanted or (slots and ask.one_shard):
                break
        return slots

    def _claim_one(self, shard: int, wanted: int, ask: Ask) -> Claim | None:
        """In order, a claim whose outcome is unknown is gone on with before any other: it is behind none of them.

        For as long as no sweep looks for what it may have claimed; else that is left to the sweep at once.
        """
        doubt, now = self.aside.take_doubt(shard), self.store.seams.monotonic()
        token, until = (doubt.token, doubt.until) if doubt else (None, now + GRACE + self.pointers.sweep / 2)
        try:
            return self.pointers.claim(shard, wanted, ask.turn, token=token)
        except OutcomeUnknown as failure:
            if ask.in_order and now < until:
                self.aside.put_doubt(shard, Doubt(failure.details["token"], until))
            raise

    def _stamp(self, claimed: Sequence[Claimed], *, in_order: bool) -> _Stamped:
        """The messages at claimed slots, and what kept one from being read. One call."""
        return self._classify(claimed, self._read(claimed), in_order=in_order)

    def _read(self, claimed: Sequence[Claimed]) -> list[Envelope | Found | LatchworkError]:
        """What the stamps of claimed slots found. One call, or none."""
        slots, ids = [entry.slot for entry in claimed], [entry.me for entry in claimed]
        return self.pointers.stamp(slots, ids) if claimed else []

    def _classify(
        self, claimed: Sequence[Claimed], found: Sequence[Envelope | Found | LatchworkError], *, in_order: bool
    ) -> _Stamped:
        """The messages among what was found, and the first error.

        Slots that are empty are set aside, and those that could not be read as long as no sweep looks for them; in
        order, what is behind such a slot of its shard as well. A slot keeps its delivery id, so that a first stamp
        that lands after a later one is refused (P5).
        """
        held: list[Held] = []
        again: list[Claimed] = []
        failure: LatchworkError | None = None
        behind: set[int] = set()
        for entry, what in zip(claimed, found, strict=True):
            if isinstance(what, LatchworkError):
                failure = failure or what
            if isinstance(what, Envelope) and entry.slot.shard not in behind:
                held.append(Held(entry.slot, entry.me, what))
            elif isinstance(what, Envelope) or self._waits(entry, what):
                again.append(entry)
                if in_order:
                    behind.add(entry.slot.shard)
        if again:
            self.aside.add(again)
        return held, failure

    def _waits(self, entry: Claimed, what: Found | LatchworkError) -> bool:
        """Whether it is worth while to look at the slot again."""
        if isinstance(what, _FOR_A_WHILE):
            return self.store.seams.monotonic() < entry.until + self.pointers.sweep / 2
        return what is Found.ABSENT

    # ---- slots that were empty

    def _revisit(self, max_messages: int, ask: Ask) -> _Stamped:
        """Try slots of these shards that were set aside again; bury those whose grace is over."""
        again = self.aside.take(max_messages, ask.shards)
        if not again:
            return [], None
        now = self.store.seams.monotonic()
        over = [entry for entry in again if entry.until <= now]
        full = set(self._bury([entry.slot for entry in over])) if over else set()
        there = [entry for entry in again if entry.until > now or entry.slot in full]
        return self._stamp(there, in_order=ask.in_order)

    def _bury(self, slots: Sequence[Slot]) -> list[Slot]:
        """The slots whose messages came at the last moment; all others get a tombstone and are counted."""
        buried = self.pointers.bury(slots)
        self.pointers.count_expired([slot for slot, outcome in zip(slots, buried, strict=True) if outcome is True])
        return [slot for slot, outcome in zip(slots, buried, strict=True) if outcome is not True]

    # ---- what was found

    def _deliverable(self, held: Sequence[Held]) -> list[Delivery]:
        received = self.store.seams.monotonic()
        deliveries: list[Delivery] = []
        for h in held:
            if self.rules.parked is not None and h.envelope.attempts > self.rules.max_deliveries:
                self._park(h, Reason.EXHAUSTED)
                continue
            try:
                payload = self.codec.decode(h.envelope.data)
            except Unreadable as failure:
                self._unreadable(h, str(failure))
                continue
            deliveries.append(Delivery(payload, h, self, received))
        return deliveries

    def _unreadable(self, held: Held, error: str) -> None:
        """Into the sideline once; the second time it is parked, as the shovel would bring it back for ever."""
        if self.rules.parked is not None and held.envelope.reason == Reason.UNREADABLE.value:
            self._park(held, Reason.UNREADABLE)
        else:
            envelope = failed(self.pointers, held, self.rules.backoff, Reason.UNREADABLE.value, error)
            tell(self.pointers, move(self.pointers, [held], self.rules.sideline, [envelope]), Reason.UNREADABLE.value)
            if self.rules.sideline is self.pointers:
                self.active.put_back()

    def _park(self, held: Held, reason: Reason) -> None:
        assert self.rules.parked is not None  # noqa: S101 - both callers have asked
        envelope = replace(held.envelope, reason=reason.value, not_before=0)
        tell(self.pointers, move(self.pointers, [held], self.rules.parked, [envelope]), reason.value)

    # ---- settling

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge them all, in one call; messages of its sideline, of the parked or of another queue take one each.

        Raises as `Delivery.ack`, after all others were acknowledged.
        """
        acknowledge(deliveries)

    def fail(self, delivery: Delivery, reason: str, error: str | None = None) -> None:
        """What `Delivery.nack` does."""
        raise_first([delivery], self.fail_many([delivery], [(reason, error)]))

    def fail_later(self, delivery: Delivery, reason: str, error: str | None, delay: timedelta | float) -> None:
        """What `Delivery.nack` does with a delay."""
        asked = f"{shown(delivery)} was {reason} ({error}) with delay={shown(delay)}"
        raise InvalidRequest(f"{asked}: only a message of a queue itself can come again later; leave the delay out")

    def fail_many(self, deliveries: Sequence[Delivery], verdicts: Sequence[tuple[str, str | None]]) -> list[Outcome]:
        """Put messages of this queue into the sideline, each with its reason and error: one `move` per 1,000 of them.

        For each: True = done; False = it is in the sideline, but was somebody else's or gone by now, so that it may
        come twice, or this delivery was settled before and nothing changes; an error = it stays for the sweeper, or may
        come twice. Raises `InvalidRequest` for a reason outside the closed set, or an error that is no text, before
        anything is moved, and no error of the store.
        """
        envelopes = [
            failed(self.pointers, delivery.held, self.rules.backoff, reason_of(reason), error)
            for delivery, (reason, error) in zip(deliveries, verdicts, strict=True)
        ]
        outcomes: list[Outcome] = []
        for begin in range(0, len(deliveries), CHUNK):
            part = slice(begin, begin + CHUNK)
            outcomes += self._moved(deliveries[part], self.rules.sideline, envelopes[part])
        tell_each(self.pointers, outcomes, [envelope.reason or "" for envelope in envelopes])
        return outcomes

    def _moved(
        self, deliveries: Sequence[Delivery], target: PointerQueue, envelopes: Sequence[Envelope]
    ) -> list[Outcome]:
        """One move of those that are not settled, as they may be by now, while others were moved."""
        open_ = [not delivery.settled for delivery in deliveries]
        held = [delivery.held for delivery in compress(deliveries, open_)]
        rows: list[Outcome]
        try:
            rows = move(self.pointers, held, target, list(compress(envelopes, open_))) if held else []
        except LatchworkError as failure:
            rows = [failure] * len(held)
        left = iter(rows)
        outcomes = [next(left) if one else False for one in open_]
        remember(deliveries, outcomes)
        return outcomes

    def hand_back(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """Let others have messages that nobody has begun to handle: a `move` to the tail, each attempt uncounted.

        For each: True = done; False = it is there, but was somebody else's or gone by now, so that it may come twice;
        an error = it is still in hand, or may come twice. Raises no error of the store.
        """
        envelopes = [not_begun(delivery.held.envelope) for delivery in deliveries]
        outcomes: list[Outcome] = []
        for begin in range(0, len(deliveries), CHUNK):
            part = slice(begin, begin + CHUNK)
            outcomes += self._moved(deliveries[part], self.pointers, envelopes[part])
        tell(self.pointers, outcomes, "handed_back")
        if any(there := [not isinstance(outcome, LatchworkError) for outcome in outcomes]):
            self.active.loaded({self.pointers.home(delivery.shard) for delivery in compress(deliveries, there)})
        return outcomes

    # ---- looking

    def peek(self, limit: int = 10) -> list[Message]:
        """Up to `limit` messages that nobody has received yet, the oldest of each shard first; nothing changes.

        Two calls, and one for each further 1,000 slots where some that were read hold no message.
        """
        checked_count("limit", limit)
        return peek(self.pointers, self.codec, limit)

    def peek_all(self) -> list[Message]:
        """Every message that nobody has received yet, by shard; nothing changes. A batch read per 1,000 slots."""
        return peek_all(self.pointers, self.codec)


def not_begun(envelope: Envelope) -> Envelope:
    """The message without its latest attempt, which nobody has begun."""
    return replace(envelope, attempts=max(0, envelope.attempts - 1))
