"""The blocks of batches: which messages are done, by their ordinals in the batch (docs/protocols P18).

A message has its place in a batch in the bin `batch`, so whoever acknowledges it finds the block without a read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from ....errors import LatchworkError, NotFound, Refused, Unavailable
from ....inputs import is_int
from ....store import Compute, Exists, Key, MapPut, MapRemove, Param, RecordStore, Update, exists
from ....store.model.expr import Bound, Const, Expr, If, MapSize, all_of
from ....store.model.ops import Op
from ....store.port import MAX_TTL
from ...rows import settle
from ..envelope import Envelope

BLOCK = 500
"""Ordinals in one record."""
DONE, GONE, OUT, VOUCHED = "done", "gone", "out", "kept"
"""Acknowledged; discarded or moved elsewhere; not published; published though its first publisher did not say so."""
STEP = 100
"""Blocks that are read and written at once where ordinals are taken out."""
ROUNDS = 20
"""How often ordinals are taken out again of a block that others write to meanwhile."""


def size(bin: str) -> Expr:
    """The entries of a map bin, 0 where it is not there."""
    return If(exists(bin), MapSize(bin), Const(0))


_SIZES = tuple(Compute(size(bin)) for bin in (DONE, GONE, OUT))
_GROWING = (DONE, GONE, VOUCHED)
_AS_READ = all_of(*(size(bin).eq(Param(bin)) for bin in _GROWING))


class Place(NamedTuple):
    """The place of a message in a batch.

    batch: names its blocks, `{queue}/{name}/{tag}`.  life: seconds that a block lives from its last change.
    """

    batch: str
    life: int
    ordinal: int

    @property
    def text(self) -> str:
        """As the message has it."""
        return f"{self.batch}/{self.life}/{self.ordinal}"


def batch_id(queue: str, name: str, tag: str) -> str:
    """What names the blocks of a batch."""
    return f"{quote(queue, safe='')}/{quote(name, safe='')}/{tag}"


def place_of(envelope: Envelope) -> Place | None:
    """The place that a message has; None where it has none, or where that is damaged."""
    return None if envelope.batch is None else place_of_text(envelope.batch)


def place_of_text(text: str) -> Place | None:
    """The place that a message has in its bin; None where that is damaged."""
    batch, *numbers = text.rsplit("/", 2)
    if len(numbers) != 2 or not all(one.isascii() and one.isdigit() and len(one) < 12 for one in numbers):
        return None
    return Place(batch, min(max(int(numbers[0]), 1), MAX_TTL), int(numbers[1]))


class Counts(NamedTuple):
    """Ordinals of a batch that are acknowledged, discarded, and not published."""

    done: int = 0
    gone: int = 0
    out: int = 0

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def settled(self) -> int:
        """All that nobody waits for any more."""
        return sum(self)


class Blocks:
    """The blocks of a client's batches. Safe to share between threads."""

    def __init__(self, store: RecordStore, client_id: str) -> None:
        self.store, self._set = store, f"{client_id}_batch_set"

    def key(self, batch: str, number: int) -> Key:
        """Where a block is."""
        return Key(self._set, f"M/{batch}/{number}")

    def mark(self, places: Sequence[Place]) -> list[LatchworkError | None]:
        """Note that these messages are done; what kept each from it. One call; a repeat is harmless."""
        return self._put(places, DONE, GONE, OUT)

    def vouch(self, places: Sequence[Place]) -> list[LatchworkError | None]:
        """Note that these are published, whatever becomes of their first publisher. One call; a repeat is harmless."""
        return self._put(places, VOUCHED, OUT)

    def _put(self, places: Sequence[Place], bin: str, *others: str) -> list[LatchworkError | None]:
        parts = _by_block(places)
        updates = [
            Update(self.key(batch, number), _moving(ordinals, bin, *others), exists=Exists.ANY, ttl=life)
            for (batch, life, number), ordinals in parts.items()
        ]
        rows = dict(zip(parts, settle(self.store, updates), strict=True)) if updates else {}
        outcomes = [rows[_block(place)] for place in places]
        return [outcome if isinstance(outcome, LatchworkError) else None for outcome in outcomes]

    def take_out(self, places: Sequence[Place], bin: str = OUT) -> None:
        """Wait for these no more, but for those that are done, or vouched for. Two calls, more where others write.

        bin: `OUT`, or `GONE`, which counts also where a publisher has vouched for it. Raises the store's errors.
        """
        parts = list(_by_block(places).items())
        for begin in range(0, len(parts), STEP):
            self._take_out(dict(parts[begin : begin + STEP]), bin)

    def _take_out(self, left: dict[tuple[str, int, int], list[int]], bin: str) -> None:
        for _ in range(ROUNDS):
            if not left:
                return
            keys = [self.key(batch, number) for batch, _, number in left]
            records = self.store.get_many(keys, *_GROWING, OUT)
            updates = {
                block: self._taking(key, block[1], ordinals, bin, record.bins if record else {})
                for (block, ordinals), key, record in zip(left.items(), keys, records, strict=True)
            }
            updates = {block: update for block, update in updates.items() if update.ops}
            rows = dict(zip(updates, settle(self.store, list(updates.values())) if updates else (), strict=True))
            for row in rows.values():
                if isinstance(row, LatchworkError) and not isinstance(row, Refused):
                    raise row
            left = {block: left[block] for block, row in rows.items() if isinstance(row, Refused)}
        if left:
            raise Unavailable(f"batch {next(iter(left))[0]}: others wrote to its blocks all the time; try again")

    def _taking(self, key: Key, life: int, ordinals: Sequence[int], bin: str, bins: Mapping[str, Any]) -> Update:
        """What takes these out that are neither done nor gone, nor vouched for."""
        stay = (DONE, GONE) if bin == GONE else (*_GROWING, OUT)
        there: set[Any] = {one for name in stay for one in (bins.get(name) or ())}
        chosen = [one for one in ordinals if one not in there]
        ops = _moving(chosen, bin, *(() if bin == OUT else (OUT,))) if chosen else ()
        sizes = {name: len(bins.get(name) or ()) for name in _GROWING}
        return Update(key, ops, Bound(_AS_READ, sizes), exists=Exists.ANY, or_absent=True, ttl=life)

    def counts(self, batch: str, numbers: Sequence[int]) -> list[Counts]:
        """The counts of these blocks. One call for each 1,000. Raises the store's errors."""
        found: list[Counts] = []
        for begin in range(0, len(numbers), 1_000):
            keys = [self.key(batch, number) for number in numbers[begin : begin + 1_000]]
            for row in settle(self.store, [Update(key, _SIZES) for key in keys]):
                if isinstance(row, LatchworkError) and not isinstance(row, NotFound):
                    raise row
                found.append(Counts() if isinstance(row, NotFound) else _checked(row))
        return found


def _checked(row: Sequence[Any]) -> Counts:
    return Counts(*(value if is_int(value) else 0 for value in row))


def _moving(ordinals: Sequence[int], bin: str, *others: str) -> tuple[Op, ...]:
    """What puts ordinals into one map, and takes them out of others."""
    put = tuple(MapPut(bin, one, 1) for one in ordinals)
    return (*put, *(MapRemove(other, tuple(ordinals)) for other in others))


def _block(place: Place) -> tuple[str, int, int]:
    return place.batch, place.life, place.ordinal // BLOCK


def _by_block(places: Iterable[Place]) -> dict[tuple[str, int, int], list[int]]:
    """The ordinals within each block, each once."""
    parts: dict[tuple[str, int, int], dict[int, None]] = defaultdict(dict)
    for place in places:
        parts[_block(place)][place.ordinal % BLOCK] = None
    return {block: list(ordinals) for block, ordinals in parts.items()}
