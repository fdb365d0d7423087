"""What a snapshot of a client tells a person to do, each with its remedy. No I/O.

`doctor` prints all of it, `stats` prints it below its table, and `watch_queues` shows it as a gauge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ..plain import counted, one_line, shortened, shown_time
from ..queue.sharded.workers import WorkerReport
from .snapshot import QueueState, Snapshot

OK, WARNING, PROBLEM = "ok", "warning", "problem"
KINDS = (
    "paused", "settings", "no_worker", "worker_died", "expiring", "expired", "parked", "failing", "retrying",
    "stranded", "upkeep", "unreadable",
)  # fmt: skip
"""All kinds of findings about a client."""
EXPIRED_LATELY = 86_400.0
"""Seconds for which it is told of that messages have expired."""
RECENT = 600.0
"""Seconds for which a worker that died is told of: longer, until what it had in hand is back. What waits for a worker
is told of for as long as it waits.
"""
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
ID_SHOWN, ERROR_SHOWN = 40, 80
"""Characters of a message's id, and of its error, that a line has."""
_OR_REMOVED = "expired, or were removed one by one"
_START = "start one: latchwork worker MODULE:NAME"
_UPKEEP = "run a worker or a consumer of this client"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    state: ok: worth knowing; warning; or problem: a person must act.
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
    """Return what is not as it should be, or worth knowing; problems first."""
    found = [*_of_client(taken), *(finding for queue in taken.queues for finding in of_queue(queue, taken))]
    return sorted(found, key=lambda one: (PROBLEM, WARNING, OK).index(one.state))


def of_queue(queue: QueueState, taken: Snapshot) -> Iterator[Finding]:
    """Yield what is not as it should be with one queue of the snapshot."""
    for rule in (_settings, _workers, _expiring, _expired, _failures, _stranded):
        for state, kind, what, remedy in rule(queue, taken):
            yield Finding(state, f"queue {queue.name}: {what}", remedy, kind, queue.name)


