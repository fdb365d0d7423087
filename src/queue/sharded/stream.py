"""A queue as a stream uses it: the shards that it owns, the messages in a range of pointers, and what it has
acknowledged (P7).

Nothing here depends on Spark. A range is `(after, last]` of one shard. Only acknowledgements move FIRE, so until then
every range can be read again, and gives equal results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field

from ...errors import FencedOut, InvalidRequest, QueueOwned, Refused
from ...inputs import checked_text, is_int
from ...plain import shown
from ...store import NEVER, Add, Bin, Exists, Param, Put, Record, Update, missing
from ...store.decode import Counter, decoded
from ...store.model.expr import SERVER_NOW, Bound, largest
from ...store.rows import chunked
from ..rows import read_each
from .envelope import BINS, Envelope
from .groups.stamps import SHARED
from .ledger.ledger import LEDGER_TTL
from .pointers import FIRE, LOAD, STREAM, ShardPointers
from .shards import Shards
from .slots import Slot
from .subqueue import GRACE

EPOCH, ACKED = "stream-epoch", "stream-acked"
STEP = 1_000
"""Records read, or deleted, in one call."""
GRACE_POLL = 0.05
"""Seconds between two looks at empty slots: longer than a consumer's, since each look reads up to 1,000 records."""
TAKEOVERS = 5
EPOCHS = 2**20
"""An epoch is the last one plus a random number up to this: two processes that take over at once do not choose one
epoch.
"""
MAX_STREAM = 256
Messages = list[tuple[int, Envelope]]
"""Messages with their pointers, in order."""

_MINE = Bin(STREAM, str).eq(Param("stream", str))
_NEWER = missing(EPOCH) | (Bin(EPOCH) < Param("epoch"))
_TAKE = (missing(STREAM) | _MINE) & _NEWER
_HELD = _MINE & Bin(EPOCH).eq(Param("epoch"))
_FORWARD = largest(Bin(FIRE), Param("to"))
_SEEN_LOADED = largest(Bin(LOAD), Param("to"))


class _Owned(Struct, frozen=True):
    """The stream that owns a shard, as it is stored."""

    stream: str | None = field(default=None, name=STREAM)
    epoch: Counter = field(default=0, name=EPOCH)


@dataclass(frozen=True, slots=True)
class Owner:
    """A stream, and the fence under which it owns the queue's shards."""

    stream: str
    epoch: int

    @property
    def params(self) -> dict[str, str | int]:
        """The parameters of the guards."""
        return {"stream": self.stream, "epoch": self.epoch}


@dataclass(frozen=True, slots=True)
class StreamState:
    """A queue, or a group of it, that streams read.

    owners: their names; more than one while one takes over from another.
    shards: how many of its shards they own.
    lag: messages that are not acknowledged, with those of the batch that is being read.
    acked: when the last batch was acknowledged, in ms by the server's clock; None = not known. A stream does that once
        it begins the next one, or has nothing to read.
    """

    owners: tuple[str, ...]
    shards: int
    lag: int
    acked: int | None


def state_of(queue: Shards) -> StreamState:
    """Return what streams have read of a queue. One call, of a group two. Raises `Corrupt` for a damaged shard."""
    found = queue.states_with(STREAM, ACKED)
    owners = [bins[STREAM] for _, bins in found if isinstance(bins.get(STREAM), str)]
    times: list[Any] = [bins.get(ACKED) for _, bins in found]
    acked = [int(at) for at in times if is_int(at)]
    lag = sum(max(0, state.checked().loaded - state.fired) for state, _ in found)
    return StreamState(tuple(sorted(set(owners))), len(owners), lag, max(acked, default=None))


def take(queue: Shards, stream: str) -> Owner:
    """Own all shards: from now on consumers are refused, and so is an earlier owner of this name.

    Three calls. Raises `QueueOwned` with the name of another stream that owns a shard; all shards are then released.
    """
    if len(checked_text("streamId", stream)) > MAX_STREAM:
        raise InvalidRequest(f"streamId is {shown(stream)}; it may have {MAX_STREAM} characters: use a shorter one")
    for _ in range(TAKEOVERS):
        owners = _owners(queue)
        _refuse_others(queue, owners, stream)
        seams = queue.store.seams
        epoch = max((epoch for _, epoch in owners), default=0) + 1 + int(seams.uniform(0, EPOCHS))
        owner = Owner(stream, epoch)
        guard = Bound(_TAKE, owner.params)
        ops = (Put(STREAM, stream), Put(EPOCH, epoch), Add(LOAD, 0), Add(FIRE, 0))
        rows = []
        for n in range(queue.shards):
            is_made = not queue.part_of(n)[0].follows  # else, where its record is not there, the group was dropped
            kind = Exists.ANY if is_made else Exists.UPDATE
            rows.append(Update(queue.pointers_key(n), ops, guard, kind, or_absent=is_made, ttl=NEVER))
        queue.store.repeat_many(rows).raise_unless(Refused)
        found = _owners(queue)
        if all(one == (stream, epoch) for one in found):
            return owner
        if any(name not in (None, stream) for name, _ in found):
            release(queue, owner)
            _refuse_others(queue, found, stream)
    raise FencedOut(f"{queue.name}: other queries of the stream {stream!r} take it over all the time: start only one")


