"""Messages as the console shows them: which are looked for, and one of them over every side, with its timeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..cli.jsontext import to_json
from ..cli.queue.arguments import header_of
from ..cli.top import pages
from ..errors import InvalidRequest, NotFound
from ..logs import Log
from ..plain import one_line, shown
from ..queue import Message, ShardedQueue, State, Status
from ..queue.sharded.envelope import date
from ..queue.sharded.sides import SIDES, look_at
from .reader import Reader

log = Log(__name__)

Redact = Callable[[str, Message], Any]
"""Returns what of a message of this queue is shown."""
MATCHES = ("reason", "key", "header", "older_than")
EVERY = 2.0
"""Seconds for which the read data of a message is good."""
MOST_PAYLOAD = 20_000
"""Characters of a payload that are shown."""


@dataclass(frozen=True, slots=True)
class Found:
    """A message. facts: names and values; timeline: when, and what; payload: as it may be shown, None = it may not.

    side, held: where it waits, and under which id; empty if it does not.
    old: why it could not be read again, where this is what was read before; None = it is not old.
    """

    facts: Sequence[tuple[str, str]]
    timeline: Sequence[tuple[str, str]]
    side: str
    held: str
    payload: str | None
    old: str | None


def match_of(given: Mapping[str, str], side: str) -> dict[str, Any]:
    """Return what messages are looked for with. Raises `InvalidRequest`."""
    if side == "ready":
        return {}
    match: dict[str, Any] = {name: given[name] for name in ("reason", "key") if given.get(name)}
    if given.get("header"):
        match["header"] = dict([header_of(given["header"])])
    if given.get("older_than"):
        try:
            match["older_than"] = float(given["older_than"])
        except ValueError:
            raise InvalidRequest(f"older_than is {shown(given['older_than'])}; give seconds") from None
    return match


def message_of(reader: Reader, key: Sequence[str], wanted: str, redact: Redact | None, *, payloads: bool) -> Found:
    """Return a message in any state. Raises `NotFound`, `InvalidRequest`, and what reading it raised."""
    if pages.queue_in(reader, key) is None:
        raise NotFound(f"there is no queue {one_line('/'.join(key))}, or its store is away")
    fetched = reader.fetched(("message", *key, wanted), lambda: _read(pages.handle_of(reader, key), wanted), EVERY)
    if fetched.value is None:
        raise NotFound(fetched.failure or "it was not read")
    status, steps, side, message = fetched.value
    if status is None and message is None and not steps:
        status = Status(State.UNKNOWN)
    facts, timeline = _facts(status, message, payloads=payloads), _timeline(status, message)
    for name, done in steps.items():
        result = f": {shown(done.kept[0])}" if payloads and isinstance(done.kept, list) else ""
        timeline.append((date(done.at), f"step {one_line(name)} done{result}"))
    if message is not None and payloads:
        facts += [(f"header {one_line(name)}", one_line(value)) for name, value in message.headers.items()]
    return Found(
        facts,
        [(at.isoformat(timespec="seconds"), what) for at, what in sorted(timeline)],
        side,
        message.message_id if message is not None else "",
        _payload(key[2], message, redact) if message is not None and payloads else None,
        fetched.failure,
    )


def _read(queue: ShardedQueue, wanted: str) -> tuple[Status | None, Mapping[str, Any], str, Message | None]:
    status = None if queue.reader else queue.status(wanted)
    for side in (*SIDES[1:], SIDES[0]):
        if found := look_at(queue, side, 1, message_id=wanted).messages:
            return status, queue.steps(wanted), side, found[0]
    return status, queue.steps(wanted), "", None


def _facts(status: Status | None, message: Message | None, *, payloads: bool) -> list[tuple[str, str]]:
    facts: list[tuple[str, Any]] = []
    if status is not None:
        facts += [
            ("state", status.state.value), ("worker", status.worker), ("attempts", status.attempts),
            ("progress", None if status.progress is None else f"{status.progress:.0%}"),
            ("note", status.note if payloads else None), ("cancelled", "yes" if status.cancelled else None),
            ("error", status.error),
        ]  # fmt: skip
    elif message is not None:
        facts += [("attempts", message.attempts), ("error", message.last_error)]
    if message is not None:
        facts += [("reason", message.reason), ("shard", message.shard if message.pointer else None)]
        facts += [("published as", message.published_as or message.message_id)]
    return [(name, one_line(str(value))) for name, value in facts if value is not None]


def _timeline(status: Status | None, message: Message | None) -> list[tuple[datetime, str]]:
    found: list[tuple[datetime, str]] = []
    if message is not None:
        found.append((message.enqueued_at, "published"))
        if message.not_before is not None and (status is None or status.due is None):
            found.append((message.not_before, "due"))
    if status is not None and status.since is not None and (message is None or status.since != message.enqueued_at):
        by = f" by {one_line(status.worker)}" if status.worker else ""
        found.append((status.since, {State.RUNNING: "claimed", State.READY: "published"}.get(
            status.state, status.state.value) + by))  # fmt: skip
    if status is not None and status.due is not None:
        found.append((status.due, "due"))
    return found


def _payload(queue: str, message: Message, redact: Redact | None) -> str:
    try:
        value = redact(queue, message) if redact is not None else message.raw if message.unreadable else message.payload
        text = value.hex() if isinstance(value, bytes) else value if isinstance(value, str) else to_json(value)
    except Exception as failure:  # noqa: BLE001 - what the hook cannot decide on is not shown
        log.warning("a payload is not shown, as redact() failed: %s", type(failure).__name__)
        return "not shown: it could not be redacted"
    return "\n".join(one_line(line) for line in text[:MOST_PAYLOAD].splitlines())
