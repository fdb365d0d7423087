"""The blocks of batches: which messages are done, by their ordinals in the batch (docs/protocols P18).

A message has its place in a batch in the bin `batch`, so the process that acknowledges it finds the block without a
read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from msgspec import Struct

from ....errors import LatchworkError, NotFound, Refused, Unavailable
from ....inputs import is_int
from ....store import Compute, Exists, Key, MapPut, MapRemove, Param, Put, Read, RecordStore, Update, exists
from ....store.decode import decoded
from ....store.model.expr import Bound, Const, Expr, If, MapSize, all_of
from ....store.model.ops import Op
from ....store.port import MAX_TTL
from ....store.rows import chunked
from ...rows import read_each
from ..envelope import Envelope

BLOCK = 500
"""Ordinals in one record."""
DONE, GONE, OUT, VOUCHED, LAST = "done", "gone", "out", "kept", "last"
"""Acknowledged; discarded or moved elsewhere; not published; published, though its first publisher did not confirm it.
Of the last block of a closed batch: how many ordinals it has."""
STEP = 100
"""Blocks that are read and written at once when ordinals are taken out."""
ROUNDS = 20
"""How often ordinals are taken out of a block again if others write to it meanwhile."""


def size(bin: str) -> Expr:
    """Return the number of entries of a map bin, 0 if it is absent."""
    return If(exists(bin), MapSize(bin), Const(0))


_SIZES = tuple(Compute(size(bin)) for bin in (DONE, GONE, OUT))
_SETTLED: tuple[Op, ...] = (*_SIZES, Read(LAST))
_GROWING = (DONE, GONE, VOUCHED)
_NOWHERE: Mapping[Any, Any] = MappingProxyType({})
_AS_READ = all_of(*(size(bin).eq(Param(bin)) for bin in _GROWING))


class Block(Struct, frozen=True):
    """The ordinals in the bins of a block."""

    done: dict[int, Any] = {}
    gone: dict[int, Any] = {}
    out: dict[int, Any] = {}
    kept: dict[int, Any] = {}


class BatchPlace(NamedTuple):
    """The place of a message in a batch.

    batch: names its blocks, `{queue}/{name}/{tag}`.
    life: seconds that a block lives from its last change.
    """

    batch: str
    life: int
    ordinal: int

    @property
    def text(self) -> str:
        """The place as the message stores it."""
        return f"{self.batch}/{self.life}/{self.ordinal}"


def batch_id(queue: str, name: str, tag: str) -> str:
    """Return the prefix of the names of a batch's blocks."""
    return f"{quote(queue, safe='')}/{quote(name, safe='')}/{tag}"


def parts_of(batch: str) -> tuple[str, str, str]:
    """Return the queue, the name and the tag of a batch from its id; three empty texts where that is damaged."""
    parts = batch.split("/")
    return (unquote(parts[0]), unquote(parts[1]), parts[2]) if len(parts) == 3 else ("", "", "")


def place_of(envelope: Envelope) -> BatchPlace | None:
    """Return the place that a message has; None if it has none, or a damaged one."""
    return None if envelope.batch is None else place_of_text(envelope.batch)


def place_of_text(text: str) -> BatchPlace | None:
    """Return the place that a message has in its bin; None if that is damaged."""
    batch, *numbers = text.rsplit("/", 2)
    if len(numbers) != 2 or not all(one.isascii() and one.isdigit() and len(one) < 12 for one in numbers):
        return None
    return BatchPlace(batch, min(max(int(numbers[0]), 1), MAX_TTL), int(numbers[1]))


class Counts(NamedTuple):
    """Ordinals of a batch that are acknowledged, discarded, and not published."""

    done: int = 0
    gone: int = 0
    out: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sum of both."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def settled(self) -> int:
        """The number of messages for which the batch does not wait any more."""
        return sum(self)


class Marked(NamedTuple):
    """The outcome of marks. failures: for each mark its error, or None.  whole: batches of which a block is settled."""

    failures: list[LatchworkError | None]
    whole: set[str]


