"""Shards whose pointers were lost with the store, or a part of it, and began again at 1 (docs/protocols P5).

The sweep pointers are in the record of the queue, so they may outlive the pointers that they belong to. Then nothing
below them would be swept again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ....logs import Log
from ....store import KEEP, MapPut, Put
from ....store.model.expr import Bound
from ....store.model.ops import Op
from ..record import lifetime
from ..subscription import Subscription
from ..sweep_record import MARKS, SubqueueKind, mark_name, pointer_bin
from .sweep import EPOCH_GUARD

log = Log(__name__)

Bins = dict[str, Any]


def begin_again(queue: Subscription, bins: Bins, epoch: int, unseen: Collection[tuple[SubqueueKind, int]]) -> None:
    """Forget what the queue's record, and `bins`, say about sweeps of these shards, which no sweep has seen.

    No call, or one where it says anything. Raises the store's errors, and `Refused` if a later leader has swept the
    queue.
    """
    ops: list[Op] = []
    for kind, shard in sorted(unseen, key=str):
        swept, marks = _entries(bins, pointer_bin(kind)), _entries(bins, MARKS)
        if swept.get(str(shard)):
            swept[str(shard)] = 0
            ops.append(MapPut(pointer_bin(kind), str(shard), 0))
        if mark_name(kind, shard) in marks:
            del marks[mark_name(kind, shard)]
            ops.append(MapPut(MARKS, mark_name(kind, shard), [0, 0]))
    if not ops:
        return
    log.warning(
        "the store has lost pointers of queue %s since it was swept: their shards are swept from the beginning",
        queue.name,
    )
    key, guard = queue.registry.records.key(queue.name), Bound(EPOCH_GUARD, {"epoch": epoch})
    ttl = lifetime(queue.config) if queue.live.active else KEEP
    queue.store.operate(key, *ops, Put("epoch", epoch), when=guard, ttl=ttl, repeatable=True)


def _entries(bins: Bins, bin: str) -> Bins:
    """Return the entries of a map; none if it is damaged, which the plan repairs."""
    found = bins.get(bin)
    return found if isinstance(found, dict) else {}
