"""Readers that may have passed a slot while it was empty, and will not look there again (docs/protocols P6, P17)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ....store import Record
from ...rows import read_each
from ..pointers import FIRE
from ..record import QueueRecords
from ..rules import GROUPS, SEEN
from ..shards import Shards
from ..slots import Slot
from ..sweep_record import MARKS, SubqueueKind, SweepRecord, mark_name, pointer_bin
from .pointers import counted, shared_pointers_key


def not_given(groups: Any) -> set[str]:
    """Return the groups that a message waits for, of its bin `groups`, to which it was never handed out."""
    return {tag for tag, delivery in groups.items() if delivery in ("", SEEN)} if isinstance(groups, dict) else set()


def passed_by_groups(queue: Shards, slots: Collection[Slot]) -> set[Slot]:
    """Return the slots of a queue that a group has claimed and whose message it was not given. No call without groups.

    It may have found them empty, and a sweep may have passed them since. A slot of which this cannot be read is not
    among them. Else two calls, or three.
    """
    waiting = zip(slots, queue.readers.waiting(list(slots)).values(()), strict=True)
    pairs = [(slot, tag) for slot, tags in waiting for tag in tags]
    if not pairs:
        return set()
    fired = read_each(queue.store, [shared_pointers_key(queue, tag, slot.shard) for slot, tag in pairs], FIRE)
    behind = [
        pair
        for pair, one in zip(pairs, fired, strict=True)
        if isinstance(one, Record) and pair[0].pointer <= counted(one.bins.get(FIRE))
    ]
    there = read_each(queue.store, [queue.key(slot) for slot, _ in behind], GROUPS)
    found = zip(behind, there, strict=True)
    return {slot for (slot, tag), one in found if isinstance(one, Record) and tag in not_given(one.bins.get(GROUPS))}


def passed_by_sweeps(records: QueueRecords, queue: Shards, slot: Slot, tags: Collection[str], *, own: bool) -> bool:
    """Whether a sweep may have passed the slot while it was empty, for a reader to which it was not handed out since.

    A consumer that finds a slot empty looks there again or leaves a tombstone; one that dies leaves the slot to the
    sweep, which passes no empty slot above the mark that it finds in the record. So what is above the mark, as it is
    read after the message was written, comes to the reader where it is. One call, or none.

    tags: of the groups; own: also the queue's own consumers.
    """
    readers: dict[str, tuple[SubqueueKind, str | None]] = {
        f"{queue.name}@{tag.rpartition('~')[0]}": (SubqueueKind.SHARED, tag) for tag in tags
    }
    if own:
        readers[queue.name] = SubqueueKind.MAIN, None
    if not readers:
        return False
    keys = [records.key(name) for name in readers]
    found = read_each(queue.store, keys, *map(pointer_bin, (SubqueueKind.MAIN, SubqueueKind.SHARED)), MARKS, "tag")
    return any(
        not isinstance(one, Record) or one.bins.get("tag") != tag or _reaches(one, kind, slot)
        for one, (kind, tag) in zip(found, readers.values(), strict=True)
    )


def _reaches(record: Record, kind: SubqueueKind, slot: Slot) -> bool:
    """Whether the sweep pointer, or the mark, is not below the slot, or cannot be read."""
    notes = SweepRecord.of(record.key, record.bins, 0)
    mark = notes.marks.get(mark_name(kind, slot.shard), (0, 0))[0]
    return bool(notes.repairs) or slot.pointer <= max(mark, notes.swept(kind, slot.shard))
