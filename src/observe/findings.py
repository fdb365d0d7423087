"""What a snapshot of a client tells a person to do, each with its remedy. No I/O.

`doctor` prints all of it, `stats` prints it below its table, and `watch_queues` shows it as a gauge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ..queue.sharded.workers import WorkerReport
from .snapshot import QueueState, Snapshot, shown_time

OK, WARNING, PROBLEM = "ok", "warning", "problem"
KINDS = (
    "paused", "settings", "no_worker", "worker_died", "expiring", "parked", "failing", "stranded", "upkeep",
    "unreadable",
)  # fmt: skip
"""All kinds of findings about a client."""
RECENT = 600.0
"""Seconds for which a worker that died is told of; what waits for a worker is told of for as long as it waits."""
WAITED = 30.0
"""Seconds that a message must have waited before the lack of a worker is a problem."""
ACTS_WITHIN = 10.0
"""Seconds within which each worker must act on a change of the settings; 3 are usual."""
SUCCEEDED_WITHIN = 20.0
"""Seconds from the last renewal of a leader that died within which another one must lead; 15 are usual."""
DELIVERED_WITHIN = 60.0
"""Seconds that the delivery of delayed messages may be behind; a few are usual."""
MANY_FAILED = 3
"""Failures in a minute from which on it is a problem that more failed than were done."""
_START = "start one: latchwork worker MODULE:NAME"
_UPKEEP = "run a worker or a consumer of this client"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    state: ok, warning, or problem: a person must act.
    kind: one of `KINDS`; empty where it is not about the queues of a client.
    queue: the queue that it is about; None = none.
    """

    state: str
    what: str
    remedy: str = ""
    kind: str = ""
    queue: str | None = None


_Found: TypeAlias = Iterator[tuple[str, str, str, str]]
"""What a rule finds about a queue: the state, the kind, what it is, and its remedy."""


def findings_of(taken: Snapshot) -> list[Finding]:
    """Return what is not as it should be, problems first."""
    found = [*_of_client(taken), *(finding for queue in taken.queues for finding in of_queue(queue, taken))]
    return sorted(found, key=lambda one: one.state != PROBLEM)


def of_queue(queue: QueueState, taken: Snapshot) -> Iterator[Finding]:
    """Yield what is not as it should be with one queue of the snapshot."""
    for rule in (_settings, _workers, _expiring, _failures, _stranded):
        for state, kind, what, remedy in rule(queue, taken):
            yield Finding(state, f"queue {queue.name}: {what}", remedy, kind, queue.name)


