"""`latchwork leader`: who leads, and run a program only while leading."""

from __future__ import annotations

from typing import Annotated

import typer

from ..coord import Leadership, LeaseElection
from .elections import lease_of
from .options import Grace
from .session import Session
from .supervise import GRACE, run_under

app = typer.Typer(help="Choose one of many.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="the election")]


@app.command()
def status(context: typer.Context, name: Name) -> None:
    """Who leads, in which epoch, and who stands. A leader that died is named until its lease is broken.

    Example: latchwork leader status sweeper --json
    """
    session: Session = context.obj
    held = lease_of(session.store, name)
    contenders = LeaseElection(session.store, name).contenders()
    leads = held is not None and held.locked
    told = f"{name}: {held.owner} leads, epoch {held.fence}" if held and leads else f"{name}: nobody leads"
    session.say(
        told,
        *([f"contenders: {', '.join(contenders)}"] if contenders else []),
        election=name,
        leader=held.owner if held and leads else None,
        epoch=held.fence if held else None,
        contenders=contenders,
    )


@app.command()
def run(
    context: typer.Context,
    name: Name,
    command: Annotated[list[str], typer.Argument(help="what to run, behind --")],
    timeout: Annotated[float | None, typer.Option(help="seconds to wait for leadership; no limit by default")] = None,
    lease: Annotated[float, typer.Option(help="seconds after which a silent leader is succeeded")] = 10.0,
    grace: Grace = GRACE,
) -> None:
    """Stand for election and run a command while leading; its exit code, 4 where it was never elected in time.

    The command finds its epoch in $LATCHWORK_EPOCH and the store in $LATCHWORK_STORE. It is ended when leadership is
    lost, as by `latchwork lock run`.

    Example: latchwork leader run sweeper -- latchwork queue sweep --client shop
    """
    session: Session = context.obj

    def lead(leadership: Leadership) -> int:
        facts = {"epoch": leadership.epoch, "election": name}
        return run_under(command, leadership.lost, facts, session.environment, lease=lease, grace=grace)

    raise typer.Exit(LeaseElection(session.store, name, lease=lease).run(lead, timeout=timeout))
