"""Getting messages into a subqueue, and moving them from one to another without losing any (P5)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ...errors import Corrupt, InvalidRequest, LatchworkError, OutcomeUnknown, RecordTooBig, Unavailable
from ...store.model.values import taken
from ...store.rows import Rows, attempted
from ..rows import as_one
from .envelope import Envelope
from .hooks import Target
from .places import dropping_copy, named
from .shards import CHUNK, CHUNK_BYTES, Shards
from .slots import Slot, Stamped, WriteResult

ROUNDS = 5
"""How often a message is given another pointer before its publisher gets an error."""
LARGE = 1024 * 1024
"""Bytes that a payload counts for which is neither text nor bytes, as another program may write: a record's limit."""

_TEXT_OR_BYTES = (str, bytes)

Loaded = Slot | LatchworkError
Removing = Callable[[Sequence[Stamped]], Sequence[bool | LatchworkError]]
"""Removes messages in hand from where they are."""
K = TypeVar("K")


def reserve_slots(queue: Shards, shards: Mapping[K, int]) -> tuple[dict[K, Slot], dict[K, LatchworkError]]:
    """Reserve a slot for each message, in the order of its shard's pointers; return the slots, and why others got none.
    One call.

    shards: the shard of each message.
    """
    following = queue.reserve(Counter(shards.values()) if len(shards) > 1 else dict.fromkeys(shards.values(), 1))
    slots: dict[K, Slot] = {}
    failures: dict[K, LatchworkError] = {}
    for one, shard in shards.items():
        pointer = following[shard]
        if isinstance(pointer, LatchworkError):
            failures[one] = pointer
        else:
            slots[one] = Slot(shard, pointer)
            following[shard] = pointer + 1
    return slots, failures


def load(
    queue: Shards,
    envelopes: Sequence[Envelope],
    shards: Sequence[int],
    *,
    moved: bool = False,
    renewed: bool = False,
    bound: Collection[int] = (),
    names: Collection[int] = (),
    given: Collection[int] = (),
) -> Rows[Slot]:
    """Return where each message now is, or why it was not stored: one reservation and one batch of creates per 1,000
    messages.

    shards: the shard of each. If it is damaged, and its place is not among `bound`, the next one that is not.
    moved: whether they were in a queue, or a part of it, before.
    renewed: whether that was another queue, so that a cancel of a former message of their ids does not count here.
    names: the ones, by their places, that get ids which name their first slots, in the list `envelopes` (P26).
    given: the ones whose ids their publishers gave: they leave traces.

    A message gets another slot before it is acknowledged if its slot is spent (a consumer that gave up waiting put a
    tombstone there), or if its create was acknowledged too late: more than half the sweep duration after the
    reservation was sent. `OutcomeUnknown` means that it may be delivered nevertheless.
    """
    if len(envelopes) == 1:  # as nearly always
        return _loaded(_Loading(queue, envelopes, shards, moved, renewed, bound, names, given))
    outcomes: Rows[Slot] = Rows()
    for chunk in _chunks(envelopes):
        some = envelopes if chunk.stop - chunk.start == len(envelopes) else envelopes[chunk]
        part = _Loading(queue, some, shards[chunk], moved, renewed, _within(bound, chunk))
        part.names, part.given = _within(names, chunk), _within(given, chunk)
        outcomes += _loaded(part)
        if names and some is not envelopes:
            assert isinstance(envelopes, list)  # noqa: S101 - as `_Loading`
            envelopes[chunk] = some
    return outcomes


def _within(places: Collection[int], chunk: slice) -> Collection[int]:
    """Return which of the places are in the chunk, counted from its beginning."""
    return {place - chunk.start for place in places if chunk.start <= place < chunk.stop} if places else places


def _loaded(loading: _Loading) -> Rows[Slot]:
    """Load at most 1,000 messages: in one transaction, on a store that has any."""
    together = loading.queue.store.together()
    loading.at_once = type(together) is not nullcontext
    run = partial(as_one, together, loading.run, loading.undone) if loading.at_once else loading.run
    return attempted(len(loading.envelopes), run)


