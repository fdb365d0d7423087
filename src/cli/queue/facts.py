"""The facts of a queue at one moment: a row for a program, lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ...observe.findings import findings_of
from ...observe.snapshot import QueueState, Snapshot, view_of
from ...plain import shown_time
from ...queue import QueueRegistry, ShardedQueue
from ...queue.sharded.in_flight import InFlight, in_flight
from ...queue.sharded.peek import sample
from ...queue.sharded.stats import QueueStats
from ...queue.sharded.workers import short_name

SAMPLE = 200
"""Messages of the sideline that are read to show the reasons."""
MANY = 1_000
"""Messages that were published, from which on people are shown how they are spread over the shards."""
MANY_WORKERS = 3
"""Workers at most that are named beside the threads that a queue has."""


def all_rows(registry: QueueRegistry, only: str | None = None) -> tuple[Snapshot, list[dict[str, Any]]]:
    """Return the client as it is now, and for each of its queues the facts, with who works on it and the findings.

    only: the one queue that is read; None = all.
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
        "stream": state.stats.stream,
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


def for_people(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of `queue stats`, by names that say what they are."""
    marks, looked = ("overdue", "draining", "saturated"), facts["sidelined_looked_at"]
    workers = [
        short_name(one) + "".join(f" ({mark})" for mark in marks if one in facts[f"{mark}_workers"])
        for one in facts["workers"]
    ]
    reasons = ", ".join(f"{name} {count}" for name, count in facts["sidelined_by_reason"].items())
    of = f", of {looked} looked at" if 0 < looked < facts["sideline"] else ""
    last = facts["in_flight_looked_at"]
    among = f", among the {last:,} handed out last" if last < facts["received"] else ""
    streamed = f"; the stream {facts['stream']!r} owns it" if facts["stream"] else ""
    ago, oldest = facts["swept_s_ago"], facts["oldest_age_s"]
    by = f" by {facts['changed_by']}" if facts["changed_by"] else ""
    since = f", {shown_time(facts['changed_s_ago'])} ago" if facts["changed_s_ago"] is not None else ""
    return {
        "queue": facts["queue"],
        "active": facts["active"],
        "paused": f"yes{by}{since}" if facts["paused"] else "no",
        "workers": (f"{len(workers)}: {', '.join(workers)}" if workers else "none") + streamed,
        "threads each": threads_each(facts["consumers"], facts["worker_threads"]) or facts["consumers"],
        "ready": facts["ready"],
        "oldest ready message": "-" if oldest is None else shown_time(oldest),
        "in flight": f"{facts['in_flight']}{among}",
        "delayed": facts["delayed"],
        "of these, retrying": facts["retrying"],
        "sideline": f"{facts['sideline']} ({reasons}{of})" if reasons else facts["sideline"],
        "parked": facts["parked"],
        "batches": facts["batches"],
        "expired or removed": facts["expired"],
        "put in": facts["published"],
        "handed out": facts["received"],
        "shard balance": balance(facts),
        "swept": "never" if ago is None else f"{shown_time(ago)} ago",
        "sweep error": facts["sweep_error"],
    }


def threads_each(threads: int, there: Mapping[str, int]) -> str:
    """Return the threads that are set, and what workers run where their programs fix another number; empty where none
    do, or the queue is paused.
    """
    fixed = [f"{short_name(worker)} {n}" for worker, n in there.items() if n not in (0, threads)]
    more = f" and {len(fixed) - MANY_WORKERS} more" if fixed[MANY_WORKERS:] else ""
    return f"{threads} (as its program says: {', '.join(fixed[:MANY_WORKERS])}{more})" if fixed and threads else ""


def balance(facts: Mapping[str, Any]) -> float | None:
    """Return the balance of the shards; None where chance alone makes it uneven: of few messages."""
    return facts["shard_balance"] if facts["published"] >= MANY else None


def lines_of(facts: Mapping[str, Any]) -> list[str]:
    """Return a line for each fact, for people."""
    return [f"{key.replace('_', ' '):22} {_text(value)}" for key, value in facts.items()]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "-"
    return "-" if value is None else str(value)


def paused(queue: ShardedQueue, now: float) -> str | None:
    """Return since when the queue is paused, and by whom; None if it is not."""
    if queue.concurrency:
        return None
    return changed(queue, now) or "since it was made"


def changed(queue: ShardedQueue, now: float) -> str | None:
    """Return since when it has the number of threads that it has, and by whom; None = since it was made."""
    if not queue.live.changed:
        return None
    who = f" by {queue.live.changed_by}" if queue.live.changed_by else ""
    return f"{shown_time(max(0.0, now - queue.live.changed / 1000))} ago{who}"