def current(queue: Shards, stream: str) -> Owner:
    """Return the owner under this name, as the shards have it. Raises `FencedOut` where it does not own all of them."""
    found = set(_owners(queue))
    if len(found) != 1 or next(iter(found))[0] != stream:
        names = ", ".join(sorted({str(name) for name, _ in found if name is not None}))
        who = f"{names} does" if names else "nobody does"
        raise FencedOut(f"{queue.name}: the stream {stream!r} does not own it; {who}")
    return Owner(stream, next(iter(found))[1])


def states(queue: Shards, owner: Owner) -> list[ShardPointers]:
    """Return the pointers of all shards. One call, of a group two. Raises `FencedOut` where another has taken
    one over.
    """
    found = queue.states_with(STREAM, EPOCH)
    for shard, (_, bins) in enumerate(found):
        if (bins.get(STREAM), bins.get(EPOCH)) != (owner.stream, owner.epoch):
            raise _fenced(queue, shard, owner)
    return [state.checked() for state, _ in found]


def release(queue: Shards, owner: Owner) -> None:
    """Return the shards that are still this owner's to consumers. One call; errors are raised at the end."""
    guard = Bound(_HELD, owner.params)
    rows = [Update(queue.pointers_key(n), (Put(STREAM, None),), guard, ttl=NEVER) for n in range(queue.shards)]
    queue.store.repeat_many(rows).raise_unless(Refused)


def read(
    queue: Shards, shard: int, after: int, last: int, owner: Owner | None = None, *, bins: Sequence[str] = BINS
) -> Iterator[Messages]:
    """Yield the messages of a range with their pointers, up to 1,000 at a time; equal each time the range is read.

    owner: the reader. Raises `FencedOut` if a slot has no message and another stream has taken the shard over: that
        stream may have acknowledged the range, and what is left of it differs from what it held.
    bins: the bins of each message that are needed.

    An empty slot is waited for, 250 ms in all for the slots of the range, as all were reserved before; then a tombstone
    refuses its producer, who publishes again. Not promised: equal results once a message has expired.
    """
    end = queue.store.seams.monotonic() + GRACE
    for step in chunked(range(after + 1, last + 1), STEP):
        yield _whole(queue, shard, step, owner, end=end, bins=bins)


def _whole(
    queue: Shards, shard: int, pointers: Sequence[int], owner: Owner | None, *, end: float, bins: Sequence[str]
) -> Messages:
    """Return the messages of at most 1,000 slots, once each of them has one or never will. end: of the grace."""
    found: dict[int, Envelope | None] = {}
    absent = list(pointers)
    while absent:
        found.update(_present(queue, shard, absent, bins, adopt=True))
        absent = [pointer for pointer in absent if pointer not in found]
        if absent and queue.store.seams.monotonic() >= end:
            _owned(queue, shard, owner)  # else a stream that was fenced off would write into shards that another owns
            absent = _given_up(queue, shard, absent)
        elif absent:
            queue.store.seams.sleep(GRACE_POLL)
    there = [(pointer, envelope) for pointer in pointers if (envelope := found.get(pointer)) is not None]
    if len(there) < len(pointers):
        # After the read: only a stream that has taken the shard over before can have deleted the range.
        _owned(queue, shard, owner)
    return there


def peek(queue: Shards, shard: int, after: int, last: int, *, bins: Sequence[str] = BINS) -> Iterator[Messages]:
    """Yield the messages that a range holds now, up to 1,000 at a time; changes nothing. bins: what is needed
    of each.
    """
    for step in chunked(range(after + 1, last + 1), STEP):
        found = _present(queue, shard, step, bins, adopt=False)
        yield [(pointer, envelope) for pointer in step if (envelope := found.get(pointer)) is not None]


