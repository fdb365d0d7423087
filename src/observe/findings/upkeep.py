"""Findings about the upkeep of a client: nobody does it, it is overdue, or the clock hides who works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...plain import counted, shown_time
from ...queue.sharded.workers import short_name
from ..snapshot import QueueState, Snapshot
from . import words
from .finding import OK, PROBLEM, WARNING, Finding, OfQueue, of_queues
from .missing_workers import missing_workers
from .settings import unpublished_ticks
from .waiting_messages import comes_back, late_delivery, side_count

SUCCEEDED_WITHIN = 20.0
"""Seconds from the last renewal of a leader that died within which another one must lead; 15 are usual."""
ELECTED_WITHIN = 120.0
"""Seconds from the last renewal of a leader that reports, after which it is not about to be elected again."""
CLOCK_AHEAD = 60.0
"""Seconds by which the time of records must be ahead of this machine's clock for that to be a finding."""


def unreadable(taken: Snapshot) -> Iterator[Finding]:
    """Yield the queues and the schedules whose records cannot be read."""
    client = taken.client
    for name, why in taken.unreadable.items():
        remedy = "until then nobody can consume it, nor is it swept"
        yield Finding(PROBLEM, f"queue {name} of {client}: {why}", remedy, "unreadable", client, (name,))
    for name, why in taken.unreadable_schedules.items():
        yield Finding(PROBLEM, f"schedule {name} of {client}: {why}", "it publishes nothing", "unreadable", client)


