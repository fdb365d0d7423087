"""`latchwork group`: who is there; run a program as a member; watch who joins, leaves and dies."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Annotated, Any

import typer

from ...coord import Group, Member
from ...coord.presence.layout import GROUPS
from ...errors import LatchworkError
from ...store import Key
from ..jsontext import checked_json
from ..options import Command, Farm, Grace, Lease, Timeout
from ..run.block import held_while_it_runs
from ..run.supervise import GRACE, run_under
from ..session import Session
from .records import checked_there, time_of

app = typer.Typer(help="Who is there, and who died.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="the group")]


@app.command()
def members(context: typer.Context, name: Name, farm: Farm = None) -> None:
    """Show the members of all farms, and when each renewed last. A dead member is shown until another process has
    watched it for its whole lease.

    Exit code 3 if nobody ever joined the group.

    Example: latchwork group members nightly --json
    """
    session: Session = context.obj
    checked_there(session, "group", name, GROUPS)
    found = Group(session.store, name, farm_id=farm).members()
    now = time_of(session.store, Key(GROUPS, name)) / 1000 if found else 0.0
    session.table([_row(one, now) for one in found], empty=f"nobody is in {name}")


@app.command()
def watch(context: typer.Context, name: Name, timeout: Timeout = None, farm: Farm = None) -> None:
    """Print who joins, leaves or is lost, until Ctrl-C. There is a line for each; the members that are there now come
    first.

    Example: latchwork group watch nightly --timeout 60
    """
    session: Session = context.obj.prints_lines()
    for change in Group(session.store, name, farm_id=farm).watch(timeout):
        one = change.member
        session.say(f"{change.kind} {one.farm}/{one.member}", kind=change.kind, farm=one.farm, member=one.member)


@app.command()
def run(
    context: typer.Context,
    name: Name,
    command: Command,
    member: Annotated[str | None, typer.Option("--as", help="the member's name; HOST:PID by default")] = None,
    meta: Annotated[str | None, typer.Option(help="what the other members should know, as JSON")] = None,
    lease: Lease = 10.0,
    farm: Farm = None,
    grace: Grace = GRACE,
) -> None:
    """Run a command as a member of the group. Exit code: the command's. If the command fails, the member counts as lost
    at once.

    The command finds its fence in $LATCHWORK_FENCE, its name in $LATCHWORK_MEMBER and the store in $LATCHWORK_STORE. It
    is ended, as by `latchwork lock run`, when another process joins under its name, or when its heartbeats fail for a
    whole lease.

    Example: latchwork group run nightly --as orders -- ./load-orders.sh
    """
    session: Session = context.obj.may_make()
    me = f"{socket.gethostname()}:{os.getpid()}" if member is None else member
    known = None if meta is None else checked_json("--meta", meta)
    code = 1
    joined = Group(session.store, name, farm_id=farm).join(me, meta=known, lease=lease)
    with held_while_it_runs(joined, lease) as membership:
        facts = {"fence": membership.fence, "member": me, "group": name}
        code = run_under(command, membership.lost, facts, session.environment, lease=lease, grace=grace)
        if code:
            with suppress(LatchworkError):  # the end of the block tries it again, and says why it cannot
                membership.fail()
    raise typer.Exit(code)


def _row(one: Member, now: float) -> dict[str, Any]:
    """Return a member as a row of the table. now: seconds, by the server's clock, as the time of its last renewal."""
    return {
        "member": one.member,
        "farm": one.farm,
        "fence": one.fence,
        "heard_s_ago": max(0.0, round(now - one.seen, 1)),
        "lease_s": one.lease,
        "meta": one.meta,
    }
