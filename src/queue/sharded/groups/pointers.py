"""The pointers of a group: over the slots of the queue that it reads, and over its own slots (docs/protocols P17)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ....errors import Corrupt, LatchworkError, NotFound, Refused, Unreadable
from ....inputs import is_int
from ....store import NEVER, Bin, Key, Param, Put, Record, RecordStore, Update, missing
from ....store.decode import damaged
from ....store.model.expr import largest
from ....store.model.form import Form, plain
from ....store.model.record import Row
from ....store.rows import Rows
from ...rows import read_each
from ..envelope import Envelope, from_all, kept_for
from ..hooks import Readers
from ..pointers import ADVANCED, CLAIM, FIRE, FROM, IN_HAND, LOAD, STATE_BINS, STREAM, UNSEALED, ShardPointers
from ..rules import GROUPS, StampRules, Taking
from ..shards import Shards
from ..slots import Claim, ShardHolder, Slot, Stamped, StampMiss, WriteResult
from .members import Members
from .stamps import ACKED, SHARED, TRIES, SharedAck, acknowledge_shared, adopting, group_ack_of, passing, stamp_rules_of

JOINED, FIRST = "joined", "first"
"""The queue's LOAD when the group joined the shard, and the pointer after which the group began to read."""
GROUP_STATE_BINS = (*STATE_BINS, JOINED, FIRST)

GIVEN = ("data", "msgId", "enqueuedAt", "headers", "keepId")
"""The bins of a message that a group reads; the others belong to its other readers."""
_OF_GROUPS = (SHARED, GROUPS, ACKED, TRIES)

_LOADED = Param("loaded")
_BEHIND = (Bin(FIRE) < _LOADED) & missing(STREAM)


def _claiming(turn: bool | None) -> Form:
    """Return the claim of a group; `turn` says whether the holder of the shard's lock claims, and whether it has more
    messages.
    """
    hand = (Put(IN_HAND, Bin(FIRE)),) if turn is False else ()
    return Form(
        Put(LOAD, largest(Bin(LOAD), _LOADED)), Put(FROM, Bin(FIRE)), *hand, Put(FIRE, ADVANCED),
        when=_BEHIND if turn is None else _BEHIND & UNSEALED, ttl=NEVER, once=CLAIM,
    )  # fmt: skip


_CLAIMING = {turn: _claiming(turn) for turn in (None, False, True)}


