"""Making and finding a large circular queue.

The buffer records are made first and the metadata record last, so a queue that can be found is complete. Buffer records
are made once and then only updated, since an absent record checks no fence (docs/protocols P0.1). Buffer records that
an earlier queue of the name has left are reused with their fencing marks, and the new queue's fences begin above them.
If they have more slots than the new queue's, they are emptied: the new queue would never write to the last of their
slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from ...coord.lease import GRANT, LEASE, RENEWALS, checked_lease
from ...errors import AlreadyExists, LatchworkError, NotFound, OutcomeUnknown, Refused, Unavailable
from ...store.decode import MAX_COUNTER, decoded
from ...store.model.expr import Expr, any_of, lacks, missing
from ...store.model.ops import ListRange, MapGet, MapPut, Op, Put, Read
from ...store.port import NEVER, Exists, Key, RecordStore, Update
from ...store.rows import chunked
from .layout import (  # fmt: skip
    CAPACITY,
    ENTRIES,
    GROUPS,
    HEAD,
    MARK,
    META,
    RECORDS,
    SENTINEL,
    SLOTS,
    TAIL,
    UNLIMITED,
    Layout,
    checked_shape,
    not_stale,
)
from .lock import never_held
from .transactions import NOTHING_FORGOTTEN

BATCH = 500
"""Buffer records made in one call."""
_EMPTY: tuple[Op, ...] = (Put(MARK, 0), Put(ENTRIES, []))
PLAIN_LEASE = 0.2
"""Seconds: the lease of a queue whose metadata has none."""
_OURS: tuple[tuple[Op, Op, Expr], ...] = (
    (Read(LEASE), Put(LEASE, round(PLAIN_LEASE * 1000)), missing(LEASE)),
    (Read(RENEWALS), Put(RENEWALS, 0), missing(RENEWALS)),
    (Read(GRANT), Put(GRANT, ""), missing(GRANT)),
    *(
        (MapGet(op.bin, op.key), op, lacks(op.bin, op.key))
        for op in (*NOTHING_FORGOTTEN, MapPut(GROUPS, SENTINEL, UNLIMITED))
    ),
)
"""The bins and entries that the older layout lacks: how each is read, how it is added, and the guard that it is
missing.
"""
_LOOK: tuple[Op, ...] = (Read(RECORDS), Read(SLOTS), Read(CAPACITY), *(read for read, _, _ in _OURS))
_INCOMPLETE = any_of(*(lack for _, _, lack in _OURS))


class _Stored(Struct, frozen=True):
    """What a new queue takes over of a buffer record that is there already."""

    mark: Annotated[int, Meta(le=MAX_COUNTER)] = field(name=MARK)


def planned(buffers: RecordStore, name: str, capacity: int, slots: int, lease: float) -> Layout:
    """Return the layout of a new queue. What it is to be is checked before the store is asked for its limits. Raises
    `InvalidRequest`.
    """
    checked_shape(name, capacity, slots)
    checked_lease(lease)
    return Layout.planned(name, capacity, slots, buffers.describe().record_size_limit)


def make(store: RecordStore, buffers: RecordStore, layout: Layout, lease: float) -> None:
    """Make the records of a queue. Raises `AlreadyExists` if one of the name exists."""
    _check_free(store, layout)
    keys = [layout.buffer(record) for record in range(layout.records)]
    fence = 0
    for some in chunked(keys, BATCH):
        marks = _make_buffers(buffers, some)
        _empty_longer(store, buffers, layout, marks)
        fence = max(fence, *marks.values())
    _make_metadata(store, layout, lease, fence)


def find(store: RecordStore, buffers: RecordStore, name: str) -> Layout:
    """Return the layout of a queue; if it was made in the older layout, complete it. Raises `NotFound`."""
    key = Key(name, META)
    try:
        found = store.operate(key, *_LOOK)
    except NotFound:
        raise NotFound(f"there is no queue {name!r} in {store.where}; make it with LargeQueue.create") from None
    _complete(store, key, found[3:])
    bins = {name: value for name, value in zip((RECORDS, SLOTS, CAPACITY), found[:3], strict=True) if value is not None}
    layout = Layout.stored(name, bins, buffers.describe().record_size_limit)
    if buffers.get(layout.buffer(0), MARK) is None:
        raise NotFound(
            f"queue {name!r} has its metadata here, but no buffer records: open it with the buffer_store that it was "
            "created with",
            key=layout.buffer(0),
        )
    return layout


def _complete(store: RecordStore, key: Key, found: Sequence[Any]) -> None:
    """Add what a metadata record in the older layout lacks: without it no guard would ever hold."""
    wanted = [add for (_, add, _), value in zip(_OURS, found, strict=True) if value is None]
    if wanted:
        with suppress(Refused):  # another process has just done it
            store.operate(key, *wanted, when=_INCOMPLETE, ttl=NEVER, repeatable=True)


def _make_buffers(buffers: RecordStore, keys: Sequence[Key]) -> dict[Key, int]:
    """Make the records that are missing; return the fencing marks of all."""
    made = buffers.repeat_many([Update(key, _EMPTY, exists=Exists.CREATE, ttl=NEVER) for key in keys])
    made.raise_unless(AlreadyExists, OutcomeUnknown)
    found = zip(keys, buffers.get_many(keys, MARK), strict=True)
    marks = {key: decoded(_Stored, key, record.bins).mark for key, record in found if record is not None}
    if len(marks) < len(keys):
        raise _unmade(keys[0].set)
    return marks


def _empty_longer(store: RecordStore, buffers: RecordStore, layout: Layout, marks: dict[Key, int]) -> None:
    """Empty the records of an earlier queue that have more slots.

    The marks were read before the metadata is looked for here: a queue that is made meanwhile writes under higher
    fences, so its entries stay.
    """
    used = [key for key, mark in marks.items() if mark]
    beyond = _outcomes(buffers, [Update(key, (ListRange(ENTRIES, layout.slots, 1),)) for key in used])
    longer = [key for key, outcome in zip(used, beyond, strict=True) if outcome and outcome[0]]
    if longer:
        _check_free(store, layout)
        _outcomes(buffers, [Update(key, (Put(ENTRIES, []),), not_stale(marks[key]), ttl=NEVER) for key in longer])


def _outcomes(buffers: RecordStore, updates: list[Update]) -> list[tuple[Any, ...] | None]:
    """Return the outcome of each update, None if it was refused. Raises the first error."""
    try:
        return buffers.repeat_many(updates).raise_unless(Refused).values(None)
    except OutcomeUnknown as failure:
        raise _unmade(updates[0].key.set) from failure


def _make_metadata(store: RecordStore, layout: Layout, lease: float, fence: int) -> None:
    ops: list[Op] = [
        *never_held(lease, fence),
        Put(HEAD, 0),
        Put(TAIL, 0),
        Put(RECORDS, layout.records),
        Put(SLOTS, layout.slots),
        *NOTHING_FORGOTTEN,
        MapPut(GROUPS, SENTINEL, UNLIMITED),
    ]
    if layout.capacity != layout.records * layout.slots:
        ops.append(Put(CAPACITY, layout.capacity))
    try:
        store.operate(layout.meta, *ops, exists=Exists.CREATE, ttl=NEVER, repeatable=True)
    except AlreadyExists as failure:
        if not failure.details["doubt"] or not _is_ours(store, layout):
            raise _there_is_one(layout.name) from None


def _is_ours(store: RecordStore, layout: Layout) -> bool:
    """Whether the existing queue is as an attempt whose reply was lost would have made it."""
    try:
        found = store.get(layout.meta)
    except LatchworkError as failure:
        raise OutcomeUnknown(f"the queue {layout.name!r} may have been created: {failure}; open it") from failure
    return found is not None and replace(Layout.stored(layout.name, found.bins, 0), room=layout.room) == layout


def _unmade(name: str) -> Unavailable:
    return Unavailable(f"the buffer records of queue {name!r} could not all be made; create it again")


def _check_free(store: RecordStore, layout: Layout) -> None:
    if store.get(layout.meta, RECORDS) is not None:
        raise _there_is_one(layout.name)


def _there_is_one(name: str) -> AlreadyExists:
    return AlreadyExists(f"there is a queue {name!r} already: open it, or use another name")
