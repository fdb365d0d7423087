"""A message as its publisher gave it: checked, encoded, with its id and its shard, before any I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import Struct

from ....errors import InvalidRequest
from ....inputs import checked_each
from ..envelope import Envelope, check_fits, checked_id
from ..handles import QueueHandle


class IdIs(Enum):
    """Whose the id of a message is: it can name the message's slot as long as nobody knows it (P26).

    OURS: made here.  KNOWN: made here, and somebody has it already.  GIVEN: by the publisher.
    """

    OURS = "ours"
    KNOWN = "known"
    GIVEN = "given"


class Prepared(Struct, frozen=True, gc=False):  # as of `Update`
    """A message that can be stored.

    shard: the one that it is bound to by its key, None = any.  dedup: its key, where it has one.
    """

    envelope: Envelope
    shard: int | None
    dedup: str = ""
    id_is: IdIs = IdIs.KNOWN


def checked_payloads(payloads: Any) -> None:
    """Check that they are several payloads, and not one that can be taken for several. Raises `InvalidRequest`."""
    if isinstance(payloads, str | bytes | Mapping) or not isinstance(payloads, Collection):
        raise InvalidRequest(f"payloads is a {type(payloads).__name__}; it must be a sequence of payloads, as a list")


def prepared(
    queue: QueueHandle,
    payloads: Collection[Any],
    *,
    key: str | None = None,
    keys: Sequence[str | None] | None = None,
    headers: dict[str, str] | None = None,
    message_ids: Sequence[str] | None = None,
    id_is: IdIs = IdIs.KNOWN,
) -> list[Prepared]:
    """Return messages that can be stored, of what `publish_many` takes; no I/O.

    id_is: of those ids that are made here.

    Raises `InvalidRequest` and `RecordTooBig`.
    """
    checked_each("message ids", message_ids, len(payloads))
    checked_each("keys", keys, len(payloads))
    if key is not None and keys is not None:
        raise InvalidRequest("key and keys: give one of them")
    seams, now, carried = queue.store.seams, queue.pointers.now_ms(), queue.store.seams.carry(headers)
    ids = [seams.unique() for _ in payloads] if message_ids is None else [checked_id(i) for i in message_ids]
    data = [queue.codec.encode(payload) for payload in payloads]
    check_fits(queue.store, queue.config.name, data, carried)  # before a pointer is reserved for it
    keyed = keys or [key] * len(data)
    return [
        Prepared(
            Envelope(one, msg_id, enqueued_at=now, headers=carried),
            None if wanted is None else queue.shard_of(wanted),
            id_is=IdIs.GIVEN if message_ids is not None else id_is,
        )
        for one, msg_id, wanted in zip(data, ids, keyed, strict=True)
    ]
