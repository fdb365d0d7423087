"""`latchwork lock`: run a program under a fenced lock, and see who holds it."""

from __future__ import annotations

from typing import Annotated

import typer

from ...coord import FencedLock
from ...coord.inputs import checked_name
from ...coord.lease import LeaseView
from ...coord.lock import LOCKS
from ...errors import NotFound
from ...plain import shown
from ...store import Compute, Key
from ...store.model.expr import SERVER_NOW
from ..options import Grace
from ..run.supervise import GRACE, run_under
from ..session import Session
from .waiting import Waiting, holder_of

app = typer.Typer(help="Take turns, with fences.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="the lock")]


@app.command()
def run(
    context: typer.Context,
    name: Name,
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
    session: Session = context.obj.may_make()
    lock, store = FencedLock(session.store, name, lease=lease), session.store
    waiting = Waiting(store.seams, f"the lock {shown(name)}", lambda: holder_of(store, name))
    with waiting, lock.acquire(timeout, keep_alive=True) as grant:
        waiting.over()
        facts = {"fence": grant.fence, "lock": name}
        code = run_under(command, grant.lost, facts, session.environment, lease=lease, grace=grace)
    raise typer.Exit(code)


@app.command()
def show(context: typer.Context, name: Name) -> None:
    """Show who holds the lock.

    And when it was renewed last, by the server's clock. Exit code 3 if the lock was never taken. A holder that has not
    renewed for its whole lease has died or is paused: the next party that wants the lock takes it, one lease after its
    first look.

    Example: latchwork lock show nightly --json
    """
    session: Session = context.obj
    key = Key(LOCKS, checked_name(name))
    record = session.store.get(key)
    if record is None:
        raise NotFound(f"the lock {shown(name)} was never taken in this store", key=key)
    view = LeaseView.of(key, record.bins)
    (now,) = session.store.operate(key, Compute(SERVER_NOW))
    silent = max(0.0, (int(now) - view.time) / 1000)
    facts = {"lock": name, "held": view.locked, "owner": view.owner if view.locked else None, "fence": view.fence,
             "lease": view.lease, "renewed_s_ago": silent if view.locked else None,
             "ran_out": view.locked and silent > view.lease}  # fmt: skip
    if not view.locked:
        session.say(f"{name} is free; its last fence is {view.fence}", **facts)
        return
    late = ": it has run out" if facts["ran_out"] else ""
    session.say(
        f"{name} is held by {view.owner}, fence {view.fence}",
        f"renewed {silent:.1f} s ago, its lease is {view.lease:g} s{late}",
        **facts,
    )
