"""Getting messages into a pointer queue, and moving them from one to another without losing any (P5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from ...errors import Corrupt, InvalidRequest, LatchworkError, OutcomeUnknown, RecordTooBig, Unavailable
from ...store.model.values import taken
from ..rows import as_one
from .envelope import Envelope
from .shards import Held, PointerQueue, Slot, Written

ROUNDS = 5
"""How often a message is given another pointer before its publisher is told that it could not be published."""
CHUNK, CHUNK_BYTES = 1_000, 8 * 1024 * 1024
"""Records, and about bytes, written in one batch."""
LARGE = 1024 * 1024
"""Bytes that a payload counts for which is neither text nor bytes, as another program may write: a record's limit."""

Loaded = Slot | LatchworkError


def load(
    queue: PointerQueue,
    envelopes: Sequence[Envelope],
    shards: Sequence[int],
    *,
    moved: bool = False,
    bound: Collection[int] = (),
) -> list[Loaded]:
    """Where each message now is, or why it is not: one reservation and one batch of creates per 1,000 messages.

    shards: the shard of each, or where that one is damaged, and its place is not among `bound`, the next one that is
    not.  moved: they come from another queue.  A slot that turns out spent (a consumer that gave
    up waiting put a tombstone there), or a create that was acknowledged later than half the sweep duration after the
    reservation was sent, does not count: the message gets another slot before it is acknowledged. `OutcomeUnknown`
    means that it may be delivered nevertheless.
    """
    outcomes: list[Loaded] = []
    for chunk in _chunks(envelopes):
        here = {place - chunk.start for place in bound if chunk.start <= place < chunk.stop} if bound else bound
        outcomes += _load_as_one(queue, envelopes[chunk], shards[chunk], moved=moved, bound=here)
    return outcomes


def _load_as_one(
    queue: PointerQueue, envelopes: Sequence[Envelope], shards: Sequence[int], *, moved: bool, bound: Collection[int]
) -> list[Loaded]:
    """Where each message now is, or why it is not; in one transaction, on a store that has any.

    Where it is undone, what the reservations told is forgotten, as LOAD is lower than they said.
    """

    def undone() -> None:
        queue.members.forget()
        queue.bell.owe()  # it may have been owed for others

    try:
        return as_one(queue.store.together(), lambda: _load(queue, envelopes, shards, moved=moved, bound=bound), undone)
    except LatchworkError as failure:  # of the transaction as a whole, or of its commit
        return [failure] * len(envelopes)


def move(
    source: PointerQueue, held: Sequence[Held], target: PointerQueue, envelopes: Sequence[Envelope]
) -> list[bool | LatchworkError]:
    """Load the messages into the target, then delete those that were loaded.

    For each: True = moved; False = loaded, but no longer this delivery's, so somebody else may have it too; an error =
    not loaded, so it stays where it is for the sweeper, or loaded and perhaps not deleted, so it may come twice. Each
    message fails alone. One that no record can hold is not loaded, nor is a slot reserved for it; one that is too big
    with its last error goes without.
    """
    outcomes: list[Loaded | None] = [_unkeepable(envelope) for envelope in envelopes]
    _load_missing(target, held, envelopes, outcomes)
    if any(isinstance(outcome, RecordTooBig) for outcome in outcomes):
        outcomes = [None if isinstance(outcome, RecordTooBig) else outcome for outcome in outcomes]
        _load_missing(target, held, [replace(envelope, last_error=None) for envelope in envelopes], outcomes)
    safe = [h for h, outcome in zip(held, outcomes, strict=True) if isinstance(outcome, Slot)]
    removed = dict(zip((h.slot for h in safe), source.remove(safe), strict=True))
    return [
        outcome if isinstance(outcome, LatchworkError) else removed[h.slot]
        for h, outcome in zip(held, outcomes, strict=True)
    ]


def _unkeepable(envelope: Envelope) -> InvalidRequest | None:
    """What keeps the payload, which may be another program's, from being written again."""
    try:
        taken(envelope.data)
    except InvalidRequest as failure:
        return failure
    return None


