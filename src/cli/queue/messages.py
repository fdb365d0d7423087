"""`latchwork queue publish|peek`: put messages into a queue, and look at the ones that wait."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from ...errors import InvalidRequest
from ...plain import shown
from ...queue import Message, ShardedQueue
from ..jsontext import from_json, to_json
from ..options import Client, Farm
from ..session import Session, note
from .consume import consume
from .queue import Name, app, queue_of

SIDES = {"main": lambda queue: queue, "sideline": lambda queue: queue.sideline, "parked": lambda queue: queue.parked}


def peek(
    context: typer.Context,
    name: Name,
    client: Client,
    limit: Annotated[int, typer.Option(help="the largest number of messages")] = 10,
    side: Annotated[str, typer.Option(help="main, sideline or parked")] = "main",
    farm: Farm = None,
) -> None:
    """Look at messages; nothing changes.

    Example: latchwork queue peek orders --client shop --side parked
    """
    session: Session = context.obj
    if side not in SIDES:
        raise InvalidRequest(f"side is {shown(side)}; it must be main, sideline or parked")
    view = SIDES[side](queue_of(session, name, client, farm))
    found = view.peek(limit)
    session.table([row_of(message, json_value=session.json) for message in found], empty="no messages")
    if not found and side == "main":
        note(in_hand(view, client))


def publish(
    context: typer.Context,
    name: Name,
    client: Client,
    payload: Annotated[list[str] | None, typer.Argument(help="JSON, one message each; default: lines of stdin")] = None,
    key: Annotated[str | None, typer.Option(help="messages of one key go to one shard")] = None,
    header: Annotated[list[str] | None, typer.Option(help="name=value; repeat for each")] = None,
    unique: Annotated[str | None, typer.Option(help="at most one message of this key until it is done")] = None,
    on_duplicate: Annotated[str, typer.Option(help="keep, raise or replace the message that the key has")] = "keep",
    farm: Farm = None,
) -> None:
    """Publish messages; prints their ids.

    Without a payload it reads stdin, and says so on a terminal. Lines of stdin end at a newline and at nothing else,
    and empty ones are left out. They are JSON in UTF-8; a queue of bytes takes them as they are.

    Example: latchwork queue publish orders '{"order": 7}' --client shop --key customer-42
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    headers = dict(header_of(pair) for pair in header or [])
    if not payload and sys.stdin.isatty():
        note("reads messages from standard input, a line each; Ctrl-D ends")
    payloads = [_payload(given, queue) for given in payload or _lines()]
    if unique is None and on_duplicate == "keep":
        ids = queue.publish_many(payloads, key=key, headers=headers)
    elif unique is None or len(payloads) != 1:
        raise InvalidRequest(f"--unique and --on-duplicate are of one message, and {len(payloads)} were given")
    else:
        ids = [queue.publish(payloads[0], key=key, headers=headers, unique=unique, on_duplicate=on_duplicate)]
    if not ids:
        note("nothing was published")
    if ids or session.json:
        session.say(*ids, published=ids)


for _command in (publish, peek, consume):
    app.command()(_command)


def in_hand(queue: ShardedQueue, client: str, message: str | None = None) -> str:
    """Return that messages in hand are not shown, and where they are: for a person who found none."""
    says = f" --id {message} says who has it" if message and not queue.reader else " lists it"
    return f"what a handler has in hand is not shown here; latchwork queue show {queue.name} --client {client}{says}"


def header_of(pair: str) -> tuple[str, str]:
    """Return the name and the value of an option `--header`. Raises `InvalidRequest`."""
    name, equals, value = pair.partition("=")
    if not name or not equals:
        raise InvalidRequest(f"--header is {shown(pair)}; write name=value")
    return name, value


def _lines() -> list[bytes]:
    return [line for line in sys.stdin.buffer.read().split(b"\n") if line.rstrip(b"\r")]


def _payload(given: str | bytes, queue: ShardedQueue) -> Any:
    if queue.config.codec == "bytes":
        return os.fsencode(given)
    text = given if isinstance(given, str) else _decoded(given)
    try:
        return from_json(text)
    except InvalidRequest:
        raise
    except ValueError:
        raise InvalidRequest(f"{shown(text)} is not JSON; quote a string twice: '\"text\"'") from None


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as failure:
        raise InvalidRequest(
            f"the line {shown(line)} is not UTF-8 at byte {failure.start}: convert it first, or use a queue of bytes"
        ) from None


def row_of(message: Message, *, json_value: bool) -> dict[str, Any]:
    """Return a message as a row.

    json_value: whether the payload, if it is a JSON document, stays a value; else it is text.
    """
    payload = message.raw if message.unreadable else message.payload
    if isinstance(payload, bytes):
        payload = payload.hex()
    elif not json_value and not message.unreadable:
        payload = to_json(payload)
    return {
        "shard": message.shard if message.pointer else None,  # a delayed message has no place yet
        "pointer": message.pointer or None,
        "message_id": message.published_as or message.message_id,
        "attempts": message.attempts,
        "enqueued_at": message.enqueued_at.isoformat(timespec="seconds"),
        "due_at": message.not_before.isoformat(timespec="seconds") if message.not_before else None,
        "reason": message.reason,
        "last_error": message.last_error,
        "payload": payload,
    }