def _settings(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of a pause, and of workers that do not act on the last change of its settings."""
    live, ready = queue.live, queue.stats.ready.waiting
    ago = taken.at - live.changed / 1000
    if queue.paused:
        who = f" by {live.changed_by}" if live.changed_by else ""
        since = f"paused{who}, {shown_time(ago)} ago" if live.changed else "paused since it was made"
        waits = f"; {ready:,} ready messages wait, and go on expiring" if ready else ""
        yield WARNING, "paused", since + waits, f"latchwork queue resume {queue.name} --client {taken.client}"
    late = [one for one in queue.at_work if one.acts_on < live.changed]
    if late and ago > ACTS_WITHIN:
        change = "pause" if queue.paused else "change of its settings"
        what = f"{len(late)} of {len(queue.at_work)} workers do not act on the {change} of {shown_time(ago)} ago"
        remedy = "they hang, or are of an earlier version: restart them"
        yield PROBLEM, "settings", f"{what}: {_named(late)}", remedy


def _workers(queue: QueueState, _: Snapshot) -> _Found:
    """Tell of a queue that nobody works on, and of workers that died."""
    ready, died = queue.stats.ready, [one for one in queue.workers if one.is_silent and one.ago < RECENT]
    last = f"; the last one was {_named(died)}" if died else ""
    if queue.at_work:
        if died:
            what = f"{_named(died)}, died or hangs; others that work: {len(queue.at_work)}"
            yield WARNING, "worker_died", what, "what it held comes back by the upkeep; start it again if nothing has"
    elif queue.stats.is_streamed:
        return
    elif ready.waiting and not queue.paused and (ready.oldest_age or 0.0) > WAITED:
        what = (
            f"{ready.waiting:,} ready messages and no worker; the oldest waits for {shown_time(ready.oldest_age or 0)}"
        )
        if queue.has_groups and not queue.stats.depth.fired:
            yield WARNING, "no_worker", what, "as it should be, if only its groups are to have them: they expire here"
        else:
            yield PROBLEM, "no_worker", what + last, f"{_START} (a program that calls receive() itself is not seen)"
    elif died:
        yield PROBLEM, "no_worker", f"no worker{last}: it was killed, or cannot reach the store", _START


def _expiring(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of messages that have waited for more than half of their life."""
    name = f"{queue.name} --client {taken.client}"
    for part, side, remedy in (
        ("ready", queue.stats.ready, "more workers" if queue.at_work else _START),
        ("sideline", queue.stats.sideline, f"bring back what is due: latchwork queue shovel {name}"),
        ("parked", queue.stats.parked, f"latchwork queue redrive {name}, or discard them"),
    ):
        if side.left is not None and side.is_half_over:
            what = f"the oldest {part} message expires in {shown_time(side.left)}, of a life of {shown_time(side.life)}"
            yield PROBLEM, "expiring", what, remedy


def _failures(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of parked messages, and of messages that fail faster than others are done."""
    name, parked = f"{queue.name} --client {taken.client}", queue.stats.parked.waiting
    if parked:
        what = f"{parked:,} messages failed too often and are parked: nothing brings them back"
        remedy = f"latchwork queue peek {name} --side parked; repair the cause, then latchwork queue redrive {name}"
        yield PROBLEM, "parked", what, remedy
    failed, acked = (sum(getattr(one, of) for one in queue.at_work) for of in ("failed", "acked"))
    if failed > acked:
        what = f"{failed:,} attempts failed in the last minute, and {acked:,} messages were done"
        remedy = f"the logs of its workers have each failure; latchwork queue search {name} --side delayed"
        yield PROBLEM if failed >= MANY_FAILED else WARNING, "failing", what, remedy


def _stranded(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of messages that wait for an upkeep that no process does, or for what never comes."""
    stats, leader, sideline = queue.stats, taken.leader, queue.stats.sideline.waiting
    leads = leader is not None and leader.leads
    who = f" ({leader.standing})" if leader and not leads else ""
    if sideline and queue.live.shovel is None and not queue.retries:
        what = f"{sideline:,} messages are in the sideline, and nothing brings them back: the queue does not retry"
        remedy = f"bring them back once: latchwork queue shovel {queue.name} --client {taken.client}"
        yield PROBLEM, "stranded", what, remedy
    elif sideline and not leads:
        what = f"{sideline:,} messages are in the sideline, and no process does the upkeep that brings them back{who}"
        yield PROBLEM, "stranded", what, _UPKEEP
    late = stats.delayed_late
    if late is not None and late > DELIVERED_WITHIN:
        what = f"{stats.depth.delayed:,} delayed messages, and none was delivered for {shown_time(late)}{who}"
        yield PROBLEM, "stranded", what, "the log of the process that leads says why" if leads else _UPKEEP


def _of_client(taken: Snapshot) -> Iterator[Finding]:
    """Yield what is not as it should be with the upkeep, and with the records of queues."""
    for name, why in taken.unreadable.items():
        yield Finding(
            PROBLEM, f"queue {name}: {why}", "until then nobody can consume it, nor is it swept", "unreadable", name
        )
    leader = taken.leader
    if leader and leader.held and leader.renewed_ago > max(SUCCEEDED_WITHIN, 2 * leader.lease):
        yield Finding(PROBLEM, f"no upkeep: {leader.standing}", _UPKEEP, "upkeep")
    for queue in taken.queues:
        ago = taken.at - (queue.stats.last_sweep.success / 1000 or queue.made)
        if ago > 2 * queue.sweep_interval:
            who = leader.standing if leader else "nobody ever did the upkeep"
            what = f"queue {queue.name}: not swept for {shown_time(ago)}, so the messages of dead consumers stay; {who}"
            remedy = f"{_UPKEEP}, or `latchwork queue sweep --every 900`; if one leads, see `sweep error` in stats"
            yield Finding(PROBLEM, what, remedy, "upkeep", queue.name)


def _named(workers: list[WorkerReport], most: int = 3) -> str:
    """Return the names of some workers, each with the age of its last report."""
    named = [f"{one.worker}, which last reported {shown_time(one.ago)} ago" for one in workers[:most]]
    return ", ".join(named) + (f", and {len(workers) - most} more" if len(workers) > most else "")
