"""The pointers of a group: in the slots of the queue that it reads, and in those of its own (docs/protocols P17)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ....errors import LatchworkError, NotFound, Refused
from ....inputs import is_int
from ....store import NEVER, Bin, Key, Param, Put, Record, RecordStore, Update, missing
from ....store.model.expr import largest
from ....store.model.form import Form, plain
from ...rows import settle
from ..bell import RUNG, Bell, rung_in
from ..config import PARKED, SIDELINE, GroupConfig, QueueConfig, stored_name, whole_seconds
from ..envelope import Envelope, from_all, kept_for
from ..hands import ACKED, GROUPS, SHARED, TRIES, Hands, adopting, hands_of, parting_of, passing
from ..pointers import FIRE, FROM, IN_HAND, LOAD, STATE_BINS, STREAM, ShardState
from ..shards import ADVANCED, CLAIM, UNSEALED, Claim, Found, Held, PointerQueue, Slot, Turn, Written
from .members import Members
from .parting import Parting, part

JOINED, FIRST = "joined", "first"
"""The queue's LOAD when the group joined the shard, and the pointer after which the group began to read."""

GIVEN = ("data", "msgId", "enqueuedAt", "headers", "keepId")
"""What a group gets of a message; the rest is what befell it elsewhere."""
_OF_GROUPS = (SHARED, GROUPS, ACKED, TRIES)

_LOADED = Param("loaded")
_BEHIND = (Bin(FIRE) < _LOADED) & missing(STREAM)


def _claiming(turn: bool | None) -> Form:
    """A claim of a group; of a holder of the shard's lock, with more in hand or not, where `turn` says so."""
    hand = (Put(IN_HAND, Bin(FIRE)),) if turn is False else ()
    return Form(
        Put(LOAD, largest(Bin(LOAD), _LOADED)), Put(FROM, Bin(FIRE)), *hand, Put(FIRE, ADVANCED),
        when=_BEHIND if turn is None else _BEHIND & UNSEALED, ttl=NEVER, once=CLAIM,
    )  # fmt: skip


_CLAIMING = {turn: _claiming(turn) for turn in (None, False, True)}


