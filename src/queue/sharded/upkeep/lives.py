"""Shards whose pointers were lost with the store, or a part of it, and began again at 1 (docs/protocols P5).

The sweep pointers are in the record of the queue, so they may outlive the pointers that they belong to. Then nothing
below them would be swept again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from ....errors import Corrupt, LatchworkError, NotFound
from ....store import KEEP, MapPut, Put, Read, Update
from ....store.model.expr import Bound
from ....store.model.ops import Op
from ...rows import settle
from ..groups.making import forget_dead
from ..hands import GROUPS
from ..pointers import FIRE, KNOWN
from ..queue import ShardedQueue
from ..record import lifetime
from ..shards import PointerQueue
from .books import MARKS, mark_name, pointer_bin
from .report import Kind, ShardTask
from .sweep import EPOCH_GUARD, sides

log = logging.getLogger(__name__)

Bins = dict[str, Any]
Place = tuple[Kind, int]


def tasks_of(
    queue: ShardedQueue, bins: Bins, epoch: int, plan: Callable[[ShardedQueue, Bins, int], list[ShardTask]]
) -> list[ShardTask]:
    """What there is to sweep in a queue whose record holds `bins`; what was lost and began again, from its beginning.

    plan: `Sweeper.tasks`.  Two calls, and one or two more where there are shards that no sweep has seen. Raises the
    store's errors, and `Refused` where a later leader has swept the queue. For a queue with groups a call more: those
    whose record is gone are waited for no more.
    """
    seen, new = _shards(queue)
    _begin_again(queue, bins, epoch, new)
    # A shard that is first fired from here on is not known yet: it is the next sweep's.
    return [task for task in plan(queue, bins, epoch) if task.damage or (task.kind, task.shard) in seen | new]


def _shards(queue: ShardedQueue) -> tuple[set[Place], set[Place]]:
    """The shards that a sweep has seen since they began, and those of which something was fired and that none has."""
    queues = _queues(queue)
    places = [(kind, shard) for kind in queues for shard in range(queue.config.shards)]
    keys = [queues[kind].pointers_key(shard) for kind, shard in places]
    rows = _settled(queue, [Update(key, (Read(FIRE), Read(KNOWN), Read(GROUPS))) for key in keys])
    named = [row[2] for row in rows if not isinstance(row, LatchworkError) and isinstance(row[2], dict)]
    tags = {tag for groups in named for tag in groups}
    forget_dead(queue.registry.records, queue.pointers, tags)
    found = zip(places, rows, strict=True)
    fired = {place: row[1] is not None for place, row in found if not isinstance(row, LatchworkError) and row[0]}
    return {place for place, known in fired.items() if known}, {place for place, known in fired.items() if not known}


def _begin_again(queue: ShardedQueue, bins: Bins, epoch: int, new: Iterable[Place]) -> None:
    """Forget what the queue's record, and `bins`, tell of sweeps of these shards; then mark them as seen."""
    ops: list[Op] = []
    for kind, shard in sorted(new, key=str):
        swept, marks = _entries(bins, pointer_bin(kind)), _entries(bins, MARKS)
        if swept.get(str(shard)):
            swept[str(shard)] = 0
            ops.append(MapPut(pointer_bin(kind), str(shard), 0))
        if mark_name(kind, shard) in marks:
            del marks[mark_name(kind, shard)]
            ops.append(MapPut(MARKS, mark_name(kind, shard), [0, 0]))
    if ops:
        log.warning(
            "the store has lost pointers of queue %s since it was swept: their shards are swept from the beginning",
            queue.name,
        )
        ttl = lifetime(queue.config) if queue.live.active else KEEP
        guard = Bound(EPOCH_GUARD, {"epoch": epoch})
        queue.store.operate(
            queue.registry.records.key(queue.name), *ops, Put("epoch", epoch), when=guard, ttl=ttl, repeatable=True
        )
    queues = _queues(queue)
    seen = [Update(queues[kind].pointers_key(shard), (Put(KNOWN, 1),)) for kind, shard in sorted(new, key=str)]
    if seen:
        _settled(queue, seen)


def _settled(queue: ShardedQueue, updates: list[Update]) -> list[Any]:
    """The rows of these updates. Raises the first error that is not about one record, absent or damaged."""
    rows = settle(queue.store, updates)
    for row in rows:
        if isinstance(row, LatchworkError) and not isinstance(row, NotFound | Corrupt):
            raise row
    return rows


def _entries(bins: Bins, bin: str) -> Bins:
    """The entries of a map; none where it is damaged, which the plan puts right."""
    found = bins.get(bin)
    return found if isinstance(found, dict) else {}


def _queues(queue: ShardedQueue) -> dict[Kind, PointerQueue]:
    return sides(queue.pointers, queue.sideline.pointers, queue.parked.pointers)