class Blocks:
    """The blocks of a client's batches. Safe to share between threads."""

    def __init__(self, store: RecordStore, client_id: str) -> None:
        self.store, self._set = store, f"{client_id}_batch_set"

    def key(self, batch: str, number: int) -> Key:
        """Return the key of a block."""
        return Key(self._set, f"M/{batch}/{number}")

    def mark(self, places: Sequence[BatchPlace], at: Mapping[BatchPlace, str] = _NOWHERE) -> Marked:
        """Note that these messages are done. One call; a repeat is harmless.

        at: the slots in which they are acknowledged, where their results are kept.
        """
        return self._put(places, DONE, GONE, OUT, at=at)

    def close(self, place: BatchPlace) -> bool:
        """Note the first ordinal that no message has; return whether its block is settled. One call, or none.

        From then on `mark` finds out when the last block is settled, as it does for all others. Raises the store's
        errors.
        """
        n = place.ordinal % BLOCK
        if not n:
            return True
        key = self.key(place.batch, place.ordinal // BLOCK)
        return _is_whole(self.store.repeat(Update(key, (Put(LAST, n), *_SETTLED), exists=Exists.ANY, ttl=place.life)))

    def vouch(self, places: Sequence[BatchPlace]) -> list[LatchworkError | None]:
        """Note that these are published, even if their first publisher dies. One call; a repeat is harmless."""
        return self._put(places, VOUCHED, OUT).failures

    def _put(
        self, places: Sequence[BatchPlace], bin: str, *others: str, at: Mapping[BatchPlace, str] = _NOWHERE
    ) -> Marked:
        parts = _by_block(places)
        slots: dict[tuple[str, int, int], dict[int, str]] = defaultdict(dict)
        for place, slot in at.items():
            slots[_block(place)][place.ordinal % BLOCK] = slot
        updates = [
            Update(
                self.key(block[0], block[2]), (*_moving(ordinals, bin, *others, values=slots[block]), *_SETTLED),
                exists=Exists.ANY, ttl=block[1],
            )
            for block, ordinals in parts.items()
        ]  # fmt: skip
        rows, failures = self.store.repeat_many(updates).sift(parts)
        settled = {block[0] for block, row in rows.items() if _is_whole(row)}
        return Marked([failures.get(_block(place)) for place in places], settled)

    def cancelled(self, batches: Iterable[str]) -> set[str]:
        """Return the ones among these batches, named by their ids, that were cancelled. One call; none for none.

        Raises the store's errors.
        """
        ids = list(dict.fromkeys(batches))
        keys = [Key(self._set, f"B/{batch.rpartition('/')[0]}") for batch in ids]
        records = self.store.get_many(keys, "tag", "cancelled") if keys else []
        return {
            batch
            for batch, record in zip(ids, records, strict=True)
            if record is not None and record.bins.get("cancelled") and batch.endswith(f"/{record.bins.get('tag')}")
        }

    def take_out(self, places: Sequence[BatchPlace], bin: str = OUT) -> None:
        """Stop waiting for these messages, except those that are done, or vouched for. Two calls, more if others write.

        bin: `OUT`, or `GONE`, which counts also if a publisher has vouched for the message.

        Raises the store's errors; the error of a single block once all others are done.
        """
        parts = list(_by_block(places).items())
        failures = [failure for some in chunked(parts, STEP) for failure in self._take_out(dict(some), bin)]
        if failures:
            raise failures[0]

    def _take_out(self, left: dict[tuple[str, int, int], list[int]], bin: str) -> list[LatchworkError]:
        """Take ordinals out of each of these blocks; return the errors of the blocks for which that failed."""
        failures: list[LatchworkError] = []
        for _ in range(ROUNDS):
            if not left:
                return failures
            keys = [self.key(batch, number) for batch, _, number in left]
            records = read_each(self.store, keys, *_GROWING, OUT)
            updates: dict[tuple[str, int, int], Update] = {}
            for (block, ordinals), key, record in zip(left.items(), keys, records, strict=True):
                if isinstance(record, LatchworkError):
                    failures.append(record)
                    continue
                try:
                    stored = decoded(Block, key, record.bins if record else {})
                except LatchworkError as damage:
                    failures.append(damage)
                    continue
                # Those that are neither done nor gone, nor vouched for.
                stay = (DONE, GONE) if bin == GONE else (*_GROWING, OUT)
                there = {one for name in stay for one in getattr(stored, name)}
                if chosen := [one for one in ordinals if one not in there]:
                    ops = _moving(chosen, bin, *(() if bin == OUT else (OUT,)))
                    as_read = Bound(_AS_READ, {name: len(getattr(stored, name)) for name in _GROWING})
                    updates[block] = Update(key, ops, as_read, exists=Exists.ANY, or_absent=True, ttl=block[1])
            _, failed = self.store.repeat_many(list(updates.values())).sift(updates)
            failures += [failure for failure in failed.values() if not isinstance(failure, Refused)]
            left = {block: left[block] for block, failure in failed.items() if isinstance(failure, Refused)}
        if left:
            busy = f"batch {next(iter(left))[0]}: others wrote to its blocks all the time; try again"
            failures.append(Unavailable(busy))
        return failures

    def counts(self, batch: str, numbers: Sequence[int]) -> list[Counts]:
        """Return the counts of these blocks. One call for each 1,000. Raises the store's errors."""
        found: list[Counts] = []
        for some in chunked(numbers, 1_000):
            rows = self.store.repeat_many([Update(self.key(batch, number), _SIZES) for number in some])
            found += [_checked(row) for row in rows.raise_unless(NotFound).values(())]
        return found


def _checked(row: Sequence[Any]) -> Counts:
    return Counts(*(value if is_int(value) else 0 for value in row))


def _is_whole(row: Sequence[Any]) -> bool:
    """Whether no message of a block is waited for, by these values of it."""
    *sizes, last = row
    return _checked(sizes).settled >= (last if is_int(last) and 0 < last < BLOCK else BLOCK)


def _moving(ordinals: Sequence[int], bin: str, *others: str, values: Mapping[int, Any] = _NOWHERE) -> tuple[Op, ...]:
    """Return the operations that put ordinals into one map, and take them out of others."""
    put = tuple(MapPut(bin, one, values.get(one, 1)) for one in ordinals)
    return (*put, *(MapRemove(other, tuple(ordinals)) for other in others))


def _block(place: BatchPlace) -> tuple[str, int, int]:
    return place.batch, place.life, place.ordinal // BLOCK


def _by_block(places: Iterable[BatchPlace]) -> dict[tuple[str, int, int], list[int]]:
    """Return the ordinals within each block, each once."""
    parts: dict[tuple[str, int, int], dict[int, None]] = defaultdict(dict)
    for place in places:
        parts[_block(place)][place.ordinal % BLOCK] = None
    return {block: list(ordinals) for block, ordinals in parts.items()}
