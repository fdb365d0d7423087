"""The groups that read the slots of a queue beside its own consumers (docs/protocols P17).

A slot is for the groups that had joined its shard before it was reserved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ....errors import LatchworkError
from ....inputs import is_int
from ....store import Put, Record
from ....store.rows import Rows
from ...rows import read_each
from ..envelope import Envelope, kept_for
from ..hooks import Readers
from ..pointers import LOAD
from ..rules import GROUPS, RESULT
from ..shards import Shards
from ..slots import Slot, Stamped
from .stamps import ACKED, OWN, SharedAck, acknowledge_shared, finish, naming, own_ack

_NO_GROUPS: Mapping[str, int] = {}


class _Joined(NamedTuple):
    """The groups of a shard, each with LOAD when it joined, as they were when LOAD was `loaded`."""

    loaded: int
    groups: Mapping[str, int]


class Members(Readers):
    """The groups of a queue, as one process knows them. Safe to share between threads: if two note at once, the older
    note may stay; then the next lookup above it reads again.
    """

    def __init__(self, queue: Shards) -> None:
        self._queue, self._store = queue, queue.store
        self._seen: dict[int, _Joined] = {}

    def note(self, shard: int, loaded: int, groups: Any) -> None:
        """Remember what was read in one step. What was read when LOAD was lower is older. Damaged bins name
        no group.
        """
        self._noted(shard, loaded, groups)

    def _noted(self, shard: int, loaded: int, groups: Any) -> _Joined:
        """Remember what was read, and return what is known now."""
        known = self._seen.get(shard)
        if known is None or known.loaded <= loaded:
            there = groups if groups is not None and isinstance(groups, Mapping) else _NO_GROUPS
            joined = {tag: at for tag, at in there.items() if is_int(at) and type(tag) is str} if there else _NO_GROUPS
            known = self._seen[shard] = _Joined(loaded, joined)
        return known

    def forget(self) -> None:
        """Forget everything: a noted reservation was undone, and LOAD is lower than noted."""
        self._seen.clear()

    def loaded(self, shard: int) -> int:
        """Return how many slots of a shard are reserved, as far as this process knows. No call."""
        known = self._seen.get(shard)
        return known.loaded if known else 0

    def waiting(self, slots: Sequence[tuple[int, int]]) -> Rows[tuple[str, ...]]:
        """Return the groups of each slot, or why the pointers of its shard cannot be read. No call where this process
        has reserved it, or one above it.
        """
        seen = {shard: self._seen.get(shard) for shard, _ in slots}  # another thread may forget them meanwhile
        unknown = sorted({s for s, pointer in slots if (known := seen[s]) is None or known.loaded < pointer})
        there = seen | self._look(unknown) if unknown else seen
        found: Rows[tuple[str, ...]] = Rows()
        for shard, pointer in slots:
            joined = there[shard]
            if isinstance(joined, LatchworkError):
                found.append(joined)
            elif joined is None or not joined.groups:
                found.append(())
            else:
                found.append(tuple(sorted([tag for tag, start in joined.groups.items() if start < pointer])))
        return found

    def _look(self, shards: Sequence[int]) -> dict[int, _Joined | LatchworkError]:
        """Note and return the groups of these shards, or the error of one that cannot be read. One call."""
        keys = [self._queue.pointers_key(shard) for shard in shards]
        records, damaged = read_each(self._store, keys, LOAD, GROUPS).sift(shards)
        found: dict[int, _Joined | LatchworkError] = {**damaged}
        for shard, record in records.items():
            bins = record.bins if record else {}
            loaded = bins.get(LOAD, 0)
            found[shard] = self._noted(shard, loaded if is_int(loaded) else 0, bins.get(GROUPS))
        return found

    def tags(self, names: tuple[str, ...], envelope: Envelope, *, moved: bool) -> tuple[Put, ...]:
        """Return the operation that names the groups in a new message. One that was handed out, or has moved within the
        queue, is a copy: they have had the original.
        """
        known = envelope.known if isinstance(envelope.known, bool) else moved or envelope.attempts > 0
        return (naming(ACKED if known else GROUPS, names),) if names else ()

    def settle(self, held: Sequence[Stamped]) -> Rows[bool]:
        """Acknowledge messages for the queue's own consumers; the last reader deletes each. One call, or two."""
        queue, acks = self._queue, []
        for at, me, one, result in held:
            update, keep = own_ack(queue.key(at), one.data, me), one.keep_id
            if result is not None:  # the last of the groups keeps it as it keeps an id
                keep = max(keep, queue.results)
                update = replace(update, ops=(Put(RESULT, result), Put("keepId", keep), *update.ops))
            acks.append(SharedAck(update, me, keep))
        return acknowledge_shared(self._store, acks, OWN)

    def discard(self, slots: Sequence[Slot]) -> Rows[bool]:
        """Acknowledge messages for a stream of the queue, as `settle` does, whoever holds them. Two calls, or three."""
        queue, me = self._queue, self._store.seams.unique()
        found, unread = queue.look(slots).sift(slots)
        acks = [
            SharedAck(own_ack(queue.key(slot), one.data, me, any_delivery=True), me, one.keep_id)
            for slot, one in found.items()
            if one is not None
        ]
        return Rows([*acknowledge_shared(self._store, acks, OWN), *unread.values()])

    def finish(self, slots: Sequence[Slot]) -> None:
        """Delete messages that no reader waits for, and whose last reader died before it deleted them. Rare.

        A record that cannot be read stays.
        """
        if not slots:
            return
        keys = [self._queue.key(slot) for slot in slots]
        rows = zip(keys, read_each(self._store, keys, "keepId"), strict=True)
        finish(self._store, [(key, kept_for(row.bins.get("keepId"))) for key, row in rows if isinstance(row, Record)])
