"""The words that several findings use. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from ...inputs import farm_or_default
from ...plain import counted, one_line, shortened, shown_time, word
from ...queue.sharded.workers import WorkerReport, short_name
from ..snapshot import QueueState, Snapshot

ID_SHOWN, ERROR_SHOWN = 60, 140
"""Characters of a message's id, and of its error, that a line has: an id that `publish` has made, and the end of a
killed process, are told in full.
"""
START_ONE = "start one: latchwork worker MODULE:NAME"


def queues(names: Sequence[str]) -> str:
    """Return `queue a`, or `queues a, b and 3 more`."""
    return f"queue{'' if len(names) == 1 else 's'} {listed(names, 5)}"


def of_client(client: str, farm: str) -> str:
    """Return the options of a command that name a client; with its farm where a command without it means another."""
    there = "" if farm == farm_or_default(None) else f" --farm {word(farm)}"
    return f"--client {word(client)}{there}"


def of_queue(queue: str, taken: Snapshot) -> str:
    """Return a queue and its client as a command names them."""
    return f"{word(queue)} {of_client(taken.client, taken.farm)}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def workers(workers: Sequence[WorkerReport]) -> str:
    """Return the names of some workers, each with the age of its last report."""
    if len(workers) == 1:
        return f"{short_name(workers[0].worker)}, which last reported {shown_time(workers[0].ago)} ago"
    return listed([
        f"{short_name(one.worker)} (last report {shown_time(one.ago)} ago{'; holds nothing' if one.settled else ''})"
        for one in workers
    ])  # fmt: skip


def by(who: str | None) -> str:
    """Return ` by anna@web-7`; empty where it is not known who it was."""
    return f" by {who}" if who else ""


def backlog(queues: Sequence[QueueState]) -> str:
    """Return how many messages are ready in these queues, and for how long they have waited."""
    messages = sum(queue.stats.ready.waiting for queue in queues)
    oldest = max(queue.stats.ready.oldest_age or 0.0 for queue in queues)
    waits = "waits, for" if messages == 1 else "wait, the oldest for"
    return f"{counted(messages, 'ready message')} {waits} {shown_time(oldest)}"


def message_id(message: str) -> str:
    """Return the id of a message, shortened to fit a line."""
    return shortened(one_line(message), ID_SHOWN)


def failure(error: str) -> str:
    """Return the first line of an error, in brackets; empty for none."""
    first = error.strip().partition("\n")[0]
    return f" ({shortened(one_line(first), ERROR_SHOWN)})" if first else ""


def clock_time(at: float, now: float) -> str:
    """Return the time of day in UTC, with the date where it is not today's, and how long ago it was."""
    moment, today = (datetime.fromtimestamp(one, timezone.utc) for one in (at, now))
    form = "%H:%M" if moment.date() == today.date() else "%Y-%m-%d %H:%M"
    return f"{moment.strftime(form)} UTC, {shown_time(max(0.0, now - at))} ago"


def sweep(taken: Snapshot) -> str:
    """Return the command that does the upkeep, which sweeps each queue as often as it has to be."""
    every = min([900.0, *(queue.sweep_interval for queue in taken.queues)])
    return f"latchwork queue sweep {of_client(taken.client, taken.farm)} --every {max(1, int(every))}"


def only_sweeps(name: str, not_done: str = "delivers no delayed messages") -> str:
    """Return that a process leads that does only a part of the upkeep. not_done: what it leaves out."""
    return f"{name} leads, a sweeper without the upkeep of a worker: it {not_done}"


def end_sweeper(taken: Snapshot) -> str:
    """Return what to do about such a process."""
    return f"end it: then a worker leads, or `{sweep(taken)}`"


def new_leader(taken: Snapshot) -> str:
    """Return that a leader has begun only now, as the end of a sentence; empty where it has led for longer."""
    leader = taken.leader
    if leader is None or not leader.is_new:
        return ""
    return f"; {leader.name} was elected {shown_time(leader.led_for)} ago, and begins with it"
