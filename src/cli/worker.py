"""`latchwork worker`: run the handlers of a program until SIGTERM."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidRequest
from ..plain import shown
from ..queue import Worker
from .probe import Probe
from .session import note


def worker(
    where: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="the module, and the name of its Worker")],
    probe: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="serve /healthz, /readyz, /metrics and /scale/QUEUE here")
    ] = None,
    probe_host: Annotated[str, typer.Option(help="the address of the probe; 0.0.0.0: all")] = "127.0.0.1",
) -> None:
    """Run a worker until SIGTERM or Ctrl-C, which let its handlers finish; a second one does not wait.

    The module is looked for in the current folder too. Exit code 1 where a handler was given up.

    Example: latchwork worker shop.jobs:worker --probe 8080
    """
    found = _found(where)
    if probe is None:
        finished = found.run()
    else:
        with Probe(found, probe_host, probe) as served:
            note(f"probes at http://{probe_host}:{served.port}/healthz")
            finished = found.run()
    if not finished:
        raise typer.Exit(1)


def _found(where: str) -> Worker:
    module, colon, name = where.partition(":")
    if not colon or not module or not name:
        raise InvalidRequest(f"{shown(where)} names no worker: write MODULE:NAME, as shop.jobs:worker")
    if not all(part.isidentifier() for part in module.split(".")):
        raise InvalidRequest(f"{shown(module)} is no module's name: write it in full, as shop.jobs")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as failure:
        if failure.name is None or not (module == failure.name or module.startswith(f"{failure.name}.")):
            raise
        raise InvalidRequest(f"no module {shown(module)}: run this in the folder where it is, or install it") from None
    except AttributeError:
        raise InvalidRequest(f"module {module} has no {shown(name)}: name the variable that holds its Worker") from None
    if not isinstance(found, Worker):
        raise InvalidRequest(f"{where} is a {type(found).__name__}; it must be a latchwork.queue.Worker")
    return found
