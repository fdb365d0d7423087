"""`latchwork rwlock`: run a program while reading beside others, or writing alone; see who does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from ...coord import ReadGrant, ReadWriteLock, WriteGrant
from ...coord.rwlock import RWLOCKS
from ...plain import shown
from ..options import Command, Grace, Lease
from ..run.supervise import GRACE, run_under
from ..session import Session
from .state import checked_there
from .waiting import Waiting, holders

app = typer.Typer(help="Many readers or one writer, with fences.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="the lock")]
Timeout = Annotated[float | None, typer.Option(help="seconds to wait for it; no limit by default")]


@app.command()
def read(
    context: typer.Context,
    name: Name,
    command: Command,
    timeout: Timeout = None,
    lease: Lease = 10.0,
    grace: Grace = GRACE,
) -> None:
    """Run a command as one of the readers. Exit code: the command's, or 4 if the lock was not acquired in time.

    The command finds the last writer's fence in $LATCHWORK_FENCE, and the store in $LATCHWORK_STORE. If a writer died,
    its fence is in $LATCHWORK_ABANDONED; else that is empty. The command is ended as by `latchwork lock run`.

    Example: latchwork rwlock read price-list -- ./report.sh
    """
    session: Session = context.obj.may_make()
    lock = ReadWriteLock(session.store, name, lease=lease)
    _run(session, name, lock, lambda: lock.read(timeout, keep_alive=True), command, lease, grace)


@app.command()
def write(
    context: typer.Context,
    name: Name,
    command: Command,
    timeout: Timeout = None,
    lease: Lease = 10.0,
    grace: Grace = GRACE,
) -> None:
    """Run a command as the only writer. Exit code: the command's, or 4 if the lock was not acquired in time.

    The command finds its fence in $LATCHWORK_FENCE and should pass it on to everything it writes to. Everything else is
    as in `read`.

    Example: latchwork rwlock write price-list --timeout 60 -- ./load.sh
    """
    session: Session = context.obj.may_make()
    lock = ReadWriteLock(session.store, name, lease=lease)
    _run(session, name, lock, lambda: lock.write(timeout, keep_alive=True), command, lease, grace)


def _run(
    session: Session,
    name: str,
    lock: ReadWriteLock,
    acquire: Callable[[], ReadGrant | WriteGrant],
    command: Sequence[str],
    lease: float,
    grace: float,
) -> None:
    def who() -> str:
        return holders([f"{user.owner} ({user.mode.value})" for user in lock.holders()])

    waiting = Waiting(session.store.seams, f"the lock {shown(name)}", who)
    with waiting, acquire() as grant:
        waiting.over()
        facts = {"fence": grant.fence, "rwlock": name, "abandoned": grant.abandoned or ""}
        code = run_under(command, grant.lost, facts, session.environment, lease=lease, grace=grace)
    raise typer.Exit(code)


@app.command()
def show(context: typer.Context, name: Name) -> None:
    """Show who reads or writes. A dead holder is shown until another holder takes its place.

    Exit code 3 if the lock was never used.

    Example: latchwork rwlock show price-list --json
    """
    session: Session = context.obj
    checked_there(session, "read-write lock", name, RWLOCKS)
    users = ReadWriteLock(session.store, name).holders()
    lines = [f"{one.owner} has it to {one.mode.value}, fence {one.fence}" for one in users]
    rows = [{"owner": one.owner, "mode": one.mode.value, "fence": one.fence, "since": one.since} for one in users]
    session.say(*(lines or [f"{name}: nobody reads or writes"]), rwlock=name, holders=rows)
