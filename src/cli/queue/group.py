"""`latchwork queue group`: independent subscriptions to a queue."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, cast

import typer

from ...errors import InvalidRequest, NotFound
from ...plain import shown
from ...queue import QueueGroup
from ..audit import noted
from ..options import Client, Farm
from ..session import Session
from .arguments import Name, queue_of, registry_of
from .queue import show_stats

app = typer.Typer(help="Groups: each gets every message of a queue.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(help="the group")]


def _group(session: Session, name: str, group: str, client: str, farm: str | None) -> QueueGroup:
    """Return the group that a command means. Raises `NotFound`."""
    found = queue_of(session, f"{name}@{group}", client, farm)
    if not found.reader:
        raise NotFound(f"no group {group!r} of queue {name!r} in {session.where}: create it, or name another group")
    return cast(QueueGroup, found)


@app.command("list")
def list_groups(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """List the groups of a queue, and how much waits for each.

    Example: latchwork queue group list orders --client shop
    """
    session: Session = context.obj
    rows: list[dict[str, Any]] = []
    for group in queue_of(session, name, client, farm).groups():
        depth = group.depth()
        rows.append({
            "group": group.group_name, "consumers" if session.json else "threads each": group.concurrency,
            "ready": depth.ready, "sideline": depth.sideline, "parked": depth.parked,
        })  # fmt: skip
    session.table(rows, empty=f"no groups of {name} in {session.where}")


@app.command()
def create(
    context: typer.Context,
    name: Name,
    group: Group,
    client: Client,
    start: Annotated[
        str, typer.Option(help="where it begins: now, oldest, or a time such as 2030-01-31T12:00+00:00")
    ] = "now",
    concurrency: Annotated[int | None, typer.Option(help="worker threads [default: the queue's]")] = None,
    farm: Farm = None,
) -> None:
    """Create a group; a group that exists stays as it is.

    Messages that are published from then on wait for it until it acknowledges them, they expire, or it is dropped.

    Example: latchwork queue group create orders audit --client shop --start oldest
    """
    session: Session = context.obj
    settings = {} if concurrency is None else {"concurrency": concurrency}
    found = queue_of(session, name, client, farm).group(group, start=_start(start), **settings)
    session.say(f"{found.name} is there", queue=name, group=group, name=found.name)


def _start(text: str) -> str | datetime:
    if text in ("now", "oldest"):
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"--start is {shown(text)}; give now, oldest or a time such as 2030-01-31T12:00+00:00"
        ) from None


@app.command()
def drop(context: typer.Context, name: Name, group: Group, client: Client, farm: Farm = None) -> None:
    """End a group. Messages that wait for this group alone are deleted; its consumers get nothing more.

    Example: latchwork queue group drop orders audit --client shop
    """
    session: Session = context.obj
    found = _group(session, name, group, client, farm)
    with noted(session, "drop", client, farm, name, found.name):
        over = found.drop()
    rest = "" if over else "; the upkeep deletes the rest of its messages, and until then the name is not free"
    session.say(f"dropped {group} of {name}{rest}", queue=name, group=group, over=over)


@app.command()
def stats(context: typer.Context, name: Name, group: Group, client: Client, farm: Farm = None) -> None:
    """Show the depth of a group, who works on it, and what is wrong.

    Example: latchwork queue group stats orders audit --client shop
    """
    session: Session = context.obj
    show_stats(session, registry_of(session, client, farm), _group(session, name, group, client, farm).name)