class SharedPointers(PointerQueue):
    """A group's pointers in the slots of the queue that it reads: messages there are the queue's, pointers its own.

    of, tag: the queue's name, and the group's tag.
    """

    def __init__(
        self, store: RecordStore, client_id: str, of: str, tag: str, shards: int, *, ttl: int, sweep: float
    ) -> None:
        super().__init__(store, client_id, of, shards, ttl=ttl, sweep=sweep)
        self.tag, self.hands = tag, hands_of(tag)
        self._parting = parting_of(tag)
        self._loaded: dict[int, int] = {}
        self._joined_at: dict[int, int] = {}

    def pointers_key(self, shard: int) -> Key:
        """Where the group's pointers of a shard are."""
        return shared_pointers_key(self, self.tag, shard)

    def queue_key(self, shard: int) -> Key:
        """Where the queue's own are."""
        return super().pointers_key(shard)

    def states(self, shards: Sequence[int] | None = None) -> list[ShardState]:
        """What the queue has loaded and the group has fired: one batch read. Raises `NotFound` once it is dropped."""
        numbers = range(self.shards) if shards is None else shards
        return self.states_of(numbers, self.store.get_many(self.state_keys(numbers), *STATE_BINS, JOINED))

    def state_keys(self, shards: Sequence[int]) -> list[Key]:
        """What `states_of` is to be given the records of, with `STATE_BINS` and `JOINED`."""
        return [key for shard in shards for key in (self.queue_key(shard), self.pointers_key(shard))]

    def states_of(self, shards: Sequence[int], records: Sequence[Record | None]) -> list[ShardState]:
        """The states of these shards. Raises `NotFound` where the group has none: it was dropped."""
        states = []
        for shard, queues, groups in zip(shards, records[::2], records[1::2], strict=True):
            if groups is None:
                raise NotFound(f"the group {self.tag!r} of queue {self.name!r} was dropped: ask for it again")
            there = ShardState.of(shard, self.queue_key(shard), queues.bins if queues else {})
            self._loaded[shard] = max(there.loaded, self._loaded.get(shard, 0))
            here = ShardState.of(shard, self.pointers_key(shard), groups.bins)
            joined: Any = groups.bins.get(JOINED)
            self._joined_at[shard] = joined if is_int(joined) else 0
            # What the queue's own record does not say, or lost, the group does not know of.
            known = here._replace(loaded=max(there.loaded, here.fired), fire_missing=False)
            states.append(known if here.damage is None else here)
        return states

    def follow(self, members: Members) -> None:
        """Know what a publisher of this process has reserved."""
        self.members = members

    def claiming(self, shard: int, n: int, turn: Turn | None) -> Update:
        """What claims up to `n` pointers, of those that this process knows to be reserved."""
        if shard not in self._loaded or shard not in self._joined_at:
            self.states([shard])
        loaded = max(self._loaded[shard], self.members.loaded(shard))
        form, fence = _CLAIMING[None if turn is None else turn.more], {} if turn is None else {"fence": turn.fence}
        return form.fill(self.pointers_key(shard), n=n, loaded=loaded, **fence)

    def stamped(self, slot: Slot, me: str, row: Any) -> Envelope | Found | LatchworkError:
        """As of any queue; an empty slot from before the group joined is nobody's here."""
        found = super().stamped(slot, me, row)
        return Found.TAKEN if found is Found.ABSENT and slot.pointer <= self._joined_at.get(slot.shard, 0) else found

    def remove(self, held: Sequence[Held]) -> list[bool | LatchworkError]:
        """The group is done with these messages; those that nobody waits for go. One call, or two."""
        partings = [
            Parting(plain(self._parting.fill(self.key(h.slot), me=h.delivery)), h.delivery, h.envelope.keep_id)
            for h in held
        ]
        return part(self.store, partings, self.tag)

    # ---- as a stream sees it (docs/protocols P7): it takes all, and stamps nothing

    def present(self, slots: Sequence[Slot], bins: Sequence[str], *, adopt: bool) -> dict[Slot, Envelope | None]:
        """What is in these slots for the group; None for what is not, or not any more; empty slots are left out.

        adopt: messages that do not name the group wait for it from now on, so that they are there when they are read
        again. One call, two more to adopt some.
        """
        records = self.store.get_many([self.key(slot) for slot in slots], *bins, *_OF_GROUPS)
        there = {slot: one.bins for slot, one in zip(slots, records, strict=True) if one is not None}
        contents = {slot: self._content(one) for slot, one in there.items()}
        if adopt:
            unnamed = [
                slot for slot, one in contents.items() if one and self.tag not in (there[slot].get(GROUPS) or {})
            ]
            gone = self._adopt(unnamed)
            contents |= {slot: {} for slot in gone}
        return dict(zip(contents, from_all(list(contents.values())), strict=True))

    def _content(self, bins: dict[str, Any]) -> dict[str, Any]:
        """The message's bins as the group gets them; nothing where the group is done with it."""
        if self.tag in (bins.get(ACKED) or {}):
            return {}
        tries = (bins.get(TRIES) or {}).get(self.tag)
        given = {bin: bins[bin] for bin in GIVEN if bin in bins} | ({"attempts": tries} if tries else {})
        return given | {"data": bins[SHARED]} if SHARED in bins else given

    def _adopt(self, slots: Sequence[Slot]) -> list[Slot]:
        """Let these messages wait for the group; those that were done with before that."""
        rows = settle(self.store, [adopting(self.tag).fill(self.key(slot)) for slot in slots]) if slots else []
        for row in rows:
            if isinstance(row, LatchworkError) and not isinstance(row, NotFound | Refused):
                raise row
        refused = [slot for slot, row in zip(slots, rows, strict=True) if isinstance(row, LatchworkError)]
        # In doubt an earlier attempt has done it.
        there = self.store.get_many([self.key(slot) for slot in refused], GROUPS)
        return [slot for slot, one in zip(refused, there, strict=True) if not one or self.tag not in one.bins[GROUPS]]

    def discard(self, slots: Sequence[Slot]) -> None:
        """The group's stream is done with what is in these slots. Two calls; one more where nobody else waits for it.

        What it refuses an earlier attempt was done with.
        """
        me, form = self.store.seams.unique(), passing(self.tag)
        records = self.store.get_many([self.key(slot) for slot in slots], "keepId")
        partings = [
            Parting(plain(form.fill(self.key(slot), me=me)), me, kept_for(one.bins.get("keepId")))
            for slot, one in zip(slots, records, strict=True)
            if one is not None
        ]
        for outcome in part(self.store, partings, self.tag):
            if isinstance(outcome, LatchworkError):
                raise outcome


