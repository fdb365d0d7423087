"""Writing the messages of a ledger's chunk to the slots that the ledger names, each exactly once (docs/protocols P6).

Several attempts may work on one chunk. A slot is right for a message only if no consumer can have passed it while it
was empty: it must be filled within half a sweep duration of its reservation. Otherwise, or if something else is in the
slot, the message moves to another slot. The ledger is changed first, so all attempts write to one slot. Before that,
the old slot is closed for as long as the ledger is kept, because an attempt that was paused may still write to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ....errors import Corrupt, InvalidRequest, NotFound, Refused, Unavailable
from ....store import Compute, Param, Put, Read, Update, exists, missing
from ....store.model.expr import Bin, Bound
from ..envelope import CONTENT, Envelope, tombstone
from ..groups.passing import not_given, passed_by_groups, passed_by_sweeps
from ..groups.stamps import ACKED, STAMPS
from ..handles import SubscriptionHandle
from ..rules import GROUPS, SEEN
from ..slots import Slot, WriteResult
from ..transfer import reserve_slots
from .chunks import DONE, EXAMINED, Chunk, LedgerRecords, place, slot_of

REFUSED = "refused"
"""The detail of an error that names messages which this queue does not take, with nothing written of them, as the store
refuses their records or their shard is damaged. The others can be published without them.
"""
ROUNDS = 10
"""How often a chunk is looked at again, because slots were spent or another attempt changed it."""
_TOMBSTONE = missing("msgId") & missing("data")
_NOBODYS = missing("delivery") | Bin("delivery", str).eq(SEEN)
_NO_GROUPS = missing(STAMPS) & missing(ACKED)
_UNREAD = exists("data") & _NOBODYS & _NO_GROUPS & Bin("msgId", str).eq(Param("id", str))
_WITHDRAW = _TOMBSTONE | _UNREAD
_WAS_GIVEN = Compute(exists("msgId") & (missing("data") | ~_NOBODYS))
"""Whether the message is, or was, held by a consumer: of an acknowledged message only the id is left."""
_WHO_WAITS = (Read("msgId"), Read(GROUPS), Compute(exists("data") & _NOBODYS))
"""The groups of a message, and whether it waits for the queue's own consumers and was not handed out to them."""


class NewMessage(NamedTuple):
    """A message to be written; `shard` None = the shard of its chunk."""

    envelope: Envelope
    shard: int | None


