"""`latchwork schedule`: messages that are published again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Annotated, Any

import typer

from ...errors import InvalidRequest, LatchworkError, NotFound
from ...observe.findings import why_unpublished
from ...observe.findings.words import of_client
from ...plain import shown, shown_time
from ...queue import QueueRegistry, Schedule, ScheduleState
from ..audit import noted
from ..jsontext import checked_json
from ..options import Client, Farm, Why
from ..session import Session, note
from ..similar import meant
from .arguments import no_queues, registry_of

app = typer.Typer(help="Publish messages again and again, each tick once.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="the schedule")]


def _facts_of(state: ScheduleState, *, json_value: bool) -> dict[str, Any]:
    ago = None if state.paused is None else max(0.0, (state.now - state.paused).total_seconds())
    facts = _facts(state.schedule) | {"last": None if state.settled is None else state.settled.isoformat()}
    if json_value:
        paused = None if state.paused is None else state.paused.isoformat()
        return facts | {"paused": paused, "paused_by": state.paused_by or None}
    who = f" by {state.paused_by}" if state.paused_by else ""
    return facts | {"paused": None if ago is None else f"{shown_time(ago)} ago{who}"}


def _facts(schedule: Schedule) -> dict[str, Any]:
    every = None if schedule.every is None else schedule.every.total_seconds()
    return {
        "schedule": schedule.name, "queue": schedule.queue, "every_s": every, "cron": schedule.cron, "tz": schedule.tz,
        "missed": schedule.missed,
    }  # fmt: skip


@contextmanager
def _known(session: Session, registry: QueueRegistry, name: str) -> Iterator[None]:
    """Add a similar name, and the command that lists schedules, to the error that there is no schedule of this name."""
    try:
        yield
    except NotFound as failure:
        if failure.details.get("name") != name:  # its queue, for example
            raise
        raise _no_schedule(session, registry, name) from None


def _no_schedule(session: Session, registry: QueueRegistry, name: str) -> NotFound:
    similar, client = "", registry.client_id
    with suppress(LatchworkError):  # one that is damaged
        similar = meant(name, [one.schedule.name for one in registry.schedule_states()])
    listing = f"`latchwork schedule list {of_client(client, registry.farm_id)}` shows which there are"
    return NotFound(f"no schedule {shown(name)} of {client} in {session.where}{similar}; {listing}", name=name)


@app.command("list")
def list_schedules(context: typer.Context, client: Client, farm: Farm = None) -> None:
    """List every schedule of the client. Exit code 3 if the client does not even have a queue.

    `last` is the last tick that was published or skipped. `paused` says since when a schedule is paused, and by whom.
    `wrong` says that its queue is deactivated, and refuses its ticks.

    Example: latchwork schedule list --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    states = registry.schedule_states()
    not_active = {queue.name for queue in registry.queues(active=False)} if states else set()
    wrong = {
        one.schedule.name: why_unpublished(one, not_active, client, registry.farm_id)
        for one in states
        if one.paused is None
    }
    refused = {name: why for name, why in wrong.items() if why is not None}
    rows = [
        _facts_of(one, json_value=session.json) | {"wrong": refused.get(one.schedule.name, (None,))[0]}
        for one in states
    ]
    if not rows and not registry.queues(active=None):
        raise no_queues(session, client, farm)
    session.table(rows, empty=f"no schedules of {client} in {session.where}")
    for name, (_, remedy) in refused.items():
        note(f"{name}: {remedy}")


