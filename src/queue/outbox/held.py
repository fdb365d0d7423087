"""The messages that an outbox holds back in a file of their own: those that the queue has refused, and those behind
them with their keys. The cursor passes them, so nothing else waits for them (docs/paged-queue.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from ...errors import LatchworkError, Unreadable
from ..paged.layout import Layout, Place
from ..paged.reader import PagedEntry
from ..sharded.envelope import Codec
from .messages import unpack

VERSION = 1
"""The version of the stored form, the first field of the file."""


class _Held(msgspec.Struct, frozen=True, array_like=True):
    """The file, without its checksum: a MessagePack array; each message as its arrival, page, position and data."""

    version: int
    messages: list[tuple[float, int, int, bytes]]


class _SetAside(msgspec.Struct, frozen=True):
    """A message that was set aside, as a person finds it in its file: JSON. A payload of bytes is in base64."""

    message_id: str
    key: str | None
    headers: dict[str, str] | None
    payload: bytes | msgspec.Raw
    error: str


def place_of(entry: PagedEntry) -> Place:
    """Return where the message is, or was, in the local queue."""
    return entry.page, entry.position


def read_held(layout: Layout, name: str, until: Place) -> tuple[list[PagedEntry], list[PagedEntry]]:
    """Return the messages that are held back, in the order of their puts: those that the cursor has passed, and those
    of the batch that begins where it is. Raises `Corrupt` for a damaged file, `Unreadable` for one of a later version.
    """
    content = layout.read_held(name)
    if content is None:
        return [], []
    try:
        held = msgspec.msgpack.decode(content, type=_Held)
    except msgspec.MsgspecError as failure:
        raise Unreadable(f"{layout.held(name)} is not as this program writes it ({failure}): upgrade it") from None
    if held.version != VERSION:
        raise Unreadable(f"{layout.held(name)} has version {held.version}, this program reads {VERSION}: upgrade it")
    entries = [PagedEntry(arrival, data, *place) for arrival, *place, data in held.messages]
    return [one for one in entries if place_of(one) < until], [one for one in entries if place_of(one) >= until]


def store_held(layout: Layout, name: str, held: Collection[PagedEntry]) -> None:
    """Hold these messages back, durably, and no others."""
    rows = [(one.timestamp, one.page, one.position, one.data) for one in sorted(held, key=place_of)]
    layout.store_held(name, msgspec.msgpack.encode(_Held(VERSION, rows)) if rows else None)


def set_aside(layout: Layout, name: str, entry: PagedEntry, codec: Codec, why: LatchworkError) -> str:
    """Keep a message in a file for a person, durably; return the path."""
    message = unpack(entry, codec)
    payload = message.data if isinstance(message.data, bytes) else msgspec.Raw(message.data.encode())
    aside = _SetAside(message.message_id, message.key, message.headers, payload, str(why))
    return layout.set_aside(name, place_of(entry), msgspec.json.encode(aside))


def to_hold(
    batch: Sequence[PagedEntry],
    passed: Sequence[PagedEntry],
    held: Sequence[PagedEntry],
    codec: Codec,
    refused: Collection[str] = (),
) -> list[PagedEntry]:
    """Return the messages of a batch that are to be held back: those that are held already; the refused ones, by their
    ids; and those behind one of these, or behind one that the cursor has passed, with the same key.
    """
    if not (passed or held or refused):
        return []
    known = {*ids_of(held, codec), *refused}
    keys = {unpack(one, codec).key for one in passed}
    found: list[PagedEntry] = []
    for entry in batch:
        message = unpack(entry, codec)
        if message.message_id in known or (message.key is not None and message.key in keys):
            found.append(entry)
            keys.add(message.key)
    return found


def ids_of(entries: Iterable[PagedEntry], codec: Codec) -> set[str]:
    """Return the ids of the messages."""
    return {unpack(one, codec).message_id for one in entries}
