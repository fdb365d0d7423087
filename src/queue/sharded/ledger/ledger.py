"""Publishing exactly once: a ledger remembers where each message of a scope was published (docs/protocols P6).

A program that has to repeat a publish (a Spark task that is tried again, an outbox after a crash) gives equal scope,
partition and messages, in any order. Messages that are in the ledger are left out, and messages that an earlier attempt
did not write are written.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from ....errors import InvalidRequest, NonDeterministicInput, RecordTooBig
from ....inputs import checked_whole
from ....plain import shown
from ..envelope import Envelope, check_fits, checked_headers, checked_id
from ..handles import SubscriptionHandle
from ..shards import CHUNK, CHUNK_BYTES
from .chunks import Chunk, LedgerRecords
from .writer import REFUSED, ChunkWriter, NewMessage

LEDGER_TTL = 2 * 86_400
"""Seconds that a ledger is kept, and the id of each of its messages after the message is gone."""
MAX_SCOPE = 2_048
"""Bytes: more than a schedule's name of 100 characters takes, percent-encoded, with its tick."""
WINDOW = 16
"""Chunks that are read at once."""


class Outgoing(Struct, frozen=True):
    """A message to be published. Without an id it gets one made of its content and its ordinal among equal ones."""

    payload: Any
    message_id: str | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The result of an attempt: messages of the partition, and how many of them it was the first to publish."""

    messages: int
    new: int


class Ledger:
    """Exactly-once publishing to a queue under a scope: a name that no other input of this queue has.

    ttl: seconds that the ledger is kept.
    batch: messages published at once, 1 to 1,000, which is the default.

    This holds if the input is partitioned as before, and for repeats within `ttl` of the first attempt, by default 2
    days: the id of a message that was consumed early is not kept longer, even if its chunk is. Not promised: anything
    about messages that two partitions have in common; each publishes its own.
    """

    def __init__(
        self, queue: SubscriptionHandle, scope: str, *, ttl: int = LEDGER_TTL, batch: int | None = None
    ) -> None:
        if not isinstance(scope, str) or not 1 <= len(scope.encode()) <= MAX_SCOPE:
            raise InvalidRequest(f"scope {shown(scope)}: it must be text of 1 to {MAX_SCOPE} bytes")
        if batch is not None:
            checked_whole("batch", batch, 1, CHUNK)
        self._queue, self._scope, self._ttl, self._batch = queue, scope, ttl, batch or CHUNK

    def publish(self, partition: int, messages: Iterable[Outgoing], *, without: Collection[str] = ()) -> Published:
        """Publish the messages that the ledger does not have; complete what an earlier attempt left. Four calls per
        1,000 messages.

        without: ids of messages that an earlier attempt may have entered and that the queue has refused. They are left
            out of this attempt and must be left out of all later ones.

        It keeps the digests of a partition's messages in memory while it runs: about 100 bytes each.

        Raises `NonDeterministicInput` if the ledger has messages that this input did not contain: then earlier attempts
        have published messages that should not exist. Raises `InvalidRequest` for a message id that occurs twice,
        `Refused` if the queue is deactivated, and the store's errors: then some messages may be published; call it
        again with equal arguments to complete it.
        """
        self._queue.open_for_publishing()
        name = f"{self._scope}/{partition}"
        records = self._records(partition, without)
        return _Attempt(self._queue, records, name, ttl=self._ttl, batch=self._batch).run(messages)

    def published(self, partition: int) -> int:
        """Return how many messages of the partition are in the ledger, written or about to be. A call per 16,000."""
        return sum(len(chunk.places) for chunk in chunks(self._records(partition)))

    def _records(self, partition: int, without: Collection[str] = ()) -> LedgerRecords:
        pointers = self._queue.pointers
        return LedgerRecords(
            pointers.store, pointers.client_id, self._queue.name, self._scope,
            partition=partition, ttl=self._ttl, without=without,
        )  # fmt: skip


def chunks(records: LedgerRecords) -> list[Chunk]:
    """Return the chunks up to the first that does not exist: they are numbered without gaps.

    The rows of a batch are not read at one moment, so a chunk may be found behind one that did not exist yet. The
    messages of such a gap would be published again, so nothing behind it counts.
    """
    found: list[Chunk] = []
    size = 1
    while True:
        for chunk in records.read(range(len(found), len(found) + size)):
            if chunk is None:
                return found
            found.append(chunk)
        size = WINDOW


@dataclass(slots=True)
class _Open:
    """A chunk of the ledger, and the messages of it that this attempt has met."""

    chunk: Chunk
    rows: list[NewMessage] = field(default_factory=list)

    def take(self, row: NewMessage) -> None:
        """Keep the row for the completion of the chunk; a chunk that is written needs none."""
        if not self.chunk.written:
            self.rows.append(row)


class _Attempt:
    """One run over the messages of one partition."""

    def __init__(self, queue: SubscriptionHandle, records: LedgerRecords, name: str, *, ttl: int, batch: int) -> None:
        self._queue, self._records, self._name, self._ttl, self._batch = queue, records, name, ttl, batch
        self._writer = ChunkWriter(queue, records)
        self._salt = hashlib.blake2b(name.encode(), digest_size=16).digest()
        self._shard = int.from_bytes(self._salt[:4], "big")
        self._ordinals: Counter[bytes] = Counter()
        self._own_ids: set[str] = set()
        self._unseen: dict[str, _Open] = {}
        self._left: list[_Open] = []
        self._next = 0
        self._buffer: list[NewMessage] = []
        self._bytes = self._count = self._new = 0

    def run(self, messages: Iterable[Outgoing]) -> Published:
        for chunk in chunks(self._records):
            self._found(chunk)
        for message in messages:
            self._take(self._row(message))
        while self._buffer:
            self._flush()
        if self._unseen:
            raise NonDeterministicInput(
                f"{self._name}: {len(self._unseen)} messages that an earlier attempt published did not turn up in this "
                "one, so the input is not the same each time: make it deterministic (write it to a file first, order "
                "before limit, no random or current_timestamp), and publish it under another scope",
                message_ids=list(self._unseen)[:10],
            )
        self._complete()
        return Published(self._count, self._new)

    def _row(self, message: Outgoing) -> NewMessage:
        data, headers = self._queue.codec.encode(message.payload), checked_headers(message.headers)
        if message.message_id is None:
            msg_id = self._digest(data, message.key, headers)
        else:
            msg_id = checked_id(message.message_id)
            if msg_id in self._own_ids:
                raise InvalidRequest(f"{self._name}: message id {shown(msg_id)} comes twice; ids must be unique")
            self._own_ids.add(msg_id)
        now = self._queue.pointers.now_ms()
        shard = None if message.key is None else self._queue.shard_of(message.key)
        return NewMessage(Envelope(data, msg_id, enqueued_at=now, headers=headers, keep_id=self._ttl), shard)

    def _digest(self, data: str | bytes, key: str | None, headers: dict[str, str] | None) -> str:
        content = data if isinstance(data, bytes) else data.encode()
        more = repr((key, sorted((headers or {}).items()))).encode() if key is not None or headers else b""
        # Where there is more, the size of the content says where that begins; else nothing, as the digest always was.
        size = str(len(content)).encode() if more else b""
        digest = hashlib.blake2b(content + more, key=self._salt, digest_size=12, person=size).digest()
        self._ordinals[digest] += 1
        return f"{digest.hex()}-{self._ordinals[digest]}"

    def _take(self, row: NewMessage) -> None:
        """Give the row to the chunk that has it; else it is new."""
        self._count += 1
        has = self._unseen.pop(row.envelope.msg_id, None)
        if has is not None:
            has.take(row)
            return
        # Before a chunk names it: a chunk with a message that can never be written could never be completed.
        envelope = row.envelope
        try:
            check_fits(self._queue.store, self._queue.name, [envelope.data], envelope.headers)
        except RecordTooBig as failure:
            failure.details[REFUSED] = [envelope.msg_id]
            raise
        self._buffer.append(row)
        self._bytes += len(row.envelope.data)
        if len(self._buffer) >= self._batch or self._bytes >= CHUNK_BYTES:
            self._flush()

    def _complete(self) -> None:
        """Complete the chunks that an earlier attempt left, as far as all their rows have come."""
        met = [left for left in self._left if len(left.rows) == len(left.chunk.places)]
        for left in met:
            self._writer.complete(left.chunk, left.rows)
            self._left.remove(left)

    def _flush(self) -> None:
        """Make a new chunk of the rows in the buffer, or use the one that another attempt made meanwhile."""
        self._complete()  # first: what is missing there may get slots behind all others, and was published before these
        shard = (self._shard + self._next) % self._queue.config.shards
        chunk, mine = self._writer.create(self._next, self._buffer, shard)
        if mine:
            self._next += 1
            self._writer.complete(chunk, self._buffer)
            self._new += len(self._buffer)
            self._buffer, self._bytes = [], 0
            return
        opened = self._found(chunk)
        rest = [row for row in self._buffer if row.envelope.msg_id not in chunk.places]
        for row in self._buffer:
            if self._unseen.pop(row.envelope.msg_id, None) is not None:
                opened.take(row)
        self._buffer, self._bytes = rest, sum(len(row.envelope.data) for row in rest)

    def _found(self, chunk: Chunk) -> _Open:
        opened = _Open(chunk)
        self._unseen.update(dict.fromkeys(chunk.places, opened))
        if not chunk.written:
            self._left.append(opened)
        self._next = chunk.number + 1
        return opened
