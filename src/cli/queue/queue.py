"""`latchwork queue list|create|stats|set|shovel|wait|deactivate`: a queue as a whole."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Annotated

import typer

from ...deadline import Deadline
from ...errors import InvalidRequest, NotFound, WaitTimeout
from ...inputs import checked_timeout
from ...observe.findings import findings_of
from ...plain import counted, one_line, shown
from ...queue import QueueConfig, QueueRegistry, Shovel, ShovelConfig
from ...queue.sharded.config import MAX_ATTEMPTS, QUEUE_EXPIRY
from ...queue.sharded.workers import workers_of
from ...retry import Poll, outlive
from ..audit import noted
from ..finding_lines import lines_of as findings_lines
from ..options import Client, Farm, Timeout
from ..session import Session
from .arguments import Name, no_queues, queue_of, registry_of
from .facts import all_rows, changed, for_people, lines_of, paused, threads_each

DEPTH_LOOKS = Poll(low=0.1, high=2.0)
"""The pauses between two looks of `wait` at the pointers."""


def list_queues(context: typer.Context, client: Client, farm: Farm = None) -> None:
    """List every queue of the client, active or not. Exit code 3 if the client has none.

    `threads each` (`consumers` with --json) is the number of threads in each worker process; it is 0 while the queue is
    paused. Workers whose programs fix another number are named with it. `changed` says when the number was set last,
    and by whom; `latchwork audit` has the number before. `latchwork stats` shows how many workers there are.

    Example: latchwork queue list --client shop --json
    """
    session: Session = context.obj
    found = registry_of(session, client, farm).queues(active=None)
    working = [] if session.json else workers_of(found)
    others = {
        queue.name: threads_each(queue.concurrency, {one.worker: one.threads for one in some if not one.is_silent})
        for queue, some in zip(found, working, strict=False)
    }
    now = session.store.seams.wall()
    rows = [
        {
            "queue": queue.name,
            "active": queue.live.active,
            "shards": queue.config.shards,
            "consumers" if session.json else "threads each": others.get(queue.name) or queue.concurrency,
            "paused": paused(queue, now),
            "changed": changed(queue, now) if queue.concurrency else None,
        }
        for queue in found
    ]
    if not rows:
        raise no_queues(session, client, farm)
    session.table(rows)


def create(
    context: typer.Context,
    name: Name,
    client: Client,
    shards: Annotated[int, typer.Option(help="the number of shards, 1 to 512; it cannot be changed later")] = 32,
    concurrency: Annotated[int, typer.Option(help="worker threads of each consumer process, 0 to 100")] = 1,
    expiry_hours: Annotated[float, typer.Option(help="how long an unread message lives")] = 360,
    sweep_minutes: Annotated[
        float, typer.Option(help="minutes after which a message that was not acknowledged comes back, 5 to 300")
    ] = 20,
    max_deliveries: Annotated[int, typer.Option(help="attempts after which a message is parked")] = MAX_ATTEMPTS,
    retry: Annotated[
        bool,
        typer.Option(help="bring failed messages back; else they stay in the sideline until a person brings them back"),
    ] = True,
    backoff_seconds: Annotated[
        float | None, typer.Option(help="how long a failed message waits [default: 15 s, then longer, up to an hour]")
    ] = None,
    shovel_seconds: Annotated[
        float | None,
        typer.Option(help="let failed messages wait in the sideline, and bring them back at this interval, 0 to 86400"),
    ] = None,
    results_hours: Annotated[
        float | None, typer.Option(help="how long the result of a handler is kept [default: it is not kept]")
    ] = None,
    farm: Farm = None,
) -> None:
    """Create a queue. If it exists with these settings, nothing changes.

    Its upkeep (retries, messages of dead consumers) is done by the processes of the client that run a Worker or a
    Consumer.

    Example: latchwork queue create orders --client shop --shards 8
    """
    session: Session = context.obj.may_make()
    expiry = _span("--expiry-hours", expiry_hours, timedelta(hours=1))
    second = timedelta(seconds=1)
    shovel = None if shovel_seconds is None else ShovelConfig(_span("--shovel-seconds", shovel_seconds, second))
    config = QueueConfig(
        name, shards=shards, concurrency=concurrency, message_expiry=expiry, queue_expiry=max(expiry, QUEUE_EXPIRY),
        sweep_duration=_span("--sweep-minutes", sweep_minutes, timedelta(minutes=1)),
        max_deliveries=max_deliveries, retry=retry, shovel=shovel,
        backoff=None if backoff_seconds is None else _span("--backoff-seconds", backoff_seconds, second),
        results=None if results_hours is None else _span("--results-hours", results_hours, timedelta(hours=1)),
    )  # fmt: skip
    registry_of(session, client, farm).create(config)
    session.say(f"created {name} with {counted(shards, 'shard')}", queue=name, shards=shards)


def _span(option: str, number: float, unit: timedelta) -> timedelta:
    try:
        return number * unit
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{option} is {number}; a queue does not take such a time: give a number within the limits of the option"
        ) from None


def stats(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """Show the depth of a queue, who works on it, and what is wrong.

    Example: latchwork queue stats orders --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    queue_of(session, name, client, farm)
    show_stats(session, registry, name)


