"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import InvalidRequest

MAX_EVERY = 86_400
"""Seconds."""

CLIENT_VARIABLE = "LATCHWORK_CLIENT"
"""The environment variable that names the client where no option does."""

Client = Annotated[str, typer.Option(envvar=CLIENT_VARIABLE, help="the client id, the owner of latches and queues")]
Clients = Annotated[
    list[str] | None, typer.Option(envvar=CLIENT_VARIABLE, help="a client; repeat for each [default: all]")
]
Outboxes = Annotated[
    list[str] | None, typer.Option(help="DIRECTORY:PREFIX of an outbox on this machine; repeat for each")
]
Grace = Annotated[
    float, typer.Option(min=0, max=86_400, help="seconds between the signal that ends the command and SIGKILL")
]
Command = Annotated[list[str], typer.Argument(help="the command to run, behind --")]
Lease = Annotated[float, typer.Option(help="seconds; renewed while the command runs")]
Timeout = Annotated[float | None, typer.Option(help="seconds; no limit by default")]
Farm = Annotated[str | None, typer.Option(help="the data centre [default: $LATCHWORK_FARM, else local]")]
Why = Annotated[str, typer.Option(help="for the audit record")]


def checked_every(seconds: float, least: float) -> float:
    """Return the value of `--every`. Raises `InvalidRequest`."""
    if not least <= seconds <= MAX_EVERY:
        raise InvalidRequest(f"--every is {seconds}; give {least:g} to {MAX_EVERY} seconds")
    return seconds
