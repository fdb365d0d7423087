"""One pointer queue: the shards of a name, a counter of what was loaded and of what was fired in each (P5).

Pointers count from 1. A producer reserves pointers and writes data records at them; a consumer claims pointers and
stamps the records it finds there. The main queue, its sideline and its parked messages are one pointer queue each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ...errors import (
    AlreadyExists,
    BinMismatch,
    Corrupt,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from ...inputs import is_int
from ...store import NEVER, Add, Bin, Exists, Key, Once, Param, Put, Read, RecordStore, Removal, Update, missing
from ...store.decode import damaged
from ...store.model.expr import SINCE_UPDATE, Bound, ListOf, smallest
from ...store.model.form import Form, plain
from ...store.model.ops import Compute
from ...store.port import Row
from ..rows import delete_rows, settle
from .bell import Bell
from .envelope import BINS, CONTENT, Envelope, bare_update, from_bins, kept_for, tombstone
from .groups.members import Members, names
from .groups.parting import Parting, finish, part
from .hands import ALONE, GROUPS, OWN, THE_QUEUES_OWN, Hands, letting_go
from .pointers import EXPIRED, FIRE, FROM, IN_HAND, LOAD, MAX_UNFIRED, SEAL, STATE_BINS, STREAM, Pointers, ShardState

CLAIMS = 64
"""Claims that a shard remembers, fixed for the layout's life."""

_NOT_AHEAD = missing(FIRE) | Bin(FIRE).eq(0) | (Bin(FIRE) <= Bin(LOAD))
"""Where more was fired than loaded the record is damaged, and to load more would hide that."""
_RESERVING = Form(
    *(Add(LOAD, Param("n")), Add(FIRE, 0), Read(LOAD), Read(FIRE), Read(STREAM), Read(GROUPS)),
    when=_NOT_AHEAD, exists=Exists.ANY, or_absent=True, ttl=NEVER,
)  # fmt: skip
_UNFIRED = (Bin(FIRE) < Bin(LOAD)) & missing(STREAM)
ADVANCED = smallest(Bin(FIRE) + Param("n"), Bin(LOAD))
CLAIM = Once(capacity=CLAIMS, bin="claims", result=ListOf((Bin(FROM), Bin(FIRE), Bin(LOAD))))
_CLAIMING = Form(Put(FROM, Bin(FIRE)), Put(FIRE, ADVANCED), when=_UNFIRED, ttl=NEVER, once=CLAIM)
UNSEALED = missing(SEAL) | (Bin(SEAL) <= Param("fence"))
_IN_TURN = {
    more: Form(
        Put(FROM, Bin(FIRE)),
        *([] if more else [Put(IN_HAND, Bin(FIRE))]),
        Put(FIRE, ADVANCED),
        when=_UNFIRED & UNSEALED,
        ttl=NEVER,
        once=CLAIM,
    )
    for more in (False, True)
}

_ANY_KEY = Key("set", "name")
_DROP = tuple(Put(bin, None) for bin in CONTENT)
_ALONE = THE_QUEUES_OWN.mine & ALONE


class Slot(NamedTuple):
    """Where a message is within a pointer queue."""

    shard: int
    pointer: int


class Claim(NamedTuple):
    """Pointers `after + 1` to `last` of a shard, now this caller's to stamp; `loaded` were reserved in all."""

    after: int
    last: int
    loaded: int


class Turn(NamedTuple):
    """Whose claims of a shard these are: of the holder of the shard's lock, by its fence.

    more: it has claimed others and is not done with them, so that these are in hand together.
    """

    fence: int
    more: bool


class Written(Enum):
    """The outcome of writing a data record."""

    DONE = "done"
    SPENT = "spent"  # something else is at the pointer; it has to go to another


class Found(Enum):
    """What a stamp found instead of a message."""

    ABSENT = "absent"
    TAKEN = "taken"  # a tombstone, a message that is done, or somebody else's


class Held(NamedTuple):
    """A message that was stamped with a delivery id."""

    slot: Slot
    delivery: str
    envelope: Envelope


