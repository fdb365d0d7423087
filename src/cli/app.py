"""The commands of `latchwork`: their names, what each is for, and its module, which is loaded once it is called.

A command pays for what it uses alone: `latchwork --help` loads no store, no primitive and no table.
"""

from __future__ import annotations

import gc
import logging
from copy import copy
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_command_name, get_group
from typer.models import CommandInfo

from ..plain import LOG_LINE, PlainFormatter
from ..version import __version__
from .missing_packages import without_extra

if TYPE_CHECKING:
    from collections.abc import Callable


class CommandModule(NamedTuple):
    """The module and name of a command, or of a group of commands; `help` is its line in the list of commands."""

    module: str
    name: str
    help: str


COMMANDS = {
    "worker": CommandModule("worker", "worker", "Run a worker until SIGTERM or Ctrl-C."),
    "stats": CommandModule("stats", "stats", "Depth, rates and reasons of every queue."),
    "top": CommandModule("top", "top", "Watch queues, workers and locks on a full screen."),
    "console": CommandModule(".console.command", "console", "Serve the web console: what `top` shows, in a browser."),
    "doctor": CommandModule("doctor", "doctor", "Find what will cause trouble, and the remedy."),
    "audit": CommandModule("audit", "audit", "What people have done: who, what, when."),
    "demo": CommandModule("demo", "demo", "A tour of every primitive, on a temporary store."),
    "latch": CommandModule("coord.latch", "app", "Count down to zero, and wait for that."),
    "barrier": CommandModule("coord.barrier", "app", "Wait until all parties are there, and exchange values."),
    "lock": CommandModule("coord.lock", "app", "Take turns, with fences."),
    "group": CommandModule("coord.group", "app", "Who is there, and who died."),
    "semaphore": CommandModule("coord.semaphore", "app", "Limit how many run at a time, with fences."),
    "rwlock": CommandModule("coord.rwlock", "app", "Many readers or one writer, with fences."),
    "limit": CommandModule("coord.limit", "app", "Limit how often something happens."),
    "leader": CommandModule("coord.leader", "app", "Choose one of many."),
    "queue": CommandModule("queue.commands", "app", "Hand work to others: sharded queues, at least once."),
    "schedule": CommandModule("queue.schedule", "app", "Publish messages again and again, each tick once."),
    "large": CommandModule("large", "app", "A circular queue larger than a record."),
    "outbox": CommandModule("outbox", "app", "Messages that a producer keeps until the store is available."),
}
"""All commands, in the order of the help."""


@cache
def loaded(name: str, word: str = "") -> Any:
    """Return the command, or the group of commands, of this name, with its module.

    word: the word behind the name. Where it names a command, or a group, of the group, the others are left out: to make
    all of `queue` took a tenth of the time of a call.
    """
    place = COMMANDS[name]
    try:
        found: typer.Typer | Callable[..., None] = getattr(import_module(f".{place.module}", __package__), place.name)
    except ImportError as failure:
        without_extra(failure)
    around = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    around.callback()(_nothing)
    if isinstance(found, typer.Typer):
        around.add_typer(_only(found, word), name=name)
    else:
        around.command(name)(found)
    return get_group(around).commands[name]


def _only(group: typer.Typer, word: str) -> typer.Typer:
    """Return the group with this command alone, or with this group of it; whole where it has none of that name."""
    commands = [one for one in group.registered_commands if word == _name_of(one)]
    groups = [one for one in group.registered_groups if word == one.name]
    if not commands and not groups:
        return group
    only = copy(group)
    only.registered_commands, only.registered_groups = commands, groups
    return only


def _name_of(command: CommandInfo) -> str:
    return command.name or get_command_name(command.callback.__name__ if command.callback else "")


@cache
def _freeze() -> None:
    """Exempt what is loaded from garbage collection, once in a process: tests run many commands in one."""
    gc.freeze()


def _nothing() -> None:
    """Do nothing: this keeps a group of one command a group."""


class Commands(TyperGroup):
    """A group whose commands are names and lines of help until one of them is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=place.help) for name, place in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command itself, and the words behind its name."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            command = loaded(name or "", next(iter(rest), ""))
            _freeze()
            gc.enable()
        return name, command, rest


app = typer.Typer(
    name="latchwork",
    cls=Commands,
    help="Latches, fenced locks, elections and queues on Aerospike or an embedded store.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@cache
def whole() -> Any:
    """Return the whole command. Typer makes it again at each call of `app`; a process that runs many makes it once."""
    return get_command(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"latchwork {__version__}")
        raise typer.Exit


def _set_up_log(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter(LOG_LINE))
    logging.basicConfig(level=level, handlers=[handler])
    if level == logging.ERROR:  # a command that waits must say for what, where that is the store
        logging.getLogger("latchwork.retry").setLevel(logging.WARNING)  # noqa: TID251 - nothing is logged here


@app.callback()
def _globals(
    context: typer.Context,
    store: Annotated[
        str | None, typer.Option(envvar="LATCHWORK_STORE", help="sqlite:PATH, aerospike://host[:port]/namespace")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="say more; twice: everything")] = 0,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="the version")] = False,
) -> None:
    try:
        from ..store.connect import hidden  # noqa: PLC0415 - what prints help needs no store
        from .session import Session, note  # noqa: PLC0415 - nor tables
    except ImportError as failure:
        without_extra(failure)
    if context.invoked_subcommand != "worker":  # which sets up its log once its program is loaded
        _set_up_log({0: logging.ERROR, 1: logging.INFO}.get(verbose, logging.DEBUG))
    source = context.get_parameter_source("store")
    if store and source is not None and source.name == "COMMANDLINE" and ":***@" in hidden(store):
        note("any user here can see the password in --store (ps): use ?password_file=, or $LATCHWORK_STORE")
    context.obj = Session(store, json, context.obj)
    context.call_on_close(context.obj.close)
