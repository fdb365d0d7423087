"""`latchwork outbox`: what a producer keeps while its store is away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..queue.outbox.lag import stored_lag
from .session import Session

app = typer.Typer(help="Messages that a producer keeps until the store is available.", no_args_is_help=True)


@app.command()
def stats(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="where the local queue is")],
    prefix: Annotated[str, typer.Argument(help="the local queue's prefix")],
    name: Annotated[str, typer.Option(help="the outbox's name")] = "outbox",
) -> None:
    """Show how much waits, and since when. The command only reads the files, so the producer may run meanwhile.

    Exit code 3 if there is no such outbox.

    Example: latchwork outbox stats /var/lib/orders orders
    """
    session: Session = context.obj
    lag = stored_lag(directory, prefix, name)
    amiss: dict[str, int] = {}
    lines = [f"{lag.messages:,} messages, {lag.bytes:,} bytes wait; the oldest for {lag.seconds:.1f} s"]
    if lag.held:
        amiss["held"] = lag.held
        lines.append(f"{lag.held:,} of them are held back: refused by the store, or behind one that is (see the log)")
    if lag.set_aside:
        amiss["set_aside"] = lag.set_aside
        lines.append(f"{lag.set_aside:,} more were set aside, each in a file *.refused there")
    session.say(
        *lines,
        outbox=name, messages=lag.messages, bytes=lag.bytes, seconds=round(lag.seconds, 3), **amiss,
    )  # fmt: skip
