"""`latchwork lock`: run a program under a fenced lock."""

from __future__ import annotations

from typing import Annotated

import typer

from ...coord import FencedLock
from ..options import Grace
from ..run.supervise import GRACE, run_under
from ..session import Session

app = typer.Typer(help="Take turns, with fences.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `run` a command of its own while it is the only one."""


@app.command()
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="the lock")],
    command: Annotated[list[str], typer.Argument(help="what to run, behind --")],
    timeout: Annotated[float | None, typer.Option(help="seconds to wait for the lock; no limit by default")] = None,
    lease: Annotated[float, typer.Option(help="seconds; renewed while the command runs")] = 10.0,
    grace: Grace = GRACE,
) -> None:
    """Run a command while holding the lock. Exit code: that of the command, or 4 if the lock was not acquired in time.

    The command gets the fence in $LATCHWORK_FENCE and should pass it on to everything it writes to, and the store in
    $LATCHWORK_STORE. It is ended with SIGTERM, then SIGKILL, when the lock is lost or this process has to end, and when
    this process is killed. Everything that the command has started is ended before the lock is released.

    Example: latchwork lock run nightly --timeout 60 -- ./job.sh --full
    """
    session: Session = context.obj
    with FencedLock(session.store, name, lease=lease).acquire(timeout, keep_alive=True) as grant:
        facts = {"fence": grant.fence, "lock": name}
        code = run_under(command, grant.lost, facts, session.environment, lease=lease, grace=grace)
    raise typer.Exit(code)
