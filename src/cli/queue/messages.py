"""`latchwork queue publish|peek|search`: put messages into a queue, and look at the ones that wait."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from ...errors import Interrupted, InvalidRequest, LatchworkError, OutcomeUnknown
from ...plain import counted, shown, word
from ...queue import Message, ShardedQueue
from ...queue.sharded.handles import QueueHandle
from ...queue.sharded.publishing.prepared import Prepared
from ...queue.sharded.publishing.publish import Outcome, Terms, store_messages
from ...queue.sharded.publishing.publish import publish as publish_all
from ...queue.sharded.shards import CHUNK
from ...queue.sharded.sides import view_of
from ...store.rows import attempted, chunked
from ..interrupts import interrupted_once
from ..jsontext import checked_json, to_json
from ..options import Client, Farm
from ..session import Session, note
from .arguments import SIDES, Name, Side, as_named, checked_side, headers_of, queue_of

PEEKED = {"main": lambda queue: queue, "sideline": lambda queue: queue.sideline, "parked": lambda queue: queue.parked}


def publish(
    context: typer.Context,
    name: Name,
    client: Client,
    payload: Annotated[list[str] | None, typer.Argument(help="JSON, one message each; default: lines of stdin")] = None,
    key: Annotated[str | None, typer.Option(help="messages of the same key go to the same shard")] = None,
    header: Annotated[list[str] | None, typer.Option(help="name=value; repeat for each")] = None,
    unique: Annotated[str | None, typer.Option(help="at most one message of this key until it is done")] = None,
    on_duplicate: Annotated[str, typer.Option(help="keep, raise or replace the message that the key has")] = "keep",
    farm: Farm = None,
) -> None:
    """Publish messages, and print their ids.

    Without a payload the command reads stdin, and says so on a terminal. Each line of stdin that is not empty is a
    message; only a newline ends a line. Lines are JSON in UTF-8; a queue of bytes takes them unchanged.

    If only some can be published, or Ctrl-C comes first, it prints their ids, and stderr says which others are to be
    published again, and which may be in the queue.

    Example: latchwork queue publish orders '{"order": 7}' --client shop --key customer-42
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    if queue.reader:
        queue.publish_many([])  # a group refuses it, and says why
    headers = headers_of(header or ())
    if not payload and sys.stdin.isatty():
        note("reading messages from standard input, one in each line; Ctrl-D ends")
    given: Sequence[str | bytes] = payload or [
        line for line in sys.stdin.buffer.read().split(b"\n") if line.rstrip(b"\r")
    ]
    payloads = [_payload(one, queue) for one in given]
    if unique is None and on_duplicate != "keep":
        raise InvalidRequest(f"--on-duplicate {shown(on_duplicate)} without --unique: give the key with --unique")
    if unique is not None and len(payloads) != 1:
        raise InvalidRequest(f"--unique is for a single message, and {len(payloads)} were given")
    stored: list[Outcome] = []
    with interrupted_once():
        try:
            if unique is None:
                ids = publish_all(
                    queue, payloads, key=key, keys=None, headers=headers, message_ids=None, delay=None, at=None,
                    dedups=None, dedup_for=None, on_duplicate=on_duplicate, store=partial(_store_in_parts, stored),
                )  # fmt: skip
            else:
                stored += [OutcomeUnknown(_INTERRUPTED)]
                ids = [queue.publish(payloads[0], key=key, headers=headers, unique=unique, on_duplicate=on_duplicate)]
        except (LatchworkError, KeyboardInterrupt) as failure:
            _tell_what_is_published(session, failure, stored, len(payloads))
            raise
        _print_ids(session, ids)


_INTERRUPTED = "it was interrupted; the message may be delivered"


def _store_in_parts(
    stored: list[Outcome], queue: QueueHandle, messages: Sequence[Prepared], terms: Terms
) -> Sequence[Outcome]:
    """Store messages part by part. `stored` then has the outcome of each message that was begun, whatever interrupts
    it: those of the part that had begun are unknown.
    """
    for part in chunked(messages, CHUNK):
        begin = len(stored)
        stored += [OutcomeUnknown(_INTERRUPTED) for _ in part]
        stored[begin:] = attempted(len(part), partial(store_messages, queue, part, terms))
    return stored


