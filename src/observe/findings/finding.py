"""A finding, and the words that several findings use. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeAlias

from ...plain import counted, one_line, shortened, shown_time
from ...queue.sharded.workers import WorkerReport, short_name
from ..snapshot import QueueState, Snapshot

OK, WARNING, PROBLEM = "ok", "warning", "problem"
WAITED = 30.0
"""Seconds that a message must have waited before the lack of a worker is a problem."""
ACTS_WITHIN = 10.0
"""Seconds within which each worker must act on a change of the settings; 3 are usual."""
ID_SHOWN, ERROR_SHOWN = 40, 140
"""Characters of a message's id, and of its error, that a line has: the end of a killed process is told in full."""
START_ONE = "start one: latchwork worker MODULE:NAME"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should know, with its remedy.

    state: ok: worth knowing; warning; or problem: a person must act.
    kind: as the table of the findings has it (`KINDS`); empty where it is not about the queues of a client.
    client: the client that it is about; empty = none.
    queues: the queues that it is about.
    sound: the part that was looked at and is sound, in a word or two; empty for all other findings.
    workers: all workers that died, of which the text may name only some.
    """

    state: str
    what: str
    remedy: str = ""
    kind: str = ""
    client: str = ""
    queues: tuple[str, ...] = ()
    sound: str = ""
    workers: tuple[str, ...] = ()

    @property
    def queue(self) -> str | None:
        """The queue that it is about; None = none, or several."""
        return self.queues[0] if len(self.queues) == 1 else None

    @property
    def row(self) -> dict[str, Any]:
        """This finding for a program."""
        return {
            "state": self.state, "kind": self.kind, "client": self.client or None, "queue": self.queue,
            "queues": list(self.queues), "what": self.what, "remedy": self.remedy,
            "workers": list(self.workers),
        }  # fmt: skip


Found: TypeAlias = tuple[str, str, str, str]
"""The state and the kind of a finding, its text without the names of its queues, and its remedy."""
OfQueue: TypeAlias = Iterator[Found]
"""What a rule finds about a queue."""


def of_queues(taken: Snapshot, queues: Sequence[str], found: Found, workers: Sequence[WorkerReport] = ()) -> Finding:
    """Return a finding about some queues of the client, which its text names. workers: that died."""
    state, kind, what, remedy = found
    text, shorts = f"{queues_named(queues)} of {taken.client}: {what}", tuple(short_name(one.worker) for one in workers)
    return Finding(state, text, remedy, kind, taken.client, tuple(queues), workers=shorts)


# ---- words


def queues_named(names: Sequence[str]) -> str:
    """Return `queue a`, or `queues a, b and 3 more`."""
    return f"queue{'' if len(names) == 1 else 's'} {listed(names, 5)}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def workers_named(workers: Sequence[WorkerReport]) -> str:
    """Return the names of some workers, each with the age of its last report."""
    if len(workers) == 1:
        return f"{short_name(workers[0].worker)}, which last reported {shown_time(workers[0].ago)} ago"
    return listed([
        f"{short_name(one.worker)} (last report {shown_time(one.ago)} ago{'; holds nothing' if one.settled else ''})"
        for one in workers
    ])  # fmt: skip


def by_whom(who: str | None) -> str:
    """Return ` by anna@web-7`; empty where it is not known who it was."""
    return f" by {who}" if who else ""


def backlog_of(queues: Sequence[QueueState]) -> str:
    """Return how many messages are ready in these queues, and for how long they have waited."""
    messages = sum(queue.stats.ready.waiting for queue in queues)
    oldest = max(queue.stats.ready.oldest_age or 0.0 for queue in queues)
    waits = "waits, for" if messages == 1 else "wait, the oldest for"
    return f"{counted(messages, 'ready message')} {waits} {shown_time(oldest)}"


def id_shown(message: str) -> str:
    """Return the id of a message, shortened to fit a line."""
    return shortened(one_line(message), ID_SHOWN)


def why_failed(error: str) -> str:
    """Return the first line of an error, in brackets; empty for none."""
    first = error.strip().partition("\n")[0]
    return f" ({shortened(one_line(first), ERROR_SHOWN)})" if first else ""


def clock_time(at: float, now: float) -> str:
    """Return the time of day in UTC, with the date where it is not today's, and how long ago it was."""
    moment, today = (datetime.fromtimestamp(one, timezone.utc) for one in (at, now))
    form = "%H:%M" if moment.date() == today.date() else "%Y-%m-%d %H:%M"
    return f"{moment.strftime(form)} UTC, {shown_time(max(0.0, now - at))} ago"


# ---- facts


def threads_of(queue: QueueState) -> tuple[int, int]:
    """Return the threads of its workers, and how many of them are busy, by the last reports."""
    return sum(one.threads for one in queue.at_work), sum(one.running for one in queue.at_work)


def is_held_by_order(queue: QueueState) -> bool:
    """Whether it has more threads than shards, and its order keeps them from working."""
    threads, running = threads_of(queue)
    return queue.stats.in_order and running <= queue.shards < threads


def rate_limited(queue: QueueState) -> int:
    """Return how often in the last minute the rate of its consumers let no handler begin."""
    return sum(one.rate_limited for one in queue.at_work)


def has_workers(taken: Snapshot) -> bool:
    """Whether any process is known to work."""
    return any(not one.is_overdue for queue in taken.queues for one in queue.at_work)


def new_leader(taken: Snapshot) -> str:
    """Return that a leader has begun only now, as the end of a sentence; empty where it has led for longer."""
    leader = taken.leader
    if leader is None or not leader.is_new:
        return ""
    return f"; {leader.name} was elected {shown_time(leader.led_for)} ago, and begins with it"
