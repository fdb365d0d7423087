"""`latchwork semaphore`: run a program while holding permits, see who holds them, change how many there are."""

from __future__ import annotations

from typing import Annotated

import typer

from ...coord import Semaphore
from ...coord.semaphore import SEMAPHORES
from ...plain import counted, shown
from ..audit import noted
from ..options import Command, Grace, Lease
from ..run.block import held_while_it_runs
from ..run.supervise import GRACE, run_under
from ..session import Session
from .records import checked_there
from .waiting import Waiting, holders

app = typer.Typer(help="Limit how many run at a time, with fences.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="the semaphore")]


@app.command()
def run(
    context: typer.Context,
    name: Name,
    command: Command,
    permits: Annotated[int, typer.Option(help="the number of permits, if the semaphore was never used")],
    n: Annotated[int, typer.Option("-n", "--weight", help="the number of permits to hold")] = 1,
    timeout: Annotated[float | None, typer.Option(help="seconds to wait for them; no limit by default")] = None,
    lease: Lease = 10.0,
    grace: Grace = GRACE,
) -> None:
    """Run a command while holding permits. Exit code: the command's, or 4 if the permits were not acquired in time.

    The command finds the fence in $LATCHWORK_FENCE, the numbers of its slots, separated by commas, in $LATCHWORK_SLOTS,
    and the store in $LATCHWORK_STORE. It is ended as by `latchwork lock run`.

    Example: latchwork semaphore run reports-db --permits 4 -- ./report.sh
    """
    session: Session = context.obj.may_make()
    semaphore = Semaphore(session.store, name, permits=permits, lease=lease)
    what = f"{'a permit' if n == 1 else f'{n} permits'} of the semaphore {shown(name)}"
    waiting = Waiting(session.store.seams, what, lambda: holders([holder.owner for holder in semaphore.holders()]))
    with waiting, held_while_it_runs(semaphore.acquire(n, timeout=timeout, keep_alive=True), lease) as held:
        waiting.over()
        facts = {"fence": held.fence, "slots": ",".join(map(str, held.slots)), "semaphore": name}
        code = run_under(command, held.lost, facts, session.environment, lease=lease, grace=grace)
    raise typer.Exit(code)


@app.command()
def show(context: typer.Context, name: Name) -> None:
    """Show the number of permits, and who holds them. A dead holder is shown until another holder takes its place.

    Example: latchwork semaphore show reports-db --json
    """
    session: Session = context.obj
    semaphore = Semaphore(session.store, name, permits=1)
    checked_there(session, "semaphore", name, SEMAPHORES)
    size, holders = semaphore.size(), semaphore.holders()
    held = sum(len(holder.slots) for holder in holders)
    lines = [f"{name}: {held} of {size} held"]
    lines += [f"{holder.owner}: slots {', '.join(map(str, holder.slots))}, fence {holder.fence}" for holder in holders]
    rows = [
        {"owner": holder.owner, "slots": list(holder.slots), "fence": holder.fence, "since": holder.since}
        for holder in holders
    ]
    session.say(*lines, semaphore=name, permits=size, held=held, holders=rows)


@app.command()
def resize(context: typer.Context, name: Name, permits: Annotated[int, typer.Argument(help="the number")]) -> None:
    """Set the number of permits. If the number becomes smaller, no holder loses a permit; nobody gets one until enough
    are released.

    Example: latchwork semaphore resize reports-db 8
    """
    session: Session = context.obj.may_make()
    semaphore = Semaphore(session.store, name, permits=permits)
    with noted(session, "resize", "semaphore", None, name) as deed:
        semaphore.resize(permits)
        deed.after = counted(permits, "permit")
    session.say(f"{name} has {permits} permits", semaphore=name, permits=permits)
