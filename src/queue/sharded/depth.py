"""The depth of a queue, by its pointers, and what of it has expired unread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from ...errors import LatchworkError
from ...store import Record
from ..rows import read_each
from .delayed.stored import Waiting
from .pointers import ShardPointers
from .shards import KnownEmpty, Shards
from .slots import Slot

GRACE = 0.25
"""Seconds that a waiting slot may be empty because its publisher is still writing."""
CHUNK = 1_000
LOOKED = 100
"""Slots that wait in a sideline, or among the parked messages, up to which each is looked at: messages are removed from
there one by one.
"""
OF_EVERY_MESSAGE = ("attempts", "enqueuedAt")
"""Small bins of a message, of which a tombstone has none: it may keep the id of its message."""
PARTS, MAIN = 3, 0
"""How many parts a queue has, and the number of the queue itself among them."""
MOST_READ = 50_000
"""Slots that one call reads: those of 500 queues, all of whose shards have messages."""

OF_HEADS = (*OF_EVERY_MESSAGE, "msgId", "reason", "lastError")
"""The bins of a message that waits that are read: the last three are for people."""

_NONE = KnownEmpty(0, inf)

_Place = tuple[int, int]
"""The number of a part of a queue, and a shard."""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The depth of a queue.

    ready: messages that wait to be received. Slots among them that hold no message count too, as where a publisher
        died; the oldest ones in each shard do not.
    sideline, parked: as `ready`, for messages that failed and for parked ones. Of up to 100 slots each is looked at; of
        more the number is an upper bound, as single messages may have been discarded or redriven.
    expired: slots, received or the oldest that wait, that held no message: it had expired unread, was discarded,
        redriven or moved alone, or its publisher never wrote it there, or writes it late: such a message is ready
        within half a sweep duration. And delayed messages that expired before anybody delivered them, roughly. For a
        group also the queue's own messages that failed, were brought back for the queue alone, and were acknowledged
        before the group came to their new slots.
    loaded, fired: slots reserved and received since the queue's name was first used. A message has another one for each
        retry, each redrive, and each time that a sweep brought it back.
    delayed: messages published and not due yet. Only roughly, as a lost reply may count one twice, and one stays
        counted that expired where no upkeep ran for a day longer than it lives.
    retrying: the ones among `delayed` that have failed and are tried again. Also only roughly.
    damaged: shards of the three whose pointers are damaged, which count as empty; and one more if the record with the
        number of delayed messages cannot be read. See `latchwork doctor`.
    """

    ready: int
    sideline: int
    parked: int
    expired: int
    loaded: int
    fired: int
    delayed: int = 0
    damaged: int = 0
    retrying: int = 0


def depth_of(main: list[ShardPointers], sideline: list[ShardPointers], parked: list[ShardPointers]) -> QueueDepth:
    """Return the depth that these pointers show."""
    return QueueDepth(
        _waiting(main),
        _waiting(sideline),
        _waiting(parked),
        sum(state.expired + state.gone for state in main + sideline) + sum(state.gone for state in parked),
        sum(state.loaded for state in main),
        sum(state.fired for state in main),
        damaged=sum(state.damage is not None for state in main + sideline + parked),
    )


def with_delayed(depth: QueueDepth, waiting: Waiting) -> QueueDepth:
    """Return the depth with what is delayed."""
    return replace(
        depth, expired=depth.expired + waiting.expired, delayed=waiting.messages, retrying=waiting.retrying,
        damaged=depth.damaged + waiting.is_damaged,
    )  # fmt: skip


