"""Which groups a slot is for: those that had joined its shard before it was reserved (docs/protocols P17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ....inputs import is_int
from ....store import Key, Put, RecordStore
from ..envelope import Envelope
from ..hands import ACKED, GROUPS, naming


class _Joined(NamedTuple):
    """The groups of a shard, each with LOAD when it joined, as they were when LOAD was `loaded`."""

    loaded: int
    groups: Mapping[str, int]


class Members:
    """What a process has seen of the groups of each shard of a queue.

    pointers_key: where a shard's pointers are.  load: the bin with LOAD.  Safe between threads: of two that note at
    once the older may stay, which then asks again for what is above it.
    """

    def __init__(self, store: RecordStore, pointers_key: Callable[[int], Key], load: str) -> None:
        self._store, self._pointers_key, self._load = store, pointers_key, load
        self._seen: dict[int, _Joined] = {}

    def note(self, shard: int, loaded: int, groups: Any) -> None:
        """Remember what was read in one step; what was read when LOAD was lower is older. Damaged, it names nobody."""
        known = self._seen.get(shard)
        if known is None or known.loaded <= loaded:
            there = groups if isinstance(groups, Mapping) else {}
            self._seen[shard] = _Joined(loaded, {tag: at for tag, at in there.items() if is_int(at)})

    def forget(self) -> None:
        """Remember nothing: a reservation that was noted has been undone, and LOAD is lower than it said."""
        self._seen.clear()

    def loaded(self, shard: int) -> int:
        """How many slots of a shard are reserved, as far as is known here. No call."""
        known = self._seen.get(shard)
        return known.loaded if known else 0

    def waiting(self, slots: Sequence[tuple[int, int]]) -> list[tuple[str, ...]]:
        """The groups of each slot. No call where this process has reserved it, or one above it."""
        unknown = sorted({s for s, pointer in slots if s not in self._seen or self._seen[s].loaded < pointer})
        records = self._store.get_many([self._pointers_key(shard) for shard in unknown], self._load, GROUPS)
        for shard, record in zip(unknown, records, strict=True):
            bins = record.bins if record else {}
            loaded = bins.get(self._load, 0)
            self.note(shard, loaded if is_int(loaded) else 0, bins.get(GROUPS))
        return [
            tuple(sorted(tag for tag, start in self._seen[s].groups.items() if start < pointer)) for s, pointer in slots
        ]


def names(tags: tuple[str, ...], envelope: Envelope, *, moved: bool) -> tuple[Put, ...]:
    """What names the groups in a new message: of one that was handed out before they have the original."""
    return (naming(ACKED if moved or envelope.attempts else GROUPS, tags),) if tags else ()
