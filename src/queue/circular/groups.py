"""Consumer groups of a large circular queue: each has its own position, reads first and commits afterwards
(docs/protocols P4).

The map `groups` in the metadata record holds each group's position, the offset that it reads next; 2^62 is added to the
positions that head does not wait for. So the smallest integer of the map is the smallest waited-for position, which the
guard of every step of head compares. Positions are changed without the queue's lock.
"""

from __future__ import annotations

from ...errors import Corrupt, InvalidRequest, NotFound, Refused
from ...inputs import checked_switch, checked_text, is_int
from ...plain import shown
from ...store.decode import damaged
from ...store.model.expr import Bin, Const, Expr, If, MapSize, MapValue, Param, has, lacks
from ...store.model.ops import Compute, MapGet, MapPut, MapRemove, Read
from ...store.port import NEVER, RecordStore
from .buffer import Buffer, Entry
from .layout import GROUPS, HEAD, SHAPE, TAIL, Layout, checked_count, checked_offset, offset_in

MAX_GROUPS = 256
"""Groups of a queue: with names of the maximum length they take a quarter of the metadata record."""
FREE = 2**62
"""Added to a position that head does not wait for."""

MAX_NAME = 256
"""Characters in the name of a group."""

_NAME = Param("group", str)
_STORED = MapValue(GROUPS, _NAME)
_FREE = If(_STORED >= FREE, Const(FREE), Const(0))
_POSITION = _STORED - _FREE
_NEXT = Param("next")

_AT_HEAD, _FREE_AT_HEAD = Bin(HEAD) + 0, Bin(HEAD) + FREE
_AT_NEXT = _NEXT + _FREE
_HELD = _STORED - FREE  # below head where the group has a gap: head then waits there, and the gap stays known
_UNKNOWN = lacks(GROUPS, _NAME) & (MapSize(GROUPS) <= MAX_GROUPS)  # one entry belongs to no group
_IS_FREE = has(GROUPS, _NAME) & (_STORED >= FREE)
_FORWARD = has(GROUPS, _NAME) & (_POSITION < _NEXT) & (Bin(TAIL) >= _NEXT)
_WITHIN = has(GROUPS, _NAME) & (Bin(HEAD) <= _NEXT) & (Bin(TAIL) >= _NEXT)


class Batch(list[Entry]):
    """Entries that a group has read, oldest first.

    `gap` is the range of offsets before them that were overwritten or dequeued before the group had committed them;
    empty if there are none.
    """

    def __init__(self, entries: list[Entry], gap: range) -> None:
        super().__init__(entries)
        self.gap = gap


