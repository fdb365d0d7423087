"""The groups that a slot is for: the ones that had joined its shard before it was reserved (docs/protocols P17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import LatchworkError
from ...inputs import is_int
from ...store import Key, Put, RecordStore
from ...store.rows import Rows
from ..rows import read_each
from .envelope import Envelope
from .stamps import ACKED, GROUPS, naming

_NO_GROUPS: Mapping[str, int] = {}


class _Joined(NamedTuple):
    """The groups of a shard, each with LOAD when it joined, as they were when LOAD was `loaded`."""

    loaded: int
    groups: Mapping[str, int]


class Members:
    """The knowledge of a process about the groups of each shard of a queue. Safe to share between threads: if two note
    at once, the older note may stay; then the next lookup above it reads again.

    pointers_key: the key of a shard's pointers.
    load: the bin with LOAD.
    """

    def __init__(self, store: RecordStore, pointers_key: Callable[[int], Key], load: str) -> None:
        self._store, self._pointers_key, self._load = store, pointers_key, load
        self._seen: dict[int, _Joined] = {}

    def note(self, shard: int, loaded: int, groups: Any) -> None:
        """Remember what was read in one step. What was read when LOAD was lower is older. Damaged bins name
        no group.
        """
        known = self._seen.get(shard)
        if known is None or known.loaded <= loaded:
            there = groups if groups is not None and isinstance(groups, Mapping) else _NO_GROUPS
            joined = {tag: at for tag, at in there.items() if is_int(at) and type(tag) is str} if there else _NO_GROUPS
            self._seen[shard] = _Joined(loaded, joined)

    def forget(self) -> None:
        """Forget everything: a noted reservation was undone, and LOAD is lower than noted."""
        self._seen.clear()

    def loaded(self, shard: int) -> int:
        """Return how many slots of a shard are reserved, as far as this process knows. No call."""
        known = self._seen.get(shard)
        return known.loaded if known else 0

    def waiting(self, slots: Sequence[tuple[int, int]]) -> Rows[tuple[str, ...]]:
        """Return the groups of each slot, or why the pointers of its shard cannot be read. No call where this process
        has reserved it, or one above it.
        """
        unknown = sorted({s for s, pointer in slots if s not in self._seen or self._seen[s].loaded < pointer})
        damaged = self._look(unknown) if unknown else {}
        found: Rows[tuple[str, ...]] = Rows()
        for shard, pointer in slots:
            if shard in damaged:
                found.append(damaged[shard])
                continue
            groups = self._seen[shard].groups
            found.append(tuple(sorted([tag for tag, start in groups.items() if start < pointer])) if groups else ())
        return found

    def _look(self, shards: Sequence[int]) -> dict[int, LatchworkError]:
        """Note the groups of these shards; return the errors of the ones that cannot be read. One call."""
        keys = [self._pointers_key(shard) for shard in shards]
        records, damaged = read_each(self._store, keys, self._load, GROUPS).sift(shards)
        for shard, record in records.items():
            bins = record.bins if record else {}
            loaded = bins.get(self._load, 0)
            self.note(shard, loaded if is_int(loaded) else 0, bins.get(GROUPS))
        return damaged


def names(tags: tuple[str, ...], envelope: Envelope, *, moved: bool) -> tuple[Put, ...]:
    """Return the operation that names the groups in a new message. A message that was handed out before they joined has
    the original for them.
    """
    return (naming(ACKED if moved or envelope.attempts else GROUPS, tags),) if tags else ()