class ChunkWriter:
    """A maker of the chunks of one partition, which writes their messages to the queue."""

    def __init__(self, queue: SubscriptionHandle, records: LedgerRecords, *, traced: bool = False) -> None:
        self._queue, self._pointers, self._records, self._traced = queue, queue.pointers, records, traced
        self._seams = queue.store.seams
        self._late, self._keep = queue.pointers.sweep / 2, max(records.ttl, int(queue.pointers.sweep) + 1)

    def create(self, number: int, rows: Sequence[NewMessage], shard: int) -> tuple[Chunk, bool]:
        """Reserve slots and enter the rows into the ledger; return the chunk, and whether it is the one that was asked
        for.

        Two calls. If another attempt made the chunk first, the reservation is wasted, which is harmless. If `shard` is
        damaged, rows without a shard of their own go to another.
        """
        born = self._seams.boottime()
        slots = self._reserved(rows, shard)
        chunk = self._records.create(number, slots, born)
        return chunk, all(chunk.places.get(msg_id) == place(slot) for msg_id, slot in slots.items())

    def _reserved(self, rows: Sequence[NewMessage], shard: int) -> dict[str, Slot]:
        """Return a slot for each message, in this shard or the first after it that is not damaged."""
        bound = [row.envelope.msg_id for row in rows if row.shard is not None]
        for n in range(self._pointers.shards):
            chosen = self._pointers.home(shard + n)
            shards = {row.envelope.msg_id: chosen if row.shard is None else row.shard for row in rows}
            slots, failures = reserve_slots(self._pointers, shards)
            if not failures:
                return slots
            for damage in failures.values():
                if not isinstance(damage, Corrupt):
                    raise damage
            if refused := [msg_id for msg_id in bound if msg_id in failures]:
                damage.details[REFUSED] = refused
                break
        raise damage

    def complete(self, chunk: Chunk, rows: Sequence[NewMessage]) -> None:
        """Write the messages that are missing, then note in the ledger that all are written. Two calls if nothing is
        wrong.

        Raises the store's errors; the chunk then stays open for the next attempt.
        """
        envelopes = {row.envelope.msg_id: row.envelope for row in rows}
        fresh: dict[Slot, float] = {}
        for _ in range(ROUNDS):
            if chunk.written:
                return
            if self._settle(chunk, envelopes, fresh) and self._records.finish(chunk.number, chunk.changes):
                self._queue.active.loaded({slot_of(at).shard for at in chunk.places.values() if at != DONE})
                self._seams.note("published", len(chunk.places), queue=self._queue.name, outcome="published")
                return
            chunk = self._again(chunk)
        raise Unavailable(f"{self._records.key(chunk.number).name}: its slots are spent as fast as they are reserved")

    def _again(self, chunk: Chunk) -> Chunk:
        found = self._records.read([chunk.number])[0]
        if found is None:
            raise NotFound(f"{self._records.key(chunk.number).name}: the ledger has expired while it was written to")
        return replace(found, born=chunk.born)  # what others have reserved for it meanwhile is younger

    def _settle(self, chunk: Chunk, envelopes: Mapping[str, Envelope], fresh: dict[Slot, float]) -> bool:
        """Write every message to its slot; False if one had to move, so that the chunk has to be read again.

        fresh: when this attempt itself has reserved a slot, which may be later than the chunk says.
        """
        open_ids = [msg_id for msg_id, at in chunk.places.items() if at != DONE and not at.endswith(EXAMINED)]
        examined = [msg_id for msg_id, at in chunk.places.items() if at.endswith(EXAMINED)]
        slots = [slot_of(chunk.places[msg_id]) for msg_id in open_ids]
        traced = range(len(slots)) if self._traced else ()
        found = [envelopes[msg_id] for msg_id in open_ids]
        written = self._pointers.write(slots, found, traced=traced, fresh=False)
        rows = zip(open_ids, written, strict=True)
        refused = [msg_id for msg_id, row in rows if isinstance(row, InvalidRequest) and not row.details.get("doubt")]
        for row in written.errors() if refused else ():
            row.details[REFUSED] = refused
        written.raise_unless()
        moves = dict.fromkeys(examined, True)
        now = self._seams.boottime()
        late = {slot for slot in slots if now - fresh.get(slot, chunk.born) > self._late}
        passed = passed_slots(
            self._queue, {slot for slot, what in zip(slots, written, strict=True) if what is WriteResult.DONE} & late
        )
        closed = self._closed(
            [slot for slot, outcome in zip(slots, written, strict=True) if outcome is WriteResult.SPENT]
        )
        for msg_id, slot, outcome in zip(open_ids, slots, written, strict=True):
            if outcome is WriteResult.SPENT:
                moves[msg_id] = slot not in closed
            elif slot in passed:
                moves[msg_id] = True
        if moves:
            self._move(chunk, moves, fresh)
        return not moves

    def _move(self, chunk: Chunk, moves: Mapping[str, bool], fresh: dict[Slot, float]) -> None:
        """Give messages other slots. Those to be examined first may turn out to be read already."""
        at = {msg_id: slot_of(chunk.places[msg_id]) for msg_id in moves}
        shards = {msg_id: at[msg_id].shard for msg_id in sorted(at, key=at.__getitem__)}  # they keep their order
        sent = self._seams.boottime()
        slots = self._reserve(shards)
        fresh.update(dict.fromkeys(slots.values(), sent))
        for msg_id, doubtful in moves.items():
            old, new = chunk.places[msg_id], place(slots[msg_id])
            if doubtful:
                mark = old.removesuffix(EXAMINED) + EXAMINED
                if old != mark and not self._records.change(chunk.number, msg_id, old, mark):
                    continue
                old, new = mark, new if self._withdrawn(slot_of(old), msg_id) else DONE
            self._records.change(chunk.number, msg_id, old, new)

    def _closed(self, slots: Sequence[Slot]) -> set[Slot]:
        """Put tombstones into these slots that last, so that no attempt can write there; return the slots that have
        one. One call, or none.

        Tombstones of consumers expire after the sweep duration, and an attempt may be paused for longer.
        """
        ops = tombstone(self._pointers.now_ms())
        rows = [Update(self._pointers.key(slot), ops, _TOMBSTONE, ttl=self._keep) for slot in slots]
        return set(self._queue.store.repeat_many(rows).sift(slots)[0])

    def _withdrawn(self, slot: Slot, msg_id: str) -> bool:
        """Put a tombstone into the slot if no consumer can read its message, or has read it; return whether there is
        one now.

        No attempt can write to the slot while the ledger is kept; a message in it that was not handed out is removed.
        """
        if self._pointers.write_tombstones([slot], keep=self._keep).raise_unless() == [True]:
            return True
        drop = tuple(Put(bin, None) for bin in (*CONTENT, "msgId", "delivery", GROUPS))
        key = self._pointers.key(slot)
        try:
            guard = Bound(_WITHDRAW, {"id": msg_id})
            self._queue.store.operate(key, *drop, when=guard, ttl=self._keep, repeatable=True)
        except NotFound:
            return self._withdrawn(slot, msg_id)
        except Refused:
            try:
                found, groups, waits = self._queue.store.repeat(Update(key, _WHO_WAITS))
            except NotFound:
                return self._withdrawn(slot, msg_id)
            # Of several that wait for it one has it and another may have passed it: to that one it comes elsewhere.
            return found != msg_id or passed_by_sweeps(
                self._queue.registry.records, self._pointers, slot, not_given(groups), own=waits
            )
        return True

    def _reserve(self, shards: Mapping[str, int]) -> dict[str, Slot]:
        """Return a slot for each message. One call. Raises the error of a shard that has none."""
        slots, failures = reserve_slots(self._pointers, shards)
        if failures:
            raise next(iter(failures.values()))
        return slots


def passed_slots(queue: SubscriptionHandle, slots: Collection[Slot]) -> set[Slot]:
    """Return the slots that a reader may have passed while they were empty. Two calls at most, none for no slots.

    It is asked after they were written: a consumer that claims, or a stream that reads, beyond FIRE from now on
    finds their messages. A message that was handed out since was not passed.
    """
    if not slots:
        return set()
    states = queue.pointers.states(sorted({slot.shard for slot in slots}))
    fired = {state.shard: state.checked().fired for state in states}
    passed: set[Slot] = set()
    if below := [slot for slot in slots if slot.pointer <= fired[slot.shard]]:
        rows = queue.store.repeat_many([Update(queue.pointers.key(slot), (_WAS_GIVEN,)) for slot in below])
        passed = {slot for slot, (given,) in zip(below, rows.values((False,)), strict=True) if not given}
    return passed | passed_by_groups(queue.pointers, slots)