def sizes(queue: Shards, slots: Sequence[Slot]) -> list[int]:
    """Return the bytes of the payloads in these slots, 0 where there is none. One call; none for no slots.

    0 also for a record that cannot be read: the read of the range raises its error.
    """
    records = read_each(queue.store, [queue.key(slot) for slot in slots], "data", SHARED)
    found = [one.bins.get("data", one.bins.get(SHARED)) if isinstance(one, Record) else None for one in records]
    texts = [data.encode() if isinstance(data, str) else data for data in found]
    return [len(data) if isinstance(data, bytes) else 0 for data in texts]


def acknowledge(queue: Shards, owner: Owner, shard: int, boundary: int) -> int:
    """Delete what the shard holds up to the boundary, then move FIRE there; return by how many pointers.

    One call if there is nothing to do, else two per 1,000 and one more. Raises `FencedOut` if another stream has taken
    over.
    """
    fired = ShardPointers.of(shard, queue.pointers_key(shard), _owned(queue, shard, owner)).checked().fired
    if fired >= boundary:
        return 0
    for step in chunked(range(fired + 1, boundary + 1), STEP):
        _discard(queue, shard, step)
    forward = [Put(FIRE, Bound(_FORWARD, {"to": boundary})), Put(ACKED, SERVER_NOW)]
    if queue.part_of(shard)[0].follows:
        forward.append(Put(LOAD, Bound(_SEEN_LOADED, {"to": boundary})))  # the queue's LOAD, as the group knows it
    try:
        queue.store.operate(
            queue.pointers_key(shard), *forward, when=Bound(_HELD, owner.params), ttl=NEVER, repeatable=True
        )
    except Refused:
        raise _fenced(queue, shard, owner) from None
    return boundary - fired


def _owners(queue: Shards) -> list[tuple[str | None, int]]:
    records = queue.store.get_many([queue.pointers_key(n) for n in range(queue.shards)], STREAM, EPOCH)
    found = [decoded(_Owned, record.key, record.bins) if record else _Owned() for record in records]
    return [(owned.stream, owned.epoch) for owned in found]


def _refuse_others(queue: Shards, owners: Sequence[tuple[str | None, int]], stream: str) -> None:
    others = {name for name, _ in owners if name not in (None, stream)}
    if others:
        raise QueueOwned(
            f"{queue.name}: the stream {', '.join(map(repr, sorted(map(str, others))))} owns it; stop it and release "
            "the queue with latchwork.spark.acknowledge(spark, query), or latchwork.spark.release(queue, "
            "streamId) where it never finished a batch; or use its streamId to take over",
            owners=sorted(map(str, others)),
        )


def _owned(queue: Shards, shard: int, owner: Owner | None) -> Mapping[str, object]:
    """Return the shard's pointer record. One read, none without an owner. Raises `FencedOut` if it is another
    stream's.
    """
    if owner is None:
        return {}
    record = queue.store.get(queue.pointers_key(shard), LOAD, FIRE, STREAM, EPOCH)
    bins: Mapping[str, object] = record.bins if record else {}
    if (bins.get(STREAM), bins.get(EPOCH)) != (owner.stream, owner.epoch):
        raise _fenced(queue, shard, owner)
    return bins


def _fenced(queue: Shards, shard: int, owner: Owner) -> FencedOut:
    return FencedOut(
        f"{queue.name}: shard {shard} is no longer owned by the stream {owner.stream!r} under epoch {owner.epoch}: "
        "another query has taken it over, or it was released"
    )


def _present(
    queue: Shards, shard: int, pointers: Sequence[int], bins: Sequence[str], *, adopt: bool
) -> dict[int, Envelope | None]:
    """Return what is at these pointers; None for tombstones and messages that are done; absent ones are left out. One
    call.

    adopt: messages that do not name the group yet wait for it from now on, so that a second read finds them.
    """
    part_, inner = queue.part_of(shard)
    found = part_.present([Slot(inner, pointer) for pointer in pointers], bins, adopt=adopt)
    return {slot.pointer: envelope for slot, envelope in found.items()}


def _given_up(queue: Shards, shard: int, pointers: Sequence[int]) -> list[int]:
    """Give up empty slots; return the pointers at which a message was written at the last moment.

    They live as long as the messages do, and as a ledger: a producer that wakes after a shorter life would add a row to
    a replay, or leave it where no later batch reads.
    """
    outcomes = queue.give_up([Slot(shard, pointer) for pointer in pointers], keep=max(queue.ttl, LEDGER_TTL))
    outcomes.raise_unless()
    return [pointer for pointer, written in zip(pointers, outcomes, strict=True) if not written]


def _discard(queue: Shards, shard: int, pointers: Sequence[int]) -> None:
    """Delete what is at these pointers."""
    part_, inner = queue.part_of(shard)
    part_.discard([Slot(inner, pointer) for pointer in pointers])