class PointerQueue:
    """The records of one pointer queue. `ttl`: seconds a message lives; `sweep`: the sweep duration in seconds."""

    hands: Hands = THE_QUEUES_OWN

    def __init__(self, store: RecordStore, client_id: str, name: str, shards: int, *, ttl: int, sweep: float) -> None:
        self.store, self.client_id, self.name, self.shards, self.ttl, self.sweep = (
            store, client_id, name, shards, ttl, sweep,
        )  # fmt: skip
        self._data_set, self.meta_set, self._prefix = (
            f"{client_id}_data_set",
            f"{client_id}_meta_set",
            f"{name}_SHARD_",
        )
        self._tombstone_ttl = int(sweep) + 1
        self.members = Members(store, self.pointers_key, LOAD)
        self.bell = Bell(store, Key(self.meta_set, f"{name}_BELL"))

    def home(self, shard: int) -> int:
        """The shard to which a message from a shard of another queue comes."""
        return shard % self.shards

    def key(self, slot: Slot) -> Key:
        """Where the data record of a slot is."""
        return Key(self._data_set, f"{self._prefix}{slot[0]}_{slot[1]}")

    def pointers_key(self, shard: int) -> Key:
        """Where the pointers of a shard are."""
        return Key(self.meta_set, f"{self._prefix}{shard}_POINTERS")

    def now_ms(self) -> int:
        """For stored dates, which no protocol compares."""
        return int(self.store.seams.wall() * 1000)

    def states(self, shards: Sequence[int] | None = None) -> list[ShardState]:
        """The pointers of these shards, or of all: one batch read. A shard that was never used counts 0.

        Whoever needs every shard asks each for `checked`; else those that are damaged are passed over.
        """
        numbers = range(self.shards) if shards is None else shards
        keys = [self.pointers_key(n) for n in numbers]
        records = self.store.get_many(keys, *STATE_BINS)
        return [
            ShardState.of(n, key, record.bins if record else {})
            for n, key, record in zip(numbers, keys, records, strict=True)
        ]

    def settled(self) -> list[int]:
        """For each shard the pointer below which no message can be there: what was fired, where all of it has expired.

        A shard in which nothing was written for longer than a message lives has none left; of any other nobody knows.
        One call.
        """
        reads = (Read(FIRE), Compute(SINCE_UPDATE))
        rows = settle(self.store, [Update(self.pointers_key(n), reads) for n in range(self.shards)])
        lived = (self.ttl + self.sweep) * 1000
        for row in rows:
            if isinstance(row, LatchworkError) and not isinstance(row, NotFound | Corrupt):
                raise row
        return [
            row[0] if not isinstance(row, LatchworkError) and row[1] > lived and is_int(row[0]) else 0 for row in rows
        ]

    def begin_firing(self, states: Sequence[ShardState]) -> None:
        """Let shards be claimed from that another library has loaded and not fired, or where it cannot be read whose
        turn it is. No call, or one for those.

        To add 0 does no harm at any time; to forget whose turn it is lets a deposed holder's late claim be before its
        successor's. Where it fails the claim finds nothing yet, and the next look begins again.
        """
        begin, forget = (Add(FIRE, 0),), (Put(SEAL, None), Put(IN_HAND, None))
        amiss = [state for state in states if state.fire_missing or state.turn_damaged]
        if amiss:
            settle(self.store, [
                Update(self.pointers_key(state.shard), begin * state.fire_missing + forget * state.turn_damaged)
                for state in amiss
            ])  # fmt: skip

    # ---- the producer's side

    def reserve(self, counts: Mapping[int, int]) -> dict[int, int | LatchworkError]:
        """Reserve pointers: for each shard the first of so many, or the error. One call.

        It needs no token: a reservation made twice leaves holes, which are harmless (P1). Where a shard had nothing
        left to fire, the next `write` rings the bell.
        """
        rows = settle(self.store, [_RESERVING.fill(self.pointers_key(shard), n=n) for shard, n in counts.items()])
        return {shard: self._first_of(shard, n, row) for (shard, n), row in zip(counts.items(), rows, strict=True)}

    def _first_of(self, shard: int, n: int, row: Row) -> int | LatchworkError:
        """The first of `n` pointers that were just reserved; `Corrupt` where nobody would ever claim them."""
        try:
            if isinstance(row, Refused):
                self.states([shard])[0].checked()
                return Unavailable(f"{self.name}: shard {shard} was damaged, and is not any more; try again")
            if isinstance(row, LatchworkError):
                return row
            *values, groups = row
            bins = {bin: value for bin, value in zip((LOAD, FIRE, STREAM), values, strict=True) if value is not None}
            found = Pointers.of(self.pointers_key(shard), bins)
        except LatchworkError as failure:
            return failure
        self.members.note(shard, found.load, groups)
        if (found.fire or 0) >= found.load - n or groups:  # how far groups have come nobody knows here
            self.bell.owe()
        return found.load - n + 1

    def write(
        self, slots: Sequence[Slot], envelopes: Sequence[Envelope], *, fired: bool = False
    ) -> list[Written | LatchworkError]:
        """Create the data records, and ring the bell where that is due. One call, and another where something is there
        already.

        fired: they come from another queue, so they carry the time of this move in `fireTS`.
        """
        now = self.now_ms()
        stamp = (Put("fireTS", now),) if fired else ()
        waiting = self.members.waiting(slots)
        if len(slots) == 1 and envelopes[0].bare and not fired and not waiting[0]:
            rows = [bare_update(self.key(slots[0]), envelopes[0], now, self.ttl)]
        else:
            rows = [
                Update(
                    self.key(slot), envelope.ops(now) + stamp + names(tags, envelope, moved=fired),
                    exists=Exists.CREATE, ttl=self.ttl,
                )
                for slot, envelope, tags in zip(slots, envelopes, waiting, strict=True)
            ]  # fmt: skip
        outcomes = [row if isinstance(row, LatchworkError) else Written.DONE for row in self.bell.settle(rows)]
        taken = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, AlreadyExists)]
        if not taken:
            return outcomes
        ids = self._message_ids([rows[place].key for place in taken])
        for place, found in zip(taken, ids, strict=True):
            mine = found == envelopes[place].msg_id
            outcomes[place] = found if isinstance(found, LatchworkError) else Written.DONE if mine else Written.SPENT
        return outcomes

    def _message_ids(self, keys: Sequence[Key]) -> list[str | LatchworkError | None]:
        try:
            records = self.store.get_many(keys, "msgId")
        except LatchworkError as failure:
            unknown = f"{self.name}: whether the message was written could not be read back: {failure}"
            return [OutcomeUnknown(unknown) for _ in keys]
        return [record.bins.get("msgId") if record else None for record in records]

    # ---- the consumer's side

    def claim(self, shard: int, n: int, turn: Turn | None = None, *, token: bytes | None = None) -> Claim | None:
        """Claim up to `n` pointers of a shard, exactly once; None where there is nothing to claim. One call.

        turn: nothing either where a later holder of the shard's lock has sealed it.  token: of a claim whose outcome
        was unknown, in the error's details: this goes on with it. Then its answer may be that of the first attempt.
        Raises `Corrupt` where the shard is damaged. Where only the memory of claims is, that is given up: a claim in
        doubt may then be made twice, and what nobody stamps is swept.
        """
        key = self.pointers_key(shard)
        update = self.claiming(shard, n, turn)
        try:
            try:
                (result,) = self.store.once(update, token=token)
            except Corrupt:
                self.store.operate(key, Put(CLAIM.bin, None), ttl=NEVER, repeatable=True)
                (result,) = self.store.once(update, token=token)
        except (Refused, NotFound):
            return None
        claim, most = Claim(*result), n if token is None else MAX_UNFIRED
        if not (0 <= claim.after <= claim.last <= claim.after + most and claim.loaded - claim.last <= MAX_UNFIRED):
            raise damaged(self.pointers_key(shard), f"{FIRE} was {claim.after} and {LOAD} is {claim.loaded}")
        return claim

    def claiming(self, shard: int, n: int, turn: Turn | None) -> Update:
        """What claims up to `n` pointers of a shard."""
        key = self.pointers_key(shard)
        return _CLAIMING.fill(key, n=n) if turn is None else _IN_TURN[turn.more].fill(key, n=n, fence=turn.fence)

    def seal(self, shard: int, fence: int) -> range:
        """Refuse the claims of earlier holders of the shard's lock from now on; the pointers that the last one had.

        It may have been done with some of them, or with all. None where a later holder has sealed it. One call.
        """
        seal = (Put(SEAL, fence), Read(IN_HAND), Read(FIRE))
        when = Bound(UNSEALED, {"fence": fence})
        try:
            hand, fired = self.store.operate(self.pointers_key(shard), *seal, when=when, ttl=NEVER, repeatable=True)
        except (Refused, NotFound):
            return range(0)
        known = is_int(hand) and is_int(fired) and 0 <= hand <= fired  # else what was in hand is left to the sweep
        return range(hand + 1, fired + 1) if known else range(0)

    def stamp(
        self, slots: Sequence[Slot], me: str | Sequence[str], *, count: bool = True
    ) -> list[Envelope | Found | LatchworkError]:
        """Put a delivery id on the records and read them, counting an attempt. One call.

        me: the id, or one for each slot.  Update-only, and never onto a tombstone; a repeat with the same id
        counts nothing, reads the same, and lets the sweep clock begin again.
        """
        ids = [me] * len(slots) if isinstance(me, str) else me
        found = settle(self.store, self.stamps(slots, ids, count))
        return [self.stamped(slot, one, row) for slot, one, row in zip(slots, ids, found, strict=True)]

    def stamps(self, slots: Sequence[Slot], ids: Sequence[str], count: bool) -> list[Update]:
        form, now = self.hands.stamping[count], self.now_ms()
        if len(slots) == 1:
            return [form.fill(self.key(slots[0]), me=ids[0], now=now)]
        # The rows of a batch with the same id share their operations, which are compiled once.
        stamps = {one: plain(form.fill(_ANY_KEY, me=one, now=now)) for one in set(ids)}
        return [Update(self.key(slot), stamps[one].ops, stamps[one].when) for slot, one in zip(slots, ids, strict=True)]

    def stamped(self, slot: Slot, me: str, row: Any) -> Envelope | Found | LatchworkError:
        if not isinstance(row, LatchworkError):
            return self.hands.envelope(row) or Found.TAKEN
        if isinstance(row, NotFound):
            return Found.ABSENT
        if isinstance(row, BinMismatch):
            return self._counted_anew(slot, me)
        return self._whose(slot, me) if isinstance(row, Refused) else row

    def _counted_anew(self, slot: Slot, me: str) -> Envelope | Found | LatchworkError:
        """The stamp of a message whose number of attempts is damaged: this one is the first that is known of."""
        (row,) = settle(self.store, [self.hands.counting_anew.fill(self.key(slot), me=me, now=self.now_ms())])
        return row if isinstance(row, BinMismatch) else self.stamped(slot, me, row)

    def _whose(self, slot: Slot, me: str) -> Envelope | Found | LatchworkError:
        """After a refused stamp: mine from an earlier attempt, whose time begins again now; or not for us."""
        (row,) = settle(self.store, [self.hands.renewing.fill(self.key(slot), me=me, now=self.now_ms())])
        if isinstance(row, LatchworkError):
            return Found.TAKEN if isinstance(row, Refused | NotFound) else row
        return self.hands.envelope(row) or Found.TAKEN

    def look(self, slots: Sequence[Slot]) -> list[Envelope | None]:
        """The messages in these slots, None where there is none; nothing changes. One call."""
        records = self.store.get_many([self.key(slot) for slot in slots], *BINS)
        return [from_bins(record.bins) if record else None for record in records]

    def hands_at(self, slot: Slot) -> Hands:  # noqa: ARG002 - of a group it depends on the slot
        """What asks in whose hands the message in a slot is."""
        return self.hands

    def bury(self, slots: Sequence[Slot], *, keep: int = 0) -> list[bool | LatchworkError]:
        """Create tombstones, which refuse a late producer: True where one is now, False where a record was.

        keep: seconds that they must live at least; the sweep duration they live anyway.
        """
        ops, ttl = tombstone(self.now_ms()), max(keep, self._tombstone_ttl)
        rows = [Update(self.key(slot), ops, exists=Exists.CREATE, ttl=ttl) for slot in slots]
        return [
            False if isinstance(row, AlreadyExists) else row if isinstance(row, LatchworkError) else True
            for row in settle(self.store, rows)
        ]

    def count_expired(self, slots: Sequence[Slot]) -> None:
        """Note that these claimed pointers held no message; about right only, as a repeat counts twice. One call."""
        if not slots:
            return
        counts = Counter(slot.shard for slot in slots)
        settle(self.store, [Update(self.pointers_key(shard), (Add(EXPIRED, n),)) for shard, n in counts.items()])
        self.store.seams.note("expired", len(slots), queue=self.name)

    def extend(self, held: Sequence[Held]) -> list[bool | LatchworkError]:
        """Start the sweep clock of each again: True = done, False = absent or somebody else's. One call."""
        rows = settle(self.store, [self.extending(h) for h in held])
        return [
            False if isinstance(row, Refused | NotFound) else row if isinstance(row, LatchworkError) else True
            for row in rows
        ]

    def extending(self, held: Held) -> Update:
        return plain(self.hands.extending.fill(self.key(held.slot), me=held.delivery, now=self.now_ms()))

    # ---- the one place that deletes

    def remove(self, held: Sequence[Held]) -> list[bool | LatchworkError]:
        """Delete messages that are still this delivery's: True = done, False = absent or somebody else's. One call.

        A message with `keep_id` loses its payload, and its id stays for so many seconds (P6): a late retry of its
        publisher finds it done. Tombstones are never deleted.
        """
        among = [h for h in held if h.envelope.groups is not None]
        outcomes = dict(zip((h.slot for h in among), self._let_go(among), strict=True))
        alone = [h for h in held if h.envelope.groups is None]
        outcomes.update(zip((h.slot for h in alone), self._removed(alone), strict=True))
        # A group may have adopted it since it was stamped.
        refused = [h for h in alone if outcomes[h.slot] is False]
        outcomes.update(zip((h.slot for h in refused), self._let_go(refused), strict=True))
        return [outcomes[h.slot] for h in held]

    def _removed(self, held: Sequence[Held]) -> list[bool | LatchworkError]:
        """Delete messages that no group waits for, each in the hands of its delivery."""
        guards = {me: Bound(_ALONE, {"me": me}) for me in {h.delivery for h in held}}
        marked = [h for h in held if h.envelope.keep_id]
        if not marked:
            return self._deleted(held, guards)
        plain = [h for h in held if not h.envelope.keep_id]
        outcomes = dict(zip((h.slot for h in plain), self._deleted(plain, guards), strict=True))
        outcomes.update(zip((h.slot for h in marked), self._stripped(marked, guards), strict=True))
        return [outcomes[h.slot] for h in held]

    def _let_go(self, held: Sequence[Held]) -> list[bool | LatchworkError]:
        """The queue's own consumers are done with these, groups may not be (P17)."""
        partings = [Parting(letting_go(self.key(at), one.data, me), me, one.keep_id) for at, me, one in held]
        return part(self.store, partings, OWN)

    def finish(self, slots: Sequence[Slot]) -> None:
        """Delete messages for which nobody waits any more, whose last acknowledger died before it did. Rare."""
        keys = [self.key(slot) for slot in slots]
        records = self.store.get_many(keys, "keepId")
        finish(self.store, [(key, kept_for(r.bins.get("keepId"))) for key, r in zip(keys, records, strict=True) if r])

    def _deleted(self, held: Sequence[Held], guards: Mapping[str, Bound]) -> list[bool | LatchworkError]:
        if not held:
            return []
        rows = delete_rows(self.store, [Removal(self.key(h.slot), guards[h.delivery]) for h in held])
        return [False if isinstance(row, Refused) else row for row in rows]

    def _stripped(self, held: Sequence[Held], guards: Mapping[str, Bound]) -> list[bool | LatchworkError]:
        """The messages lose all but their ids."""
        drop = (*_DROP, Put("modified_at", self.now_ms()))
        updates = [Update(self.key(h.slot), drop, guards[h.delivery], ttl=h.envelope.keep_id) for h in held]
        return [self._dropped(h, row) for h, row in zip(held, settle(self.store, updates), strict=True)]

    def _dropped(self, held: Held, row: Any) -> bool | LatchworkError:
        if isinstance(row, Refused) and row.details.get("doubt"):
            try:
                record = self.store.get(self.key(held.slot), "delivery", "data")
            except LatchworkError as failure:
                # The attempt in doubt may have done it, whatever this read failed with.
                return OutcomeUnknown(f"the acknowledgement of {held.envelope.msg_id} may have been done: {failure}")
            return record is not None and record.bins == {"delivery": held.delivery}
        if isinstance(row, Refused | NotFound):
            return False
        return row if isinstance(row, LatchworkError) else True
