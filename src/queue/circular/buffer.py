"""Writing and reading the slots of a large circular queue, in one call if the entries fit into one.

A write carries the fence of its hold, and the buffer record refuses it once a higher fence has written there. A repeat
under one fence writes equal values, so an attempt in doubt is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from ...errors import Corrupt, LatchworkError, NotFound, OutcomeUnknown, Refused, Unavailable
from ...store.model.expr import Expr, Param
from ...store.model.form import Form
from ...store.model.ops import ListRange, ListSet, Op, Put
from ...store.port import NEVER, RecordStore, Update
from ...store.rows import chunked
from .layout import ENTRIES, MARK, Extent, Layout, not_stale, total_bound

BATCH_BYTES, BATCH_ROWS = 4 * 1024 * 1024, 100
"""The most that goes into one call."""


_READ = Form(ListRange(ENTRIES, Param("slot"), Param("count")))


@lru_cache(maxsize=64)
def _writing(guard: Expr) -> Form:
    """Return the write of one slot."""
    return Form(Put(MARK, Param("fence")), ListSet(ENTRIES, Param("slot"), Param("entry", list)), when=guard, ttl=NEVER)


class Entry(Struct, frozen=True):
    """One entry of a queue: its offset and its value. Offsets are consecutive numbers."""

    offset: int
    value: Any

    def __repr__(self) -> str:
        return f"Entry(offset={self.offset})"  # a value may be secret, and a repr ends in logs

    def __str__(self) -> str:
        """Return offset and value, for `print`."""
        return f"Entry(offset={self.offset}, value={self.value!r})"


def entry_of(slot: Any, offset: int) -> Entry | None:
    """Return the entry in a slot, if it is the one with this offset."""
    if isinstance(slot, dict):  # the older form
        slot = slot.get("offset"), slot.get("entry", slot.get("value"))
    is_pair = isinstance(slot, tuple | list) and len(slot) == 2  # anything else is damage: not this entry
    return Entry(offset, slot[1]) if is_pair and slot[0] == offset else None


class Buffer:
    """The buffer records of one queue.

    Long transfers call `between` before every further call; if it returns False, the hold is lost, and they stop.
    """

    def __init__(self, store: RecordStore, layout: Layout) -> None:
        self._store, self._layout = store, layout

    def write(self, fence: int, first: int, values: Sequence[Any], between: Callable[[], bool]) -> bool:
        """Put the values at consecutive offsets; False if a higher fence has written there.

        Raises `Unavailable` if that was not possible, whether or not some slots were written: they do not count before
        the tail is committed.
        """
        if len(values) == 1:
            return self._write_one(fence, first, values[0])
        extents = self._layout.extents(first, len(values))
        rows = [self._update(fence, record, places, first, values) for record, places in extents.items()]
        most = max(1, min(BATCH_ROWS, BATCH_BYTES * len(rows) // total_bound(values)))
        for place, chunk in enumerate(chunked(rows, most)):
            if place and not between():
                return False
            if not self._write(chunk):
                return False
        return True

    def read(self, first: int, count: int, between: Callable[[], bool] = lambda: True) -> list[Entry | None] | None:
        """Return the entries at consecutive offsets, None for an offset whose slot holds another one.

        Returns None for all if `between` returned False. Raises `Corrupt` if a buffer record is missing.
        """
        if count == 1:
            return [self._read_one(first)]
        extents = list(self._layout.extents(first, count).items())
        found: list[Entry | None] = [None] * count
        for place, chunk in enumerate(chunked(extents, BATCH_ROWS)):
            if place and not between():
                return None
            for (_, places), slots in zip(chunk, self._read(chunk), strict=True):
                low = _span(places)[0]
                for extent in places:
                    held = slots[extent.slot - low : extent.slot - low + extent.length]
                    for offset, slot in enumerate(held, extent.first):
                        found[offset - first] = entry_of(slot, offset)
        return found

    def _read_one(self, offset: int) -> Entry | None:
        key, slot = self._layout.place(offset)
        try:
            (held,) = self._store.repeat(_READ.fill(key, slot=slot, count=1))
        except NotFound as failure:
            raise self._missing(failure) from None
        return entry_of(held[0], offset) if held else None

    # ---- writing

    def _write_one(self, fence: int, offset: int, value: Any) -> bool:
        key, slot = self._layout.place(offset)
        form = _writing(not_stale(fence).expr)
        try:
            self._store.repeat(form.fill(key, slot=slot, entry=[offset, value], fence=fence))
        except Refused:
            return False
        except OutcomeUnknown as failure:
            raise self._unwritten() from failure
        except NotFound as failure:
            raise self._missing(failure) from failure
        return True

    def _update(self, fence: int, record: int, extents: list[Extent], first: int, values: Sequence[Any]) -> Update:
        placed = [
            (slot, [offset, values[offset - first]])
            for extent in extents
            for slot, offset in enumerate(range(extent.first, extent.first + extent.length), extent.slot)
        ]
        put: list[Op]
        if len(placed) < self._layout.slots:
            put = [ListSet(ENTRIES, slot, entry) for slot, entry in placed]
        else:  # all of them, the last ones perhaps over the first
            entries = dict(placed)
            put = [Put(ENTRIES, [entries[slot] for slot in range(self._layout.slots)])]
        return Update(self._layout.buffer(record), (Put(MARK, fence), *put), not_stale(fence), ttl=NEVER)

    def _write(self, rows: Sequence[Update]) -> bool:
        """Whether all rows are written. Rows in doubt are sent again."""
        failures = [outcome for outcome in self._store.repeat_many(rows) if isinstance(outcome, LatchworkError)]
        if any(isinstance(failure, Refused) for failure in failures):
            return False
        for failure in failures:
            if not isinstance(failure, OutcomeUnknown):
                raise self._failed(failure)
        if failures:
            raise self._unwritten() from failures[0]
        return True

    def _unwritten(self) -> Unavailable:
        return Unavailable(f"the entries of queue {self._layout.name!r} could not be written; none was enqueued")

    def _failed(self, failure: LatchworkError) -> LatchworkError:
        return self._missing(failure) if isinstance(failure, NotFound) else failure

    # ---- reading

    def _read(self, chunk: Sequence[tuple[int, list[Extent]]]) -> list[list[Any]]:
        rows = []
        for record, extents in chunk:
            low, high = _span(extents)
            rows.append(_READ.fill(self._layout.buffer(record), slot=low, count=high - low))
        try:
            if len(rows) == 1:
                return [self._store.repeat(rows[0])[0]]
            outcomes = self._store.operate_many(rows)
        except NotFound as failure:
            raise self._missing(failure) from None
        for outcome in outcomes:
            if isinstance(outcome, LatchworkError):
                raise self._failed(outcome)
        return [outcome[0] for outcome in outcomes if isinstance(outcome, tuple)]

    def _missing(self, failure: NotFound) -> Corrupt:
        return Corrupt(
            f"a buffer record of queue {self._layout.name!r} is missing, and its entries with it ({failure}): restore "
            "it, or open the queue with the buffer_store that it was created with"
        )


def _span(extents: list[Extent]) -> tuple[int, int]:
    """Return the first slot to be read of a record, and the end: its extents are read in one piece."""
    if len(extents) == 1:
        return extents[0].slot, extents[0].slot + extents[0].length
    return min(extent.slot for extent in extents), max(extent.slot + extent.length for extent in extents)
