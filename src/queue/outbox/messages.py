"""The messages of an outbox in its local queue, and how a batch of them is published exactly once
(docs/protocols P6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from ...errors import InvalidRequest, NonDeterministicInput, RecordTooBig, Unreadable
from ...store.model.values import taken
from ..paged.reader import PagedEntry
from ..sharded.envelope import Codec, checked_headers, storable_headers
from ..sharded.ledger.chunks import LedgerRecords
from ..sharded.ledger.ledger import Ledger, Outgoing, chunks
from ..sharded.queue import ShardedQueue

VERSION = 1
"""The version of the stored form, the first field of each message."""
MAX_MESSAGE = 1_000_000
"""Bytes of a message with its key and headers. The store's own limit, 1 MiB by default, cannot be read while the store
is unavailable.
"""


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A message that waits for the store, as it is stored: a MessagePack array of these fields in this order.

    data: the payload as the queue's codec has encoded it: text for JSON, else bytes.
    """

    version: int
    message_id: str
    data: Any
    key: str | None = None
    headers: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"Waiting({self.message_id!r})"


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Waiting)


def pack(codec: Codec, payload: Any, message_id: str, key: str | None, headers: Mapping[str, str] | None) -> bytes:
    """Return a message as it is stored. Raises `InvalidRequest` or `RecordTooBig` for one that the queue would not
    take.
    """
    if key is not None and not isinstance(key, str):
        raise InvalidRequest(f"the key is a {type(key).__name__}: it must be text, or None for a message without order")
    # Plain text also where it was a subclass, such as a text of numpy: nothing else can be kept.
    key = None if key is None else str.__str__(key)
    waiting = Waiting(VERSION, message_id, codec.encode(payload), key, taken(checked_headers(headers)))
    try:
        frame = _ENCODER.encode(waiting)
    except UnicodeEncodeError as failure:
        raise InvalidRequest(f"the key or a header is not valid Unicode: {failure.reason}") from None
    if len(frame) > MAX_MESSAGE:
        size = len(frame)
        raise RecordTooBig(f"the message takes {size} bytes, the limit is {MAX_MESSAGE}: store less in it", size=size)
    return frame


def unpack(entry: PagedEntry, codec: Codec) -> Waiting:
    """Return the message. Raises `Unreadable`, with page and position, if no outbox of this queue has put it there."""
    try:
        waiting = _DECODER.decode(entry.data)
    except (TypeError, msgspec.MsgspecError) as failure:
        raise _foreign(
            entry, f"no outbox has put it there ({failure}): give the outbox a local queue of its own"
        ) from None
    if waiting.version != VERSION:
        raise _foreign(entry, f"it has version {waiting.version}, this program reads {VERSION}: upgrade it")
    if not isinstance(waiting.data, bytes if codec.name == "bytes" else str):
        raise _foreign(entry, "it was put for a queue with another codec: forward it to that one")
    return waiting


def is_ours(entry: PagedEntry, codec: Codec) -> bool:
    """Whether an outbox of this queue has put the message there."""
    try:
        unpack(entry, codec)
    except Unreadable:
        return False
    return True


def publish(
    queue: ShardedQueue,
    name: str,
    entries: Sequence[PagedEntry],
    *,
    ttl: int,
    gaps: bool = False,
    without: Collection[PagedEntry] = (),
) -> None:
    """Publish the messages to the queue, each once; messages of one key one after another.

    The scope names where the batch begins: `<outbox>/<page>/<position>`, the outbox's name with the id of the batch's
    first message, so that outboxes of one name on two machines stay apart. The second message of a key is published
    when the first is safe, the third when the second is, and so on. Each of these waves is a partition of the ledger,
    and takes five calls for up to 1,000 messages.

    A repeat must begin at the same place and may only have more messages at the end: then every wave has what it had,
    and perhaps more, as the ledger requires.

    gaps: whether damage may have removed messages from among these, or ended them early. Then the ledger is asked
        first, in two calls for each wave that was begun, and one more: `NonDeterministicInput`, with nothing published,
        if an earlier attempt had other messages.
    without: messages of the batch that are held back. They must not be missing in a repeat: then the ledger, which may
        have entered them, would take them for published.
    """
    waiting = [unpack(entry, queue.codec) for entry in entries]
    scope = f"{name}-{waiting[0].message_id}/{entries[0].page}/{entries[0].position}"
    held = {unpack(entry, queue.codec).message_id for entry in without}
    ledger, found = Ledger(queue, scope, ttl=ttl), waves([one for one in waiting if one.message_id not in held])
    if gaps:
        _check_begun(queue, scope, found, ttl, held)
    for number, wave in enumerate(found):
        ledger.publish(number, [_outgoing(message) for message in wave], without=held)


def publish_held(queue: ShardedQueue, name: str, entry: PagedEntry, *, ttl: int) -> None:
    """Publish a message that was held back, once: under a scope of its own, as its batch is over.

    A message may be held back for longer than a ledger is kept, so each attempt keeps its ledger for as long again: the
    attempt that publishes it, and a repeat, find one.
    """
    message = unpack(entry, queue.codec)
    scope = f"{name}-{message.message_id}/held"
    _records(queue, scope, 0, ttl).renew(0)
    Ledger(queue, scope, ttl=ttl).publish(0, [_outgoing(message)])


def waves(waiting: Sequence[Waiting]) -> list[list[Waiting]]:
    """Return the first message of every key and all without one, then the second of every key, and so on."""
    found: list[list[Waiting]] = [[]]
    seen: Counter[str] = Counter()
    for message in waiting:
        number = 0 if message.key is None else seen[message.key]
        if message.key is not None:
            seen[message.key] += 1
        if number == len(found):
            found.append([])
        found[number].append(message)
    return found


def _check_begun(
    queue: ShardedQueue, scope: str, found: Sequence[Sequence[Waiting]], ttl: int, held: Collection[str]
) -> None:
    """Check that every message an earlier attempt has entered is in its wave now. Waves are entered one after another.

    A shorter batch may lack whole waves that the ledger has: the first of them is looked at as well.
    """
    for number, wave in enumerate([*found, []]):
        records = _records(queue, scope, number, ttl, held)
        known = {message_id for chunk in chunks(records) for message_id in chunk.places}
        if missing := known - {message.message_id for message in wave}:
            raise NonDeterministicInput(
                f"{scope}/{number}: an earlier attempt has begun to publish {len(missing)} messages that cannot be "
                "read now, so the batch cannot be completed: repair the local queue, or wait until its ledger expires",
                message_ids=sorted(missing)[:10],
            )
        if not known:
            return


def _records(queue: ShardedQueue, scope: str, partition: int, ttl: int, without: Collection[str] = ()) -> LedgerRecords:
    pointers = queue.pointers
    return LedgerRecords(
        pointers.store, pointers.client_id, queue.name, scope, partition=partition, ttl=ttl, without=without
    )


def _outgoing(message: Waiting) -> Outgoing:
    """Return the message for the ledger. The codec has encoded it already: JSON is passed on as it is."""
    data = message.data if isinstance(message.data, bytes) else msgspec.Raw(message.data.encode())
    return Outgoing(data, message.message_id, message.key, storable_headers(message.headers))


def _foreign(entry: PagedEntry, why: str) -> Unreadable:
    return Unreadable(
        f"the message on page {entry.page} at {entry.position} cannot be forwarded: {why}",
        page=entry.page,
        position=entry.position,
    )
