"""The round of the large circular queue as the client's own three calls: what no Python around it can be faster than.

The same guards, operations and durability as `LargeQueue` (docs/protocols P4), every expression compiled once and
its values put in for each call. Bins, ids and the sizes that the transaction map grows to are the queue's as well.
"""

from __future__ import annotations

import os
from itertools import count
from typing import Any

import aerospike
from aerospike_helpers.operations import expression_operations, list_operations, map_operations, operations

from latchwork.queue.circular.layout import ENTRIES, GROUPS, HEAD, MARK, TAIL, TXNS, Layout
from latchwork.store.aerospike.expr import compiled
from latchwork.store.model.expr import SERVER_NOW, Bin, Expr, MapSmallestValue, Param, largest

FENCE, LOCKED, TIME, OWNER, GRANT = "fencing-ctr", "locked", "lock-time-ms", "lock-owner", "grant-id"
POLICY: dict[str, Any] = {
    "max_retries": 0,
    "key": aerospike.POLICY_KEY_SEND,
    "commit_level": aerospike.POLICY_COMMIT_LEVEL_ALL,
    "exists": aerospike.POLICY_EXISTS_UPDATE,
    "ttl": aerospike.TTL_NEVER_EXPIRE,
}
ORDERED = {"map_order": aerospike.MAP_KEY_ORDERED}
WATERMARK = MapSmallestValue(GROUPS)
FREE = Bin(LOCKED).eq(0) & Bin(GRANT, str).ne(Param("grant", str))
HELD = Bin(LOCKED).eq(1) & Bin(FENCE).eq(Param("fence"))
HEAD_MAY_MOVE = HELD & (Param("head") <= WATERMARK)
NEWEST = Bin(MARK) <= Param("fence")
TRIM_EVERY, KEPT = 192, 64
"""The queue trims its transactions to 64 once there are more than 256."""


class RawRound:
    """Enqueues and dequeues one message at a time, on one thread and a queue of its own."""

    def __init__(self, client: Any, namespace: str, layout: Layout) -> None:
        self.client, self.layout, self.commits = client, layout, count(1)
        self.meta = (namespace, *layout.meta)
        self.buffers = [(namespace, *layout.buffer(number)) for number in range(layout.records)]
        self.take = [
            expression_operations.expression_write(FENCE, compiled(largest(Bin(FENCE) + 1, SERVER_NOW * 1000))),
            operations.write(LOCKED, 1),
            expression_operations.expression_write(TIME, compiled(SERVER_NOW)),
        ]
        self.look = [operations.read(bin) for bin in (FENCE, HEAD, TAIL)]
        watermark = expression_operations.expression_read("=", compiled(WATERMARK))
        self.look_for_groups = [*self.look, watermark]
        self.trim = map_operations.map_remove_by_index_range(TXNS, KEPT, 2 * TRIM_EVERY, aerospike.MAP_RETURN_NONE)

    def enqueue(self, value: Any) -> int:
        """Put the value at the tail; its offset."""
        txn, fence, head, tail = self._lock(self.look)
        assert tail - head < self.layout.capacity
        record, slot = divmod(tail, self.layout.slots)
        steps = [operations.write(MARK, fence), list_operations.list_set(ENTRIES, slot, [tail, value])]
        self._operate(self.buffers[record % len(self.buffers)], steps, NEWEST, fence=fence)
        self._commit(txn, [tail, tail, fence], TAIL, HELD, fence=fence)
        return tail

    def dequeue(self) -> Any:
        """Take the value at the head."""
        txn, fence, head, tail, watermark = self._lock(self.look_for_groups)
        assert head < min(tail, watermark)
        record, slot = divmod(head, self.layout.slots)
        key, look = self.buffers[record % len(self.buffers)], list_operations.list_get_range(ENTRIES, slot, 1)
        (_, ((offset, value),)), *_ = self.client.operate_ordered(key, [look], None, {"max_retries": 0})[2]
        assert offset == head
        self._commit(txn, [head, head, fence], HEAD, HEAD_MAY_MOVE, fence=fence, head=head + 1)
        return value

    def _lock(self, look: list[Any]) -> tuple[Any, ...]:
        txn = f"~{os.urandom(10).hex()}"
        steps = [*self.take, operations.write(OWNER, txn), operations.write(GRANT, txn), *look]
        answers = self._operate(self.meta, steps, FREE, grant=txn)
        return txn, *(answer for _, answer in answers[-len(look) :])

    def _commit(self, txn: str, entry: list[int], bin: str, guard: Expr, **params: int) -> None:
        remember = map_operations.map_put(TXNS, txn, entry, ORDERED)
        steps = [operations.write(bin, entry[1] + 1), remember, operations.write(LOCKED, 0)]
        if next(self.commits) % TRIM_EVERY == 0:
            steps.append(self.trim)
        self._operate(self.meta, steps, guard, **params)

    def _operate(self, key: Any, steps: list[Any], guard: Expr, **params: Any) -> Any:
        policy = {**POLICY, "expressions": compiled(guard.bind(**params))}
        return self.client.operate_ordered(key, steps, None, policy)[2]
