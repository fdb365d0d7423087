"""One subqueue as a consumer sees it: receive, acknowledge, fail, peek. Main, sideline and parked alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from ...deadline import Deadline
from ...errors import Corrupt, LatchworkError, OutcomeUnknown, Unavailable, Unreadable
from ...inputs import checked_count, checked_some, checked_timeout
from ...retry import Poll, may_pass, outlive
from ...store.rows import Rows, attempted, chunked
from ...unpicklable import Unpicklable
from ..rows import as_one
from .active import BUSY, IDLE_LOOK, ActiveShards
from .at_once import take_at_once, takes_at_once
from .delivery import Delivery, Source, ack_all, failed, mark_settled, raise_first, record_each, record_outcomes
from .envelope import Codec, Envelope, Message, Reason, not_begun, reason_of
from .hooks import Target
from .message_log import MessageLog
from .peek import peek, peek_all
from .pending import ClaimedSlot, Doubt, PendingSlots
from .shards import CHUNK, Shards
from .slots import ShardHolder, Slot, Stamped, StampMiss, delivery_of
from .transfer import into, move

GRACE = 0.25
"""Seconds that a claimed slot may stay empty before a tombstone refuses its producer (P5)."""
LATE = 5.0
"""Seconds after its grace for which such a slot waits for a worker that is free."""
GRACE_POLL = 0.02
"""Seconds between two looks at such a slot; a consumer waits for it, so it is short. Streams look less often."""
MAX_INTERRUPTS = 50
"""How often the work on a message may be interrupted, as by deploys, before it is parked."""
MAX_RECEIVE = 1_000
"""Messages that are claimed, stamped and read at once."""


@dataclass(frozen=True)
class FailurePolicy:
    """The rules for messages that fail: where they go, after how many deliveries they are parked, how long they wait.

    sideline: for failed messages.
    parked: for messages that were delivered `max_deliveries` times; None = they are delivered without limit.
    backoff: how long a failed message waits in the sideline; None = until somebody brings it back.
    """

    sideline: Shards
    parked: Shards | None
    max_deliveries: int
    backoff: Poll | None

    def ends(self, envelope: Envelope) -> Reason | None:
        """Return why the message is not to be handed out any more, this attempt included; None if it is."""
        if envelope.attempts > self.max_deliveries:
            return Reason.EXHAUSTED
        return Reason.INTERRUPTED if envelope.interrupts > MAX_INTERRUPTS else None


NotGiven = Callable[[Reason, LatchworkError | None], object]
"""Told of a message that is failed or parked instead of being handed out: why, and the error if it could not be moved,
and so is still in its slot.
"""


class ClaimNotes(Protocol):
    """Where a consumer notes the claims that it makes, and the slots that it waits for: another process can go on with
    them, should this one be killed.
    """

    def asks(self, shard: int, n: int, me: str, token: bytes) -> object: ...
    def in_vain(self, note: object) -> None: ...
    def awaits(self, slots: Iterable[ClaimedSlot]) -> None: ...
    def awaits_no_more(self, slots: Iterable[ClaimedSlot]) -> None: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """The shards from which messages are wanted, None = all; if named, each shard's messages come in order: nothing may
    be handed out that is behind a message on its way.

    turn: the fence of the holder of the one shard's lock.
    one_shard: no more than the first shard that has messages: one claim, however many are wanted.
    notes: where claims are noted, if they are.
    not_given: told of each message that is not handed out, if anybody is.
    """

    shards: Collection[int] | None = None
    turn: ShardHolder | None = None
    one_shard: bool = False
    notes: ClaimNotes | None = None
    not_given: NotGiven | None = None

    @property
    def is_plain(self) -> bool:
        """Whether any messages will do, in no order, and nobody else goes on with the claim."""
        return self.shards is None and self.notes is None

    def with_more(self) -> Ask:
        """Return what to ask for next, with messages in hand."""
        return Ask(self.shards, self.turn._replace(more=True), not_given=self.not_given) if self.turn else self


_Received = tuple[list[Stamped], LatchworkError | None]
"""The messages of some slots, and the first error of a slot that could not be read."""
_ANY = Slot(0, 0)
_FOR_A_WHILE = (Unavailable, OutcomeUnknown)
"""Errors of a stamp after which it is worth trying the slot again."""


class Subqueue(Unpicklable, Source):
    """One subqueue, to be consumed. Safe to share between threads; share it, for they look for messages together."""

    _INSTEAD = "pickle the QueueRegistry and the queue's name, and call `get` there"

    def __init__(
        self, pointers: Shards, codec: Codec, failure_policy: FailurePolicy, *, idle_look: float = IDLE_LOOK
    ) -> None:
        self.pointers, self.codec, self.store, self.failure_policy = pointers, codec, pointers.store, failure_policy
        self.active = ActiveShards(pointers, idle_look)
        self.pending = PendingSlots(self.store.seams)
        self.message_log = MessageLog(self.store.seams, pointers.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, shards={self.pointers.shards})"

    # ---- receiving

    def receive(
        self, max_messages: int = 1, *, timeout: float | None = 0, shards: Collection[int] | None = None
    ) -> list[Delivery]:
        """Return up to `max_messages` messages, at least one if there is any within `timeout` seconds (None = no
        limit).

        shards: from these only, and of each in its order: no message that is behind one which is being published.

        It takes one call to claim and one to stamp and read up to 1,000 messages, one more where messages of batches
        are among them, and as many again for each 1,000 more. With a timeout above 0, the waiting threads of a process
        share their looks. They notice messages of other processes within 0.1 s if the process waits for one queue
        (docs/scaling.md has the limits), or within 12 s (the registry's `idle_look`, and longer for many shards) if the
        publisher could not ring the queue's bell.

        A slot whose message is not written yet is tried again for 250 ms, even beyond the timeout if there is nothing
        else to return. Then the slot is given up, and its producer, if it is still alive, publishes again. A message
        that was delivered too often is parked instead, and one that cannot be decoded fails. An
        unavailable store is asked again until the timeout.

        Raises `QueueOwned` if a stream owns the queue, and the store's errors if there is nothing to return. Slots
        claimed before an error are tried again by later calls, or their messages come back through the sweeper. So do
        those of a claim that may have been made (`OutcomeUnknown`), unless this call named shards: then a later call
        goes on with it.
        """
        checked_count("max_messages", max_messages)
        checked_some("shards", shards, self.pointers.shards)
        limit = checked_timeout(timeout)
        self.store.seams.may_wait("ShardedQueue.receive", limit)
        with Deadline(self.store.seams, limit) as deadline:
            call = partial(self.await_messages, max_messages, deadline.end, shards)
            return outlive(self.store.seams, deadline, call, passing=may_pass)

    def await_messages(
        self,
        max_messages: int,
        end: float | None,
        shards: Collection[int] | None,
        turn: ShardHolder | None = None,
        *,
        one_shard: bool = False,
        ends: Callable[[], bool] = lambda: False,
        notes: ClaimNotes | None = None,
        not_given: NotGiven | None = None,
    ) -> list[Delivery]:
        """Receive as `receive` does, but each store call has the store's own time, and its first error is raised.

        end: when to stop waiting (monotonic), None = no limit.
        turn: the fence of the holder of the one shard's lock; nothing is received once a later holder has taken it
            over.
        one_shard: no more than the first shard that has messages, so that it takes one claim. A claim cut short may
            have been made.
        ends: whether no more messages are wanted: then only claimed slots are still waited for.
        notes: where the claims are noted, until the caller has noted what this returns.
        not_given: told of each message that cannot be decoded, or that was delivered too often.
        """
        ask, seams = Ask(shards, turn, one_shard, notes, not_given), self.store.seams
        at_once = end is not None and end <= seams.monotonic()
        while not ends() or self.awaits(shards):
            # 1. Receive, unless the queue is paused; as long as each round is full, more.
            opened, now = self._open(), at_once and not self.awaits(shards)
            deliveries = self._round(min(max_messages, MAX_RECEIVE), ask, now=now) if opened else []
            if len(deliveries) == MAX_RECEIVE < max_messages:
                return self._further_rounds(deliveries, max_messages, ask.with_more())
            if deliveries:
                return deliveries
            # 2. Wait: for a claimed slot to be written, even beyond the end, or until it is worth asking again.
            left = None if end is None else end - seams.monotonic()
            if opened and self.awaits(shards) and (left is None or left > -GRACE - GRACE_POLL):
                seams.sleep(GRACE_POLL)
            elif left is not None and left <= 0:
                return []
            else:
                self.active.wait(left, least=0.0 if opened else BUSY)  # no thread looks while nothing may be handed out
        return []

    def take_over(self, shard: int, fence: int, most: int = MAX_RECEIVE) -> None:
        """Hand out first what the last holder of a shard had in hand, as the new holder of its lock that was broken.

        The last holder may have died, or may still be handling it; messages that it had acknowledged do not come again.
        A slot that was never written is given up, and its publisher publishes again. Of more than `most` slots only the
        last are taken: the sweep has the others. Two calls. Raises the store's errors; then nothing is known.
        """
        pointers = self.pointers.seal(shard, fence)[-most:]
        self.pending.drop(shard)
        me, end = delivery_of(self.store.seams), self.store.seams.monotonic() + GRACE
        for some in chunked(pointers, CHUNK):
            part = [Slot(shard, pointer) for pointer in some]
            empty = self.pointers.write_tombstones(part)
            self.pending.add(ClaimedSlot(at, me, end) for at, row in zip(part, empty, strict=True) if row is not True)

    def _open(self) -> bool:
        """Whether messages may be handed out now."""
        return True

    def awaits(self, shards: Collection[int] | None = None) -> bool:
        """Whether slots of these shards (None = of all) are claimed here, or perhaps, and not read yet."""
        return self.pending.any(shards)

    def _further_rounds(self, deliveries: list[Delivery], max_messages: int, ask: Ask) -> list[Delivery]:
        """Receive while each round is full. If one fails, return the messages of the rounds before."""
        more = deliveries
        while len(more) == MAX_RECEIVE and (left := max_messages - len(deliveries)):
            try:
                more = self._round(min(left, MAX_RECEIVE), ask, now=False)
            except LatchworkError:
                break
            deliveries = deliveries + more
        return deliveries

    def _round(self, most: int, ask: Ask, *, now: bool) -> list[Delivery]:
        """Return up to `most` messages: of slots that are tried again, then of slots that are claimed.

        now: look at the shards rather than rely on what is known of them.
        """
        held: list[Stamped] = []
        failure: Exception | None = None
        # 1. Try the slots again that were empty, or could not be read.
        if self.pending.entries:
            held, failure = self._revisit(most, ask)
        # 2. Claim as many more as are wanted, and stamp what is there; in order, none behind a slot that is still to be
        #    tried again. A store that has transactions makes one of it, but not in order: a claim in doubt is then
        #    repeated by its own token, which the end of a transaction does not return.
        wanted, claimed = most - len(held), list[ClaimedSlot]()
        if wanted > 0 and (ask.shards is None or not self.pending.slots(ask.shards)):
            at_once = ask.is_plain and takes_at_once(self.pointers)
            together = self.store.together() if ask.shards is None and not at_once else nullcontext()
            claim = partial(self._claim, wanted, ask.with_more() if held else ask, claimed, now=now)
            try:
                if type(together) is nullcontext:
                    found = claim()
                else:
                    found = as_one(together, claim, partial(self._undone, claimed))
                if len(claimed) > wanted:  # a claim that was in doubt may have been for more
                    self.pending.add(claimed[wanted:])
                new, failed = self._classify(claimed[:wanted], found, ask)
                held, failure = held + new, failure or failed
            except Exception as failed:  # noqa: BLE001 - a defect, too, must not keep what is in hand until the sweep
                self.pending.add(claimed if type(together) is nullcontext else ())  # a transaction was undone
                failure = failed
        if failure and not held:
            raise failure
        held = self._without_cancelled(held)
        # 3. Hand them out, except messages that were delivered too often or cannot be decoded.
        received, policy = self.store.seams.monotonic(), self.failure_policy
        deliveries: list[Delivery] = []
        for one in held:
            if one.envelope.cancel is not None:  # asked of the consumer that had it before, and has given it back
                self.drop_cancelled([Delivery(None, one, self, received)])
                continue
            ends = policy.ends(one.envelope)
            if ends is not None and policy.parked is not None:
                self._park(Delivery(None, one, self, received), ends, ask.not_given)
                continue
            try:
                payload = self.codec.decode(one.envelope.data)
            except Unreadable as failed:
                self._unreadable(Delivery(None, one, self, received), str(failed), ask.not_given)
                continue
            deliveries.append(Delivery(payload, one, self, received))
        return deliveries

    def _without_cancelled(self, held: list[Stamped]) -> list[Stamped]:
        """Drop messages that nobody waits for any more; return the others. One call where any is counted.

        Where that fails, none is handed out now.
        """
        received = self.store.seams.monotonic()
        try:
            gone = self.pointers.counting.cancelled([one.envelope for one in held])
        except BaseException:  # whatever it is, they must not wait for the sweep
            self.pending.add(ClaimedSlot(one.slot, one.delivery, received + GRACE) for one in held)
            raise
        if not gone:
            return held
        self.drop_cancelled([Delivery(None, held[n], self, received) for n in gone])
        return [one for n, one in enumerate(held) if n not in gone]

    # ---- claimed now

    def _claim(
        self, wanted: int, ask: Ask, claimed: list[ClaimedSlot], *, now: bool
    ) -> list[Envelope | StampMiss | LatchworkError]:
        """Claim up to `wanted` slots, which become the entries of `claimed`, and stamp them; return what is there. Two
        calls.
        """
        active, doubts, seams = self.active, self.pending.doubts, self.store.seams
        me, end = delivery_of(seams), seams.monotonic() + GRACE
        slots: list[Slot] = []
        # 0. What was given back comes before all that was never handed out.
        # 1. Shards where a claim is in doubt come first, then shards that are believed to have messages. If these have
        #    none, and messages are wanted now, look at all.
        for look in (False, True) if now and active.believed else (now,):
            doubted = self.pending.doubted(ask.shards) if doubts else []
            shards = active.candidates(ask.shards, look=look)
            back = self._take_back(active.take_returned(wanted, ask.shards), me, claimed, ask.notes)
            if found := back or self._taken(shards, wanted, ask, ClaimedSlot(_ANY, me, end), claimed):
                return found
            for shard in dict.fromkeys(doubted + shards):
                # 2. Claim; a claim in doubt is repeated, by its token, before any other of its shard.
                news, doubt, began = active.news, doubts.pop(shard, None), seams.monotonic()
                token, n, note = doubt.token if doubt else None, wanted - len(slots), None
                if ask.notes is not None and token is None:
                    token = self.pointers.new_token(shard)
                    note = ask.notes.asks(shard, n, me, token)
                try:
                    claim = self.pointers.claim(shard, n, ask.turn, token=token, is_new=note is not None)
                except Corrupt as damage:
                    active.damaged(shard, damage, news)
                    continue
                except LatchworkError as failure:
                    self._keep_in_doubt(ask, shard, failure, doubt, began)
                    if slots:
                        break  # hand out what was claimed; the next read meets this error again
                    raise
                if doubt is None and (claim is None or claim.last >= claim.loaded):  # else the answer may be an old one
                    active.drained(shard, claim, news)
                if claim is None and ask.notes is not None:
                    ask.notes.in_vain(note)
                if claim is not None:
                    slots += [Slot(shard, pointer) for pointer in range(claim.after + 1, claim.last + 1)]
                if len(slots) >= wanted or (slots and ask.one_shard):
                    break
            if slots:
                break
        # 3. Stamp.
        claimed[:] = [ClaimedSlot(slot, me, end) for slot in slots]
        return self.pointers.stamp(slots[:wanted], me, first=True) if slots else []

    def _taken(
        self, shards: list[int], wanted: int, ask: Ask, entry: ClaimedSlot, claimed: list[ClaimedSlot]
    ) -> list[Envelope | StampMiss | LatchworkError]:
        """Claim and stamp, each shard in one step, and take it from the shards if that was done; return what is there.

        entry: what each slot's entry of `claimed` is like.
        """
        found: list[Envelope | StampMiss | LatchworkError] = []
        for shard in tuple(shards) if ask.is_plain else ():
            news = self.active.news
            try:
                taken = take_at_once(self.pointers, shard, wanted - len(found), entry.me)
            except LatchworkError:
                if found:
                    break  # hand out what was taken; the next read meets this error again
                raise
            if taken is None:
                continue
            shards.remove(shard)
            claim, there = taken
            if claim is None or claim.last >= claim.loaded:
                self.active.drained(shard, claim, news)
            claimed += [replace(entry, slot=slot) for slot in there]
            found += there.values()
            if len(found) >= wanted or (found and ask.one_shard):
                break
        return found

    def _take_back(
        self, slots: Mapping[Slot, str], me: str, claimed: list[ClaimedSlot], notes: ClaimNotes | None
    ) -> list[Envelope | StampMiss | LatchworkError]:
        """Stamp messages that were given back, which become the entries of `claimed`; return the ones that are ours."""
        if not slots:
            return []
        entries = [ClaimedSlot(slot, me, 0.0) for slot in slots]
        if notes is not None:
            notes.awaits(entries)
        rows = zip(slots, self.pointers.take_back(slots, me), strict=True)
        ours = [(slot, what) for slot, what in rows if isinstance(what, Envelope)]
        claimed[:] = [ClaimedSlot(slot, me, 0.0) for slot, _ in ours]
        if notes is not None:
            notes.awaits_no_more(entry for entry in entries if entry not in claimed)
        return [what for _, what in ours]

    def _undone(self, claimed: Sequence[ClaimedSlot]) -> None:
        """Handle that the transaction of a claim was undone: a shard that the claim has drained is not."""
        if claimed:
            self.active.look_soon()

    def _keep_in_doubt(self, ask: Ask, shard: int, failure: LatchworkError, before: Doubt | None, began: float) -> None:
        """Keep a claim in order whose outcome is unknown, to be repeated until a sweep looks at its slots."""
        until = before.until if before else began + GRACE + self.pointers.sweep / 2
        if ask.shards is not None and isinstance(failure, OutcomeUnknown) and began < until:
            self.pending.put_doubt(shard, Doubt(failure.details["token"], until))

    def _classify(
        self, claimed: Sequence[ClaimedSlot], found: Sequence[Envelope | StampMiss | LatchworkError], ask: Ask
    ) -> _Received:
        """Return the messages among what was found, and the first error.

        Empty slots are kept for later, and so are slots that could not be read, as long as no sweep looks at them; in
        order, also what is behind such a slot of its shard. A slot keeps its delivery id, so that a first stamp that
        arrives after a later one does not take the message away from its own consumer (P5).
        """
        held: list[Stamped] = []
        again: list[ClaimedSlot] = []
        failure: LatchworkError | None = None
        behind: set[int] = set()
        for entry, what in zip(claimed, found, strict=True):
            if isinstance(what, Envelope) and entry.slot.shard not in behind:
                held.append(Stamped(entry.slot, entry.me, what))
                continue
            if isinstance(what, LatchworkError):
                failure = failure or what
            if isinstance(what, Envelope) or self._waits(entry, what):
                again.append(entry)
                if ask.shards is not None:
                    behind.add(entry.slot.shard)
        if again:
            self.pending.add(again)
            if ask.notes is not None:
                ask.notes.awaits(again)
        return held, failure

    def _waits(self, entry: ClaimedSlot, what: StampMiss | LatchworkError) -> bool:
        """Whether it is worth looking at the slot again."""
        if isinstance(what, _FOR_A_WHILE):
            return self.store.seams.monotonic() < entry.until + self.pointers.sweep / 2
        return what is StampMiss.ABSENT

    # ---- slots that were empty

    def _revisit(self, max_messages: int, ask: Ask) -> _Received:
        """Try kept slots of these shards again; give up those that are still empty after their grace."""
        again = self.pending.take(max_messages, ask.shards)
        try:
            found = self._tried_again(again, ask)
        except BaseException:
            self.pending.add(again)
            raise
        if ask.notes is not None:
            kept = {entry.slot for entry in self.pending.entries} | {one.slot for one in found[0]}
            ask.notes.awaits_no_more(entry for entry in again if entry.slot not in kept)
        return found

    def _tried_again(self, again: Sequence[ClaimedSlot], ask: Ask) -> _Received:
        now = self.store.seams.monotonic()
        over = [entry.slot for entry in again if entry.until <= now]
        outcomes = dict(zip(over, self.pointers.give_up(over), strict=True)) if over else {}
        left = [entry for entry in again if outcomes.get(entry.slot) is not True]
        if not left:
            return [], None
        found = self.pointers.stamp([entry.slot for entry in left], [entry.me for entry in left])
        return self._classify(left, found, ask)

    def give_up_late(self, notes: ClaimNotes | None = None) -> None:
        """Give up slots that nobody has tried again for 5 s after their grace, as every worker of this process is busy:
        until then nobody is told that their messages expired. Not where order is kept. Two calls, none for none.
        """
        now = self.store.seams.monotonic()
        late = self.pending.take_late(now - LATE)
        if not late:
            return
        left = late
        try:
            outcomes = self.pointers.give_up([entry.slot for entry in late])
            left = [replace(entry, until=now) for entry, gone in zip(late, outcomes, strict=True) if gone is not True]
        finally:
            self.pending.add(left)
        if notes is not None:
            there = {entry.slot for entry in left}
            notes.awaits_no_more(entry for entry in late if entry.slot not in there)

    # ---- what was found

    def _unreadable(self, delivery: Delivery, error: str, told: NotGiven | None) -> None:
        """Fail the message once; park it the second time."""
        held, policy = delivery.held, self.failure_policy
        self.message_log.failed(held.envelope, 0, "was not given", error)
        if policy.parked is not None and held.envelope.reason == Reason.UNREADABLE.value:
            self._park(delivery, Reason.UNREADABLE, told)
        else:
            envelope = failed(self.pointers, held, policy.backoff, Reason.UNREADABLE.value, error)
            self._not_given(delivery, Reason.UNREADABLE, self._fail([delivery], [envelope]), told)
            if policy.sideline is self.pointers:
                self.active.put_back()

    def _park(self, delivery: Delivery, reason: Reason, told: NotGiven | None = None) -> None:
        """Park a message that is not handed out any more, without counting this attempt."""
        envelope = replace(not_begun(delivery.held.envelope), reason=reason.value, not_before=0)
        self._not_given(delivery, reason, self._parked([delivery], [envelope]), told)

    def _not_given(self, delivery: Delivery, reason: Reason, rows: Rows[bool], told: NotGiven | None) -> None:
        """Note that a message was moved away instead of being handed out, or that it could not be moved."""
        record_outcomes(self.pointers, rows, reason.value)
        for failure in rows.errors():
            self.message_log.not_moved(delivery.held.envelope, reason.value, failure)
        if told is not None:
            told(reason, next(iter(rows.errors()), None))

    # ---- settling

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge them all, in one call; messages of its sideline, of the parked or of another queue take one each.

        Raises as `Delivery.ack`, after all others were acknowledged.
        """
        ack_all(deliveries)

    def fail(self, delivery: Delivery, reason: str, error: str | None = None) -> None:
        """Fail one message, as `Delivery.nack` does."""
        raise_first([delivery], self.fail_many([delivery], [(reason, error)]))

    def fail_many(self, deliveries: Sequence[Delivery], verdicts: Sequence[tuple[str, str | None]]) -> Rows[bool]:
        """Fail messages of this queue, each with its reason and error, as `Delivery.nack` does: three calls per 1,000.

        For each: True = done; False = it had been handed to another consumer or deleted, and is perhaps stored for
        later too, so that it may be delivered twice, or this delivery was settled before and nothing changes; an error
        = it stays for the sweeper, or may be delivered twice. Raises `InvalidRequest` for a reason outside the closed
        set, or an error that is not text, before anything is moved; raises no error of the store.
        """
        envelopes = [
            failed(self.pointers, delivery.held, self.failure_policy.backoff, reason_of(reason), error)
            for delivery, (reason, error) in zip(deliveries, verdicts, strict=True)
        ]
        open_ = [n for n, delivery in enumerate(deliveries) if not delivery.settled]
        outcomes = Rows([False] * len(deliveries))
        outcomes.merge(open_, self._fail([deliveries[n] for n in open_], [envelopes[n] for n in open_]))
        record_each(self.pointers, outcomes, [envelope.reason or "" for envelope in envelopes])
        return outcomes

    def _fail(self, deliveries: Sequence[Delivery], envelopes: Sequence[Envelope]) -> Rows[bool]:
        """Put messages that have failed where they wait, and delete them here."""
        return self._move(deliveries, into(self.failure_policy.sideline), envelopes)

    def _parked(self, deliveries: Sequence[Delivery], envelopes: Sequence[Envelope]) -> Rows[bool]:
        """Park messages, each with a line in the log."""
        parked = self.failure_policy.parked
        assert parked is not None  # noqa: S101 - else they are delivered without limit
        outcomes = self._move(deliveries, into(parked), envelopes)
        for n in outcomes.sift(range(len(outcomes)))[0]:
            self.message_log.parked(envelopes[n], envelopes[n].reason or "")
        return outcomes

    def _move(self, deliveries: Sequence[Delivery], target: Target, envelopes: Sequence[Envelope]) -> Rows[bool]:
        """Move messages in hand, 1,000 at a time, and mark them as settled; nothing is done to those that are already,
        whose outcome is False, and to those that are another delivery's by now.
        """
        outcomes = Rows([False] * len(deliveries))
        for some in chunked(range(len(deliveries)), CHUNK):
            open_ = self._still_ours([n for n in some if not deliveries[n].settled], deliveries, outcomes)
            held = [deliveries[n].held for n in open_]
            rows = move(held, target, [envelopes[n] for n in open_], self.pointers.remove)
            mark_settled([deliveries[n] for n in open_], rows)
            outcomes.merge(open_, rows)
        return outcomes

    def _still_ours(self, places: list[int], deliveries: Sequence[Delivery], outcomes: Rows[Any]) -> list[int]:
        """Return which of these are still ours; the outcomes of the others are set. One call where a sweep may have
        taken some, as in a pause of this process: what is stored elsewhere then would come beside what the sweep has
        moved (P5.40).
        """
        late = [n for n in places if self._may_be_swept(deliveries[n])]
        if not late:
            return places
        held = [deliveries[n].held for n in late]
        outcomes.merge(late, attempted(len(late), partial(self.pointers.extend, held)))
        gone = {n for n in late if outcomes[n] is False or isinstance(outcomes[n], LatchworkError)}
        return [n for n in places if n not in gone]

    def _may_be_swept(self, delivery: Delivery) -> bool:
        """Whether it was received, or extended last, more than half a sweep duration ago."""
        since = max(delivery.received, delivery.extended)
        return self.store.seams.monotonic() - since > self.pointers.sweep / 2

    def hand_back(self, deliveries: Sequence[Delivery]) -> Rows[bool]:
        """Return messages that were not begun to the queue: a `move` to the tail, without counting the attempts.

        For each: True = done; False = it had been handed to another consumer or deleted, and is perhaps there too, so
        it may be delivered twice; an error = it is still in hand, or may be delivered twice. Raises no error of the
        store.
        """
        envelopes = [not_begun(delivery.held.envelope) for delivery in deliveries]
        outcomes = self._move(deliveries, into(self.pointers), envelopes)
        record_outcomes(self.pointers, outcomes, "handed_back")
        if there := outcomes.sift(deliveries)[0]:
            self.active.loaded({self.pointers.home(delivery.shard) for delivery in there})
        return outcomes

    def drop_cancelled(self, deliveries: Sequence[Delivery]) -> Rows[bool]:
        """Delete messages in hand that were cancelled; their batches wait for them no more. One call, more with
        batches. The outcomes are as of `hand_back`; raises no error of the store.
        """
        outcomes = Rows([False] * len(deliveries))
        open_ = [n for n, delivery in enumerate(deliveries) if not delivery.settled]
        held = [deliveries[n].held for n in open_]
        outcomes.merge(open_, attempted(len(held), lambda: self.pointers.remove(held, cancelled=True)))
        mark_settled(deliveries, outcomes)
        record_outcomes(self.pointers, outcomes, "cancelled")
        with suppress(LatchworkError):  # who counts on it then waits for it: cancel it again
            self.pointers.counting.gone(list(outcomes.sift([one.held.envelope.batch for one in deliveries])[0]))
        return outcomes

    def interrupting(self, deliveries: Sequence[Delivery], *, begun: bool = True) -> None:
        """Take this attempt of messages back, as the consumer that works on them stops: if its process dies before it
        is done with them, or others take them over, it does not count. One call per 1,000. Raises the store's errors.

        begun: whether a handler has begun with them, so that this counts as an interruption.
        """
        for some in chunked(deliveries, CHUNK):
            self.pointers.interrupting([delivery.held for delivery in some], begun=begun)

    def give_back(self, deliveries: Sequence[Delivery]) -> Rows[bool]:
        """Return messages whose work was interrupted to the front of their shards, without counting the attempt; one
        that was interrupted 50 times is parked when it is to be handed out again. Three calls per 1,000.

        For each: True = done; False = it was handed to another consumer, or deleted, or settled before; an error = it
        is still in hand, or perhaps. Raises no error of the store.
        """
        outcomes = Rows([False] * len(deliveries))
        for some in chunked([n for n, delivery in enumerate(deliveries) if not delivery.settled], CHUNK):
            outcomes.merge(some, self._given_back([deliveries[n] for n in some]))
        record_outcomes(self.pointers, outcomes, Reason.INTERRUPTED.value)
        return outcomes

    def _given_back(self, deliveries: Sequence[Delivery]) -> Rows[bool]:
        held = [delivery.held for delivery in deliveries]
        rows = attempted(len(held), lambda: self.pointers.give_back(held))
        mark_settled(deliveries, rows)
        self.active.look_soon()
        return rows

    # ---- looking

    def peek(self, limit: int = 10) -> list[Message]:
        """Return up to `limit` messages not received yet, the oldest of each shard first. Two calls or more.

        One that cannot be read is left out, with a warning that names its record, once a process.
        """
        checked_count("limit", limit)
        return peek(self.pointers, self.codec, limit)

    def peek_all(self) -> list[Message]:
        """Return all messages not received yet, by shard; else as `peek` does. A batch read per 1,000 slots."""
        return peek_all(self.pointers, self.codec)
