"""The commands of `latchwork`, a module for each group; `cli.py` runs them."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Annotated

import typer

from ..store.connect import hidden
from . import (
    barrier,
    group,
    large,
    latch,
    leader,
    limit,
    lock,
    messages,
    outbox,
    queue,
    queue_group,
    rwlock,
    schedule,
    semaphore,
)
from .demo import demo
from .doctor import doctor
from .session import Session, note
from .stats import stats
from .worker import worker

app = typer.Typer(
    name="latchwork",
    help="Latches, fenced locks, elections and queues on Aerospike or an embedded store.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(latch.app, name="latch")
app.add_typer(barrier.app, name="barrier")
app.add_typer(lock.app, name="lock")
app.add_typer(group.app, name="group")
app.add_typer(semaphore.app, name="semaphore")
app.add_typer(rwlock.app, name="rwlock")
app.add_typer(limit.app, name="limit")
app.add_typer(leader.app, name="leader")
messages.add_to(queue.app)
queue.app.add_typer(queue_group.app, name="group")
app.add_typer(queue.app, name="queue")
app.add_typer(schedule.app, name="schedule")
app.add_typer(large.app, name="large")
app.add_typer(outbox.app, name="outbox")
app.command()(worker)
app.command()(stats)
app.command()(doctor)
app.command()(demo)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"latchwork {version('latchwork')}")
        raise typer.Exit


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
    level = {0: logging.ERROR, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    source = context.get_parameter_source("store")
    if store and source is not None and source.name == "COMMANDLINE" and ":***@" in hidden(store):
        note("the password in --store is seen by every user of this machine (ps): ?password_file=, or $LATCHWORK_STORE")
    context.obj = Session(store, json)
    context.call_on_close(context.obj.close)
