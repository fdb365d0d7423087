"""Findings about what people have set: a pause, the number of threads, schedules."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...plain import counted, shown_time, word
from ...queue.sharded.delayed.schedules import MAX_TICKS, ScheduleState
from ...queue.sharded.workers import short_name
from ..snapshot import QueueState, Snapshot
from . import words
from .finding import ACTS_WITHIN, OK, PROBLEM, WAITED, WARNING, Finding, OfQueue, of_queues

LOST_LATELY = 3_600.0
"""Seconds for which it is told that a queue was lost and made again."""
CHANGED_LATELY = 3_600.0
"""Seconds for which the last change of a queue's threads is a finding."""


def pause(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield that a queue is paused, with who did it and what waits."""
    live, ready = queue.live, queue.stats.ready.waiting
    if queue.paused:
        ago = shown_time(taken.at - live.changed / 1000)
        since = f"paused{words.by(live.changed_by)}, {ago} ago" if live.changed else "paused since it was made"
        waits = f"; ready messages that wait, and go on expiring: {ready:,}" if ready else ""
        yield WARNING, "paused", since + waits, f"latchwork queue resume {words.of_queue(queue.name, taken)}"


def threads(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield who set the threads, whether the order of messages keeps some idle, and who has not acted on a change."""
    live, ago = queue.live, taken.at - queue.live.changed / 1000
    if live.changed and ago < CHANGED_LATELY and not queue.paused:
        since = f"{shown_time(max(0.0, ago))} ago{words.by(live.changed_by)}"
        is_set = f"resumed, or scaled, {since}: threads in each worker: {live.concurrency}"
        others = [one for one in queue.at_work if one.acts_on == live.changed and one.threads != live.concurrency]
        each = words.listed([f"{short_name(one.worker)} ({one.threads})" for one in others])
        if others and len(others) == len(queue.at_work):  # whose programs say how many threads, whatever is stored
            is_set = f"resumed, or scaled, {since}: threads, as each program says: {each}"
        elif others:
            is_set += f"; otherwise, as its program says: {each}"
        audit = f"latchwork audit --client {word(taken.client)} --about {word(queue.name)}"
        yield OK, "settings", is_set, f"what was before: {audit}"
    is_behind = queue.stats.ready.waiting and (queue.stats.ready.oldest_age or 0.0) > WAITED
    if queue.is_held_by_order and is_behind and not queue.paused:
        shards, many = counted(queue.shards, "shard"), sum(one.threads for one in queue.at_work)
        what = f"{shards}, and {many} threads: in order each shard has one handler at a time, so no more of them help"
        remedy = "a queue keeps its shards: make a new one with more, or let its consumers not be ordered"
        yield WARNING, "settings", f"{what}; {words.backlog([queue])}", remedy
    late = [one for one in queue.at_work if one.acts_on < live.changed]
    if late and ago > ACTS_WITHIN:
        change = "pause" if queue.paused else "change of its settings"
        of = counted(len(queue.at_work), "worker")
        what = f"the {change} of {shown_time(ago)} ago has not reached {len(late)} of {of}"
        why = "it: it hangs, or is" if len(late) == 1 else "them: they hang, or are"
        yield PROBLEM, "settings", f"{what}: {words.workers(late)}", f"restart {why} of an earlier version"


def schedules(taken: Snapshot) -> Iterator[Finding]:
    """Yield the schedules that publish nothing: they are paused, their queue is deactivated or gone, or the process
    that leads the upkeep does not publish them; and those whose time zone this machine does not know. Where nobody
    leads, that is `upkeep`.
    """
    client, not_active = taken.client, {queue.name for queue in taken.queues if not queue.live.active}
    for one in taken.schedules:
        name = one.schedule.name
        if one.paused is not None:
            ago = shown_time(max(0.0, taken.at - one.paused.timestamp()))
            state, what = WARNING, f"paused{words.by(one.paused_by)}, {ago} ago; it publishes nothing"
            remedy = f"latchwork schedule resume {word(name)} {words.of_client(client, taken.farm)}"
        elif unpublished := why_unpublished(one, not_active, client, taken.farm):
            state, (what, remedy) = PROBLEM, unpublished
        elif one.overdue() and (why := _why_overdue(one, taken)):
            state, what, remedy = why
        elif unknown := one.unknown_here():
            state, what, remedy = WARNING, "whether it publishes is not known here", unknown
        else:
            continue
        yield Finding(state, f"schedule {name} of {client}: {what}", remedy, "schedule", client, (one.schedule.queue,))


def _why_overdue(one: ScheduleState, taken: Snapshot) -> tuple[str, str, str] | None:
    """Return the state, why the ticks of a schedule that are due are not published, and the remedy; None where nobody
    leads the upkeep, which is a finding of its own.
    """
    queue, leader, ticks = one.schedule.queue, taken.leader, unpublished_ticks(one)
    if queue not in taken.unreadable and all(queue != there.name for there in taken.queues):
        remove = f"latchwork schedule remove {word(one.schedule.name)} {words.of_client(taken.client, taken.farm)}"
        again = f"latchwork queue create {words.of_queue(queue, taken)}"
        return PROBLEM, f"{ticks}: there is no queue {queue}", f"{remove}; or make the queue again: {again}"
    if leader is None or not leader.leads:
        return None
    state, who = WARNING if leader.is_new else PROBLEM, words.new_leader(taken) or f", though {leader.name} leads"
    remedy = "the log of the process that leads says why"
    if leader.only_sweeps:
        who, remedy = f"; {words.only_sweeps(leader.name, 'publishes no schedules')}", words.end_sweeper(taken)
    return state, f"{ticks}{who}", remedy


def lost(taken: Snapshot) -> Iterator[Finding]:
    """Yield the queues that were lost with the store, and made again by programs that use them."""
    ago = {queue.name: taken.at - queue.live.lost_at / 1000 for queue in taken.queues if queue.live.lost_at}
    names = [name for name in ago if ago[name] < LOST_LATELY]
    if names:
        when = shown_time(max(0.0, min(ago[name] for name in names)))
        again = "was gone, and was made again" if len(names) == 1 else "were gone, and were made again"
        what = f"{again} {when} ago, as where the store came back empty: messages of before are lost, and the client's "
        what += "schedules"
        remedy = "publish again what is missing; `latchwork schedule list` says which schedules are there"
        yield of_queues(taken, names, (WARNING, "lost", what, remedy))


def why_unpublished(one: ScheduleState, not_active: Collection[str], client: str, farm: str) -> tuple[str, str] | None:
    """Return which ticks a schedule has not published because its queue is deactivated, and the remedy; None if it
    publishes.

    not_active: the queues that are deactivated.
    """
    name, queue = one.schedule.name, one.schedule.queue
    if queue not in not_active:
        return None
    there = words.of_client(client, farm)
    activate = f"latchwork queue activate {word(queue)} {there}"
    remedy = f"latchwork schedule remove {word(name)} {there}; or activate it: {activate}"
    return f"{unpublished_ticks(one)}: queue {queue} is deactivated", remedy


def unpublished_ticks(one: ScheduleState) -> str:
    """Return how many ticks of a schedule are not published, and since when."""
    missed = one.due()
    if not one.overdue():
        return "its ticks are not published"
    since = "" if one.settled is None else f" since {words.clock_time(one.settled.timestamp(), one.now.timestamp())}"
    many = "at least " if missed >= MAX_TICKS else ""
    return f"{many}{counted(missed, 'tick')} not published{since}"
