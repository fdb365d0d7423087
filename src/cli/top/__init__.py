"""`latchwork top`: everything of a client, or of several farms, on a full screen, and what a person may do there."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ...errors import InvalidRequest
from ...inputs import farm_or_default
from ...observe import snapshot
from ...observe.document import document_of
from ..coord.farms import FarmStores, urls_of
from ..jsontext import to_json
from ..options import Clients, Farm, Outboxes, checked_every
from ..session import Session
from .app import Top
from .feed import PATIENCE, Feed, outboxes_of


def top(
    context: typer.Context,
    client: Clients = None,
    every: Annotated[float, typer.Option(help="seconds between two looks")] = 2.0,
    outbox: Outboxes = None,
    farm: Farm = None,
    farm_store: FarmStores = None,
) -> None:
    """Watch queues, workers and locks on a full screen. Problems come first.

    The keys are those of htop: F1 or ? lists them. If a store does not answer, the screen says so within 3 s, with the
    age of the last figures. Each action says what it does, and is done only after y. Payloads are not shown. It works
    over ssh, in tmux, in 80 columns, and without colour ($NO_COLOR). For several farms side by side, give --farm-store
    for each.

    With --json it prints one snapshot and ends. This is for programs; the form may change between versions.

    Example: latchwork top --client shop
    """
    session: Session = context.obj
    checked_every(every, least=0.2)
    there = outboxes_of(outbox or ())
    stores = session.stores_of(urls_of(context, farm_store)) or {farm_or_default(farm): session.store}
    if session.json:
        print(to_json(document_of(snapshot(stores, client, timeout=2 * PATIENCE))))  # noqa: T201 - the command's output
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest("top needs a terminal; in a pipe use `latchwork top --json`, or `latchwork stats`")
    from .screen import bars, show  # noqa: PLC0415 - curses is not on every system

    feed = Feed(stores, client, every, next(iter(stores.values())).seams, there)
    feed.start()
    try:
        show(Top(feed, bars()))
    finally:
        feed.stop()