class SharedPointers(Shards):
    """The pointers with which a group reads the slots of its queue.

    The group has fire and load pointers of its own. The messages stay in the queue's slots, and are stored once.

    of: the queue's name.
    tag: the group's tag.
    """

    state_bins = GROUP_STATE_BINS

    def __init__(
        self, store: RecordStore, client_id: str, of: str, tag: str, shards: int, *, ttl: int, sweep: float
    ) -> None:
        super().__init__(store, client_id, of, shards, ttl=ttl, sweep=sweep)
        self.readers = Members(self)
        self.tag, self.stamp_rules = tag, stamp_rules_of(tag)
        self._group_ack = group_ack_of(tag)
        self._loaded: dict[int, int] = {}
        self._joined_at: dict[int, int] = {}

    def pointers_key(self, shard: int) -> Key:
        """Return the key of the group's pointers of a shard."""
        return shared_pointers_key(self, self.tag, shard)

    def queue_key(self, shard: int) -> Key:
        """Return the key of the queue's own pointers of a shard."""
        return super().pointers_key(shard)

    def state_keys(self, shards: Sequence[int]) -> list[Key]:
        """Return the keys of the records that `states_of` needs: of each shard the queue's, and the group's."""
        return [key for shard in shards for key in (self.queue_key(shard), self.pointers_key(shard))]

    def states_of(
        self, shards: Sequence[int], records: Sequence[Record | LatchworkError | None]
    ) -> list[ShardPointers]:
        """Return the states of these shards. Raises `NotFound` if the group has none: it was dropped.

        A shard whose record cannot be read is damaged, as in `Shards.states`.
        """
        states = []
        for shard, queues, groups in zip(shards, records[::2], records[1::2], strict=True):
            if groups is None:
                raise NotFound(f"the group {self.tag!r} of queue {self.name!r} was dropped: ask for it again")
            there = ShardPointers.read(shard, self.queue_key(shard), queues)
            self._note(shard, there)
            here = ShardPointers.read(shard, self.pointers_key(shard), groups)
            bins = groups.bins if isinstance(groups, Record) else None
            if bins is not None:
                self._joined_at[shard] = counted(bins.get(JOINED))
            # The group knows only of slots up to the LOAD in the queue's own record.
            loaded, before = max(there.loaded, here.fired), counted(bins.get(FIRST)) if bins else 0
            known = here._replace(loaded=loaded, before=before, fire_missing=False)
            states.append(known if here.damage is None else here)
        return states

    def _note(self, shard: int, there: ShardPointers) -> None:
        """Note how far the queue's shard is reserved; and forget more, where the store has come back empty, or older:
        else the group would claim slots that are not reserved (P17.2).
        """
        known = self._loaded.setdefault(shard, 0)
        if there.damage is None:
            if there.loaded < known:
                self.readers.forget()
            self._loaded[shard] = max(there.loaded, self.readers.loaded(shard))

    def follow(self, readers: Readers) -> None:
        """Note what a publisher of this process has reserved."""
        self.readers = readers

    def claiming(self, shard: int, n: int, turn: ShardHolder | None) -> Update:
        """Return the claim of up to `n` pointers, of the pointers that this process knows to be reserved."""
        if shard not in self._loaded or shard not in self._joined_at:
            self.states([shard])
        loaded = max(self._loaded[shard], self.readers.loaded(shard))
        form, fence = _CLAIMING[None if turn is None else turn.more], {} if turn is None else {"fence": turn.fence}
        return form.fill(self.pointers_key(shard), n=n, loaded=loaded, **fence)

    def stamped(self, slot: Slot, me: str, row: Any) -> Envelope | StampMiss | LatchworkError:
        """Return the message, as any queue does; an empty slot from before the group joined has no message for the
        group.
        """
        found = super().stamped(slot, me, row)
        if found is StampMiss.ABSENT and slot.pointer <= self._joined_at.get(slot.shard, 0):
            return StampMiss.TAKEN
        return found

    def is_from_before(self, slot: Slot) -> bool:
        """Whether the slot was reserved before the group joined. One call where that is not known here."""
        if slot.shard not in self._joined_at:
            self.states([slot.shard])
        return slot.pointer <= self._joined_at.get(slot.shard, 0)

    def remove(self, held: Sequence[Stamped], *, cancelled: bool = False) -> Rows[bool]:  # noqa: ARG002 - no trace
        """Acknowledge these messages for the group, and delete each for which no reader waits any more. One call,
        or two.
        """
        acks = [
            SharedAck(plain(self._group_ack.fill(self.key(h.slot), me=h.delivery)), h.delivery, h.envelope.keep_id)
            for h in held
        ]
        return acknowledge_shared(self.store, acks, self.tag)

    # ---- as a stream sees it (docs/protocols P7): it takes all, and stamps nothing

    follows = True

    def present(self, slots: Sequence[Slot], bins: Sequence[str], *, adopt: bool) -> dict[Slot, Envelope | None]:
        """Return what is in these slots for the group; None if there is nothing for it (any more). Empty slots are left
        out.

        adopt: messages that do not name the group wait for it from now on, so that a second read finds them.

        One call; two more if some are adopted.
        """
        records = self.store.get_many([self.key(slot) for slot in slots], *bins, *_OF_GROUPS)
        there = {slot: one.bins for slot, one in zip(slots, records, strict=True) if one is not None}
        contents = {slot: self._content(slot, one) for slot, one in there.items()}
        if adopt:
            unnamed = [
                slot for slot, one in contents.items() if one and self.tag not in (there[slot].get(GROUPS) or {})
            ]
            gone = self._adopt(unnamed)
            contents |= {slot: {} for slot in gone}
        return dict(zip(contents, from_all(list(contents.values())), strict=True))

    def _content(self, slot: Slot, bins: dict[str, Any]) -> dict[str, Any]:
        """Return the message's bins as the group gets them; nothing if the group is done with it. Raises `Corrupt`."""
        for bin in (GROUPS, ACKED):
            if not isinstance(bins.get(bin), dict | None):
                raise damaged(self.key(slot), f"bin {bin!r} is no map of groups")
        if self.tag in (bins.get(ACKED) or {}):
            return {}
        counts = bins.get(TRIES)
        tries = counts.get(self.tag) if isinstance(counts, dict) else None  # damaged: none is known of
        given = {bin: bins[bin] for bin in GIVEN if bin in bins} | ({"attempts": tries} if tries else {})
        return given | {"data": bins[SHARED]} if SHARED in bins else given

    def _adopt(self, slots: Sequence[Slot]) -> list[Slot]:
        """Let these messages wait for the group; return the slots whose messages were done before that."""
        rows = self.store.repeat_many([adopting(self.tag).fill(self.key(slot)) for slot in slots])
        _, refused = rows.raise_unless(NotFound, Refused).sift(slots)
        # In doubt an earlier attempt has done it.
        there = self.store.get_many([self.key(slot) for slot in refused], GROUPS)
        return [
            slot
            for slot, one in zip(refused, there, strict=True)
            if not one or self.tag not in (one.bins.get(GROUPS) or {})  # none where only its id is kept
        ]

    def discard(self, slots: Sequence[Slot]) -> None:
        """Acknowledge the messages of these slots for the group's stream. Two calls; one more if no other reader waits.

        A refused row was acknowledged by an earlier attempt. A record that cannot be read stays; its error is raised
        once all others are done.
        """
        me, form = self.store.seams.unique(), passing(self.tag)
        records = read_each(self.store, [self.key(slot) for slot in slots], "keepId")
        acks = [
            SharedAck(plain(form.fill(self.key(slot), me=me)), me, kept_for(one.bins.get("keepId")))
            for slot, one in zip(slots, records, strict=True)
            if isinstance(one, Record)
        ]
        acknowledge_shared(self.store, acks, self.tag).raise_unless()
        records.raise_unless()