class ConsumerGroup:
    """One group's position in a queue; `LargeQueue.group` makes it. Groups are independent of each other.

    At least once: entries that were read and not committed are read again. Not for several readers of one group at a
    time: all would read equal entries. Split the work behind one reader, or use a sharded queue. Safe to share between
    threads, so that one may read and another commit.
    """

    def __init__(self, store: RecordStore, layout: Layout, buffer: Buffer, name: str) -> None:
        self._store, self._layout, self._buffer = store, layout, buffer
        self.name = name

    def __repr__(self) -> str:
        return f"ConsumerGroup({self._layout.name!r}, {self.name!r})"

    @classmethod
    def joined(cls, store: RecordStore, layout: Layout, buffer: Buffer, name: str, *, hold_head: bool) -> ConsumerGroup:
        """Return the group, registered in the queue. Raises `InvalidRequest`, and `NotFound` if the queue does not
        exist.
        """
        if len(checked_text("group name", name)) > MAX_NAME:
            raise InvalidRequest(f"group name is {shown(name)}; it must be text of 1 to {MAX_NAME} characters")
        checked_switch("hold_head", hold_head)
        group = cls(store, layout, buffer, name)
        if group._put(_AT_HEAD if hold_head else _FREE_AT_HEAD, _UNKNOWN):
            group._check_there()
            if hold_head:
                group._put(_HELD, _IS_FREE)  # refused if the group exists already
        return group

    def _check_there(self) -> None:
        """Raise `InvalidRequest` if the group could not be registered because the queue has as many as it may have."""
        stored, size = self._store.operate(self._layout.meta, MapGet(GROUPS, self.name), Compute(MapSize(GROUPS)))
        if stored is None and size is not None and size > MAX_GROUPS:
            raise InvalidRequest(
                f"queue {shown(self._layout.name)} has {size - 1} consumer groups, the limit is {MAX_GROUPS}: drop one "
                "that is not used any more"
            )

    def read(self, n: int) -> Batch:
        """Return up to `n` entries from the group's position on. Does not move the position.

        Entries that were taken before the group committed them are in the batch's `gap`, and stay there until they are
        committed past. Two store calls. Raises `NotFound` if the group was dropped, `Corrupt` if entries are missing
        from their records.
        """
        wanted = checked_count("n", n)
        position, head, tail = self._look()
        start = max(position, head)
        count = min(wanted, tail - start)
        found = (self._buffer.read(start, count) if count > 0 else None) or []
        if None in found:
            start = self._overtaken(start, found)
        entries = [entry for entry in found if entry is not None and entry.offset >= start]
        return Batch(entries, range(position, start))

    def commit(self, offset: int) -> None:
        """Commit everything up to and including this offset; the group continues after it. One store call.

        The position never moves back: a commit of committed entries does nothing. Raises `InvalidRequest` for an offset
        that the queue does not have yet, `NotFound` if the group was dropped, and `OutcomeUnknown`; a repeat is
        harmless.
        """
        if not self._put(_AT_NEXT, _FORWARD, next=checked_offset(offset) + 1):
            return
        _, _, tail = self._look()
        if offset >= tail:
            raise InvalidRequest(
                f"offset {offset} cannot be committed: queue {shown(self._layout.name)} ends at {tail - 1}"
            )

    def lag(self) -> int:
        """Return how many entries the group can still read and has not committed. One store call."""
        position, head, tail = self._look()
        return tail - max(position, head)

    def rewind(self, offset: int) -> None:
        """Read from this offset next. Raises `InvalidRequest` if it is not from head to tail.

        A commit of another reader that is in progress may move the group forward again.
        """
        refusal = self._put(_AT_NEXT, _WITHIN, next=checked_offset(offset))
        if refusal is None:
            return
        position, head, tail = self._look()
        if not (refusal.details["doubt"] and position == offset):
            raise InvalidRequest(
                f"offset {offset} is not in queue {shown(self._layout.name)}: give one from {head} to {tail}"
            )

    def drop(self) -> None:
        """Forget the group, so that head does not wait for it any more. Use it also for a group whose readers have
        died.
        """
        self._store.operate(self._layout.meta, MapRemove(GROUPS, (self.name,)), ttl=NEVER, repeatable=True)

    def _put(self, position: Expr, guard: Expr, **params: int) -> Refused | None:
        """Set the position if the guard holds; return the refusal if it does not.

        In doubt an earlier attempt may have set the position; the position shows it.
        """
        bound = {"group": self.name, **params}
        ops = (MapPut(GROUPS, self.name, position.bind(**bound)),)
        try:
            self._store.operate(self._layout.meta, *ops, when=guard.bind(**bound), ttl=NEVER, repeatable=True)
        except Refused as refusal:
            return refusal
        return None

    def _look(self) -> tuple[int, int, int]:
        """Return the group's position, head and tail, of one moment."""
        stored, head, tail, *shape = self._store.operate(
            self._layout.meta, MapGet(GROUPS, self.name), Read(HEAD), Read(TAIL), *map(Read, SHAPE)
        )
        self._layout.check(dict(zip(SHAPE, shape, strict=True)))
        if stored is None:
            raise NotFound(f"queue {self._layout.name!r} has no group {self.name!r}: it was dropped; ask for it again")
        meta = self._layout.meta
        if not is_int(stored):
            raise damaged(meta, f"the position of group {shown(self.name)} is not a number")
        position = stored - FREE if stored >= FREE else stored
        return position, offset_in(meta, HEAD, head), offset_in(meta, TAIL, tail)

    def _overtaken(self, start: int, found: list[Entry | None]) -> int:
        """Return head as it is now, which has passed the entries that were not found."""
        missing = max(start + place for place, entry in enumerate(found) if entry is None)
        _, head, _ = self._look()
        if missing >= head:
            raise Corrupt(
                f"queue {self._layout.name!r}: offset {missing} is not in its slot; the buffer records are older than "
                "the metadata: restore them"
            )
        return head
