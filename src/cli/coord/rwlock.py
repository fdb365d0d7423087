"""`latchwork rwlock`: run a program while reading beside others, or writing alone; see who does, and who died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ...coord import ReadWriteLock
from ...coord.rwlock import ABANDONED, RWLOCKS, Mode
from ...errors import NotFound
from ...plain import shown
from ..audit import noted, person
from ..options import Command, Grace, Lease, Why
from ..run.block import held_while_it_runs
from ..run.supervise import GRACE, run_under
from ..session import Session
from .lock import Name, whole
from .records import checked_there, cleared_by, died
from .waiting import Waiting, holders

app = typer.Typer(help="Many readers or one writer, with fences.", no_args_is_help=True)
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
    _run(context.obj.may_make(), name, Mode.READ, timeout, command, lease, grace)


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
    _run(context.obj.may_make(), name, Mode.WRITE, timeout, command, lease, grace)


def _run(
    session: Session, name: str, mode: Mode, timeout: float | None, command: Sequence[str], lease: float, grace: float
) -> None:
    lock = ReadWriteLock(session.store, name, lease=lease)
    acquire = lock.read if mode is Mode.READ else lock.write
    waiting = _waiting_for(session, lock)
    with waiting, held_while_it_runs(acquire(timeout, keep_alive=True), lease) as grant:
        waiting.over()
        facts = {"fence": grant.fence, "rwlock": name, "abandoned": grant.abandoned or ""}
        code = run_under(command, grant.lost, facts, session.environment, lease=lease, grace=grace)
    raise typer.Exit(code)


def _waiting_for(session: Session, lock: ReadWriteLock) -> Waiting:
    def who() -> str:
        return holders([f"{user.owner} ({user.mode.value})" for user in lock.holders()])

    return Waiting(session.store.seams, f"the lock {shown(lock.name)}", who)


@app.command()
def show(context: typer.Context, name: Name) -> None:
    """Show who reads or writes, and whether a writer died.

    A dead holder is shown until another takes its place. Exit code 3 if it was never used.

    Example: latchwork rwlock show price-list --json
    """
    session: Session = context.obj
    record = checked_there(session, "read-write lock", name, RWLOCKS)
    users, abandoned = ReadWriteLock(session.store, name).holders(), record.bins.get(ABANDONED)
    lines = [f"{one.owner} has it to {one.mode.value}, fence {one.fence}" for one in users]
    if not lines:
        lines.append(f"{name}: nobody reads or writes")
    if abandoned is not None:
        lines += [died(abandoned), cleared_by(record, abandoned)]
    rows = [{"owner": one.owner, "mode": one.mode.value, "fence": one.fence, "since": one.since} for one in users]
    session.say(*lines, rwlock=name, holders=rows, abandoned=abandoned)


@app.command()
def clear(
    context: typer.Context,
    name: Name,
    fence: Annotated[
        int, typer.Option(parser=whole, metavar="INTEGER", help="of the writer that died, as `rwlock show` names it")
    ],
    timeout: Annotated[float, typer.Option(help="seconds to wait until nobody reads or writes")] = 60.0,
    why: Why = "",
) -> None:
    """Say that the work of a writer that died is repaired.

    The next holder is not told of it any more. Repair what the lock protects first: nothing else remembers it. It takes
    the lock to write for a moment, so it waits for those who have it, and for a dead writer until its lease is over;
    not in a command that `rwlock write` runs, which has the lock itself. Exit code 3 if no writer with that fence died,
    or it was cleared before; 4 if the lock was not acquired in time.

    Example: latchwork rwlock clear price-list --fence 1764282738123456
    """
    session: Session = context.obj
    record = checked_there(session, "read-write lock", name, RWLOCKS)
    lock, left = ReadWriteLock(session.store, name, owner=person()), record.bins.get(ABANDONED)
    before = "no writer has left it unfinished" if left is None else f"it is the one with the fence {left} that died"
    writers = [one for one in lock.holders() if one.mode is Mode.WRITE and one.fence == fence]  # alive or dead
    if writers:
        before = f"{writers[0].owner} had it to write, fence {fence}"
    with noted(session, "clear", "rwlock", None, name, before=before, why=why) as deed:
        done = False
        if left == fence or writers:
            with _waiting_for(session, lock), lock.write(timeout) as grant:
                done = grant.abandoned == fence
                if done:
                    grant.clear_abandoned()
        deed.after = "cleared" if done else "no writer with that fence died"
    if not done:
        raise NotFound(f"no writer of {shown(name)} with the fence {fence} died: {before}", rwlock=name, fence=fence)
    session.say(f"{name}: cleared what the writer with the fence {fence} left", rwlock=name, fence=fence)