def _load_missing(
    target: PointerQueue, held: Sequence[Held], envelopes: Sequence[Envelope], outcomes: list[Loaded | None]
) -> None:
    """Load those that have no outcome yet, and put down theirs."""
    places = [place for place, outcome in enumerate(outcomes) if outcome is None]
    shards = [target.home(held[place].slot.shard) for place in places]
    loaded = load(target, [envelopes[place] for place in places], shards, moved=True)
    for place, outcome in zip(places, loaded, strict=True):
        outcomes[place] = outcome


def _load(
    queue: PointerQueue,
    envelopes: Sequence[Envelope],
    shards: Sequence[int],
    *,
    moved: bool,
    bound: Collection[int],
) -> list[Loaded]:
    outcomes: list[Loaded | None] = [None] * len(envelopes)
    pending = list(range(len(envelopes)))
    doubtful: set[int] = set()
    avoided: set[int] = set()
    for _ in range(ROUNDS):
        # The clock starts before the reservation is sent, and counts suspended time: a consumer may wait from then on.
        sent = queue.store.seams.boottime()
        wanted = [shards[place] for place in pending]
        if avoided:
            wanted = [_sound(queue, shard, avoided) for shard in wanted]
        slots = _slots(queue, wanted)
        for place, slot in zip(pending, slots, strict=True):
            outcomes[place] = slot
        places = [place for place, slot in zip(pending, slots, strict=True) if type(slot) is Slot]
        again = _write(queue, envelopes, places, outcomes, moved=moved, sent=sent) if places else {}
        doubtful |= {place for place, written in again.items() if written}
        damaged = [place for place in pending if isinstance(outcomes[place], Corrupt) and place not in bound]
        avoided |= {shard for place, shard in zip(pending, wanted, strict=True) if place in damaged}
        pending = [*again, *damaged]
        if not pending:
            break
    return [at if type(at) is Slot else _told(queue, at, place in doubtful) for place, at in enumerate(outcomes)]


def _write(
    queue: PointerQueue,
    envelopes: Sequence[Envelope],
    places: Sequence[int],
    outcomes: list[Loaded | None],
    *,
    moved: bool,
    sent: float,
) -> dict[int, bool]:
    """Write messages to their slots, which `outcomes` has; those that need another, and whether they were written."""
    slots = [slot for slot in (outcomes[place] for place in places) if type(slot) is Slot]
    written = queue.write(slots, [envelopes[place] for place in places], fired=moved)
    late = queue.store.seams.boottime() - sent > queue.sweep / 2
    again: dict[int, bool] = {}
    for place, result in zip(places, written, strict=True):
        if isinstance(result, LatchworkError):
            outcomes[place] = result
        elif late or result is not Written.DONE:
            outcomes[place] = None
            again[place] = result is Written.DONE
    return again


def _sound(queue: PointerQueue, shard: int, damaged: Collection[int]) -> int:
    """The shard, or the next one that is not damaged; the shard itself where all are."""
    others = ((shard + n) % queue.shards for n in range(queue.shards))
    return next((other for other in others if other not in damaged), shard)


def _told(queue: PointerQueue, at: Loaded | None, doubt: bool) -> Loaded:
    """What a message that was not loaded came to."""
    if doubt:
        return OutcomeUnknown(
            f"{queue.name}: the message was written, but too late to be sure that it will be delivered; the store "
            "answers more slowly than half the sweep duration"
        )
    return at or Unavailable(f"{queue.name}: every slot was spent before the message was there")


def _slots(queue: PointerQueue, shards: Sequence[int]) -> list[Loaded]:
    """A reserved slot for each, in the order of the shards' pointers."""
    following = queue.reserve(Counter(shards))
    slots: list[Loaded] = []
    for shard in shards:
        pointer = following[shard]
        if isinstance(pointer, LatchworkError):
            slots.append(pointer)
        else:
            slots.append(Slot(shard, pointer))
            following[shard] = pointer + 1
    return slots


def _chunks(envelopes: Sequence[Envelope]) -> Iterator[slice]:
    begin, size = 0, 0
    for place, envelope in enumerate(envelopes):
        more = _size(envelope.data)
        size += more
        if place > begin and (place - begin == CHUNK or size > CHUNK_BYTES):
            yield slice(begin, place)
            begin, size = place, more
    if begin < len(envelopes):
        yield slice(begin, len(envelopes))


def _size(data: object) -> int:
    """About how many bytes it is."""
    return len(data) if isinstance(data, str | bytes) else LARGE
