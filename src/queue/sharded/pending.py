"""Slots that were claimed and could not be read yet: their messages are on their way, or the store was (P5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from ...forks import renew_in_child
from ...seams import Seams
from .shards import Slot


class Claimed(Struct, frozen=True):
    """A claimed slot, the one delivery id that it is ever stamped with, and when its grace ends."""

    slot: Slot
    me: str
    until: float

    def among(self, shards: Collection[int] | None) -> bool:
        """Whether it is in one of these shards; None = all."""
        return shards is None or self.slot.shard in shards


class Aside:
    """The slots that a process has set aside, to be tried again. Safe to share between threads."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """Nothing is aside: what is belongs to one process, or two would have a message under one delivery id."""
        self._entries: list[Claimed] = []
        self._lock = self._seams.lock()

    @property
    def shards(self) -> set[int]:
        """Where there are any."""
        return {entry.slot.shard for entry in self._entries}

    def any(self, shards: Collection[int] | None) -> bool:
        """Whether there are any in these shards."""
        return any(entry.among(shards) for entry in self._entries)

    def add(self, entries: Iterable[Claimed]) -> None:
        """Set these aside."""
        with self._lock:
            self._entries += entries

    def take(self, most: int, shards: Collection[int] | None) -> list[Claimed]:
        """Up to so many of these shards, each shard's in order; they are aside no more."""
        if not self._entries:
            return []
        with self._lock:
            among = sorted((entry for entry in self._entries if entry.among(shards)), key=lambda entry: entry.slot)
            found = among[:most]
            chosen = set(found)
            self._entries = [entry for entry in self._entries if entry not in chosen]
        return found