def looked_through(parts: Sequence[tuple[Shards, list[ShardPointers]]]) -> list[list[ShardPointers]]:
    """Return the pointers with `head`, the first message that waits in each shard; with `gone`: how many of the oldest
    waiting slots are empty; and with `holes`. parts: of each queue in turn the queue, its sideline, its parked
    messages. One call per 50,000 messages that are looked at. Where slots are found empty for the first time, and once
    more half a sweep duration later: a wait of 0.25 s, and one call for each such shard, or some 20 more if it has more
    than 1,000.

    An empty slot holds no message any more if its shard's FIRE, read after it, is still below it: nobody has claimed
    it.
    """
    # 1. Look at the oldest waiting slot of each shard, at those behind it, and at what was given back.
    queues = [queue for queue, _ in parts]
    again = _to_be_seen_again(parts)
    spans = _waiting_slots(parts)
    firsts = {place: first for place, (first, last) in spans.items() if first <= last}
    gone = {place: first - 1 for place, (first, _) in spans.items() if queues[place[0]].expires_in_order(place[1])}
    back = {
        (n, state.shard): min(state.returned)
        for n, (_, states) in enumerate(parts)
        for state in states
        if state.returned
    }
    behind = _behind(spans)
    rows = iter(_read(queues, [*firsts.items(), *back.items(), *behind]))
    heads = dict(zip(firsts, rows, strict=False))
    given_back = dict(zip(back, rows, strict=False))
    holes: dict[_Place, list[int]] = {}
    for (place, pointer), row in zip(behind, rows, strict=True):
        if _is_empty(row):
            holes.setdefault(place, []).append(pointer)
    # 2. Where that slot is empty, find the first message behind it. Only what nobody has claimed since counts.
    passed = _pass_empty(queues, spans, heads, again, gone)
    parts = [(queue, queue.states() if n in passed else states) for n, (queue, states) in enumerate(parts)]
    # 3. What was given back comes first, and is older.
    messages = {
        place: row
        for some in (heads, given_back)
        for place, row in some.items()
        if isinstance(row, Record) and not _is_empty(row)
    }
    return [
        [
            _looked(
                state, messages.get((n, state.shard)), gone.get((n, state.shard), 0), holes.get((n, state.shard), ())
            )
            for state in states
        ]
        for n, (_, states) in enumerate(parts)
    ]


def _to_be_seen_again(parts: Sequence[tuple[Shards, list[ShardPointers]]]) -> dict[_Place, int]:
    """Forget which slots were found empty, where the store has come back empty since, and where they are to be looked
    at once more; return the last slot of the latter.
    """
    again: dict[_Place, int] = {}
    for n, (queue, states) in enumerate(parts):
        now = queue.store.seams.monotonic()
        for state in states:
            for known in (queue.known_gone, queue.known_empty):
                one = known.get(state.shard, _NONE)
                if one.last > state.loaded:
                    known.pop(state.shard, None)  # or another thread has done it
                elif one.again <= now:
                    known.pop(state.shard, None)
                    again[n, state.shard] = one.last
    return again


def _waiting_slots(parts: Sequence[tuple[Shards, list[ShardPointers]]]) -> dict[_Place, tuple[int, int]]:
    """Return the first and the last slot of each shard that wait, without the ones that are known to be empty."""
    return {
        (n, state.shard): (
            max(
                state.fired,
                queue.known_gone.get(state.shard, _NONE).last,
                queue.known_empty.get(state.shard, _NONE).last,
            )
            + 1,
            state.loaded,
        )
        for n, (queue, states) in enumerate(parts)
        for state in states
        if state.fired < state.loaded
    }


def _pass_empty(
    queues: Sequence[Shards],
    spans: Mapping[_Place, tuple[int, int]],
    heads: dict[_Place, Record | LatchworkError | None],
    again: Mapping[_Place, int],
    gone: dict[_Place, int],
) -> set[int]:
    """Put the first message behind empty slots in their place among the heads, and note how many are empty; return the
    parts whose pointers are to be read again.

    An empty slot is looked at twice, as its publisher may be about to write it; and once more after half a sweep
    duration, the latest that a create may come which is acknowledged (P5). Of the slots that a group shares with its
    queue it is not known whether they held a message for it.

    again: up to which slot each shard was found empty before, and is looked at once more now.
    gone: the last of the empty slots of each shard in which that is known.
    """
    empty = set(_empty(heads))
    if not empty:
        return set()
    queues[0].store.seams.sleep(GRACE)
    heads |= zip(empty, _read(queues, [(place, spans[place][0]) for place in empty]), strict=True)
    for n, shard in [place for place in _empty(heads) if place in empty]:
        last = _last_empty(queues[n], shard, *spans[n, shard])
        notes = queues[n].known_gone if (n, shard) in gone else queues[n].known_empty
        when = inf
        if last > again.get((n, shard), 0):  # the earlier ones among them are not put off
            when, before = queues[n].store.seams.monotonic() + queues[n].sweep / 2, notes.get(shard, _NONE)
            when = min(when, before.again)
        notes[shard] = KnownEmpty(last, when)
        if (n, shard) in gone:
            gone[n, shard] = last
        if last < spans[n, shard][1]:
            heads |= zip([(n, shard)], _read(queues, [((n, shard), last + 1)]), strict=True)
        else:
            del heads[n, shard]
    return {n for n, _ in empty}