def _tell_what_is_published(
    session: Session, failure: LatchworkError | KeyboardInterrupt, stored: Sequence[Outcome], n: int
) -> None:
    """Say which of n messages are published where not all are: whoever repeats the command doubles those.

    stored: the outcome of each message that was begun.
    """
    ids = [one for one in stored if isinstance(one, str)]
    others = {place: one.code for place, one in enumerate(stored, 1) if isinstance(one, LatchworkError)}
    others |= dict.fromkeys(range(len(stored) + 1, n + 1), Interrupted.code)
    doubtful = [place for place, code in others.items() if code == OutcomeUnknown.code]
    rest = [place for place, code in others.items() if code != OutcomeUnknown.code]
    is_interrupted = isinstance(failure, KeyboardInterrupt)
    # Without these the error says all, as it does where only one message was given.
    if not ids and not (doubtful and (n > 1 or is_interrupted)):
        return
    document = {"published": ids, "not_published": {str(place): code for place, code in others.items()}}
    # First what is short: whoever reads the ids may have had enough of them.
    note(f"published {len(ids):,} of {counted(n, 'message')}{'; their ids follow' if ids else ''}")
    if rest:
        note(f"publish only the rest again, counted from 1 without empty lines: {spans(rest)}")
    if doubtful:
        note(f"these may be in the queue, counted in the same way; look before you publish them: {spans(doubtful)}")
    if isinstance(failure, LatchworkError):
        failure.details["document"] = document
        if ids and not session.json:
            session.say(*ids)
    elif ids or session.json:
        session.say(*ids, error=Interrupted.code, message="interrupted", **document)


def _print_ids(session: Session, ids: Sequence[str]) -> None:
    if not ids:
        note("nothing was published")
    if ids or session.json:
        try:
            session.say(*ids, published=ids)
            sys.stdout.flush()  # here, as a short output fails only now
        except BaseException:  # such as Ctrl-C, or a reader that has closed the pipe
            note(f"published {counted(len(ids), 'message')}; perhaps not all of their ids were printed")
            raise


def _payload(given: str | bytes, queue: ShardedQueue) -> Any:
    if queue.config.codec == "bytes":
        return os.fsencode(given)
    try:
        text = given if isinstance(given, str) else given.decode()
    except UnicodeDecodeError as failure:
        raise InvalidRequest(
            f"the line {shown(given)} is not UTF-8 at byte {failure.start}: convert it first, or use a queue of bytes"
        ) from None
    return checked_json("", text)


def spans(numbers: Sequence[int]) -> str:
    """Return numbers, in order, for people: `1-7, 9`."""
    found: list[list[int]] = []
    for n in numbers:
        if found and found[-1][-1] == n - 1:
            found[-1] = [found[-1][0], n]
        else:
            found.append([n])
    return ", ".join("-".join(map(str, span)) for span in found)


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
    if side not in PEEKED:
        delayed = "; `latchwork queue search --side delayed` shows delayed messages" if side == "delayed" else ""
        raise InvalidRequest(f"side is {shown(side)}; it must be main, sideline or parked{delayed}")
    view = PEEKED[side](queue_of(session, name, client, farm))
    found = view.peek(limit)
    session.table([row_of(message, json_value=session.json) for message in found], empty="no messages")
    if not found and side == "main":
        note(in_hand(view))


def search(
    context: typer.Context,
    name: Name,
    client: Client,
    side: Side = "parked",
    reason: Annotated[str | None, typer.Option(help="only messages that are there for this reason")] = None,
    key: Annotated[
        str | None, typer.Option(help="only messages in the shard of this key; not for delayed ones")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(help="name=value; repeat for each")] = None,
    older_than: Annotated[float | None, typer.Option(help="seconds since they were published")] = None,
    id: Annotated[str | None, typer.Option("--id", help="only the message with this id, as in the logs")] = None,
    limit: Annotated[int, typer.Option(help="the largest number of messages, 1 to 1000")] = 100,
    farm: Farm = None,
) -> None:
    """Find messages that were not received yet; nothing changes.

    Failed messages that are tried again are among the delayed ones. Of the delayed messages it finds those that are
    overdue, or due within the hour.

    Example: latchwork queue search orders --client shop --side parked --reason exhausted --older-than 3600
    """
    session: Session = context.obj
    wanted: dict[str, Any] = {"reason": reason, "older_than": older_than, "message_id": id, "limit": limit}
    if header:
        wanted["header"] = headers_of(header)
    if key is not None and side == "delayed":
        raise InvalidRequest("--key with --side delayed: the shard of a delayed message may not be decided yet")
    if key is not None:
        wanted["key"] = key
    queue = queue_of(session, name, client, farm)
    found = view_of(queue, checked_side(side)).search(**wanted)
    session.table([row_of(message, json_value=session.json) for message in found], empty="no messages")
    if not found:
        note(f"{only(side)}; {in_hand(queue, id)}")


def in_hand(queue: ShardedQueue, message: str | None = None) -> str:
    """Return that messages in hand are not shown, and where they are: for a person who found none."""
    says = f" --id {word(message)} says who has it" if message and not queue.reader else " lists it"
    return f"what a handler has in hand is not shown here; latchwork queue show {as_named(queue)}{says}"


def only(side: str) -> str:
    """Return that one side alone was looked at, and how to look elsewhere."""
    others = " or ".join(f"--side {one}" for one in SIDES if one != side)
    return f"only {side} messages were looked at; {others} looks elsewhere"


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
