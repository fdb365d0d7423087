"""The commands of `latchwork queue`, in the order of its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from . import batch, group, messages, pause, queue, show, sides, sweep
from .consume import consume

COMMANDS: dict[str, Callable[..., Any]] = {
    "list": queue.list_queues,
    "create": queue.create,
    "stats": queue.stats,
    "pause": pause.pause,
    "resume": pause.resume,
    "scale": pause.scale,
    "set": queue.set_retry,
    "shovel": queue.shovel,
    "sweep": sweep.sweep,
    "wait": queue.wait,
    "deactivate": queue.deactivate,
    "activate": queue.activate,
    "publish": messages.publish,
    "peek": messages.peek,
    "consume": consume,
    "search": messages.search,
    "discard": sides.discard,
    "redrive": sides.redrive,
    "move": sides.move,
    "show": show.show,
    "cancel": sides.cancel,
    "result": show.result,
    "recover": show.recover,
}
app = typer.Typer(help="Hand work to others: sharded queues, at least once.", no_args_is_help=True)
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(batch.app, name="batch")
app.add_typer(group.app, name="group")
