"""Slots that were claimed, or perhaps, and not read yet: the message is on its way, or the store was away (P5)."""

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


class Doubt(Struct, frozen=True, eq=False):
    """A claim whose outcome is unknown: the token to go on with, and until when that is worth while."""

    token: bytes
    until: float


class Aside:
    """The slots that a process has set aside, to be tried again. Safe to share between threads."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """Nothing is aside: what is belongs to one process, or two would have a message under one delivery id."""
        self._entries: list[Claimed] = []
        self._doubts: dict[int, Doubt] = {}
        self._lock = self._seams.lock()

    @property
    def shards(self) -> set[int]:
        """Where there are any, or a claim is in doubt."""
        return {entry.slot.shard for entry in self._entries} | self._doubts.keys()

    def any(self, shards: Collection[int] | None) -> bool:
        """Whether there are any in these shards, or a claim is in doubt."""
        return bool(self.doubted(shards)) or self.slots(shards)

    def slots(self, shards: Collection[int] | None) -> bool:
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

    def drop(self, shard: int) -> None:
        """Forget what is aside of a shard, and its claim in doubt: it is somebody else's."""
        with self._lock:
            self._entries = [entry for entry in self._entries if entry.slot.shard != shard]
            self._doubts.pop(shard, None)

    # ---- claims in doubt

    def doubted(self, shards: Collection[int] | None) -> list[int]:
        """Return which of these shards have a claim in doubt."""
        return [shard for shard in self._doubts if shards is None or shard in shards]

    def take_doubt(self, shard: int) -> Doubt | None:
        """The claim of the shard that is in doubt, for one caller to go on with."""
        with self._lock:
            return self._doubts.pop(shard, None)

    def put_doubt(self, shard: int, doubt: Doubt) -> None:
        """Keep a claim that is to be gone on with before any other of its shard."""
        with self._lock:
            self._doubts[shard] = doubt