def _looked(state: ShardPointers, head: Record | None, gone: int, behind: Sequence[int]) -> ShardPointers:
    """Return the pointers with what was found. gone: the last of the oldest slots that are empty. behind: the empty
    slots behind the first message.
    """
    if head is None and not behind and gone <= state.fired:
        return state
    empty = min(max(0, gone - state.fired), state.loaded - state.fired)
    return state._replace(gone=empty, head=head, holes=sum(pointer > max(state.fired, gone) for pointer in behind))


def _behind(spans: Mapping[_Place, tuple[int, int]]) -> list[tuple[_Place, int]]:
    """Return the slots behind the first one of each shard, of the parts that single messages are removed from, unless
    there are too many.
    """
    by_part: dict[int, dict[_Place, tuple[int, int]]] = {}
    for place, span in spans.items():
        if place[0] % PARTS != MAIN:
            by_part.setdefault(place[0], {})[place] = span
    found: list[tuple[_Place, int]] = []
    for some in by_part.values():
        if sum(last - first + 1 for first, last in some.values()) <= LOOKED:
            found += [(place, n) for place, (first, last) in some.items() for n in range(first + 1, last + 1)]
    return found


def _last_empty(queue: Shards, shard: int, first: int, last: int) -> int:
    """Return the last of the empty slots that begin with `first`.

    Of a thousand slots each is looked at. If all are empty, whole days have expired, and messages expire in the order
    of their slots: the first message behind them is found by halves.
    """
    near = range(first, min(last, first + CHUNK - 1) + 1)
    rows = read_each(queue.store, [queue.key(Slot(shard, pointer)) for pointer in near], *OF_EVERY_MESSAGE)
    for pointer, row in zip(near, rows, strict=True):
        if not _is_empty(row):
            return pointer - 1
    low, high = near[-1], last
    while low < high:
        middle = (low + high + 1) // 2
        (row,) = read_each(queue.store, [queue.key(Slot(shard, middle))], *OF_EVERY_MESSAGE)
        low, high = (middle, high) if _is_empty(row) else (low, middle - 1)
    return low


def _read(queues: Sequence[Shards], pointers: Sequence[tuple[_Place, int]]) -> list[Record | LatchworkError | None]:
    """Return what is in these slots: some bins of a message; none of a tombstone. One call per 50,000."""
    keys = [queues[n].key(Slot(shard, pointer)) for (n, shard), pointer in pointers]
    found = list[Record | LatchworkError | None]()
    for begin in range(0, len(keys), MOST_READ):
        found += read_each(queues[0].store, keys[begin : begin + MOST_READ], *OF_HEADS)
    return found


def _empty(rows: Mapping[_Place, Record | LatchworkError | None]) -> list[_Place]:
    return [place for place, row in rows.items() if _is_empty(row)]


def _is_empty(row: Record | LatchworkError | None) -> bool:
    """Whether there is no message: no record, or a tombstone."""
    return row is None or (isinstance(row, Record) and row.bins.keys().isdisjoint(OF_EVERY_MESSAGE))


def _waiting(states: list[ShardPointers]) -> int:
    return sum(state.waiting for state in states)
