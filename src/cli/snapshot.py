"""What there is to say about a queue at one moment, for `queue stats` and `stats --watch`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..errors import LatchworkError
from ..queue import QueueGroup, QueueRegistry, ShardedQueue
from ..queue.rows import settle
from ..queue.sharded.peek import sample
from ..queue.sharded.shards import Slot
from ..queue.sharded.stats import QueueFacts, facts_of
from ..store import Update

SAMPLE = 200
"""Sidelined messages that are looked at to tell the reasons."""
CLAIMED = 1_000
"""Slots that were claimed last in which messages are looked for that are in somebody's hands."""


def queue_facts(queue: ShardedQueue) -> dict[str, Any]:
    """Depth, reasons, the oldest message, the balance of shards and the last sweep. A few calls, whatever its size."""
    return _row(queue, facts_of(queue))


def all_rows(registry: QueueRegistry) -> list[dict[str, Any]]:
    """Return these facts of every queue of the client."""
    return [_row(queue, facts_of(queue, bins)) for queue, bins in registry.listed(active=None)]


def _row(queue: ShardedQueue, facts: QueueFacts) -> dict[str, Any]:
    depth, last, now = facts.depth, facts.last_sweep, queue.store.seams.wall()
    sidelined = sample(queue.sideline.pointers, queue.codec, SAMPLE) if depth.sideline else []
    failed = last.failure if last.failure >= last.success else 0  # of one sweep the failure is noted last
    in_flight, looked = _in_flight(queue) if depth.fired else (0, 0)
    return {
        "queue": facts.name,
        "active": facts.active,
        "consumers": facts.consumers,
        "ready": depth.ready,
        "in_flight": in_flight,
        "in_flight_looked_at": looked,
        "sideline": depth.sideline,
        "sidelined_by_reason": dict(Counter(message.reason or "unknown" for message in sidelined)),
        "sidelined_looked_at": len(sidelined),
        "parked": depth.parked,
        "batches": 0 if isinstance(queue, QueueGroup) else len(queue.batches.names()),
        "expired": depth.expired,
        "published": depth.loaded,
        "received": depth.fired,
        "oldest_age_s": None if facts.oldest_age is None else round(facts.oldest_age, 1),
        "shard_balance": None if facts.balance is None else round(facts.balance, 2),
        "swept_s_ago": round(now - last.success / 1000, 1) if last.success else None,
        "sweep_failed_s_ago": round(now - failed / 1000, 1) if failed else None,
        "sweep_error": last.error if failed else None,
    }


def _in_flight(queue: ShardedQueue) -> tuple[int, int]:
    """Messages in somebody's hands among the slots that were claimed last, and how many slots that are. Two calls."""
    pointers = queue.pointers
    each = max(1, CLAIMED // pointers.shards)
    slots = [
        Slot(state.shard, pointer)
        for state in pointers.states()
        for pointer in range(max(1, state.fired - each + 1), state.fired + 1)
    ]
    rows = settle(queue.store, [Update(pointers.key(slot), pointers.hands_at(slot).state) for slot in slots])
    return sum(not isinstance(row, LatchworkError) and bool(row[2]) for row in rows), len(slots)
