"""One pointer queue: the shards of a name, a counter of what was loaded and of what was fired in each (P5).

Pointers count from 1. A producer reserves pointers and writes data records at them; a consumer claims pointers and
stamps the records it finds there. The main queue, its sideline and its parked messages are one pointer queue each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ...errors import AlreadyExists, BinMismatch, LatchworkError, NotFound, OutcomeUnknown, Refused
from ...store import (
    NEVER,
    Add,
    Bin,
    Exists,
    Key,
    Once,
    Param,
    Put,
    Read,
    Record,
    RecordStore,
    Removal,
    Update,
    missing,
)
from ...store.model.expr import SINCE_UPDATE, Bound, ListOf, smallest
from ...store.model.form import Form, plain
from ...store.model.ops import Compute
from ..rows import delete_rows, settle
from .bell import Bell
from .envelope import BINS, CONTENT, Envelope, bare_update, from_bins, kept_for, tombstone
from .groups.members import Members, names
from .groups.parting import Parting, finish, part
from .hands import ALONE, GROUPS, OWN, THE_QUEUES_OWN, Hands, letting_go

CLAIMS = 64
"""Claims that a shard remembers, fixed for the layout's life."""

LOAD, FIRE, STREAM, EXPIRED, FROM = "LOAD_POINTER", "FIRE_POINTER", "stream", "expired", "claimed-from"
KNOWN = "swept"
"""The bin that a sweep puts into the pointers of a shard before it sweeps them."""
IN_HAND, SEAL = "in-hand", "claim-fence"

_RESERVING = Form(
    Add(LOAD, Param("n")), Add(FIRE, 0), Read(LOAD), Read(FIRE), Read(GROUPS), exists=Exists.ANY, ttl=NEVER
)
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

MINE = THE_QUEUES_OWN.mine
_ANY_KEY = Key("set", "name")
_DROP = tuple(Put(bin, None) for bin in CONTENT)
_ALONE = MINE & ALONE


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


class ShardState(NamedTuple):
    """The pointers of a shard: how many were loaded and fired, which stream owns it, claims that found no message.

    fire_missing: nothing counts what is fired, so that nothing can be claimed: `PointerQueue.begin_firing`.
    """

    shard: int
    loaded: int
    fired: int
    stream: str | None
    expired: int
    fire_missing: bool = False


class Written(Enum):
    """What became of a data record."""

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
        """The pointers of these shards, or of all: one batch read. A shard that was never used counts 0."""
        numbers = range(self.shards) if shards is None else shards
        records = self.store.get_many([self.pointers_key(n) for n in numbers], LOAD, FIRE, STREAM, EXPIRED)
        return [self.state_of(n, record) for n, record in zip(numbers, records, strict=True)]

    def state_of(self, shard: int, record: Record | None) -> ShardState:
        """The pointers in the record of a shard."""
        bins = record.bins if record else {}
        loaded, fired = bins.get(LOAD, 0), bins.get(FIRE, 0)
        begun = LOAD not in bins or FIRE in bins
        return ShardState(shard, loaded, fired, bins.get(STREAM), bins.get(EXPIRED, 0), not begun)

    def settled(self) -> list[int]:
        """For each shard the pointer below which no message can be there: what was fired, where all of it has expired.

        A shard in which nothing was written for longer than a message lives has none left; of any other nobody knows.
        One call.
        """
        reads = (Read(FIRE), Compute(SINCE_UPDATE))
        rows = settle(self.store, [Update(self.pointers_key(n), reads) for n in range(self.shards)])
        lived = (self.ttl + self.sweep) * 1000
        for row in rows:
            if isinstance(row, LatchworkError) and not isinstance(row, NotFound):
                raise row
        return [0 if isinstance(row, LatchworkError) or row[1] <= lived else row[0] or 0 for row in rows]

    def begin_firing(self, states: Sequence[ShardState]) -> None:
        """Let shards be claimed from that another library has loaded and not fired. No call, or one for those.

        To add 0 does no harm at any time. Where it fails the claim finds nothing yet, and the next look begins again.
        """
        missing = [Update(self.pointers_key(state.shard), (Add(FIRE, 0),)) for state in states if state.fire_missing]
        if missing:
            settle(self.store, missing)

    # ---- the producer's side

    def reserve(self, counts: Mapping[int, int]) -> dict[int, int | LatchworkError]:
        """Reserve pointers: for each shard the first of so many, or the error. One call.

        It needs no token: a reservation made twice leaves holes, which are harmless (P1). Where a shard had nothing
        left to fire, the next `write` rings the bell.
        """
        rows = [_RESERVING.fill(self.pointers_key(shard), n=n) for shard, n in counts.items()]
        first: dict[int, int | LatchworkError] = {}
        for (shard, n), row in zip(counts.items(), settle(self.store, rows), strict=True):
            if isinstance(row, LatchworkError):
                first[shard] = row
                continue
            loaded, fired, groups = row
            first[shard] = loaded - n + 1
            self.members.note(shard, loaded, groups)
            if fired >= loaded - n or groups:  # how far groups have come nobody knows here
                self.bell.owe()
        return first

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
        """
        key = self.pointers_key(shard)
        update = _CLAIMING.fill(key, n=n) if turn is None else _IN_TURN[turn.more].fill(key, n=n, fence=turn.fence)
        try:
            (result,) = self.store.once(update, token=token)
        except (Refused, NotFound):
            return None
        return Claim(*result)

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
        return range(0) if hand is None else range(hand + 1, fired + 1)

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
        """Those that no group waits for."""
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
        if not held:
            return []
        partings = [
            Parting(letting_go(self.key(h.slot), h.envelope.data, h.delivery), h.delivery, h.envelope.keep_id)
            for h in held
        ]
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
        if isinstance(row, NotFound):
            return False
        if isinstance(row, Refused) and row.details.get("doubt"):
            try:
                record = self.store.get(self.key(held.slot), "delivery", "data")
            except LatchworkError as failure:
                return failure
            return record is not None and record.bins == {"delivery": held.delivery}
        if isinstance(row, Refused):
            return False
        return row if isinstance(row, LatchworkError) else True
