"""The stored form of a ledger: chunks that record, for at most 1,000 message ids each, where their message is (P6).

Set `{client}_ledger_set`, key `{queue}/{scope}/{partition}/{n}` (the queue's name percent-encoded). Bins: `slots`, a
map from message id to `shard:pointer`, with a `?` behind it while an attempt examines whether the message there was
read, or `done` once it is known that it was; `changes`, how often a slot was changed; `written`, once every message is
written; `batch`, the place of its one message in a batch (P18); `v`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from msgspec import Meta, Struct

from ....errors import AlreadyExists, LatchworkError, NotFound, Refused
from ....store import Add, Bin, Exists, Key, MapPut, Param, Put, Read, RecordStore, Update, missing
from ....store.decode import Counter, damaged, decoded
from ....store.model.expr import Bound, MapValue
from ..slots import Slot

VERSION = 1
DONE, EXAMINED = "done", "?"
NOBODY_KNOWS = float("-inf")
_OPEN = missing("written")
_UNCHANGED = Bin("changes").eq(Param("changes"))
_STILL = _OPEN & MapValue("slots", Param("id", str), str).eq(Param("old", str))
_BINS = ("slots", "changes", "written", "batch")
_READS = tuple(map(Read, _BINS))
_PLACE = f"^(?:[0-9]{{1,6}}:[0-9]{{1,18}}[{EXAMINED}]?|{DONE})\\Z"


class _Stored(Struct, frozen=True):
    """The bins of a chunk."""

    slots: dict[Annotated[str, Meta(min_length=1, max_length=1_024)], Annotated[str, Meta(pattern=_PLACE)]]
    changes: Counter = 0
    written: Any = None
    batch: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk as it was read.

    born: its pointers were reserved no earlier, by this machine's boot-time clock. Only the attempt that reserved them
        knows it, as a server's clock may be set.
    batch: the place of its one message in a batch.
    """

    number: int
    places: Mapping[str, str]
    changes: int
    written: bool
    born: float = NOBODY_KNOWS
    batch: str | None = None


def place(slot: Slot) -> str:
    """Return a slot as the ledger stores it."""
    return f"{slot.shard}:{slot.pointer}"


def slot_of(text: str) -> Slot:
    """Return the slot that the ledger stores, examined or not."""
    shard, _, pointer = text.removesuffix(EXAMINED).partition(":")
    return Slot(int(shard), int(pointer))


class LedgerRecords:
    """The chunks of one partition of a scope.

    ttl: seconds that each is kept after its last change.
    without: ids of messages that are read as if no chunk named them.
    """

    def __init__(
        self,
        store: RecordStore,
        client_id: str,
        queue: str,
        scope: str,
        *,
        partition: int,
        ttl: int,
        without: Collection[str] = (),
    ) -> None:
        self.store, self.ttl, self._without = store, ttl, without
        self._set = f"{client_id}_ledger_set"
        self._prefix = f"{quote(queue, safe='')}/{scope}/{partition}"

    def key(self, number: int) -> Key:
        """Return the key of a chunk."""
        return Key(self._set, f"{self._prefix}/{number}")

    def read(self, numbers: Sequence[int]) -> list[Chunk | None]:
        """Read these chunks, None for one that does not exist. One call."""
        rows = self.store.repeat_many([self.reading(n) for n in numbers])
        return [self.chunk(n, row) for n, row in zip(numbers, rows, strict=True)]

    def reading(self, number: int) -> Update:
        """Return the update that reads a chunk."""
        return Update(self.key(number), _READS)

    def chunk(self, number: int, row: object) -> Chunk | None:
        """Return the chunk in what was read; None if it does not exist. Raises the row's error, and `Corrupt`."""
        if isinstance(row, NotFound):
            return None
        if isinstance(row, LatchworkError):
            raise row
        assert isinstance(row, tuple)  # noqa: S101 - what a row is when it is no error
        bins = {bin: value for bin, value in zip(_BINS, row, strict=True) if value is not None}
        stored = decoded(_Stored, self.key(number), bins)
        places = {msg_id: at for msg_id, at in stored.slots.items() if msg_id not in self._without}
        return Chunk(number, places, stored.changes, stored.written is not None, batch=stored.batch)

    def single(self, row: object) -> Chunk | None:
        """Return the chunk of a ledger of one message; None if it does not exist. Raises as `chunk`."""
        found = self.chunk(0, row)
        if found is not None and len(found.places) != 1:
            raise damaged(self.key(0), f"bin 'slots' has {len(found.places)} messages, not one")
        return found

    def create(self, number: int, slots: Mapping[str, Slot], born: float) -> Chunk:
        """Make the chunk, or return the one that another attempt has made. One call, or two."""
        places = {msg_id: place(slot) for msg_id, slot in slots.items()}
        made = self.creating(number, places)
        try:
            self.store.operate(made.key, *made.ops, exists=made.exists, ttl=made.ttl, repeatable=True)
        except AlreadyExists:
            found = self.read([number])[0]
            if found is not None:
                return found
            raise
        return Chunk(number, places, 0, written=False, born=born)

    def creating(self, number: int, places: Mapping[str, str], batch: str | None = None) -> Update:
        """Return the update that makes a chunk."""
        more = () if batch is None else (Put("batch", batch),)
        ops = (Put("slots", dict(places)), Put("changes", 0), Put("v", VERSION), *more)
        return Update(self.key(number), ops, exists=Exists.CREATE, ttl=self.ttl)

    def renew(self, number: int) -> None:
        """Keep the chunk, if there is one, for as long again from now. One call."""
        with suppress(NotFound):
            self.store.operate(self.key(number), Put("v", VERSION), exists=Exists.UPDATE, ttl=self.ttl, repeatable=True)

    def finishing(self, number: int, changes: int) -> Update:
        """Return the update that notes that every message is written, unless a slot was changed since. A repeat is
        harmless.
        """
        return Update(self.key(number), (Put("written", 1),), Bound(_UNCHANGED, {"changes": changes}), ttl=self.ttl)

    def change(self, number: int, msg_id: str, old: str, new: str) -> bool:
        """Change a slot that is still `old` in an unfinished chunk; False if it is not. A repeat is harmless."""
        guard = Bound(_STILL, {"id": msg_id, "old": old})
        try:
            self.store.operate(
                self.key(number), MapPut("slots", msg_id, new), Add("changes", 1),
                when=guard, ttl=self.ttl, repeatable=True,
            )  # fmt: skip
        except Refused:
            return False
        return True

    def finish(self, number: int, changes: int) -> bool:
        """Note that every message is written; False if a slot was changed since. A repeat is harmless."""
        done = self.finishing(number, changes)
        try:
            self.store.operate(done.key, *done.ops, when=done.when, ttl=done.ttl, repeatable=True)
        except Refused:
            return False
        return True
