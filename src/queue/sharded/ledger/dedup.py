"""One message for each deduplication key within a time, decided in the store (docs/protocols P15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from ....errors import AlreadyExists, Corrupt, InvalidRequest, LatchworkError, Unavailable
from ....inputs import checked_text, span_of
from ....plain import shown
from ....store import Update
from ....store.rows import Rows, chunked
from ..config import whole_seconds
from ..envelope import Envelope
from ..handles import SubscriptionHandle
from ..shards import CHUNK
from ..slots import Slot, WriteResult
from ..transfer import reserve_slots
from .chunks import DONE, EXAMINED, Chunk, LedgerRecords, place, slot_of
from .writer import ChunkWriter, NewMessage, passed_slots

MAX_KEY = 256
MIN_FOR, MAX_FOR = timedelta(seconds=1), timedelta(days=365)
ON_DUPLICATE = ("keep", "raise")


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """A message that is to be published unless its key has one.

    shard: where it goes. If that shard is damaged, and the message is not `bound` to it, it goes to the next one.
    """

    key: str
    envelope: Envelope
    shard: int
    bound: bool = False


class KeyEntry(NamedTuple):
    """The message that a key has: its id, and its place in a batch, as its first publisher named them."""

    message_id: str
    batch: str | None


def checked_key(key: str) -> str:
    """Return the deduplication key if it is text of 1 to 256 characters. Raises `InvalidRequest`."""
    checked_text("dedup", key)
    if len(key) > MAX_KEY:
        raise InvalidRequest(f"dedup has {len(key)} characters; give at most {MAX_KEY}, as a digest")
    return key


def checked_span(dedup_for: timedelta | float | None, default: timedelta) -> int:
    """Return the whole seconds for which a key is remembered, never fewer than asked. Raises `InvalidRequest`."""
    span = default if dedup_for is None else span_of("dedup_for", dedup_for)
    if not MIN_FOR <= span <= MAX_FOR:
        raise InvalidRequest(f"dedup_for is {shown(dedup_for)}; it must be 1 s to 365 days, or None")
    return whole_seconds(span)


def publish_unless_there(
    queue: SubscriptionHandle,
    wanted: Sequence[KeyedMessage],
    seconds: int,
    *,
    scope: str = "dedup",
    beside: Sequence[Update] = (),
) -> Rows[str]:
    """Publish each message unless its key has one already; return the id of the key's message, or the error.

    See `publish_or_find`.
    """
    outcomes = publish_or_find(queue, wanted, seconds, scope=scope, beside=beside)
    return Rows(outcome.message_id if isinstance(outcome, KeyEntry) else outcome for outcome in outcomes)


def publish_or_find(
    queue: SubscriptionHandle,
    wanted: Sequence[KeyedMessage],
    seconds: int,
    *,
    scope: str = "dedup",
    beside: Sequence[Update] = (),
) -> Rows[KeyEntry]:
    """Publish each message unless its key has one already; return the key's message, or the error.

    seconds: how long a key is remembered, from its first message on.
    scope: one key in two scopes counts as two keys.
    beside: updates that go along in the first call, before any message is there; whether they were done is not told.

    Five calls for up to 1,000 new messages, one if all keys are known, six where an earlier attempt has died. Of equal
    keys in one call the first counts.

    If the first publisher of a key died between its calls, the message is completed: with the id and the place in a
    batch that the first publisher gave, and with this payload.
    """
    first: dict[str, KeyedMessage] = {}
    for one in wanted:  # in this order their slots are reserved
        first.setdefault(one.key, one)
    ids: dict[str, KeyEntry | LatchworkError] = {}
    for some in chunked(list(first.values()), CHUNK):
        ids |= _Attempt(queue, some, seconds, scope).run(beside)
        beside = ()
    return Rows(ids[one.key] for one in wanted)


class _Attempt:
    """One run over at most 1,000 keys. Each key has a ledger (P6) of its own, with one chunk of one message."""

    def __init__(self, queue: SubscriptionHandle, wanted: Sequence[KeyedMessage], seconds: int, scope: str) -> None:
        self._queue, self._pointers, self._store = queue, queue.pointers, queue.store
        self._wanted = {one.key: one for one in wanted}
        self._records = {
            one.key: LedgerRecords(
                queue.store, queue.pointers.client_id, queue.name, f"{scope}/{quote(one.key, safe='')}",
                partition=0, ttl=seconds,
            )
            for one in wanted
        }  # fmt: skip
        self._keep = seconds
        self._ids: dict[str, KeyEntry | LatchworkError] = {}

    def run(self, beside: Sequence[Update]) -> dict[str, KeyEntry | LatchworkError]:
        chunks = self._read(beside)
        absent = [key for key, chunk in chunks.items() if chunk is None]
        found = {key: chunk for key, chunk in chunks.items() if chunk is not None}
        found |= self._enter(absent) if absent else {}
        written = self._write(found)
        for key, chunk in found.items():
            if key not in self._ids:
                self._complete(key, chunk, is_written=key in written)
        return self._ids

    def _read(self, beside: Sequence[Update]) -> dict[str, Chunk | None]:
        """Read the entries of the keys. One call."""
        reading = [records.reading(0) for records in self._records.values()]
        rows = self._store.repeat_many([*reading, *beside])
        chunks: dict[str, Chunk | None] = {}
        for (key, records), row in zip(self._records.items(), rows[: len(reading)], strict=True):
            try:
                chunks[key] = records.single(row)
            except LatchworkError as failure:
                self._ids[key] = failure
        return chunks

    def _enter(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Reserve a slot for each message and make its entry, or find the entry of the first publisher. Two calls, or
        three.
        """
        born = self._store.seams.boottime()
        slots = self._reserve(keys)
        creates = []
        for key, slot in slots.items():
            envelope = self._wanted[key].envelope
            creates.append(self._records[key].creating(0, {envelope.msg_id: place(slot)}, envelope.batch))
        rows = self._store.repeat_many(creates)
        entries: dict[str, Chunk] = {}
        for (key, slot), row in zip(slots.items(), rows, strict=True):
            envelope = self._wanted[key].envelope
            if isinstance(row, LatchworkError):
                self._ids[key] = row
            else:
                places = {envelope.msg_id: place(slot)}
                entries[key] = Chunk(0, places, 0, written=False, born=born, batch=envelope.batch)
        there = [key for key, row in zip(slots, rows, strict=True) if isinstance(row, AlreadyExists)]
        return entries | self._found(there) if there else entries

    def _reserve(self, keys: Sequence[str]) -> dict[str, Slot]:
        """Return a slot for each message that gets one. One call, and one more for each damaged shard on the way."""
        slots: dict[str, Slot] = {}
        shards = {key: self._wanted[key].shard for key in keys}
        for _ in range(self._pointers.shards):
            found, failures = reserve_slots(self._pointers, shards)
            slots |= found
            for key in found:
                self._ids.pop(key, None)  # the error of a damaged shard before
            self._ids.update(failures)
            shards = {
                key: self._pointers.home(shards[key] + 1)
                for key, failure in failures.items()
                if isinstance(failure, Corrupt) and not self._wanted[key].bound
            }
            if not shards:
                break
        return slots

    def _found(self, keys: Sequence[str]) -> dict[str, Chunk]:
        """Return the entries that another attempt has made first. One call."""
        found: dict[str, Chunk] = {}
        rows = self._store.repeat_many([self._records[key].reading(0) for key in keys])
        for key, row in zip(keys, rows, strict=True):
            self._ids.pop(key, None)
            try:
                chunk = self._records[key].single(row)
            except LatchworkError as failure:
                self._ids[key] = failure
                continue
            if chunk is None:
                self._ids[key] = Unavailable(f"dedup {key!r}: its time ended just now; publish again")
            else:
                found[key] = chunk
        return found

    def _write(self, entries: dict[str, Chunk]) -> set[str]:
        """Write the messages whose entries are open; return the keys whose message is there for certain.

        Two calls, and two more where it may be late, as of entries that another attempt has made; none where all are
        written. What is not certain is left to `_complete`.
        """
        began = {key: chunk for key, chunk in entries.items() if not chunk.written and _is_placed(chunk)}
        if not began:
            return set()
        outcomes = self._pointers.write(
            [_slot(chunk) for chunk in began.values()], [self._kept(key, chunk) for key, chunk in began.items()],
            traced=range(len(began)), fresh=False,
        )  # fmt: skip
        now = self._store.seams.boottime()
        there = [key for key, outcome in zip(began, outcomes, strict=True) if outcome is WriteResult.DONE]
        late = {_slot(began[key]) for key in there if now - began[key].born > self._pointers.sweep / 2}
        try:
            passed = passed_slots(self._queue, late)
        except LatchworkError:
            passed = late
        certain = [key for key in there if _slot(began[key]) not in passed]
        done = [self._records[key].finishing(0, began[key].changes) for key in certain]
        finished = set(self._store.repeat_many(done).sift(certain)[0])
        self._queue.active.loaded({_slot(began[key]).shard for key in finished})
        if finished:
            self._store.seams.note("published", len(finished), queue=self._queue.name, outcome="published")
        return finished

    def _complete(self, key: str, chunk: Chunk, *, is_written: bool) -> None:
        """Set the id that the key has; finish what its publisher left undone."""
        (msg_id,) = chunk.places
        try:
            if not (is_written or chunk.written):
                row = NewMessage(self._kept(key, chunk), None)
                ChunkWriter(self._queue, self._records[key], traced=True).complete(chunk, [row])
            self._ids[key] = KeyEntry(msg_id, chunk.batch)
        except LatchworkError as failure:
            self._ids[key] = failure

    def _kept(self, key: str, chunk: Chunk) -> Envelope:
        """Return the message under the id of its first publisher; the id is kept as long as the key is remembered."""
        (msg_id,) = chunk.places
        return replace(self._wanted[key].envelope, msg_id=msg_id, keep_id=self._keep, batch=chunk.batch)


def _is_placed(chunk: Chunk) -> bool:
    """Whether the message has a slot, and nobody examines it."""
    (at,) = chunk.places.values()
    return at != DONE and not at.endswith(EXAMINED)


def _slot(chunk: Chunk) -> Slot:
    (at,) = chunk.places.values()
    return slot_of(at)