@app.command()
def put(
    context: typer.Context,
    name: Name,
    client: Client,
    queue: Annotated[str, typer.Option(help="the queue to which its messages go")],
    cron: Annotated[str | None, typer.Option(help="minute hour day month weekday")] = None,
    every: Annotated[float | None, typer.Option(help="seconds, instead of --cron")] = None,
    tz: Annotated[str, typer.Option(help="the time zone of --cron")] = "UTC",
    payload: Annotated[str, typer.Option(help="JSON")] = "null",
    missed: Annotated[str, typer.Option(help="ticks that were not published in time: skip, last or all")] = "last",
    farm: Farm = None,
) -> None:
    """Make a schedule, or replace the schedule of that name. A paused schedule stays paused.

    Example: latchwork schedule put nightly --client shop --queue reports --cron "0 3 * * *" --tz Europe/Berlin
    """
    session: Session = context.obj
    value = checked_json("--payload", payload)
    if every is not None and tz != "UTC":
        raise InvalidRequest(
            f"--tz {shown(tz)} with --every: its ticks are whole multiples of --every since 1970 in UTC; for a time "
            "zone give --cron"
        )
    try:
        span = None if every is None else timedelta(seconds=every)
    except (OverflowError, ValueError):
        raise InvalidRequest(f"--every is {every}; give 1 to {366 * 86_400} seconds") from None
    schedule = Schedule(name, queue, value, every=span, cron=cron, tz=tz, missed=missed)
    registry = registry_of(session, client, farm)
    with noted(session, "put-schedule", client, farm, name) as deed:
        registry.schedule(schedule)
        deed.after = f"to {queue}, {cron if every is None else f'every {every:g} s'}"
    session.say(f"scheduled {name}", **_facts(schedule))


@app.command()
def remove(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """Remove a schedule; messages that it has published stay.

    Example: latchwork schedule remove nightly --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    with _known(session, registry, name), noted(session, "remove-schedule", client, farm, name):
        registry.unschedule(name)
    session.say(f"removed {name}", schedule=name)


@app.command()
def pause(context: typer.Context, name: Name, client: Client, why: Why = "", farm: Farm = None) -> None:
    """Pause a schedule: it publishes no ticks until it is resumed.

    A tick that was due before may still be published. The ticks in between are never published, whatever --missed says.
    If you put the schedule again, it stays paused.

    Example: latchwork schedule pause nightly --client shop --why "the report takes the disk"
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    with _known(session, registry, name), noted(session, "pause-schedule", client, farm, name, why=why) as deed:
        is_new = registry.pause_schedule(name, by=deed.who)
        deed.before, deed.after = "" if is_new else "paused", "paused"
    session.say(f"paused {name}" if is_new else f"{name} is paused already", schedule=name, paused=True, changed=is_new)


@app.command()
def resume(context: typer.Context, name: Name, client: Client, why: Why = "", farm: Farm = None) -> None:
    """Resume a paused schedule. Ticks that are due from now on are published again.

    To make up for a tick in between, use `trigger`.

    Example: latchwork schedule resume nightly --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    with _known(session, registry, name), noted(session, "resume-schedule", client, farm, name, why=why) as deed:
        is_new = registry.resume_schedule(name)
        deed.before, deed.after = "paused" if is_new else "", "resumed"
    session.say(f"resumed {name}" if is_new else f"{name} is not paused", schedule=name, paused=False, changed=is_new)


@app.command()
def trigger(context: typer.Context, name: Name, client: Client, why: Why = "", farm: Farm = None) -> None:
    """Publish the message of a schedule once more, now; print its id. Its ticks stay as they are.

    Example: latchwork schedule trigger nightly --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    with _known(session, registry, name), noted(session, "trigger", client, farm, name, why=why) as deed:
        deed.after = registry.trigger_schedule(name)
    session.say(deed.after, schedule=name, message_id=deed.after)


@app.command("next")
def next_ticks(
    context: typer.Context,
    name: Name,
    client: Client,
    count: Annotated[int, typer.Option(min=1, max=1000, help="the number")] = 5,
    farm: Farm = None,
) -> None:
    """Show the next ticks of a schedule, in UTC. If the schedule is paused, none of them comes; stderr says so.

    Example: latchwork schedule next nightly --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    found = [one for one in registry.schedule_states() if one.schedule.name == name]
    if not found:
        raise _no_schedule(session, registry, name)
    now = datetime.fromtimestamp(session.store.seams.wall(), timezone.utc)
    ticks = islice(found[0].schedule.ticks(now), count)
    session.table([{"tick": tick.isoformat()} for tick in ticks], empty="no ticks")
    if found[0].paused is not None:
        who = f" by {found[0].paused_by}" if found[0].paused_by else ""
        note(f"{name} is paused{who}: no tick is published until it is resumed")
