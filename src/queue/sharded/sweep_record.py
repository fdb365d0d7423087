"""The notes of sweeps in the record of a queue: read with checks, and repaired if damaged.

No message depends on it: if a sweep pointer is lost, settled slots are looked at again; if a mark is lost, an empty
slot waits for one more sweep duration. So damaged bins are discarded, and the sweep continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import msgspec

from ...store import Key, Put
from ...store.decode import Counter, damaged
from ...store.model.ops import Op
from ...store.once import AHEAD, time_of
from ...typed import converted


class SubqueueKind(str, Enum):
    """The subqueues of a queue that are swept; of a group also its pointers in the queue's own slots."""

    MAIN = "main"
    SIDELINE = "sideline"
    PARKED = "parked"
    SHARED = "shared"


Mark = tuple[Counter, Counter]
"""A pointer that was fired, and when, by the server's clock in ms."""
_BINS = {
    SubqueueKind.MAIN: ("sweepPointers", "sweptCounter", ""),
    SubqueueKind.SIDELINE: ("sidelineSweep", "sidelineSwept", "SIDELINE_"),
    SubqueueKind.PARKED: ("parkedSweep", "parkedSwept", "PARKED_"),
    SubqueueKind.SHARED: ("sharedSweep", "sharedSwept", "SHARED_"),
}
MARKS, EPOCH, MEMORY, LAST = "sweepMarks", "epoch", "ops", "lastSweep"
_LAST_SWEEP = {"success": Counter, "failure": Counter, "error": str}


def pointer_bin(kind: SubqueueKind) -> str:
    """Return the bin with the sweep pointers, by shard."""
    return _BINS[kind][0]


def counter_bin(kind: SubqueueKind) -> str:
    """Return the bin that counts the messages which sweeps have moved."""
    return _BINS[kind][1]


def mark_name(kind: SubqueueKind, shard: int) -> str:
    """Return the name of a shard's mark in the bin `sweepMarks`."""
    return f"{_BINS[kind][2]}{shard}"


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """The sweep pointers by kind and shard, and the marks by name; only what is sound.

    repairs: what the damaged bins of the record have to hold, by name; None = they have to go.
    """

    pointers: Mapping[SubqueueKind, Mapping[str, int]]
    marks: Mapping[str, Mark]
    repairs: Mapping[str, Any]

    @classmethod
    def of(cls, key: Key, bins: Mapping[str, Any], now: int) -> SweepRecord:
        """Read the notes from a queue's record; `now` by the server, in ms.

        Raises `Corrupt` if its epoch is damaged, which guards all that a sweep writes.
        """
        if not _is(Counter, bins.get(EPOCH, 0)):
            raise damaged(key, f"bin {EPOCH!r} is no epoch, so no sweep can be above it: remove that bin")
        pointers = {kind: _entries(bins.get(pointer_bin(kind)), Counter) for kind in SubqueueKind}
        marks = _entries(bins.get(MARKS), Mark)
        should: dict[str, Any] = {pointer_bin(kind): found for kind, found in pointers.items()}
        should[MARKS] = marks
        for counter in map(counter_bin, SubqueueKind):
            should[counter] = bins[counter] if type(bins.get(counter)) is int else 0
        last = bins.get(LAST)
        entries = last.items() if isinstance(last, dict) else ()
        should[LAST] = {name: value for name, value in entries if _is(_LAST_SWEEP.get(name, Any), value)}
        should[MEMORY] = _tokens(bins.get(MEMORY), now)
        repairs = {bin: value for bin, value in should.items() if bin in bins and bins[bin] != value}
        return cls(pointers, {name: (fired, since) for name, (fired, since) in marks.items()}, repairs)

    def swept(self, kind: SubqueueKind, shard: int) -> int:
        """Return the sweep pointer of a shard."""
        return self.pointers[kind].get(str(shard), 0)

    def without(self, places: Iterable[tuple[SubqueueKind, int]]) -> SweepRecord:
        """Return a copy without the sweep pointers of these shards, which cannot be right; the record is to follow."""
        pointers, repairs = {kind: dict(found) for kind, found in self.pointers.items()}, dict(self.repairs)
        for kind, shard in places:
            del pointers[kind][str(shard)]
            repairs[pointer_bin(kind)] = pointers[kind]
        return replace(self, pointers=pointers, repairs=repairs)

    @property
    def ops(self) -> tuple[Op, ...]:
        """The operations that repair the record."""
        return tuple(Put(bin, value) for bin, value in self.repairs.items())


def _entries(found: Any, kind: Any) -> dict[str, Any]:
    """Return the entries of a map that are as they should be."""
    entries = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in entries if type(name) is str and _is(kind, value)}


def _tokens(found: Any, now: int) -> dict[bytes, Any] | None:
    """Return the tokens of updates (P1) that can be valid. A token of no update is left out: it would
    displace others.
    """
    if not isinstance(found, dict):
        return None
    latest = now * 1000 + AHEAD
    return {token: result for token, result in found.items() if type(token) is bytes and time_of(token) <= latest}


def _is(kind: Any, value: Any) -> bool:
    try:
        converted(value, kind)
    except msgspec.ValidationError:
        return False
    return True
