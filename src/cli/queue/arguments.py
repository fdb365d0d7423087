"""Arguments and options that several commands of queues have, and the client, queue, side or message that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ...errors import InvalidRequest, NotFound
from ...inputs import farm_or_default
from ...observe.findings.words import of_client
from ...observe.snapshot import clients_in
from ...plain import shown, word
from ...queue import QueueRegistry, ShardedQueue
from ..session import Session
from ..similar import meant

SIDES = ("sideline", "parked", "delayed")
"""The sides whose messages can be named, or chosen, one by one."""
MANY_CLIENTS = 20
"""Clients that an error names."""
Name = Annotated[str, typer.Argument(help="the queue")]
Side = Annotated[str, typer.Option(help="sideline, parked or delayed")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="the id of a message; repeat for each")]


def registry_of(session: Session, client: str, farm: str | None) -> QueueRegistry:
    """Return the registry that a command means. No I/O."""
    return QueueRegistry(session.store, client, farm_id=farm)


def queue_of(session: Session, name: str, client: str, farm: str | None) -> ShardedQueue:
    """Return the queue that a command means. Raises `NotFound`; if the client has no queues, it names the clients that
    have some.
    """
    registry = registry_of(session, client, farm)
    try:
        return registry.get(name)
    except NotFound:
        if any(registry.scan(active=None)):
            raise
        raise no_queues(session, client, farm) from None


def no_queues(session: Session, client: str, farm: str | None) -> NotFound:
    """Return the error that a client has no queues. It names the clients that have some, if the store can tell."""
    others = clients_in(session.store, farm) or ()
    there = f"; the clients that have some: {', '.join(others[:MANY_CLIENTS])}" if others else ""
    there += f" and {len(others) - MANY_CLIENTS} more" if others[MANY_CLIENTS:] else ""
    there += meant(client, others)
    where = f"farm {farm_or_default(farm)!r} of {session.where}"
    return NotFound(f"client {client!r} has no queues in {where}{there}", client=client)


def as_named(queue: ShardedQueue) -> str:
    """Return a queue and its client as a command names them."""
    registry = queue.registry
    return f"{word(queue.name)} {of_client(registry.client_id, registry.farm_id)}"


def checked_side(side: str) -> str:
    """Return the side, if messages there can be chosen one by one. Raises `InvalidRequest`."""
    if side not in SIDES:
        main = "; `latchwork queue peek` shows ready messages" if side == "main" else ""
        raise InvalidRequest(f"side is {shown(side)}; it must be sideline, parked or delayed{main}")
    return side


def named(ids: list[str] | None) -> list[str]:
    """Return the ids that were given. Raises `InvalidRequest` for none."""
    if not ids:
        raise InvalidRequest("no --id: name the messages by --id; `latchwork queue search` finds them")
    return ids


def headers_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return the headers of several options `--header`. Raises `InvalidRequest`, also for a name that is there twice:
    one of its values would be lost.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, value = header_of(pair)
        if name in found:
            raise InvalidRequest(f"--header names {shown(name)} twice: give it once")
        found[name] = value
    return found


def header_of(pair: str) -> tuple[str, str]:
    """Return the name and the value of an option `--header`. Raises `InvalidRequest`."""
    name, equals, value = pair.partition("=")
    if not name or not equals:
        raise InvalidRequest(f"--header is {shown(pair)}; write name=value")
    return name, value