def move(held: Sequence[Stamped], target: Target, envelopes: Sequence[Envelope], remove: Removing) -> Rows[bool]:
    """Store messages elsewhere, then remove those that are safe there: the one way in which a message moves.

    target: `into` a queue, or `later`.
    envelopes: the messages as they are stored there.
    remove: `Shards.remove` of the queue that they are in.

    For each: True = moved; False = stored there, but no longer this delivery's, so another consumer may have it too; an
    error = not stored, so it stays where it is for the sweeper, or stored and perhaps not removed, so it may be
    delivered twice. Each message fails alone.
    """

    def gone(safe: Collection[int]) -> Rows[bool]:
        return attempted(len(safe), lambda: remove([held[n] for n in safe]))

    return target(held, envelopes).then(gone)


def into(target: Shards, tell: Callable[[set[int]], None] | None = None, *, renewed: bool = False) -> Target:
    """Return the tail of a queue as a target: each message goes to the shard there that belongs to its own.

    tell: is told to which shards messages have come.
    renewed: as in `load`.

    No slot is reserved for a message that no record can hold; one that is too big with its last error goes without it.
    """

    def store(held: Sequence[Stamped], envelopes: Sequence[Envelope]) -> Rows[Slot]:
        def loaded(places: Iterable[int], *, whole: bool = True) -> Rows[Slot]:
            some = [envelopes[n] if whole else replace(envelopes[n], last_error=None) for n in places]
            return load(target, some, [target.home(held[n].slot.shard) for n in places], moved=True, renewed=renewed)

        keepable = Rows(_unkeepable(envelope) or envelope for envelope in envelopes)
        slots = keepable.then(loaded).recover(RecordTooBig, lambda places: loaded(places, whole=False))
        if tell and (shards := {slot.shard for slot in slots if isinstance(slot, Slot)}):
            tell(shards)
        return slots

    return store


def _unkeepable(envelope: Envelope) -> InvalidRequest | None:
    """Return the error if the payload, which may be another program's, cannot be written again."""
    try:
        taken(envelope.data)
    except InvalidRequest as failure:
        return failure
    return None


