"""Consumer groups of a large circular queue: a position each, read first and commit afterwards (docs/protocols P4).

The map `groups` in the metadata record holds each group's position, the offset that it reads next; 2^62 is added to
the positions that head does not wait for. So the smallest integer of the map is the smallest waited-for position, which
the guard of every step of head asks for. Positions are changed without the queue's lock.
"""

from __future__ import annotations

from ...errors import Corrupt, InvalidRequest, NotFound, Refused
from ...inputs import checked_switch, checked_text, is_int
from ...plain import shown
from ...store.decode import damaged
from ...store.model.expr import Bin, Const, Expr, If, MapSize, MapValue, Param, has, lacks
from ...store.model.ops import Compute, MapGet, MapPut, MapRemove, Read
from ...store.port import NEVER, RecordStore
from .buffer import Entry, Slots
from .layout import GROUPS, HEAD, TAIL, Layout, checked_count, checked_offset, offset_in

MAX_GROUPS = 256
"""Groups of a queue: with names as long as can be they take a quarter of the metadata record."""
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
_UNKNOWN = lacks(GROUPS, _NAME) & (MapSize(GROUPS) <= MAX_GROUPS)  # one entry is nobody's
_IS_FREE = has(GROUPS, _NAME) & (_STORED >= FREE)
_FORWARD = has(GROUPS, _NAME) & (_POSITION < _NEXT) & (Bin(TAIL) >= _NEXT)
_WITHIN = has(GROUPS, _NAME) & (Bin(HEAD) <= _NEXT) & (Bin(TAIL) >= _NEXT)


class Batch(list[Entry]):
    """Entries that a group has read, oldest first.

    `gap` is the range of offsets before them that were overwritten or dequeued before the group had committed them;
    empty where there are none.
    """

    def __init__(self, entries: list[Entry], gap: range) -> None:
        super().__init__(entries)
        self.gap = gap


class ConsumerGroup:
    """One group's position in a queue; `LargeQueue.group` makes it. Groups do not see one another.

    At least once: what was read and not committed is read again. Not for several readers of one group at a time, who
    would all read the same; split the work behind one reader, or use a sharded queue.
    """

    def __init__(self, store: RecordStore, layout: Layout, slots: Slots, name: str) -> None:
        self._store, self._layout, self._slots = store, layout, slots
        self.name = name

    def __repr__(self) -> str:
        return f"ConsumerGroup({self._layout.name!r}, {self.name!r})"

    @classmethod
    def joined(cls, store: RecordStore, layout: Layout, slots: Slots, name: str, *, hold_head: bool) -> ConsumerGroup:
        """The group, registered in the queue. Raises `InvalidRequest`, `NotFound` where there is no queue."""
        if len(checked_text("group name", name)) > MAX_NAME:
            raise InvalidRequest(f"group name is {shown(name)}; it must be text of 1 to {MAX_NAME} characters")
        checked_switch("hold_head", hold_head)
        group = cls(store, layout, slots, name)
        if group._put(_AT_HEAD if hold_head else _FREE_AT_HEAD, _UNKNOWN):
            group._check_there()
            if hold_head:
                group._put(_HELD, _IS_FREE)  # refused where it is held already, by whomever
        return group

    def _check_there(self) -> None:
        """Raise `InvalidRequest` where the group could not be registered as the queue has as many as it may have."""
        stored, size = self._store.operate(self._layout.meta, MapGet(GROUPS, self.name), Compute(MapSize(GROUPS)))
        if stored is None and size is not None and size > MAX_GROUPS:
            raise InvalidRequest(
                f"queue {shown(self._layout.name)} has {size - 1} consumer groups, the limit is {MAX_GROUPS}: drop one "
                "that nobody reads any more"
            )

    def read(self, n: int) -> Batch:
        """Up to `n` entries from the group's position on; does not move it.

        What the queue took from the group is in the batch's `gap`, and stays so until it is committed past. Two store
        calls. Raises `NotFound` where the group was dropped, `Corrupt` where entries are not in their records.
        """
        wanted = checked_count("n", n)
        position, head, tail = self._look()
        start = max(position, head)
        count = min(wanted, tail - start)
        found = (self._slots.read(start, count) if count > 0 else None) or []
        if None in found:
            start = self._overtaken(start, found)
        entries = [entry for entry in found if entry is not None and entry.offset >= start]
        return Batch(entries, range(position, start))

    def commit(self, offset: int) -> None:
        """Everything up to and including this offset is done; the group goes on after it. One store call.

        It never goes back: a commit of what is committed already does nothing. Raises `InvalidRequest` for an offset
        that the queue does not have yet, `NotFound` where the group was dropped, `OutcomeUnknown`; again is harmless.
        """
        if not self._put(_AT_NEXT, _FORWARD, next=checked_offset(offset) + 1):
            return
        _, _, tail = self._look()
        if offset >= tail:
            raise InvalidRequest(
                f"offset {offset} cannot be committed: queue {shown(self._layout.name)} ends at {tail - 1}"
            )

    def lag(self) -> int:
        """How many entries the group can still read and has not committed. One store call."""
        position, head, tail = self._look()
        return tail - max(position, head)

    def rewind(self, offset: int) -> None:
        """Read from this offset next. Raises `InvalidRequest` where it is not from head to tail.

        A commit that is still under way elsewhere may move the group on again.
        """
        refusal = self._put(_AT_NEXT, _WITHIN, next=checked_offset(offset))
        if refusal is None:
            return
        position, head, tail = self._look()
        if not (refusal.details["doubt"] and position == offset):
            raise InvalidRequest(
                f"offset {offset} is not in queue {shown(self._layout.name)}, which has {head} to {tail}"
            )

    def drop(self) -> None:
        """Forget the group, and let head go on without it. Also for a group whose readers have died."""
        self._store.operate(self._layout.meta, MapRemove(GROUPS, (self.name,)), ttl=NEVER, repeatable=True)

    def _put(self, position: Expr, guard: Expr, **params: int) -> Refused | None:
        """Set the position if the guard holds; the refusal where it does not.

        In doubt an earlier attempt may have set the position: the position says whether it is where it should be.
        """
        bound = {"group": self.name, **params}
        ops = (MapPut(GROUPS, self.name, position.bind(**bound)),)
        try:
            self._store.operate(self._layout.meta, *ops, when=guard.bind(**bound), ttl=NEVER, repeatable=True)
        except Refused as refusal:
            return refusal
        return None

    def _look(self) -> tuple[int, int, int]:
        """The group's position, head and tail, of one moment."""
        stored, head, tail = self._store.operate(self._layout.meta, MapGet(GROUPS, self.name), Read(HEAD), Read(TAIL))
        if stored is None:
            raise NotFound(f"queue {self._layout.name!r} has no group {self.name!r}: it was dropped; ask for it again")
        meta = self._layout.meta
        if not is_int(stored):
            raise damaged(meta, f"the position of group {shown(self.name)} is no number")
        position = stored - FREE if stored >= FREE else stored
        return position, offset_in(meta, HEAD, head), offset_in(meta, TAIL, tail)

    def _overtaken(self, start: int, found: list[Entry | None]) -> int:
        """Where head is by now, which has passed what was not found."""
        missing = max(start + place for place, entry in enumerate(found) if entry is None)
        _, head, _ = self._look()
        if missing >= head:
            raise Corrupt(
                f"queue {self._layout.name!r}: offset {missing} is not in its slot; the buffer records are older than "
                "the metadata: restore them"
            )
        return head
