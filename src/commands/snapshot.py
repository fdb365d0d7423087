"""What there is to say about a queue at one moment, for `queue stats` and `stats --watch`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..queue import QueueRegistry, ShardedQueue
from ..queue.facts import QueueFacts, facts_of

SAMPLE = 200
"""Sidelined messages that are looked at to tell the reasons."""


def queue_facts(queue: ShardedQueue) -> dict[str, Any]:
    """Depth, reasons, the oldest message, the balance of shards and the last sweep. A few calls, whatever its size."""
    return _row(queue, facts_of(queue))


def all_facts(registry: QueueRegistry) -> list[dict[str, Any]]:
    """The same for every queue of the client."""
    return [_row(queue, facts_of(queue, bins)) for queue, bins in registry.listed(active=None)]


def _row(queue: ShardedQueue, facts: QueueFacts) -> dict[str, Any]:
    depth, last, now = facts.depth, facts.last_sweep, queue.store.seams.wall()
    sidelined = queue.sideline.peek(SAMPLE) if depth.sideline else []
    return {
        "queue": facts.name,
        "active": facts.active,
        "consumers": facts.consumers,
        "ready": depth.ready,
        "sideline": depth.sideline,
        "sidelined_by_reason": dict(Counter(message.reason or "unknown" for message in sidelined)),
        "sidelined_looked_at": len(sidelined),
        "parked": depth.parked,
        "expired": depth.expired,
        "published": depth.loaded,
        "received": depth.fired,
        "oldest_age_s": None if facts.oldest_age is None else round(facts.oldest_age, 1),
        "shard_balance": None if facts.balance is None else round(facts.balance, 2),
        "swept_s_ago": round(now - last.success / 1000, 1) if last.success else None,
        "sweep_failed_s_ago": round(now - last.failure / 1000, 1) if last.failure > last.success else None,
        "sweep_error": last.error if last.failure > last.success else None,
    }
