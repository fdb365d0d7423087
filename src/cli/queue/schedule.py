"""`latchwork schedule`: messages that are published again and again."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Annotated, Any

import typer

from ...errors import InvalidRequest, NotFound
from ...plain import shown
from ...queue import Schedule
from ..jsontext import checked_json
from ..options import Client, Farm
from ..session import Session
from ..similar import meant
from .queue import no_queues, registry_of

app = typer.Typer(help="Publish messages again and again, each tick once.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="the schedule")]


def _facts(schedule: Schedule) -> dict[str, Any]:
    every = None if schedule.every is None else schedule.every.total_seconds()
    return {
        "schedule": schedule.name, "queue": schedule.queue, "every_s": every, "cron": schedule.cron, "tz": schedule.tz,
        "missed": schedule.missed,
    }  # fmt: skip


@app.command("list")
def list_schedules(context: typer.Context, client: Client, farm: Farm = None) -> None:
    """List every schedule of the client. Exit code 3 if the client has not even a queue.

    Example: latchwork schedule list --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    rows = [_facts(schedule) for schedule in registry.schedules()]
    if not rows and not registry.queues(active=None):
        raise no_queues(session, client, farm)
    session.table(rows, empty=f"no schedules of {client} in {session.where}")


@app.command()
def put(
    context: typer.Context,
    name: Name,
    client: Client,
    queue: Annotated[str, typer.Option(help="where its messages go")],
    cron: Annotated[str | None, typer.Option(help="minute hour day month weekday")] = None,
    every: Annotated[float | None, typer.Option(help="seconds, instead of --cron")] = None,
    tz: Annotated[str, typer.Option(help="the time zone of --cron")] = "UTC",
    payload: Annotated[str, typer.Option(help="JSON")] = "null",
    missed: Annotated[str, typer.Option(help="ticks that were not published in time: skip, last or all")] = "last",
    farm: Farm = None,
) -> None:
    """Make a schedule, or replace the one of that name.

    Example: latchwork schedule put nightly --client shop --queue reports --cron "0 3 * * *" --tz Europe/Berlin
    """
    session: Session = context.obj
    value = checked_json("--payload", payload)
    if every is not None and tz != "UTC":
        raise InvalidRequest(
            f"--tz {shown(tz)} with --every: its ticks are whole multiples of --every since 1970 in UTC; give --cron"
        )
    try:
        span = None if every is None else timedelta(seconds=every)
    except (OverflowError, ValueError):
        raise InvalidRequest(f"--every is {every}; give 1 to {366 * 86_400} seconds") from None
    schedule = Schedule(name, queue, value, every=span, cron=cron, tz=tz, missed=missed)
    registry_of(session, client, farm).schedule(schedule)
    session.say(f"scheduled {name}", **_facts(schedule))


@app.command()
def remove(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """Forget a schedule; what it has published stays.

    Example: latchwork schedule remove nightly --client shop
    """
    session: Session = context.obj
    registry_of(session, client, farm).unschedule(name)
    session.say(f"removed {name}", schedule=name)


@app.command("next")
def next_ticks(
    context: typer.Context,
    name: Name,
    client: Client,
    count: Annotated[int, typer.Option(min=1, max=1000, help="how many")] = 5,
    farm: Farm = None,
) -> None:
    """Show the next ticks of a schedule, in UTC.

    Example: latchwork schedule next nightly --client shop
    """
    session: Session = context.obj
    there = registry_of(session, client, farm).schedules()
    found = [one for one in there if one.name == name]
    if not found:
        similar = meant(name, [one.name for one in there])
        listing = "`schedule list` shows which there are"
        raise NotFound(f"no schedule {name!r} of {client} in {session.where}{similar}; {listing}")
    now = datetime.fromtimestamp(session.store.seams.wall(), timezone.utc)
    session.table([{"tick": tick.isoformat()} for tick in islice(found[0].ticks(now), count)], empty="no ticks")