class _Loading(Struct, eq=False):
    """Messages on their way into a queue: at most a thousand, with the shard of each.

    at_once: whether all calls are one transaction: no consumer sees a slot before its message is there, however long
        the transaction waits, so no message can come too late.
    """

    queue: Shards
    envelopes: Sequence[Envelope]
    shards: Sequence[int]
    moved: bool
    renewed: bool
    bound: Collection[int]
    names: Collection[int] = ()
    given: Collection[int] = ()
    at_once: bool = False
    renamed: bool = False

    def undone(self) -> None:
        """Forget the results of the reservations, which may be undone: LOAD is then lower. If the calls are made again,
        each is a transaction of its own.
        """
        self.at_once = False
        self.queue.forget_reserved()

    def run(self) -> Rows[Slot]:
        """Return where each message now is, or why it is not."""
        queue, seams = self.queue, self.queue.store.seams
        pending: Sequence[int] = range(len(self.envelopes))
        outcomes: dict[int, Loaded | None] = dict.fromkeys(pending)
        wanted = self.shards
        doubtful: dict[int, list[Slot]] = defaultdict(list)
        avoided: set[int] = set()
        for _ in range(ROUNDS):
            # 1. Reserve. The clock begins before that, and counts suspended time, as a consumer may wait from then on.
            sent = seams.boottime()
            slots, failures = reserve_slots(queue, dict(zip(pending, wanted, strict=True)))
            outcomes.update(failures)
            # 2. Write. An id names the first slot; a message that comes to another one leaves a trace.
            traced = self._named(slots)
            envelopes = [self.envelopes[place] for place in slots]
            fresh = self.renewed or not self.moved
            written = queue.write(list(slots.values()), envelopes, fired=self.moved, traced=traced, fresh=fresh)
            # 3. A slot that is spent does not count, nor one that was written too late: another one.
            late = not self.at_once and seams.boottime() - sent > queue.sweep / 2
            if not late and written.count(WriteResult.DONE) == len(pending):  # all of them, as nearly always
                outcomes.update(slots)
                break
            again: list[int] = []
            for (place, slot), result in zip(slots.items(), written, strict=True):
                if isinstance(result, LatchworkError):
                    outcomes[place] = result
                elif late or result is not WriteResult.DONE:
                    outcomes[place] = None
                    again.append(place)
                    if result is WriteResult.DONE:
                        doubtful[place].append(slot)
                else:
                    outcomes[place] = slot
            # 4. If a shard is damaged, use another one, unless the message is bound to it.
            for place, shard in zip(pending, wanted, strict=True):
                if isinstance(outcomes[place], Corrupt) and place not in self.bound:
                    again.append(place)
                    avoided.add(shard)
            if not again:
                break
            pending, wanted = again, [self._sound(self.shards[place], avoided) for place in again]
        if doubtful:
            self._drop({place: slots for place, slots in doubtful.items() if type(outcomes[place]) is Slot})
        found = [at if type(at) is Slot else self._failure_of(at, place in doubtful) for place, at in outcomes.items()]
        return Rows(found)

    def _drop(self, late: Mapping[int, Sequence[Slot]]) -> None:
        """Drop the copies that were written too late, of messages that are safe in another slot by now; but not one
        that a consumer has. One call.

        If it fails, a copy is delivered too, or stays where nobody looks until it expires.
        """
        queue, now, ttl = self.queue, self.queue.now_ms(), self.queue.cancelled_ttl
        copies = [(queue.key(slot), self.envelopes[place].msg_id) for place, some in late.items() for slot in some]
        with suppress(LatchworkError):
            queue.store.repeat_many([dropping_copy(key, one, now, ttl) for key, one in copies])

    def _named(self, slots: Mapping[int, Slot]) -> Collection[int]:
        """Let ids name the slots of their messages, once; return which messages leave a trace, as theirs do not."""
        traced = [self.given, self.names] if self.renamed else [self.given]
        if self.names and not self.renamed:
            envelopes, name = self.envelopes, self.queue.name
            assert isinstance(envelopes, list)  # noqa: S101 - as `load` says
            for place, slot in slots.items():
                if place in self.names:
                    one = envelopes[place]
                    envelopes[place] = replace(one, msg_id=named(name, one.msg_id, one.enqueued_at // 1000, slot))
            self.renamed = True
        return [n for n, place in enumerate(slots) if any(place in some for some in traced)] if any(traced) else ()

    def _sound(self, shard: int, damaged: Collection[int]) -> int:
        """Return the shard, or the next one that is not damaged; the shard itself where all are."""
        others = (self.queue.home(shard + n) for n in range(self.queue.shards))
        return next((other for other in others if other not in damaged), shard)

    def _failure_of(self, at: Loaded | None, doubt: bool) -> Loaded:
        """Return the outcome of a message that was not loaded."""
        name = self.queue.name
        if doubt:
            return OutcomeUnknown(
                f"{name}: the message was written, but too late to be sure that it will be delivered; the store "
                "answers more slowly than half the sweep duration"
            )
        return at or Unavailable(f"{name}: every slot was given up before the message was written: try again")


def _chunks(envelopes: Sequence[Envelope]) -> Iterator[slice]:
    begin, size = 0, 0
    for place, envelope in enumerate(envelopes):
        more = len(envelope.data) if isinstance(envelope.data, _TEXT_OR_BYTES) else LARGE
        size += more
        if place > begin and (place - begin == CHUNK or size > CHUNK_BYTES):
            yield slice(begin, place)
            begin, size = place, more
    if begin < len(envelopes):
        yield slice(begin, len(envelopes))