def damaged(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield that records of a queue are damaged in which it is said what waits there."""
    if n := queue.stats.depth.damaged:
        what = f"{counted(n, 'record')} of its shards, or of its delayed messages, {'is' if n == 1 else 'are'} damaged"
        what += ": what waits there is not counted, and perhaps not handed out"
        there = words.of_client(taken.client, taken.farm)
        yield PROBLEM, "unreadable", what, f"latchwork doctor {there} names {'it' if n == 1 else 'them'}"


def workers_and_upkeep(taken: Snapshot) -> Iterator[Finding]:
    """Yield the findings about the workers, and about the upkeep. If nobody works at all, the missing upkeep is part of
    the finding about the workers: it is not another problem.
    """
    workers, found = list(missing_workers(taken)), upkeep(taken)
    cause = next((n for n, one in enumerate(workers) if one.state == PROBLEM), None)
    if found and found.state == PROBLEM and cause is not None and not taken.has_workers:
        what = f"{workers[cause].what}; so there is no upkeep either{_undone(taken)}"
        queues = tuple(dict.fromkeys(workers[cause].queues + found.queues))
        workers[cause], found = replace(workers[cause], what=what, queues=queues), None
    yield from workers
    if found:
        yield found


def upkeep(taken: Snapshot) -> Finding | None:
    """Return that no process does the upkeep, or that it is overdue; None if it is in order."""
    client, leader, late = taken.client, taken.leader, _not_swept(taken)
    # 1. A process leads.
    if leader is not None and leader.leads:
        if not late:
            return None
        who = words.new_leader(taken) or f"; {taken.upkeep}"
        what = f"{_swept(late)}, so the messages of dead consumers stay{who}"
        remedy = "`sweep error` in latchwork stats, and the log of the process that leads, say why"
        state = WARNING if leader.is_new else PROBLEM
        return of_queues(taken, list(late), (state, "upkeep", what, remedy))
    # 2. Nobody leads, and nobody misses the upkeep.
    undone = _undone(taken)
    died = leader is not None and leader.held and leader.renewed_ago > max(SUCCEEDED_WITHIN, 2 * leader.lease)
    if not undone and not died:
        names = tuple(_not_swept(taken, also_over=True))
        over = f"{words.queues(names)} {'is' if len(names) == 1 else 'are'} empty, and nobody works there"
        what = f"no upkeep of {client}: {taken.upkeep}; none is needed: {over}"
        return Finding(OK, what, "a worker that is started does the upkeep", "upkeep", client, names) if names else None
    # 3. Nobody leads: soon a process will, or a person must start one.
    queues = tuple(queue.name for queue in taken.queues if queue.name in late or _left(queue))
    what = f"no upkeep of {client}: {taken.upkeep}{undone}"
    soon = "a candidate" if taken.candidates else ""
    working = {one.worker for queue in taken.queues for one in queue.at_work if not one.is_overdue}
    if leader is not None and leader.held and leader.name in working:
        if undone and not soon and leader.renewed_ago > max(ELECTED_WITHIN, 4 * leader.lease):
            what += f"; {short_name(leader.name)} reports, and leads no more"
            return Finding(PROBLEM, what, "its log says why; restart it", "upkeep", client, queues)
        what += f"; {short_name(leader.name)} reports, so the store was away or restarted, or that process was paused: "
        what += f"an election follows within {SUCCEEDED_WITHIN:.0f} s"
        soon = "that process"
    if soon:
        remedy = f"wait {SUCCEEDED_WITHIN:.0f} s; if it stays so, the log of {soon} says why"
        return Finding(WARNING, what, remedy, "upkeep", client, queues)
    sweep = words.sweep(taken)
    remedy = f"run a worker or a consumer of {client}, or `{sweep}`"
    if working:
        remedy += "; the ones that run are without upkeep, or their logs say why they do none"
    return Finding(PROBLEM, what, remedy, "upkeep", client, queues)


def _not_swept(taken: Snapshot, *, also_over: bool = False) -> dict[str, float]:
    """Return the queues that were not swept in time, each with the seconds since it was swept or made.

    also_over: also the queues of which nobody misses the sweep: nobody works there, and nothing waits for anybody: no
        message, and no tick of a schedule.
    """
    ago = {queue.name: taken.at - (queue.stats.last_sweep.success / 1000 or queue.made) for queue in taken.queues}
    late = [queue for queue in taken.queues if ago[queue.name] > 2 * queue.sweep_interval]
    if not also_over and (taken.leader is None or not taken.leader.held):  # one leads, or died: then it is missed
        ticks = any(one.paused is None for one in taken.schedules) or bool(taken.unreadable_schedules)
        late = [one for one in late if ticks or one.at_work or not one.is_empty or not one.none_in_hand]
    return {queue.name: ago[queue.name] for queue in late}


def _swept(late: dict[str, float]) -> str:
    return f"not swept for {'' if len(late) == 1 else 'up to '}{shown_time(max(late.values()))}"


def _left(queue: QueueState) -> str:
    """Return what of a queue waits for the upkeep; empty if nothing does."""
    sideline = queue.stats.sideline.waiting and comes_back(queue)
    in_sideline = f"{side_count(queue.stats.sideline, 'message')} in the sideline" if sideline else ""
    in_hand = f"{counted(queue.abandoned, 'message')} in hand of nobody that reports" if queue.abandoned else ""
    return ", ".join(filter(None, (in_hand, in_sideline, late_delivery(queue))))


def _undone(taken: Snapshot) -> str:
    """Return the upkeep that is overdue, as the end of a sentence; empty if there is none."""
    late, parts = _not_swept(taken), [f"queue {queue.name}: {_left(queue)}" for queue in taken.queues if _left(queue)]
    active = {queue.name for queue in taken.queues if queue.live.active}
    due = [one for one in taken.schedules if one.schedule.queue in active and one.overdue()]
    parts += [f"schedule {one.schedule.name}: {unpublished_ticks(one)}" for one in due]
    if late:
        parts.insert(0, f"{words.queues(list(late))} {_swept(late)}")
    return "".join(f"; {part}" for part in parts[:4]) + (f"; and {len(parts) - 4} more queues" if parts[4:] else "")


def clock(taken: Snapshot) -> Iterator[Finding]:
    """Yield the workers of which it is not known whether they live, because the server's clock was set back. In a file
    the time of a record does not go back: it stands still until the machine's clock has come after it.
    """
    if taken.ahead > CLOCK_AHEAD and taken.queues:
        ahead = f"records of {taken.client} are {shown_time(taken.ahead)} ahead of this machine's clock"
        what = f"{ahead}, which was set back, or is wrong: until it has come after them, workers that died are said to "
        remedy = "look at the processes themselves, and start what is missing; let clocks follow NTP"
        every = tuple(queue.name for queue in taken.queues)
        yield Finding(WARNING, f"{what}work", remedy, "clock", taken.client, every)
    workers = [(queue.name, one) for queue in taken.queues for one in queue.at_work if one.is_ahead]
    if workers:
        by = shown_time(max(one.ahead for _, one in workers))
        names = words.listed([short_name(name) for name in dict.fromkeys(one.worker for _, one in workers)])
        what = f"the clock of the store was set back, by {by} at least, and since then {names} did not report"
        remedy = "one that lives reports within 15 s; where its process has ended, start another; let clocks follow NTP"
        yield of_queues(taken, list(dict.fromkeys(name for name, _ in workers)), (WARNING, "clock", what, remedy))
