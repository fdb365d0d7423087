"""What a snapshot of a client tells a person to do, each finding with its remedy: the table of all of them. No I/O.

`doctor` prints all of it, `stats` prints it below its table, and `watch_queues` shows it as a gauge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..snapshot import Snapshot
from .failed_messages import failing, parked
from .finding import OK, PROBLEM, WARNING, Finding, of_queues
from .running_handlers import draining, long_running, not_taken, saturated
from .settings import lost, pause, schedules, threads, why_unpublished
from .upkeep import clock, damaged, unreadable, workers_and_upkeep
from .waiting_messages import backlog, expired, expiring, stranded, streamed, why_it_waits

__all__ = ["KINDS", "OK", "PROBLEM", "WARNING", "Finding", "findings_of", "why_it_waits", "why_unpublished"]


class Row(NamedTuple):
    """A row of the table.

    states: the states that a finding of this kind may have. when: it is found. reads: the data that it is found by.
    rule: finds it, and gives its text and its remedy; several rows may have one rule.
    """

    kind: str
    states: tuple[str, ...]
    when: str
    reads: str
    rule: Callable[..., Iterator[Any]]


OF_CLIENT = (
    Row("lost", (WARNING,), "a queue was made again in the last hour, as its record was gone", "its record", lost),
    Row("unreadable", (PROBLEM,), "the record of a queue, or of a schedule, is damaged", "their records", unreadable),
    Row("schedule", (WARNING, PROBLEM), "a schedule is paused; its queue is deactivated, or gone; its ticks are not "
        "published, though a process leads", "schedules, the election", schedules),
    Row("no_worker", (PROBLEM, WARNING), "messages wait and nobody works; the last worker died (a warning "
        "where perhaps only groups are to have them)", "reports, depth, oldest age", workers_and_upkeep),
    Row("worker_died", (WARNING, PROBLEM), "a worker is silent for 50 s and others go on; children die again and again",
        "reports, sweeps, messages in hand, the last retry", workers_and_upkeep),
    Row("upkeep", (PROBLEM, WARNING, OK), "nobody does it; it will soon be done; none is needed",
        "the election, its candidates, sweeps", workers_and_upkeep),
    Row("clock", (WARNING,), "records are ahead of a clock, so the dead seem to live", "reports, server time",
        clock),
)  # fmt: skip
"""Findings about the workers and the upkeep of a client, in the order in which they are looked for."""
OF_QUEUE = (
    Row("unreadable", (PROBLEM,), "records of its shards, or of its delayed messages, are damaged", "depth", damaged),
    Row("paused", (WARNING,), "no messages are handed out", "settings, depth", pause),
    Row("settings", (OK, WARNING, PROBLEM), "threads were set in the last hour; an order keeps threads idle; a worker "
        "has not acted on a change for 10 s", "settings, reports, depth", threads),
    Row("saturated", (WARNING, PROBLEM), "a handler hangs; so many hang that a worker takes no messages", "reports",
        saturated),
    Row("saturated", (WARNING, PROBLEM), "workers with free threads take nothing for 30 s while a handler runs, or do "
        "nothing while none does", "reports, oldest age, history", not_taken),
    Row("draining", (OK,), "a worker has been about to stop for 20 s", "reports", draining),
    Row("long_running", (OK, WARNING), "a handler runs for a minute; far longer than others, or soon given up",
        "reports", long_running),
    Row("no_worker", (WARNING, PROBLEM), "messages wait for the stream that owns the queue", "the owner of its shards, "
        "depth, oldest age", streamed),
    Row("backlog", (OK, WARNING), "the oldest message waits for 5 minutes, also as no worker has a thread for it; the "
        "backlog grows for 3 minutes",
        "depth, oldest age, history, reports", backlog),
    Row("expiring", (PROBLEM,), "a backlog will expire unread", "depth, history", backlog),
    Row("expiring", (PROBLEM,), "a message has waited for half of its life", "the oldest of each side", expiring),
    Row("expired", (WARNING,), "messages have expired in the last day", "counts of expired messages", expired),
    Row("parked", (PROBLEM,), "messages are parked", "depth, the oldest parked message", parked),
    Row("failing", (WARNING, PROBLEM), "more attempts fail than messages are done; all fail", "reports, history",
        failing),
    Row("retrying", (OK,), "messages wait for their next attempt", "depth, the last retry", failing),
    Row("stranded", (PROBLEM, WARNING), "nothing brings messages back; a new leader has to, or a write is missing",
        "settings, depth, the election, sweeps", stranded),
)  # fmt: skip
"""Findings about each queue."""
KINDS = tuple(dict.fromkeys(row.kind for row in (*OF_CLIENT, *OF_QUEUE)))


def findings_of(taken: Snapshot) -> list[Finding]:
    """Return the findings about a client; problems first.

    What follows from a missing worker, or from missing upkeep, is part of the same finding.
    """
    of_client, of_queue = (dict.fromkeys(row.rule for row in table) for table in (OF_CLIENT, OF_QUEUE))
    found: list[Finding] = [one for rule in of_client for one in rule(taken)]
    for queue in taken.queues:
        found += (of_queues(taken, [queue.name], one) for rule in of_queue for one in rule(queue, taken))
    return sorted(found, key=lambda one: (PROBLEM, WARNING, OK).index(one.state))