def show_stats(session: Session, registry: QueueRegistry, name: str) -> None:
    """Print a queue, or a group, as it is now. Raises `NotFound` for a group that is being made, or dropped."""
    taken, rows = all_rows(registry, name)
    for facts in rows:
        session.say(*lines_of(for_people(facts)), *findings_lines(findings_of(taken)), **facts)
    if not rows:
        raise NotFound(f"{name!r} is being made, or dropped", queue=name)


def set_retry(
    context: typer.Context,
    name: Name,
    client: Client,
    retry: Annotated[
        bool, typer.Option("--retry/--no-retry", help="bring failed messages back, or leave them in the sideline")
    ],
    farm: Farm = None,
) -> None:
    """Change whether failed messages are tried again.

    This is for a queue that does not retry, such as a queue that an earlier version has made. Messages that are in the
    sideline already come back too, within a minute or two, while a worker runs. Workers that run go on as before until
    you start them again: messages that fail there go into the sideline, and come back from there. A program that
    creates the queue with another `retry` gets the setting of this command, and logs that.

    Example: latchwork queue set orders --client shop --retry
    """
    session: Session = context.obj
    what = "failed messages are tried again" if retry else "failed messages stay in the sideline"
    with noted(session, "set", client, farm, name) as deed:
        registry_of(session, client, farm).set_retry(name, retry)
        deed.after = what
    session.say(f"{name}: {what}; workers that run take it on when they are started again", queue=name, retry=retry)


def shovel(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """Bring back the messages of the sideline that are due, once.

    Example: latchwork queue shovel orders --client shop
    """
    session: Session = context.obj
    report = Shovel(queue_of(session, name, client, farm)).run_once()
    session.say(
        f"moved {report.moved}, not due {report.postponed}, empty {report.tombstones}, failed {len(report.errors)}",
        moved=report.moved, postponed=report.postponed, tombstones=report.tombstones,
        failed=[str(error) for error in report.errors],
    )  # fmt: skip
    if report.errors:
        raise typer.Exit(1)


def wait(
    context: typer.Context,
    name: Name,
    client: Client,
    depth: Annotated[int, typer.Option(min=1, help="how many messages must be ready")],
    timeout: Timeout = None,
    farm: Farm = None,
) -> None:
    """Wait until a number of messages is ready. This is for scripts that work in bulk.

    Exit code 4 if there are fewer when the time is over.

    Example: latchwork queue wait orders --client shop --depth 1000 --timeout 600 && ./load.sh
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)

    def ready() -> int | None:
        waiting = sum(state.waiting for state in queue.pointers.states())
        return waiting if waiting >= depth else None

    seams = session.store.seams
    with Deadline(seams, checked_timeout(timeout)) as deadline:
        found = DEPTH_LOOKS.until(seams, lambda: outlive(seams, deadline, ready), timeout=deadline.left())
    if found is None:
        raise WaitTimeout(
            f"fewer than {counted(depth, 'message')} ready in {name!r} within {timeout:g} s: wait longer, or for fewer "
            "messages",
            queue=name,
        )
    session.say(f"ready in {name}: {counted(found, 'message')}", queue=name, ready=found)


def deactivate(
    context: typer.Context,
    name: Name,
    client: Client,
    confirm: Annotated[str | None, typer.Option(help="the queue's name again; else it is asked for")] = None,
    farm: Farm = None,
) -> None:
    """Refuse new messages. Messages that are in the queue are still consumed and swept.

    Example: latchwork queue deactivate orders --client shop --confirm orders
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    registry.get(name)
    if confirm is None:
        if sys.stdin.isatty():
            typer.echo(one_line(f"Type the queue's name to deactivate it ({name}): "), nl=False, err=True)
        confirm = sys.stdin.readline().rstrip("\n")
    if confirm != name:
        raise InvalidRequest(
            f"not deactivated: the queue's name is {shown(name)}, and {shown(confirm)} was given; type the name, or "
            f"give --confirm {name}"
        )
    with noted(session, "deactivate", client, farm, name):
        registry.deactivate(name)
    session.say(f"deactivated {name}", queue=name, active=False)


def activate(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """Take new messages again, after a deactivation.

    Example: latchwork queue activate orders --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    registry.get(name)
    with noted(session, "activate", client, farm, name):
        registry.activate(name)
    session.say(f"activated {name}", queue=name, active=True)
