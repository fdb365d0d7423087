"""Slots that were claimed, or may have been, and were not read yet: the message is not written yet, or the store was
unavailable (P5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from ...forks import reset_in_child
from ...seams import Seams
from .slots import Slot


class ClaimedSlot(Struct, frozen=True):
    """A claimed slot, the one delivery id that it is ever stamped with, and when its grace ends."""

    slot: Slot
    me: str
    until: float

    def among(self, shards: Collection[int] | None) -> bool:
        """Whether it is in one of these shards; None = all."""
        return shards is None or self.slot.shard in shards


class Doubt(Struct, frozen=True, eq=False):
    """A claim whose outcome is unknown: its token, and until when it is worth repeating."""

    token: bytes
    until: float


class PendingSlots:
    """The slots that a process keeps to try them again. Safe to share between threads.

    entries: the slots.
    doubts: the claims in doubt, by shard. Who repeats one removes it.
    """

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Start empty: the slots belong to one process, else two would have a message under one delivery id."""
        self.entries: list[ClaimedSlot] = []
        self.doubts: dict[int, Doubt] = {}
        self._lock = self._seams.lock()

    @property
    def shards(self) -> set[int]:
        """The shards that have such slots, or a claim in doubt."""
        return {entry.slot.shard for entry in self.entries} | self.doubts.keys()

    def any(self, shards: Collection[int] | None) -> bool:
        """Whether there are any in these shards, or a claim is in doubt."""
        return bool(self.doubted(shards)) or self.slots(shards)

    def slots(self, shards: Collection[int] | None) -> bool:
        """Whether there are any in these shards."""
        return any(entry.among(shards) for entry in self.entries)

    def add(self, entries: Iterable[ClaimedSlot]) -> None:
        """Keep these slots."""
        with self._lock:
            self.entries += entries

    def take(self, most: int, shards: Collection[int] | None) -> list[ClaimedSlot]:
        """Remove and return up to `most` slots of these shards, each shard's in order."""
        with self._lock:
            among = sorted((entry for entry in self.entries if entry.among(shards)), key=lambda entry: entry.slot)
            found = among[:most]
            chosen = set(found)
            self.entries = list(filter(lambda entry: entry not in chosen, self.entries))
        return found

    def take_late(self, before: float) -> list[ClaimedSlot]:
        """Remove and return the slots whose grace had ended by then (monotonic)."""
        with self._lock:
            late = list(filter(lambda entry: entry.until <= before, self.entries))
            if late:
                self.entries = list(filter(lambda entry: entry.until > before, self.entries))
        return late

    def drop(self, shard: int) -> None:
        """Forget the slots of a shard, and its claim in doubt: the shard is another process's now."""
        with self._lock:
            self.entries = list(filter(lambda entry: entry.slot.shard != shard, self.entries))
            self.doubts.pop(shard, None)

    # ---- claims in doubt

    def doubted(self, shards: Collection[int] | None) -> list[int]:
        """Return which of these shards have a claim in doubt."""
        return [shard for shard in list(self.doubts) if shards is None or shard in shards]

    def put_doubt(self, shard: int, doubt: Doubt) -> None:
        """Keep a claim in doubt, to be repeated before any other claim of its shard."""
        with self._lock:
            self.doubts[shard] = doubt
