"""`latchwork worker`: run the handlers of a program until SIGTERM."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidRequest
from ..plain import LOG_LINE, PlainFormatter, shown
from ..queue import Worker
from .options import CLIENT_VARIABLE
from .probe import Probe
from .processes.child import Child
from .processes.parent import Parent, Plan
from .processes.parent_probe import ParentProbe
from .processes.sizes import checked_size
from .session import Session, note


class Level(Enum):
    """The least severe lines that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def worker(
    context: typer.Context,
    where: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="the module, and the name of its Worker")],
    probe: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="serve /healthz, /readyz, /metrics and /scale/QUEUE here")
    ] = None,
    probe_host: Annotated[
        str | None, typer.Option(help="the address of the probe; 0.0.0.0 is all addresses [default: 127.0.0.1]")
    ] = None,
    log_level: Annotated[Level | None, typer.Option(help="the lowest level that is logged [default: info]")] = None,
    client: Annotated[
        str | None,
        typer.Option(envvar=CLIENT_VARIABLE, help="the client id, for a module that reads $LATCHWORK_CLIENT"),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=256, help="run it in this number of processes, and replace those that end")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="replace a process that has handled about this number of messages")
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option(help="replace a process that has more memory than this, as 512M")
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="for development: start again when a file of the program changes")
    ] = False,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a worker until SIGTERM, SIGHUP or Ctrl-C. Its handlers then finish; a second SIGTERM or Ctrl-C does not wait
    for them.

    The module is also looked for in the current folder. It makes its own store and worker: it gets --store as
    $LATCHWORK_STORE, which connect() reads, and --client as $LATCHWORK_CLIENT. The command refuses a worker of another
    client. Exit code 1 if a handler was given up.

    Log lines go to stderr. If the module configures Python's root logger, they go where it says, and only --log-level
    changes its level.

    With --processes, --max-messages, --max-memory or --reload this process is a parent: it does not load the module,
    its children do. If a handler runs longer than its queue's handler_timeout, its process is ended. The other messages
    of that process go back to the queue, and this attempt does not count.

    Example: latchwork worker shop.jobs:worker --probe 8080 --processes 4
    """
    session: Session = context.obj
    if probe_host is not None and probe is None:
        raise InvalidRequest("--probe-host without --probe: no probe is served; give --probe PORT too")
    host = "127.0.0.1" if probe_host is None else probe_host
    os.environ.update(session.environment)
    if client is not None:
        os.environ[CLIENT_VARIABLE] = client
    atexit.register(_ignore_signals)  # before the program is loaded: what that registers ends first
    verbose: int = context.find_root().params["verbose"]
    level = log_level.name if log_level else {0: None, 1: "INFO"}.get(verbose, "DEBUG")
    source = context.get_parameter_source("client")
    own_client = client if source is not None and source.name == "COMMANDLINE" else None
    if child is None and (processes or max_messages or max_memory or reload):
        _named(where)
        memory = None if max_memory is None else checked_size("--max-memory", max_memory)
        words = ["worker", where, *(["--log-level", level.lower()] if level else [])]
        words += ["--client", own_client] if own_client is not None else []
        code = _run_parent(Plan(words, processes or 1, max_messages, memory, reload), level, host, probe)
        raise typer.Exit(code)
    if not _run(where, level, own_client, child, host, probe):
        raise typer.Exit(1)


def _ignore_signals() -> None:
    """Ignore the signals that end a worker. The interpreter gives their handlers up while it ends: a second Ctrl-C
    would then kill a process whose work is settled, and its exit code would say that work was cut.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _run(where: str, level: str | None, client: str | None, child: str | None, host: str, port: int | None) -> bool:
    """Run the worker here, with a probe if it has a port, or as a child; return whether all handlers finished.

    client: of the option; None = it was not given.
    """
    as_child = None if child is None else Child(child)
    if as_child is not None:
        as_child.begin()
    with _logging(level, "" if as_child is None else f"[{as_child.name}] "):
        found, run = _found(where)
    if client is not None and client != found.registry.client_id:
        raise InvalidRequest(
            f"--client is {shown(client)}, and the worker of {where} is of client {shown(found.registry.client_id)}: "
            f"leave the option out, or let the module read ${CLIENT_VARIABLE}"
        )
    if as_child is not None:
        return run(partial(as_child.run, found))
    if port is None:
        return run(found.run)
    with Probe(found, host, port) as served:
        note(f"probes at http://{host}:{served.port}/healthz")
        return run(found.run)


def _run_parent(plan: Plan, level: str | None, host: str, port: int | None) -> int:
    """Run the plan, with a probe if it has a port; return the exit code."""
    with _logging(level):
        parent = Parent(plan)
    if port is None:
        return parent.run()
    with ParentProbe(parent, host, port) as served:
        note(f"probes at http://{host}:{served.port}/healthz")
        return parent.run()


@contextmanager
def _logging(level: str | None, who: str = "") -> Iterator[None]:
    """Set up the root logger, once the module is loaded, unless the module has given it handlers.

    While the module is loaded, the library's own warnings are printed: a store may be away that it waits for.

    level: None = INFO, or what the module has set.
    who: stands before each message.
    """
    root, library = logging.getLogger(), logging.getLogger("latchwork")  # noqa: TID251 - nothing is logged here
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter(LOG_LINE.replace("%(message)s", f"{who}%(message)s")))
    handler.addFilter(lambda _: not root.handlers)
    library.addHandler(handler)
    try:
        yield
    finally:
        library.removeHandler(handler)
    if not root.handlers:
        handler.filters.clear()
        root.addHandler(handler)
        level = level or "INFO"
    if level is not None:
        root.setLevel(level)


def _named(where: str) -> tuple[str, str]:
    """Return the module and the name. Raises `InvalidRequest`."""
    module, colon, name = where.partition(":")
    if not colon or not module or not name:
        raise InvalidRequest(f"{shown(where)} does not name a worker: write MODULE:NAME, such as shop.jobs:worker")
    if not all(part.isidentifier() for part in module.split(".")):
        raise InvalidRequest(f"{shown(module)} is not the name of a module: write the whole name, such as shop.jobs")
    return module, name


def _found(where: str) -> tuple[Worker, Callable[[Callable[[], bool]], bool]]:
    """Return the worker, and what makes a blocking call that runs it: on a loop where its handlers are async."""
    module, name = _named(where)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        program = importlib.import_module(module)
    except ModuleNotFoundError as failure:
        if failure.name is None or not (module == failure.name or module.startswith(f"{failure.name}.")):
            raise
        raise InvalidRequest(
            f"no module {shown(module)}: run this command in the module's folder, or install the module"
        ) from None
    try:
        found = getattr(program, name)
    except AttributeError:
        raise InvalidRequest(f"module {module} has no {shown(name)}: name the variable that holds its Worker") from None
    if isinstance(found, Worker):
        return found, lambda call: call()
    if (aio := sys.modules.get("latchwork.aio")) is not None and isinstance(found, aio.Worker):
        return found.of, partial(aio.consumer.run_on_own_loop, found)
    raise InvalidRequest(
        f"{where} is a {type(found).__name__}; it must be a Worker of latchwork.queue or of latchwork.aio"
    )
