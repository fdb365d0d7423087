"""`latchwork barrier`: wait for other scripts and exchange data with them; show who has arrived; abort."""

from __future__ import annotations

from typing import Annotated

import typer

from ...coord import Barrier, Group, LatchLevel
from ...coord.barrier.layout import barrier_key
from ...errors import NotFound
from ...plain import shown
from ..audit import noted
from ..jsontext import checked_json, to_json
from ..options import Client, Farm, Timeout
from ..session import Session
from ..similar import meant_in
from .waiting import Waiting, listed

app = typer.Typer(help="Wait until all parties are there, and exchange values.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="the barrier")]
Parties = Annotated[list[str], typer.Option("--party", help="a party of the barrier; repeat for each")]
Level = Annotated[LatchLevel, typer.Option(help="dc: parties of this farm; xdc: FARM/PARTY, of all farms")]


@app.command()
def wait(
    context: typer.Context,
    name: Name,
    client: Client,
    party: Parties,
    me: Annotated[str, typer.Option("--as", help="the party that this is")],
    payload: Annotated[str | None, typer.Option(help="a value for the other parties, as JSON")] = None,
    timeout: Timeout = None,
    alive: Annotated[str | None, typer.Option(help="a group whose members have the names of the parties")] = None,
    farm: Farm = None,
    level: Level = LatchLevel.DC,
) -> None:
    """Wait for all parties, and print what each has brought. Exit code 4 if they are not there in time.

    If the meeting times out or is aborted, or a party dies, everyone who waits exits with 1 and says why.

    Example: latchwork barrier wait nightly --client shop --party orders --party stock --as orders --payload '{"n": 7}'
    """
    session: Session = context.obj.may_make()
    brought = None if payload is None else checked_json("--payload", payload)
    group = None if alive is None else Group(session.store, alive, farm_id=farm)
    barrier = Barrier(session.store, client, name, parties=party, farm_id=farm, level=level)
    with Waiting(session.store.seams, f"the barrier {shown(name)}", lambda: listed("missing:", _missing(barrier))):
        found = barrier.wait(me, brought, timeout, alive=group)
    session.say(*(f"{name}: {to_json(value)}" for name, value in found.items()), barrier=name, brought=found)


def _missing(barrier: Barrier) -> list[str]:
    return sorted(barrier.progress().missing)


@app.command()
def show(
    context: typer.Context, name: Name, client: Client, party: Parties, farm: Farm = None, level: Level = LatchLevel.DC
) -> None:
    """Show who has arrived, and how the previous meeting ended. Exit code 3 if nobody ever came: perhaps the name is
    wrong.

    Example: latchwork barrier show nightly --client shop --party orders --party stock --json
    """
    session: Session = context.obj
    now = Barrier(session.store, client, name, parties=party, farm_id=farm, level=level).progress()
    if now.generation is None:
        similar = meant_in(session.store, barrier_key(client, name))
        raise NotFound(
            f"nobody has come to the barrier {name!r} of client {client!r} in {session.where}: not yet, or its record "
            f"has expired, or the name is wrong{similar}",
            barrier=name,
        )
    arrived, missing = sorted(now.arrived), sorted(now.missing)
    lines = [f"{name}: {len(arrived)} of {len(arrived) + len(missing)} have arrived"]
    lines += [f"waiting for {', '.join(missing)}"] if arrived and missing else []
    lines += [f"the one before: {now.last}"] if now.last else []
    session.say(*lines, barrier=name, generation=now.generation, arrived=arrived, missing=missing, last=now.last)


@app.command()
def abort(
    context: typer.Context,
    name: Name,
    client: Client,
    party: Parties,
    reason: Annotated[str, typer.Option(help="the reason; everyone who waits prints it")],
    farm: Farm = None,
    level: Level = LatchLevel.DC,
) -> None:
    """Break the meeting that is under way. A party that comes later takes part in the next one.

    Example: latchwork barrier abort nightly --client shop --party orders --party stock --reason "no input today"
    """
    session: Session = context.obj.may_make()
    barrier = Barrier(session.store, client, name, parties=party, farm_id=farm, level=level)
    with noted(session, "abort", client, farm, name, why=reason) as deed:
        done = barrier.abort(reason)
        deed.after = "broken" if done else "nobody waited"
    session.say(f"{name} is broken" if done else f"nobody waits at {name}", barrier=name, aborted=done)