def _settings(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of a pause, and of workers that do not act on the last change of its settings."""
    live, ready = queue.live, queue.stats.ready.waiting
    ago = taken.at - live.changed / 1000
    if queue.paused:
        who = f" by {live.changed_by}" if live.changed_by else ""
        since = f"paused{who}, {shown_time(ago)} ago" if live.changed else "paused since it was made"
        waits = f"; ready messages that wait, and go on expiring: {ready:,}" if ready else ""
        yield WARNING, "paused", since + waits, f"latchwork queue resume {queue.name} --client {taken.client}"
    late = [one for one in queue.at_work if one.acts_on < live.changed]
    if late and ago > ACTS_WITHIN:
        change = "pause" if queue.paused else "change of its settings"
        of = counted(len(queue.at_work), "worker")
        what = f"the {change} of {shown_time(ago)} ago has not reached {len(late)} of {of}"
        remedy = "they hang, or are of an earlier version: restart them"
        yield PROBLEM, "settings", f"{what}: {_named(late)}", remedy


def _workers(queue: QueueState, _: Snapshot) -> _Found:
    """Tell of a queue that nobody works on, and of workers that died."""
    ready, died = queue.stats.ready, [one for one in queue.workers if one.is_silent and one.ago < _told_for(queue, one)]
    who = f"{_named(died)}, died or hangs{_comes_back(queue, died)}" if died else ""
    if queue.at_work:
        if died:
            yield WARNING, "worker_died", f"{who}; {_others(queue)}", "start it again, if nothing has"
    elif queue.stats.is_streamed:
        return
    elif ready.waiting and not queue.paused and (ready.oldest_age or 0.0) > WAITED:
        messages = counted(ready.waiting, "ready message")
        what = f"{messages} and no worker; the oldest waits for {shown_time(ready.oldest_age or 0)}"
        if queue.has_groups and not queue.stats.depth.fired:
            yield WARNING, "no_worker", what, "as it should be, if only its groups are to have them: they expire here"
        else:
            what += f"; {who}" if who else ""
            yield PROBLEM, "no_worker", what, f"{_START} (a program that calls receive() itself is not seen)"
    elif died:
        yield PROBLEM, "no_worker", f"no worker; {who}", _START


def _told_for(queue: QueueState, worker: WorkerReport) -> float:
    """Return for how long it is told of a worker that died: until what it had in hand is back."""
    return max(RECENT, queue.returns_within) if worker.running else RECENT


def _others(queue: QueueState) -> str:
    """Return how many others work, and who of them may be dead too."""
    late = [one for one in queue.at_work if one.is_overdue]
    work = f"others that work: {len(queue.at_work) - len(late)}"
    return work + (f"; overdue: {_named(late)}" if late else "")


def _comes_back(queue: QueueState, died: list[WorkerReport]) -> str:
    """Return when the messages come back that dead workers held."""
    running = sum(one.running for one in died)
    within = queue.returns_within - min(one.ago for one in died)
    handlers = f" ({counted(running, 'handler')} ran)" if running else ""
    works = any(not one.is_overdue for one in queue.at_work)
    upkeep = "by the sweep" if works else "by the sweep, once a worker runs again"
    when = f"within {shown_time(within)}" if within > 0 else "with the next sweep"
    return f"; what was in hand{handlers} comes back {when}, {upkeep}"


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


def _expired(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of messages that have expired lately, of a queue that is older than a message lives."""
    age = taken.at - queue.made if queue.made else float("inf")

    for part, side, how, remedy in (
        ("ready", queue.stats.ready, "expired unread", "more workers, or a new queue with a longer message_expiry"),
        ("sideline", queue.stats.sideline, _OR_REMOVED, "bring back what is left before it expires too"),
        ("parked", queue.stats.parked, _OR_REMOVED, "redrive or discard what is left before it expires too"),
    ):
        ago = side.expired_ago
        if side.expired and ago is not None and ago < EXPIRED_LATELY and age >= side.life:
            noticed = f"the last was noticed {shown_time(ago)} ago" if ago else "the last was noticed just now"
            what = f"{part} messages that {how}: {side.expired:,} since the queue was made; {noticed}"
            yield WARNING, "expired", what, f"these are gone; {remedy}"


def _failures(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of parked messages, and of messages that fail faster than others are done."""
    name, parked = f"{queue.name} --client {taken.client}", queue.stats.parked.waiting
    if parked:
        what = f"{counted(parked, 'parked message')}, failed too often: nothing brings parked messages back"
        remedy = f"latchwork queue peek {name} --side parked; repair the cause, then latchwork queue redrive {name}"
        yield PROBLEM, "parked", what, remedy
    failed, acked = (sum(getattr(one, of) for one in queue.at_work) for of in ("failed", "acked"))
    if failed > acked:
        what = f"in the last minute {counted(failed, 'attempt')} failed, and {counted(acked, 'message')} succeeded"
        remedy = f"the logs of its workers have each failure; latchwork queue search {name} --side delayed"
        yield PROBLEM if failed >= MANY_FAILED else WARNING, "failing", what, remedy
    if retrying := queue.stats.depth.retrying:
        what = f"{counted(retrying, 'message')} failed, and will be tried again{_last_retry(queue, taken)}"
        yield OK, "retrying", what, f"latchwork queue search {name} --side delayed"


def _last_retry(queue: QueueState, taken: Snapshot) -> str:
    """Return when the message that failed last is tried again, and why it failed."""
    last = queue.stats.last_retry
    if last is None:
        return ""
    left = last.due / 1000 - taken.at
    when = f"in {shown_time(left)}" if left >= 1 else "now" if left > -DELIVERED_WITHIN else "overdue"
    why = f" ({shortened(one_line(last.error), ERROR_SHOWN)})" if last.error else ""
    return f"; the last one, {shortened(one_line(last.message_id), ID_SHOWN)}{why}: {when}"


def _stranded(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of messages that wait for an upkeep that no process does, or for what never comes."""
    stats, leader, sideline = queue.stats, taken.leader, queue.stats.sideline.waiting
    leads = leader is not None and leader.leads
    who = "" if leads else f" ({taken.upkeep})"
    messages = counted(sideline, "message")
    name = f"{queue.name} --client {taken.client}"
    if sideline and queue.live.shovel is None and not queue.retries:
        what = f"{messages} in the sideline, which nothing brings back: the queue does not retry"
        remedy = f"once: latchwork queue shovel {name}; from now on: latchwork queue set {name} --retry"
        yield PROBLEM, "stranded", what, remedy
    elif sideline and not leads:
        what = f"{messages} in the sideline, and no process does the upkeep, which brings back what is there{who}"
        yield WARNING if taken.candidates else PROBLEM, "stranded", what, _UPKEEP
    late = stats.delayed_late
    if late is not None and late > DELIVERED_WITHIN:
        messages = counted(stats.depth.delayed, "delayed message")
        what = f"{messages}, and for {shown_time(late)} nobody has looked at what is due{who}"
        yield PROBLEM, "stranded", what, "the log of the process that leads says why" if leads else _UPKEEP


def _of_client(taken: Snapshot) -> Iterator[Finding]:
    """Yield what is not as it should be with the upkeep, and with the records of queues."""
    for name, why in taken.unreadable.items():
        yield Finding(
            PROBLEM, f"queue {name}: {why}", "until then nobody can consume it, nor is it swept", "unreadable", name
        )
    leader = taken.leader
    if leader and leader.held and leader.renewed_ago > max(SUCCEEDED_WITHIN, 2 * leader.lease):
        yield Finding(PROBLEM, f"no upkeep: {taken.upkeep}", _UPKEEP, "upkeep")
    for queue in taken.queues:
        ago = taken.at - (queue.stats.last_sweep.success / 1000 or queue.made)
        if ago > 2 * queue.sweep_interval:
            who = taken.upkeep if leader else "nobody ever did the upkeep"
            what = f"queue {queue.name}: not swept for {shown_time(ago)}, so the messages of dead consumers stay; {who}"
            remedy = f"{_UPKEEP}, or `latchwork queue sweep --every 900`; if one leads, see `sweep error` in stats"
            yield Finding(PROBLEM, what, remedy, "upkeep", queue.name)


def _named(workers: list[WorkerReport], most: int = 3) -> str:
    """Return the names of some workers, each with the age of its last report."""
    named = [f"{one.worker}, which last reported {shown_time(one.ago)} ago" for one in workers[:most]]
    return ", ".join(named) + (f", and {len(workers) - most:,} more" if len(workers) > most else "")
