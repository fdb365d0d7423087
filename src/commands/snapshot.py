"""What there is to say about a queue at one moment, for `queue stats` and `stats --watch`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..queue import QueueRegistry, ShardedQueue

SAMPLE = 200
"""Messages that are looked at to tell reasons and the oldest one."""


def queue_facts(queue: ShardedQueue) -> dict[str, Any]:
    """Depth, reasons, the oldest message, the balance of shards and the last sweep. A few calls, whatever its size."""
    depth = queue.depth()
    waiting = queue.peek(SAMPLE) if depth.ready else []
    sidelined = queue.sideline.peek(SAMPLE) if depth.sideline else []
    oldest = min((message.enqueued_at for message in waiting), default=None)
    last = queue.registry.last_sweep(queue.name)
    now = queue.store.seams.wall()
    return {
        "queue": queue.name,
        "active": queue.live.active,
        "consumers": queue.concurrency,
        "ready": depth.ready,
        "sideline": depth.sideline,
        "sidelined_by_reason": dict(Counter(message.reason or "unknown" for message in sidelined)),
        "parked": depth.parked,
        "expired": depth.expired,
        "published": depth.loaded,
        "received": depth.fired,
        "oldest_age_s": None if oldest is None else round(max(0.0, now - oldest.timestamp()), 1),
        "shard_balance": _balance(queue),
        "swept_s_ago": round(now - last.success / 1000, 1) if last.success else None,
        "sweep_failed_s_ago": round(now - last.failure / 1000, 1) if last.failure > last.success else None,
        "sweep_error": last.error if last.failure > last.success else None,
    }


def all_facts(registry: QueueRegistry) -> list[dict[str, Any]]:
    """The same for every queue of the client."""
    return [queue_facts(queue) for queue in registry.queues(active=None)]


def _balance(queue: ShardedQueue) -> str | None:
    """The fullest shard against the mean, of those that ever had a message: 1.0 = even."""
    loaded = [state.loaded for state in queue.pointers.states() if state.loaded]
    return f"{max(loaded) * len(loaded) / sum(loaded):.2f}" if loaded else None