class _BothBells(Bell):
    """The bells of the queue and of the group's own shards, heard as one."""

    def __init__(self, store: RecordStore, bells: Sequence[Bell]) -> None:
        super().__init__(store, bells[-1].key)
        self._bells = bells

    def rings(self) -> int:
        """How often they were rung. One call."""
        records = self._store.get_many([bell.key for bell in self._bells], RUNG)
        return sum(rung_in(record) for record in records)


class GroupPointers(PointerQueue):
    """All shards of a group: those of the queue, and behind them as many of its own.

    name: of the group, as people see it.
    """

    def __init__(self, name: str, shared: SharedPointers, own: PointerQueue) -> None:
        super().__init__(own.store, own.client_id, name, shared.shards + own.shards, ttl=own.ttl, sweep=own.sweep)
        self.shared, self.own = shared, own
        self.bell = _BothBells(own.store, [shared.bell, own.bell])

    def home(self, shard: int) -> int:
        """What comes from elsewhere comes to the group's own."""
        return self.shared.shards + shard % self.own.shards

    def part_of(self, shard: int) -> tuple[PointerQueue, int]:
        """The queue of pointers that a shard belongs to, and its number there."""
        first = self.shared.shards
        return (self.shared, shard) if shard < first else (self.own, shard - first)

    def _inner(self, slot: Slot) -> tuple[PointerQueue, Slot]:
        part_, shard = self.part_of(slot.shard)
        return part_, Slot(shard, slot.pointer)

    def _outer(self, shard: int) -> int:
        return self.shared.shards + shard

    def key(self, slot: Slot) -> Key:
        """Where the data record of a slot is."""
        part_, inner = self._inner(Slot(*slot))
        return part_.key(inner)

    def pointers_key(self, shard: int) -> Key:
        """Where the group's pointers of a shard are."""
        part_, inner = self.part_of(shard)
        return part_.pointers_key(inner)

    def states(self, shards: Sequence[int] | None = None) -> list[ShardState]:
        """The pointers of these shards, or of all: one batch read. Raises `NotFound` once the group is dropped."""
        numbers = range(self.shards) if shards is None else shards
        first = self.shared.shards
        shared, own = [n for n in numbers if n < first], [n - first for n in numbers if n >= first]
        keys = [*self.shared.state_keys(shared), *(self.own.pointers_key(n) for n in own)]
        records = self.store.get_many(keys, *STATE_BINS, JOINED)
        found = self.shared.states_of(shared, records[: 2 * len(shared)])
        found += [
            ShardState.of(self._outer(n), self.own.pointers_key(n), record.bins if record else {})
            for n, record in zip(own, records[2 * len(shared) :], strict=True)
        ]
        by_shard = {state.shard: state for state in found}
        return [by_shard[n] for n in numbers]

    def settled(self) -> list[int]:
        """As `PointerQueue.settled`, for the group's own shards; those that it shares are swept with the queue's."""
        return self.own.settled()

    # ---- the producer's side: what comes back

    def reserve(self, counts: Mapping[int, int]) -> dict[int, int | LatchworkError]:
        """Reserve pointers of the group's own shards. One call."""
        first = self.shared.shards
        return {self._outer(n): row for n, row in self.own.reserve({s - first: n for s, n in counts.items()}).items()}

    def write(
        self, slots: Sequence[Slot], envelopes: Sequence[Envelope], *, fired: bool = False
    ) -> list[Written | LatchworkError]:
        """Create data records in the group's own shards."""
        return self.own.write([self._inner(slot)[1] for slot in slots], envelopes, fired=fired)

    # ---- the consumer's side

    def claim(self, shard: int, n: int, turn: Turn | None = None, *, token: bytes | None = None) -> Claim | None:
        """As `PointerQueue.claim`."""
        part_, inner = self.part_of(shard)
        return part_.claim(inner, n, turn, token=token)

    def stamps(self, slots: Sequence[Slot], ids: Sequence[str], count: bool) -> list[Update]:
        """What stamps these slots, in order."""
        rows: dict[Slot, Update] = {}
        for part_ in (self.shared, self.own):
            mine = [(slot, me) for slot, me in zip(slots, ids, strict=True) if self.part_of(slot.shard)[0] is part_]
            if mine:
                inner = [self._inner(slot)[1] for slot, _ in mine]
                made = part_.stamps(inner, [me for _, me in mine], count)
                rows.update(zip((slot for slot, _ in mine), made, strict=True))
        return [rows[slot] for slot in slots]

    def stamped(self, slot: Slot, me: str, row: Any) -> Envelope | Found | LatchworkError:
        """What a stamp found."""
        part_, inner = self._inner(slot)
        return part_.stamped(inner, me, row)

    def extending(self, held: Held) -> Update:
        """What extends a delivery."""
        part_, inner = self._inner(held.slot)
        return part_.extending(held._replace(slot=inner))

    def remove(self, held: Sequence[Held]) -> list[bool | LatchworkError]:
        """As `PointerQueue.remove`, one call for each of the two that has any of them."""
        outcomes: dict[Slot, bool | LatchworkError] = {}
        for part_ in (self.shared, self.own):
            mine = [h for h in held if self.part_of(h.slot.shard)[0] is part_]
            if mine:
                rows = part_.remove([h._replace(slot=self._inner(h.slot)[1]) for h in mine])
                outcomes.update(zip((h.slot for h in mine), rows, strict=True))
        return [outcomes[h.slot] for h in held]

    def hands_at(self, slot: Slot) -> Hands:
        """What asks in whose hands the message in a slot is."""
        return self.part_of(slot.shard)[0].hands

    def look(self, slots: Sequence[Slot]) -> list[Envelope | None]:
        """The messages in these slots."""
        rows = settle(self.store, [Update(self.key(slot), self.hands_at(slot).reads) for slot in slots])
        return [
            None if isinstance(row, LatchworkError) else self.hands_at(slot).envelope(row)
            for slot, row in zip(slots, rows, strict=True)
        ]