class GroupPointers(Shards):
    """All shards of a group: the shards of the queue, followed by the same number of its own.

    name: of the group, as users see it.
    """

    state_bins = GROUP_STATE_BINS

    def __init__(self, name: str, shared: SharedPointers, own: Shards) -> None:
        super().__init__(own.store, own.client_id, name, shared.shards + own.shards, ttl=own.ttl, sweep=own.sweep)
        self.shared, self.own = shared, own
        self.bell = own.bell = shared.bell  # one read serves both

    def expires_in_order(self, shard: int) -> bool:
        """Whether it is one of the group's own shards: a slot of the queue may be empty as all others are done with it,
        from before the group began.
        """
        return shard >= self.shared.shards

    def is_from_before(self, slot: Slot) -> bool:
        """Whether the slot was reserved before the group joined; nothing was, in its own shards."""
        part_, inner = self._inner(slot)
        return part_.is_from_before(inner)

    def swept(self) -> tuple[Shards, Shards | None]:
        """Return the group's own shards, and its pointers in the queue's."""
        return self.own, self.shared

    def home(self, shard: int) -> int:
        """Return the group's own shard for a message that comes from elsewhere; nothing is stored in the others."""
        return self.shared.shards + shard % self.own.shards

    def part_of(self, shard: int) -> tuple[Shards, int]:
        """Return the queue of pointers that a shard belongs to, and its number there."""
        first = self.shared.shards
        return (self.shared, shard) if shard < first else (self.own, shard - first)

    def _inner(self, slot: Slot) -> tuple[Shards, Slot]:
        part_, shard = self.part_of(slot.shard)
        return part_, Slot(shard, slot.pointer)

    def _outer(self, shard: int) -> int:
        return self.shared.shards + shard

    def key(self, slot: Slot) -> Key:
        """Return the key of a slot's data record."""
        part_, inner = self._inner(Slot(*slot))
        return part_.key(inner)

    def pointers_key(self, shard: int) -> Key:
        """Return the key of the group's pointers of a shard."""
        part_, inner = self.part_of(shard)
        return part_.pointers_key(inner)

    def state_keys(self, shards: Sequence[int]) -> list[Key]:
        """Return the keys of the records that `states_of` needs."""
        shared, own = self._by_part(shards)
        return [*self.shared.state_keys(shared), *self.own.state_keys(own)]

    def states_of(
        self, shards: Sequence[int], records: Sequence[Record | LatchworkError | None]
    ) -> list[ShardPointers]:
        """Return the states of these shards. Raises `NotFound` once the group is dropped."""
        shared, own = self._by_part(shards)
        found = self.shared.states_of(shared, records[: 2 * len(shared)])
        there = self.own.states_of(own, records[2 * len(shared) :])
        found += [state._replace(shard=self._outer(state.shard)) for state in there]
        by_shard = {state.shard: state for state in found}
        return [by_shard[n] for n in shards]

    def _by_part(self, shards: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return which of these shards are the queue's, and which the group's own, each by its number there."""
        first = self.shared.shards
        return [n for n in shards if n < first], [n - first for n in shards if n >= first]

    def states_with(self, *bins: str) -> list[tuple[ShardPointers, Mapping[str, Any]]]:
        """Return the pointers of all shards, and then these bins, of the group's own records. Two calls."""
        states = [state.checked() for state in self.states()]
        records = self.store.get_many([self.pointers_key(n) for n in range(self.shards)], *bins)
        return [(state, one.bins if one else {}) for state, one in zip(states, records, strict=True)]

    def settled(self) -> list[int]:
        """Return what `Shards.settled` returns, for the group's own shards; the shared ones are swept with the
        queue's.
        """
        return self.own.settled()

    # ---- the producer's side: messages that come back

    def reserve(self, counts: Mapping[int, int]) -> dict[int, int | LatchworkError]:
        """Reserve pointers of the group's own shards. One call."""
        first = self.shared.shards
        return {self._outer(n): row for n, row in self.own.reserve({s - first: n for s, n in counts.items()}).items()}

    def write(
        self,
        slots: Sequence[Slot],
        envelopes: Sequence[Envelope],
        *,
        fired: bool = False,
        traced: Collection[int] = (),  # noqa: ARG002 - the messages of a group leave no traces
        fresh: bool = True,  # noqa: ARG002 - as `traced`
    ) -> Rows[WriteResult]:
        """Create data records in the group's own shards."""
        return self.own.write([self._inner(slot)[1] for slot in slots], envelopes, fired=fired)

    # ---- the consumer's side

    def claim(
        self, shard: int, n: int, turn: ShardHolder | None = None, *, token: bytes | None = None, is_new: bool = False
    ) -> Claim | None:
        """Claim pointers, as `Shards.claim` does."""
        part_, inner = self.part_of(shard)
        return part_.claim(inner, n, turn, token=token, is_new=is_new)

    def stamps(self, slots: Sequence[Slot], ids: Sequence[str], count: bool, taking: Taking) -> list[Update]:
        """Return the updates that stamp these slots, in order."""
        rows: dict[Slot, Update] = {}
        for part_ in (self.shared, self.own):
            mine = [(slot, me) for slot, me in zip(slots, ids, strict=True) if self.part_of(slot.shard)[0] is part_]
            if mine:
                inner = [self._inner(slot)[1] for slot, _ in mine]
                made = part_.stamps(inner, [me for _, me in mine], count, taking)
                rows.update(zip((slot for slot, _ in mine), made, strict=True))
        return [rows[slot] for slot in slots]

    def messages(self, slots: Sequence[Slot], rows: Sequence[Any]) -> list[Envelope | None]:
        """Return the messages in the rows that were read of these slots."""
        return [self.stamp_rules_at(slot).envelope(row) for slot, row in zip(slots, rows, strict=True)]

    def stamped(self, slot: Slot, me: str, row: Any) -> Envelope | StampMiss | LatchworkError:
        """Return what a stamp found."""
        part_, inner = self._inner(slot)
        return part_.stamped(inner, me, row)

    def extending(self, held: Stamped) -> Update:
        """Return the update that extends a delivery."""
        part_, inner = self._inner(held.slot)
        return part_.extending(held._replace(slot=inner))

    def uncounting(self, held: Stamped, *, begun: bool) -> Update:
        """Return the update that takes the attempt of a message back."""
        part_, inner = self._inner(held.slot)
        return part_.uncounting(held._replace(slot=inner), begun=begun)

    def remove(self, held: Sequence[Stamped], *, cancelled: bool = False) -> Rows[bool]:
        """Remove messages, as `Shards.remove` does. One call for each of the two kinds of shards that has any."""
        outcomes = Rows([False] * len(held))
        for part_ in (self.shared, self.own):
            mine = [n for n, h in enumerate(held) if self.part_of(h.slot.shard)[0] is part_]
            inner = [held[n]._replace(slot=self._inner(held[n].slot)[1]) for n in mine]
            outcomes.merge(mine, part_.remove(inner, cancelled=cancelled))
        return outcomes

    def stamp_rules_at(self, slot: Slot) -> StampRules:
        """Return the guards and reads for the message in a slot."""
        return self.part_of(slot.shard)[0].stamp_rules

    def look(self, slots: Sequence[Slot]) -> Rows[Envelope | None]:
        """Return the messages in these slots, or the error of one that cannot be read. One call."""
        rows = self.store.repeat_many([Update(self.key(slot), self.stamp_rules_at(slot).reads) for slot in slots])
        return Rows(map(self._seen, slots, rows.raise_unless(NotFound, Corrupt, Unreadable)))

    def _seen(self, slot: Slot, row: Row) -> Envelope | LatchworkError | None:
        if isinstance(row, LatchworkError):
            return None if isinstance(row, NotFound) else row
        return self.stamp_rules_at(slot).envelope(row)


def counted(stored: Any) -> int:
    """Return a pointer as it is stored; 0 for one that is none."""
    return stored if is_int(stored) and stored > 0 else 0


def shared_pointers_key(queue: Shards, tag: str, shard: int) -> Key:
    """Return the key of a group's pointers over the slots of a shard of its queue."""
    return Key(queue.meta_set, f"{queue.name}@{tag}_SHARED_SHARD_{shard}_POINTERS")
