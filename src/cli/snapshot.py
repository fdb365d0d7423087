"""The state of a queue at one moment, for `queue stats` and `stats --watch`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..observe.findings import findings_of
from ..observe.snapshot import QueueState, Snapshot, view_of
from ..queue import QueueRegistry, ShardedQueue
from ..queue.sharded.in_flight import InFlight, in_flight
from ..queue.sharded.peek import sample
from ..queue.sharded.stats import QueueStats

SAMPLE = 200
"""Messages of the sideline that are read to show the reasons."""


def all_rows(registry: QueueRegistry, only: str | None = None) -> tuple[Snapshot, list[dict[str, Any]]]:
    """Return the client as it is now, and these facts of each of its queues, with who works on it and what is wrong.

    only: of this queue alone.
    """
    view = view_of(registry, only)
    taken = view.look()
    found = findings_of(taken)
    rows = []
    for state, queue in zip(taken.queues, view.queues, strict=True):
        wrong = [one.row for one in found if state.name in one.queues]
        rates = {"in_rate": _rate(state.in_rate), "out_rate": _rate(state.out_rate)}
        rows.append(_row(queue, state.stats) | _people(state, taken) | {"findings": wrong} | rates)
    return taken, rows


def _people(state: QueueState, taken: Snapshot) -> dict[str, Any]:
    changed = state.live.changed
    return {
        "workers": [one.worker for one in state.at_work],
        "worker_threads": {one.worker: one.threads for one in state.at_work},
        "overdue_workers": [one.worker for one in state.at_work if one.is_overdue],
        "draining_workers": [one.worker for one in state.draining],
        "saturated_workers": [one.worker for one in state.at_work if one.is_saturated],
        "silent_workers": [one.worker for one in state.workers if one.is_silent],
        "paused": state.paused,
        "changed_by": state.live.changed_by,
        "changed_s_ago": round(taken.at - changed / 1000, 1) if changed else None,
    }


def _rate(a_second: float | None) -> float | None:
    return None if a_second is None else round(a_second, 1)


def _row(queue: ShardedQueue, facts: QueueStats) -> dict[str, Any]:
    depth, last, now = facts.depth, facts.last_sweep, queue.store.seams.wall()
    sidelined = sample(queue.sideline.pointers, queue.codec, SAMPLE) if depth.sideline else []
    failed = last.failure if last.failure >= last.success else 0  # a sweep notes its failure last
    held = in_flight(queue) if depth.fired else InFlight((), 0, is_all=True)
    return {
        "queue": facts.name,
        "active": facts.active,
        "consumers": facts.consumers,
        "ready": depth.ready,
        "in_flight": held.messages,
        "in_flight_looked_at": held.looked,
        "sideline": depth.sideline,
        "sidelined_by_reason": dict(Counter(message.reason or "unknown" for message in sidelined)),
        "sidelined_looked_at": len(sidelined),
        "delayed": depth.delayed,
        "retrying": depth.retrying,
        "parked": depth.parked,
        "batches": 0 if queue.reader else len(queue.batches.names()),
        "expired": depth.expired,
        "published": depth.loaded,
        "received": depth.fired,
        "oldest_age_s": None if facts.oldest_age is None else round(facts.oldest_age, 1),
        "shard_balance": None if facts.balance is None else round(facts.balance, 2),
        "swept_s_ago": round(max(0.0, now - last.success / 1000), 1) if last.success else None,
        "sweep_failed_s_ago": round(max(0.0, now - failed / 1000), 1) if failed else None,
        "sweep_error": last.error if failed else None,
    }