def passed_by_groups(queue: PointerQueue, slots: Collection[Slot]) -> set[Slot]:
    """The slots of a queue that a group has claimed and whose message it was not given. No call without groups.

    It may have found them empty, and a sweep may have passed them since. Else two calls, or three.
    """
    waiting = zip(slots, queue.members.waiting(list(slots)), strict=True)
    pairs = [(slot, tag) for slot, tags in waiting for tag in tags]
    if not pairs:
        return set()
    fired = queue.store.get_many([shared_pointers_key(queue, tag, slot.shard) for slot, tag in pairs], FIRE)
    behind = [pair for pair, one in zip(pairs, fired, strict=True) if one and pair[0].pointer <= one.bins.get(FIRE, 0)]
    there = queue.store.get_many([queue.key(slot) for slot, _ in behind], GROUPS)
    found = zip(behind, there, strict=True)
    return {slot for (slot, tag), one in found if one and (one.bins.get(GROUPS) or {}).get(tag) == ""}


def shared_pointers_key(queue: PointerQueue, tag: str, shard: int) -> Key:
    """Where the pointers of a group are in the slots of a shard of its queue."""
    return Key(queue.meta_set, f"{queue.name}@{tag}_SHARED_SHARD_{shard}_POINTERS")


def pointer_queues(
    store: RecordStore, client_id: str, config: QueueConfig
) -> tuple[PointerQueue, PointerQueue, PointerQueue]:
    """The main queue, the sideline and the parked messages of a queue."""
    sweep, expiry = config.sweep_duration.total_seconds(), whole_seconds(config.message_expiry)
    lives = {"": expiry, SIDELINE: expiry, PARKED: whole_seconds(config.queue_expiry)}
    name = stored_name(config)
    main, sideline, parked = (
        PointerQueue(store, client_id, name + suffix, config.shards, ttl=ttl, sweep=sweep)
        for suffix, ttl in lives.items()
    )
    if isinstance(config, GroupConfig):
        shared = SharedPointers(store, client_id, config.of, config.tag, config.shards, ttl=expiry, sweep=sweep)
        main = GroupPointers(config.name, shared, main)
    return main, sideline, parked
