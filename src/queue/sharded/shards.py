"""The messages of one subqueue: each in the slot of a shard, written, stamped by whom it is delivered to, removed (P5).

A producer reserves pointers (`pointers.py`) and writes data records at them; a consumer claims pointers and stamps the
records it finds there. The main queue, its sideline and its parked messages are one subqueue each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from ...errors import (
    AlreadyExists,
    Corrupt,
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
    Unreadable,
)
from ...store import (
    Add,
    Bin,
    Exists,
    Key,
    MapPut,
    MapRemove,
    Param,
    Put,
    Read,
    Record,
    RecordStore,
    Removal,
    Update,
    exists,
    missing,
)
from ...store.model.expr import SERVER_NOW, Bound, MapSize, MapValue, all_of
from ...store.model.form import Form
from ...store.model.messages import Fresh, ShardAt
from ...store.model.record import Row
from ...store.rows import Rows, attempted, chunked
from ..rows import read_each
from .envelope import (
    BINS,
    CONTENT,
    Envelope,
    bare_update,
    from_all,
    from_bins,
    interrupted,
    kept_for,
    not_begun,
    tombstone,
)
from .hooks import UNCOUNTED, Counting, RowsBeside
from .places import MAIN, TAKEN, Places, cancelled_in, dropping, named, slot_place
from .pointers import EXPIRED, EXPIRED_AT, RETURNED, SubqueuePointers
from .rules import ALONE, GROUPS, QUEUE_STAMP_RULES, RESULT, SEEN, StampRules, Taking
from .slots import Slot, Stamped, StampMiss, WriteResult

_DELIVERY, _ME = Bin("delivery", str), Param("me", str)
Progress = tuple[float | None, str | None]
"""How far the work on a message is: a fraction from 0 to 1, and a note."""
_NO_PROGRESS: Mapping[int, Progress] = MappingProxyType({})
_PROGRESSING = Form(
    *QUEUE_STAMP_RULES.renew, Put("progress", Param("progress")), Read("cancel"), when=QUEUE_STAMP_RULES.mine
)
_GIVEN_BACK = exists("data") & missing("delivery") & Bin("interrupted", str).eq(_ME)
"""As a repeat finds the message, if nobody has taken it yet."""
_GIVING_BACK = Form(
    *QUEUE_STAMP_RULES.uncount, Put("delivery", None), Put("fireTS", None), when=QUEUE_STAMP_RULES.mine | _GIVEN_BACK
)
_TAKING_BACK = Form(
    *QUEUE_STAMP_RULES.stamp, *QUEUE_STAMP_RULES.count, *QUEUE_STAMP_RULES.unmark, *QUEUE_STAMP_RULES.reads,
    when=exists("data") & Bin("interrupted", str).eq(Param("by", str)) & (missing("delivery") | _DELIVERY.eq(SEEN)),
)  # fmt: skip
CHUNK, CHUNK_BYTES = 1_000, 8 * 1024 * 1024
"""Records, and about bytes, written in one batch."""
MAX_RETURNED, MOST_LISTED = 1_000, 200
"""Slots of a shard from which on no others are listed as given back, and how many one row lists at most. The sweep
brings back what is not listed.
"""
_LISTS = missing(RETURNED) | (MapSize(RETURNED) < MAX_RETURNED)
_LISTED = MapValue(RETURNED, Param("slot", str), str).eq(Param("by", str))
_DROP = tuple(Put(bin, None) for bin in CONTENT)
_ALONE = all_of(Bin("delivery", str).eq(Param("me", str)), ALONE)
"""This delivery's, and nobody else's. Only a removal that keeps the id takes the payload from a message that a delivery
holds, so a removal that keeps no id need not check for a payload.
"""
_UNAWAITED = exists("data") & ALONE
_ALONE_AND_WHOLE = QUEUE_STAMP_RULES.mine & ALONE


class KnownEmpty(NamedTuple):
    """The oldest waiting slots of a shard, up to `last`, which were found empty.

    again: when they are looked at once more, in seconds, monotonic, as a slow publisher may have written one.
    """

    last: int
    again: float


class Shards(SubqueuePointers):
    """The records of one subqueue: its messages, and the pointers to them."""

    stamp_rules: StampRules = QUEUE_STAMP_RULES
    places: Places | None = None
    """The traces of the queue's messages (P26); None of a group, whose messages leave none."""
    side = MAIN
    """What these are to their queue, in the traces."""
    results = 0
    """Seconds for which the results of acknowledged messages are kept (P31); 0 = they are not."""

    def __init__(self, store: RecordStore, client_id: str, name: str, shards: int, *, ttl: int, sweep: float) -> None:
        super().__init__(store, client_id, name, shards, ttl=ttl, sweep=sweep)
        self.counting: Counting = UNCOUNTED
        self._data_set = f"{client_id}_data_set"
        self._tombstone_ttl = int(sweep) + 1
        self._at: dict[int, ShardAt] = {}
        self.known_gone: dict[int, KnownEmpty] = {}
        """Of each shard the slots that were found empty though nobody had claimed them, the oldest that wait."""
        self.known_empty: dict[int, KnownEmpty] = {}
        """The same of shards in which it is not known whether such slots held messages for this reader."""

    def expires_in_order(self, shard: int) -> bool:  # noqa: ARG002 - of groups it depends on the shard
        """Whether empty slots that wait in the shard held messages for this reader."""
        return True

    def is_from_before(self, slot: Slot) -> bool:  # noqa: ARG002 - of groups it depends on the slot
        """Whether the slot was reserved before this reader began: others may be done with what it held."""
        return False

    @property
    def cancelled_ttl(self) -> int:
        """Seconds for which what is left of a message says that it was cancelled: as long as it would live."""
        return max(self._tombstone_ttl, self.ttl)

    def home(self, shard: int) -> int:
        """Return the shard to which a message from a shard of another queue comes; of one of these it is that shard."""
        return shard % self.shards

    def swept(self) -> tuple[Shards, Shards | None]:
        """Return the slots that are swept, where these are the main ones of a queue or of a group: its own, and those
        that a group shares with others.
        """
        return self, None

    def key(self, slot: Slot) -> Key:
        """Return the key of a slot's data record."""
        return Key(self._data_set, f"{self._prefix}{slot[0]}_{slot[1]}")

    def at(self, shard: int) -> ShardAt:
        """Return where a shard is stored, for a store that has steps for it."""
        found = self._at.get(shard)
        if found is None:
            lane = f"{self._prefix}{shard}"
            found = self._at[shard] = ShardAt(shard, self.pointers_key(shard), self._data_set, lane)
        return found

    def id_at(self, at: ShardAt, message: Fresh, pointer: int) -> str:
        """Return the id of a message that is published to a slot (P26)."""
        return named(self.name, message.unique, message.enqueued_at // 1000, Slot(at.number, pointer))

    def now_ms(self) -> int:
        """Return the time for stored dates, which no protocol compares."""
        return int(self.store.seams.wall() * 1000)

    # ---- written by producers

    def write(
        self,
        slots: Sequence[Slot],
        envelopes: Sequence[Envelope],
        *,
        fired: bool = False,
        traced: Collection[int] = (),
        fresh: bool = True,
    ) -> Rows[WriteResult]:
        """Create the data records, and ring the bell where that is due. One call, and another where something is there
        already.

        fired: they were in a queue, or a part of it, before, so they carry the time of this move in `fireTS`, and leave
            a trace.
        traced: the messages that leave a trace, though they come from none (P26).
        fresh: they are new in this queue, so that a former cancel of their ids does not count.

        Nothing is written into a slot of which it cannot be read who waits for it.
        """
        if not slots:
            return Rows()
        others = self.readers.waiting(slots)
        if others.errors():
            return others.then(
                lambda places: self.write(
                    [slots[n] for n in places], [envelopes[n] for n in places], fired=fired,
                    traced=[place for place, n in enumerate(places) if n in traced], fresh=fresh,
                )
            )  # fmt: skip
        now = self.now_ms()
        stamp = (Put("fireTS", now),) if fired else ()
        rows = [
            bare_update(self.key(slot), envelope, now, self.ttl)
            if envelope.bare and not fired and not names
            else Update(
                self.key(slot), envelope.ops(now) + stamp + self.readers.tags(names, envelope, moved=fired),
                exists=Exists.CREATE, ttl=self.ttl,
            )
            for slot, envelope, names in zip(slots, envelopes, others.values(()), strict=True)
        ]  # fmt: skip
        noted = self._noted(slots, envelopes, range(len(slots)) if fired else traced, now, fresh=fresh)
        beside = RowsBeside({} if fired else self.counting.rows(envelopes))
        rows_sent = [*rows, *noted.values(), *beside.updates] if noted or beside.updates else rows
        sent: Rows[Any] = self.bell.settle(rows_sent) if self.bell.ring_due else self.store.repeat_many(rows_sent)
        uncounted = beside.taken_from(sent)
        if noted and self.places is not None:
            traces = [sent.pop() for _ in noted][::-1]
            if sent.sent_again and not fresh:  # a message may have come, and been cancelled, after its trace was read
                traces = self.places.asked_again([envelopes[n].msg_id for n in noted])
            if cancelled := [list(noted)[n] for n in cancelled_in(traces)]:
                self._drop_arrivals([(slots[n], envelopes[n].msg_id) for n in cancelled])
        if not uncounted and sent.count(()) == len(sent):  # all are written, as nearly always
            return Rows([WriteResult.DONE] * len(sent))
        written = sent.then(lambda places: [WriteResult.DONE] * len(places))
        written = written.recover(
            AlreadyExists, lambda places: self._whose_are([rows[n].key for n in places], [envelopes[n] for n in places])
        )
        there = {n: why for n, why in uncounted.items() if written[n] is WriteResult.DONE}
        return written.merge(there, there.values())

    def _noted(
        self, slots: Sequence[Slot], envelopes: Sequence[Envelope], traced: Collection[int], now: int, *, fresh: bool
    ) -> dict[int, Update]:
        """Return the rows by which messages leave a trace: those that are not in the slot that their id names."""
        if self.places is None or not traced:
            return {}
        return {
            n: self.places.putting(envelopes[n].msg_id, slot_place(self.side, slots[n]), now, fresh=fresh)
            for n in traced
            if envelopes[n].msg_id
        }

    def _drop_arrivals(self, messages: Sequence[tuple[Slot, str]]) -> None:
        """Drop copies of messages that were cancelled while they moved here. One call, more with batches.

        Where that fails, who cancelled them has to ask again.
        """
        me, now, ttl = self.store.seams.unique(), self.now_ms(), self.cancelled_ttl
        with suppress(LatchworkError):
            rows = self.store.repeat_many([dropping(self.key(slot), of, me, now, ttl) for slot, of in messages])
            self.counting.gone([row[0] for row in rows if isinstance(row, tuple)])

    def _whose_are(self, keys: Sequence[Key], envelopes: Sequence[Envelope]) -> Rows[WriteResult]:
        """Return of slots that are taken whether these messages are in them: an earlier attempt has written them."""
        records = attempted(len(keys), lambda: read_each(self.store, keys, "msgId"))
        unknown = f"{self.name}: whether the message was written could not be read back: "
        return Rows(
            OutcomeUnknown(f"{unknown}{record}")
            if isinstance(record, LatchworkError)
            else WriteResult.DONE
            if record and record.bins.get("msgId") == envelope.msg_id
            else WriteResult.SPENT
            for record, envelope in zip(records, envelopes, strict=True)
        )

    # ---- stamped by consumers

    def stamp(
        self, slots: Sequence[Slot], me: str | Sequence[str], *, count: bool = True, first: bool = False
    ) -> Rows[Envelope | StampMiss]:
        """Put a delivery id on the records and read them, counting an attempt. One call.

        me: the id, or one for each slot.
        first: the slots were claimed for these ids just now. No record has one, so the rows of a batch need not ask for
            it; and a message that was given back meanwhile is not taken by a row that arrives late.

        Only existing records are changed, and never a tombstone. A repeat with the id that is there counts nothing,
        reads equal content, and starts the sweep duration again.
        """
        ids = [me] * len(slots) if isinstance(me, str) else me
        again = Taking.CLAIMED if first else Taking.ANY
        rows = self.stamps(slots, ids, count, Taking.NEW if first and len(slots) > 1 else again)  # one is sent again
        found = self.store.repeat_many(rows, lambda: self.stamps(slots, ids, count, again))
        if any(type(row) is not tuple for row in found):
            return Rows(map(self.stamped, slots, ids, found))
        return Rows(message or StampMiss.TAKEN for message in self.messages(slots, found))

    def stamps(self, slots: Sequence[Slot], ids: Sequence[str], count: bool, taking: Taking) -> list[Update]:
        """Return the updates that stamp these slots, in order."""
        form, now = self.stamp_rules.stamping[count, taking], self.now_ms()
        if len(set(ids)) == 1:
            return form.fill_each(map(self.key, slots), me=ids[0], now=now)
        return [form.fill(self.key(slot), me=one, now=now) for slot, one in zip(slots, ids, strict=True)]

    def messages(self, slots: Sequence[Slot], rows: Sequence[Any]) -> list[Envelope | None]:  # noqa: ARG002 - as of groups
        """Return the messages in the rows that were read of these slots; None for what is none."""
        return from_all([self.stamp_rules.bins(row) for row in rows])

    def stamped(self, slot: Slot, me: str, row: Any) -> Envelope | StampMiss | LatchworkError:
        """Return the result of a stamp, by its row."""
        if not isinstance(row, LatchworkError):
            return self.messages([slot], [row])[0] or StampMiss.TAKEN
        if isinstance(row, NotFound):
            return StampMiss.ABSENT
        if isinstance(row, InvalidRequest):  # also `BinMismatch`, where it is not an entry that a group counts
            # The number of its attempts is damaged: this one is the first that is known of.
            again = self.stamp_rules.recounting.fill(self.key(slot), me=me, now=self.now_ms())
            (row,) = self.store.repeat_many([again])
            return row if isinstance(row, InvalidRequest) else self.stamped(slot, me, row)
        if not isinstance(row, Refused):
            return row
        # An earlier attempt may have stamped it; its time starts again.
        (row,) = self.store.repeat_many([self.stamp_rules.renewing.fill(self.key(slot), me=me, now=self.now_ms())])
        if isinstance(row, LatchworkError):
            return StampMiss.TAKEN if isinstance(row, Refused | NotFound) else row
        return self.stamp_rules.envelope(row) or StampMiss.TAKEN

    def held_by(self, slots: Sequence[Slot], ids: Sequence[str]) -> Rows[Envelope | None]:
        """Return the messages that these deliveries still hold, and start their time again; None for the others, and
        the error of one that cannot be read. One call.
        """
        now = self.now_ms()
        rows = self.store.repeat_many([
            self.stamp_rules_at(slot).renewing.fill(self.key(slot), me=me, now=now)
            for slot, me in zip(slots, ids, strict=True)
        ])  # fmt: skip
        return Rows(
            self.messages([slot], [row])[0]
            if not isinstance(row, LatchworkError)
            else None
            if isinstance(row, Refused | NotFound)
            else row
            for slot, row in zip(slots, rows, strict=True)
        )

    def look(self, slots: Sequence[Slot]) -> Rows[Envelope | None]:
        """Return the messages in these slots, None where there is none, or the error of one that cannot be read.

        Nothing changes. One call; if a message cannot be read, one more for each slot.
        """
        rows = read_each(self.store, [self.key(slot) for slot in slots], *BINS)
        return Rows(from_bins(row.bins) if isinstance(row, Record) else row for row in rows)

    def stamp_rules_at(self, slot: Slot) -> StampRules:  # noqa: ARG002 - of a group it depends on the slot
        """Return the guards and reads for the message in a slot."""
        return self.stamp_rules

    def write_tombstones(self, slots: Sequence[Slot], *, keep: int = 0) -> Rows[bool]:
        """Create tombstones, which refuse a late producer: True where one is now, False where a record was.

        keep: seconds that they must live at least; the sweep duration they live anyway.
        """
        return self.store.repeat_many([self.sealing(slot, keep=keep) for slot in slots]).settled(AlreadyExists)

    def sealing(self, slot: Slot, *, keep: int = 0) -> Update:
        """Return the update that creates a tombstone, as `write_tombstones` does."""
        ttl = max(keep, self._tombstone_ttl)
        return Update(self.key(slot), tombstone(self.now_ms()), exists=Exists.CREATE, ttl=ttl)

    def give_up(self, slots: Sequence[Slot], *, keep: int = 0) -> Rows[bool]:
        """Give up empty slots: write tombstones, as `write_tombstones` does, and count the messages that must have been
        there. Two calls; approximate.
        """
        outcomes = self.write_tombstones(slots, keep=keep)
        given_up = [slot for slot, outcome in zip(slots, outcomes, strict=True) if outcome is True]
        counts = Counter(slot.shard for slot in given_up if not self.is_from_before(slot))
        if not counts:
            return outcomes
        at = Put(EXPIRED_AT, SERVER_NOW)
        self.store.repeat_many([
            Update(self.pointers_key(shard), (Add(EXPIRED, n), at)) for shard, n in counts.items()
        ])  # fmt: skip
        self.store.seams.note("expired", counts.total(), queue=self.name)
        return outcomes

    def extend(self, held: Sequence[Stamped], progress: Mapping[int, Progress] = _NO_PROGRESS) -> Rows[bool | str]:
        """Start the sweep duration of each again: True = done, False = absent or another delivery's; text = done, and
        who has asked that the work on it ends. One call.

        progress: how far the work on some of them is, by their place.
        """
        rows = self.store.repeat_many([
            self.progressing(h, progress[n]) if n in progress and self.places else self.extending(h)
            for n, h in enumerate(held)
        ])  # fmt: skip
        asked = {n: str(list[Any](rows)[n][0]) for n in cancelled_in(rows)}
        outcomes: Rows[bool | str] = Rows(rows.settled())
        return outcomes.merge(asked, list(asked.values()))

    def progressing(self, held: Stamped, progress: Progress) -> Update:
        """Return the update that starts the sweep duration again, and says how far the work is."""
        fraction, note = progress
        told = [held.delivery, fraction, note]
        return _PROGRESSING.fill(self.key(held.slot), me=held.delivery, now=self.now_ms(), progress=told)

    def extending(self, held: Stamped) -> Update:
        return self.stamp_rules.extending.fill(self.key(held.slot), me=held.delivery, now=self.now_ms())

    # ---- as a stream reads them: it takes all, and stamps nothing (docs/protocols P7)

    follows = False
    """Whether the slots are another queue's, whose LOAD these pointers follow."""

    def part_of(self, shard: int) -> tuple[Shards, int]:
        """Return the pointers that a shard belongs to, and its number there: a group has shards of two kinds."""
        return self, shard

    def present(self, slots: Sequence[Slot], bins: Sequence[str], *, adopt: bool) -> dict[Slot, Envelope | None]:  # noqa: ARG002 - of groups
        """Return what is in these slots; None for tombstones and messages that are done; empty ones are left out. One
        call.

        adopt: of groups, messages that do not name the group yet wait for it from now on.
        """
        records = self.store.get_many([self.key(slot) for slot in slots], *bins)
        there = {slot: one.bins for slot, one in zip(slots, records, strict=True) if one is not None}
        return dict(zip(there, from_all(list(there.values())), strict=True))

    # ---- interrupted work

    def interrupting(self, held: Sequence[Stamped], *, begun: bool) -> None:
        """Take this attempt of messages back, as the process that works on them stops; it goes on holding them. One
        call. A row that fails is harmless: then the attempt counts.

        begun: whether this counts as an interruption of the work.
        """
        self.store.repeat_many([self.uncounting(h, begun=begun) for h in held])

    def uncounting(self, held: Stamped, *, begun: bool) -> Update:
        """Return the update that takes the attempt of a message back."""
        return self._uncounting(self.stamp_rules.interrupting, held, begun=begun)

    def _uncounting(self, form: Form, held: Stamped, *, begun: bool = True) -> Update:
        after = interrupted(held.envelope) if begun else not_begun(held.envelope)
        return form.fill(self.key(held.slot), me=held.delivery, attempts=after.attempts, interrupts=after.interrupts)

    def give_back(self, held: Sequence[Stamped]) -> Rows[bool]:
        """Give messages back, in their slots, without counting the attempt, to be handed out before all others: True =
        done, False = absent or another delivery's. Three calls.

        Their slots are noted in the pointers, then the bell is rung. If that fails, the sweep brings them back.
        """
        outcomes = self.store.repeat_many([self._uncounting(_GIVING_BACK, h) for h in held]).settled()
        back = [h for h, outcome in zip(held, outcomes, strict=True) if outcome is True]
        if back:
            with suppress(LatchworkError):
                self.store.repeat_many(self._listing(back))
                self.bell.ring()
        return outcomes

    def _listing(self, back: Sequence[Stamped]) -> list[Update]:
        """Return the updates that list these as given back, a few of each shard: an Aerospike refuses most of hundreds
        of rows that write one record.
        """
        notes: dict[int, list[MapPut]] = {}
        for h in back:
            notes.setdefault(h.slot.shard, []).append(MapPut(RETURNED, str(h.slot.pointer), h.delivery))
        return [
            Update(self.pointers_key(shard), tuple(some), _LISTS)
            for shard, puts in notes.items()
            for some in chunked(puts, MOST_LISTED)
        ]

    def take_back(self, slots: Mapping[Slot, str], me: str) -> Rows[Envelope | StampMiss]:
        """Stamp messages that were given back, and take their slots from the pointers. Two calls.

        slots: each with the delivery that gave it back.
        """
        now = self.now_ms()
        rows = self.store.repeat_many([
            _TAKING_BACK.fill(self.key(slot), me=me, by=by, now=now) for slot, by in slots.items()
        ])  # fmt: skip
        found: Rows[Envelope | StampMiss] = Rows(
            StampMiss.TAKEN if isinstance(row, NotFound) else self.stamped(slot, me, row)
            for slot, row in zip(slots, rows, strict=True)
        )
        passed = [
            slot
            for slot, what in zip(slots, found, strict=True)
            if not isinstance(what, LatchworkError) or isinstance(what, Corrupt | Unreadable)
        ]
        self.strike({slot: slots[slot] for slot in passed})
        return found

    def strike(self, slots: Mapping[Slot, str]) -> None:
        """Remove slots from the ones that were given back, if they are there by that delivery. One call, or none. A
        failure is harmless: who looks next does it.
        """
        if slots:
            with suppress(LatchworkError):
                self.store.repeat_many([
                    Update(
                        self.pointers_key(slot.shard), (MapRemove(RETURNED, (str(slot.pointer),)),),
                        Bound(_LISTED, {"slot": str(slot.pointer), "by": by}),
                    )
                    for slot, by in slots.items()
                ])  # fmt: skip

    # ---- the one place that deletes

    def remove(self, held: Sequence[Stamped], *, cancelled: bool = False) -> Rows[bool]:
        """Delete messages that are still this delivery's: True = done, False = absent or another delivery's. One call.

        A message with `keep_id` loses its payload, and its id stays for that many seconds (P6): a late retry of its
        publisher finds it done. Tombstones are never deleted.

        cancelled: they are not done. What is left of each says so, for as long as it would live (P26).
        """
        # 1. A message that no other reader waits for goes, if its delivery still holds it.
        cancelled = cancelled and self.places is not None
        own = [n for n, h in enumerate(held) if h.envelope.groups is None]
        gone = [] if cancelled else [n for n in own if not self._kept_for(held[n])]
        removed = self._removed([held[n] for n in gone])
        if len(gone) == len(held) and all(row is True for row in removed):
            return removed.settled()
        # 2. Of one with `keep_id`, and of one that was cancelled, the id stays; of one that has a result, that too.
        outcomes = Rows[Any]([None] * len(held)).merge(gone, removed)
        marked = [n for n in own if cancelled or self._kept_for(held[n])]
        if marked:
            outcomes.merge(marked, self._stripped([held[n] for n in marked], cancelled=cancelled))
        # 3. Other readers wait for the rest, or for a message since it was stamped; but for none that was absent.
        among = [n for n, outcome in enumerate(outcomes) if outcome is None or isinstance(outcome, Refused)]
        return outcomes.merge(among, self.readers.settle([held[n] for n in among])).settled()

    def _removed(self, held: Sequence[Stamped]) -> Rows[Any]:
        """Delete messages that no group waits for: True = done, False = absent, `Refused` = another delivery's, or
        groups wait.
        """
        # 1. In one step, where the store has it, and nothing is amiss.
        steps, doubt = self.store.steps, False
        if steps is not None and held and type(self) is Shards:
            try:
                if steps.remove([(self.at(h.slot.shard), h.slot.pointer, h.delivery) for h in held]):
                    return Rows([True] * len(held))
            except OutcomeUnknown:
                doubt = True
            except (Unavailable, Corrupt):
                """What is amiss, each record says itself."""
        # 2. Record by record. What is absent now may have been deleted by the step.
        guards = {me: Bound(_ALONE, {"me": me}) for me in {h.delivery for h in held}}
        removed = self.store.delete_many([Removal(self.key(h.slot), guards[h.delivery]) for h in held], repeatable=True)
        return Rows(row or doubt if isinstance(row, bool) else row for row in removed)

    def _kept_for(self, held: Stamped) -> int:
        """Return seconds for which something of a message stays once it is removed."""
        return held.envelope.keep_id if held.result is None else max(held.envelope.keep_id, self.results)

    def discard(self, slots: Sequence[Slot]) -> None:
        """Delete messages for a stream, also messages of another library, which carry no id; tombstones stay (P5).

        Three calls. Messages that were published exactly once keep their id (P6). For messages that others wait for,
        two calls more (P17); for counted ones, one. A record that cannot be read stays; its error is raised once all
        others are done.
        """
        records = read_each(self.store, [self.key(slot) for slot in slots], "keepId", GROUPS, "batch")
        there = {slot: record for slot, record in zip(slots, records, strict=True) if isinstance(record, Record)}
        self.counting.done([record.bins.get("batch") for record in there.values()])
        ttls = {slot: kept_for(one.bins.get("keepId")) for slot, one in there.items() if GROUPS not in one.bins}
        plain, kept = [slot for slot, ttl in ttls.items() if not ttl], [slot for slot, ttl in ttls.items() if ttl]
        gone = self.store.delete_many([Removal(self.key(slot), _UNAWAITED) for slot in plain], repeatable=True)
        stripped = self.store.repeat_many([_dropping(ttls[slot]).fill(self.key(slot)) for slot in kept])
        # Another reader may have adopted it since it was read.
        rows = zip((*plain, *kept), (*gone, *stripped), strict=True)
        refused = {slot for slot, row in rows if isinstance(row, Refused)}
        among = self.readers.discard([slot for slot in there if slot in refused or slot not in ttls])
        for some in (gone, stripped, among, records):
            some.raise_unless(Refused, NotFound)

    def _stripped(self, held: Sequence[Stamped], *, cancelled: bool) -> Rows[Any]:
        """Remove everything but the ids of the messages: `NotFound` = absent, `Refused` as `_removed` says."""
        drop = (*_DROP, Put("modified_at", self.now_ms()))
        life = self.cancelled_ttl if cancelled else 0
        updates = [
            Update(
                self.key(h.slot),
                (*drop, Put(TAKEN, h.delivery)) if cancelled else
                drop if h.result is None else (*drop, Put(RESULT, h.result)),
                Bound(_ALONE_AND_WHOLE, {"me": h.delivery}),
                ttl=max(life, self._kept_for(h)),
            )
            for h in held
        ]  # fmt: skip
        rows = self.store.repeat_many(updates)
        return rows.merge(range(len(held)), map(self._resolved, held, rows))

    def _resolved(self, held: Stamped, row: Row) -> Row:
        """Return the outcome of a removal; where it was refused after doubt, by what is there now."""
        if not isinstance(row, Refused) or not row.details.get("doubt"):
            return row
        try:
            record = self.store.get(self.key(held.slot), "delivery", "data")
        except LatchworkError as failure:
            # The attempt in doubt may have done it, whatever this read failed with.
            return OutcomeUnknown(f"the acknowledgement of {held.envelope.msg_id} may have been done: {failure}")
        return () if record is not None and record.bins == {"delivery": held.delivery} else row


@lru_cache(maxsize=16)
def _dropping(ttl: int) -> Form:
    """Return the update that leaves of a message only its id, for so many seconds, whoever has it."""
    return Form(*(Put(bin, None) for bin in (*CONTENT, "delivery")), when=_UNAWAITED, ttl=ttl)
