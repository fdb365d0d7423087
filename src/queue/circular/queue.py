"""A large circular queue: first in, first out, over as many records as it takes (docs/protocols P4).

    queue = LargeQueue.open_or_create(store, "shared-msg-bus", 1000)
    offset = queue.enqueue({"msg-id": 100, "text": "no school today"})
    entry = queue.dequeue()

Every change is made under the queue's lock and committed in one step with a fence, so a process that is paused or cut
off past its lease changes nothing. Threads that share a handle commit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...coord.lease import FENCE, OWNER
from ...deadline import Deadline
from ...errors import AlreadyExists, Corrupt, InvalidRequest, LatchworkError, NotFound, OutcomeUnknown, QueueFull
from ...inputs import checked_switch, checked_timeout
from ...retry import outlive
from ...store.connect import as_store
from ...store.model.ops import MapGet, MapPut, Read
from ...store.port import RecordStore
from . import setup, transactions
from .buffer import Buffer, Entry
from .group_commit import GroupCommit
from .groups import ConsumerGroup
from .layout import HEAD, SHAPE, TAIL, TXNS, Layout, checked_count, checked_name, checked_offset, offset_in
from .lock import QueueLock
from .plan import DEQUEUE, ENQUEUE, OVERWRITE, Request

DEFAULT_ENTRIES = 100
DEFAULT_LEASE = 0.2


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue at one moment. Head is the offset of the oldest entry, tail the offset that the next entry will get."""

    name: str
    namespace: str
    capacity: int
    head_offset: int
    tail_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction: the offsets that it added or took, as a range."""

    txn_id: str
    offsets: range


class LargeQueue:
    """A handle on one queue: `create`, `open` or `open_or_create` return it. Cheap, safe to share between threads, and
    it pickles with its stores.

    Promised: first in, first out; no committed change is lost, doubled or half applied; never more than `capacity`
    entries. Not promised: that a dequeued entry is processed, because it is deleted from the queue when it is handed
    out. For that use a consumer group, which reads first and commits afterwards.

    A change takes three store calls if no other process holds the queue's lock; otherwise it waits for the lock. If the
    holder died, the lock can be taken after its lease. `timeout` is in seconds, None = no limit. With a timeout a
    change also waits for a store that is unavailable.

    After `LockUnavailable` and `Unavailable` nothing was added or taken. Only an overwrite that failed may have dropped
    the oldest entries (see `enqueue_many`). `OutcomeUnknown` means that a commit could not be confirmed: ask
    `transaction(error.details["txn_id"])`.
    """

    def __init__(self, store: RecordStore, layout: Layout, buffer_store: RecordStore | None) -> None:
        self._store, self._buffer_store, self.layout = store, buffer_store, layout
        self._buffer = Buffer(buffer_store or store, layout)
        self._lock = QueueLock(store, layout)
        self._work = GroupCommit(self._lock, self._buffer)

    def __reduce__(self) -> tuple[Any, ...]:
        return LargeQueue, (self._store, self.layout, self._buffer_store)

    def __repr__(self) -> str:
        return f"LargeQueue({self.name!r}, capacity={self.layout.capacity})"

    # ---- ways in

    @classmethod
    def create(
        cls,
        store: RecordStore,
        name: str,
        capacity: int,
        *,
        entries_per_record: int = DEFAULT_ENTRIES,
        lease: float = DEFAULT_LEASE,
        buffer_store: RecordStore | None = None,
    ) -> LargeQueue:
        """Make a queue of at most `capacity` entries, `entries_per_record` of them in each record.

        entries_per_record: an entry may have the store's record size limit divided by this number, less a few bytes,
            and one more for each str or bytes in it.
        lease: seconds after which the queue's lock may be taken from a holder that does not renew it. A holder that
            pauses for longer starts its change again; no entry is lost.
        buffer_store: the store of the entries, if it is not the store of the metadata.

        Raises `AlreadyExists`, `InvalidRequest`.
        """
        metadata, buffers = _stores(store, buffer_store)
        layout = setup.planned(buffers, name, capacity, entries_per_record, lease)
        setup.make(metadata, buffers, layout, lease)
        return cls(store, layout, buffer_store)

    @classmethod
    def open(cls, store: RecordStore, name: str, *, buffer_store: RecordStore | None = None) -> LargeQueue:
        """Return the queue of that name. If its metadata has only the bins of the older layout, the missing ones are
        added.

        Raises `NotFound`.
        """
        metadata, buffers = _stores(store, buffer_store)
        layout = setup.find(metadata, buffers, checked_name(name))
        return cls(store, layout, buffer_store)

    @classmethod
    def open_or_create(
        cls,
        store: RecordStore,
        name: str,
        capacity: int,
        *,
        entries_per_record: int = DEFAULT_ENTRIES,
        lease: float = DEFAULT_LEASE,
        buffer_store: RecordStore | None = None,
    ) -> LargeQueue:
        """Return the queue of that name, made if it does not exist; an existing one keeps its lease.

        Raises `AlreadyExists` if it has another capacity or number of entries per record.
        """
        metadata, buffers = _stores(store, buffer_store)
        planned = setup.planned(buffers, name, capacity, entries_per_record, lease)
        try:
            queue = cls.open(store, name, buffer_store=buffer_store)
        except NotFound:
            with suppress(AlreadyExists):  # another process has just made it
                setup.make(metadata, buffers, planned, lease)
            queue = cls.open(store, name, buffer_store=buffer_store)
        there = queue.layout
        if there != planned:
            raise AlreadyExists(
                f"queue {name!r} has capacity {there.capacity} and {there.slots} entries per record, not {capacity} "
                f"and {entries_per_record}: open it as it is, or use another name"
            )
        return queue

    @property
    def name(self) -> str:
        """The queue's name, which is also the name of its set."""
        return self.layout.name

    # ---- changing it

    def enqueue(
        self,
        value: Any,
        *,
        txn_id: str | int | None = None,
        overwrite_if_full: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Add one entry at the tail; return its offset. See `enqueue_many`."""
        return self._add([value], txn_id, overwrite_if_full, timeout).start

    def enqueue_many(
        self,
        values: Iterable[Any],
        *,
        txn_id: str | int | None = None,
        overwrite_if_full: bool = False,
        timeout: float | None = None,
    ) -> range:
        """Add entries at the tail, all of them or none; return their offsets. No entries: no call, and no transaction.

        txn_id: an id to ask `transaction` for, of at most 256 bytes, unique among the transactions in progress; it may
            be used again later.
        overwrite_if_full: drop the oldest entries if there is no room, except entries that a holding group has not
            committed.

        Raises `QueueFull` if there is no room, `InvalidRequest` for a value that the store cannot hold, its subclass
        `RecordTooBig` for one that is too large, and `LeaseLost` if `txn_id` was declared not committed meanwhile;
        nothing was added then. `OutcomeUnknown` as described for the class. An overwrite drops before it adds: if it
        fails in between, `error.details["dropped"]` is the number of entries that are lost, at most.
        """
        # A map is one entry: its keys would be added without their values.
        if isinstance(values, Mapping) or not isinstance(values, Iterable):
            raise InvalidRequest(f"values is a {type(values).__name__}; give a list of entries, or use enqueue for one")
        return self._add(values, txn_id, overwrite_if_full, timeout)

    def _add(
        self, values: Iterable[Any], txn_id: str | int | None, overwrite_if_full: bool, timeout: float | None
    ) -> range:
        checked_switch("overwrite_if_full", overwrite_if_full)
        items = [self.layout.fitting(value) for value in values]
        txn, seconds, capacity = transactions.checked_new(txn_id), checked_timeout(timeout), self.layout.capacity
        if not items:
            return range(0)
        if len(items) > capacity:
            message = f"{len(items)} entries do not fit into queue {self.name!r}, whose capacity is {capacity}"
            if overwrite_if_full:
                raise InvalidRequest(f"{message}: they would overwrite one another; enqueue fewer at a time")
            raise QueueFull(f"{message}: enqueue fewer at a time", capacity=capacity)
        request = Request(OVERWRITE if overwrite_if_full else ENQUEUE, txn, values=items)
        try:
            offsets: range = self._done(request, seconds)
        except LatchworkError as failure:
            if request.dropped:
                failure.details["dropped"] = request.dropped
            raise
        return offsets

    def dequeue(self, *, txn_id: str | int | None = None, timeout: float | None = None) -> Entry | None:
        """Take the entry at the head; None if the queue is empty. See `dequeue_many`."""
        entries = self.dequeue_many(1, txn_id=txn_id, timeout=timeout)
        return entries[0] if entries else None

    def dequeue_many(self, n: int, *, txn_id: str | int | None = None, timeout: float | None = None) -> list[Entry]:
        """Take up to `n` entries from the head, oldest first; fewer if there are no more, or if a holding group has not
        committed them.

        They are handed out once: if the process crashes after the commit, they are not processed. Raises `Corrupt` if
        entries are missing from their records, and what `enqueue_many` raises.
        """
        request = Request(DEQUEUE, transactions.checked_new(txn_id), count=checked_count("n", n))
        entries: list[Entry] = self._done(request, checked_timeout(timeout))
        return entries

    def _done(self, request: Request, timeout: float | None) -> Any:
        """Submit a request and return its result. If nothing was done because the store is unavailable, repeat it until
        the timeout.
        """
        if timeout is None:
            return self._work.submit(request, None)

        def submit() -> Any:
            request.error = None
            return self._work.submit(request, deadline.left())

        with Deadline(self._store.seams, timeout) as deadline:
            return outlive(self._store.seams, deadline, submit)

    # ---- looking at it

    def read_at(self, offset: int) -> Entry | None:
        """Return the entry at an offset, without a lock; None if it does not exist yet, or not any more.

        Never returns another offset's value, nor an entry that is not committed. Two store calls, three if the entry is
        not found. Raises `Corrupt` if it is missing from its record.
        """
        checked_offset(offset)
        head, tail = self._head_and_tail()
        if not head <= offset < tail:
            return None
        found = self._buffer.read(offset, 1)
        if found and found[0] is not None:
            return found[0]
        if self._head_and_tail()[0] > offset:  # it was taken, or overwritten, meanwhile
            return None
        raise Corrupt(
            f"queue {self.name!r}: offset {offset} is not in its slot; the buffer records are older than the metadata: "
            "restore them"
        )

    def info(self) -> QueueInfo:
        """Return capacity, head and tail, without a lock. One store call."""
        head, tail = self._head_and_tail()
        namespace = getattr(self._store, "namespace", "") or self._store.describe().backend
        return QueueInfo(self.name, namespace, self.layout.capacity, head, tail, tail - head)

    def transaction(self, txn_id: str | int, *, timeout: float | None = None) -> Transaction | None:
        """Return the newest transaction with that id, with its offsets, if it was committed; else None.

        None is final for every transaction of that id that has begun, that is, has had the lock. To be sure of this,
        the call waits for the lock, as a change does, so a transaction in progress ends first; one that was paused past
        its lease raises `LeaseLost` when it continues. A call that has not had the lock yet counts as a later use of
        the id.

        The queue remembers at least the newest 1,024 transactions with ids. Raises `OutcomeUnknown` if the id is not
        among them, and older ones have been forgotten.
        """
        if txn_id is None:
            raise InvalidRequest("txn_id is None; name the transaction")
        txn = transactions.checked(txn_id)
        seconds = checked_timeout(timeout)
        if seconds is None:
            return self._transaction(txn, None)
        with Deadline(self._store.seams, seconds) as deadline:
            return outlive(self._store.seams, deadline, lambda: self._transaction(txn, deadline.left()))

    def _transaction(self, txn: str, timeout: float | None) -> Transaction | None:
        entry, owner, fence = self._store.operate(self.layout.meta, MapGet(TXNS, txn), Read(OWNER), Read(FENCE))
        if entry is None:
            began = fence if owner == txn else 0
            entry = self._decided(txn, began, timeout)
        first, last, _ = transactions.entry_in(self.layout.meta, entry)
        return Transaction(txn, range(first, last + 1)) if first <= last else None

    def group(self, name: str, *, hold_head: bool = False) -> ConsumerGroup:
        """Return the consumer group of that name, made at the head of the queue if it does not exist.

        hold_head: head waits for the group: neither a dequeue nor an overwrite takes entries that the group has not
            committed. This ends only when the group is dropped. Entries that were taken before stay in the `gap` of its
            batches, and head stays where it is, until the group has committed past them.

        One store call.
        """
        return ConsumerGroup.joined(self._store, self.layout, self._buffer, name, hold_head=hold_head)

    def _head_and_tail(self) -> tuple[int, int]:
        record = self._store.get(self.layout.meta, HEAD, TAIL, *SHAPE)
        if record is None:
            raise NotFound(f"the queue {self.name!r} is gone; make it with LargeQueue.create")
        self.layout.check(record.bins)
        meta, bins = self.layout.meta, record.bins
        return offset_in(meta, HEAD, bins.get(HEAD)), offset_in(meta, TAIL, bins.get(TAIL))

    def _decided(self, txn: str, began: int, timeout: float | None) -> list[int]:
        """Return the transaction's entry, after which no earlier transaction of that id can be committed any more.

        began: the fence of the hold that certainly belongs to it, or 0.
        """
        forgotten_of = transactions.forgotten_of(txn)
        hold = self._lock.take(self._store.seams.unique(), [txn, forgotten_of], timeout)
        entry: list[int] | None = hold.known.get(txn)
        if entry is not None:
            self._lock.abandon(hold)
            return entry
        try:
            forgotten = transactions.forgotten_in(self.layout.meta, hold.known.get(forgotten_of))
        except Corrupt:
            self._lock.abandon(hold)
            raise
        if forgotten and forgotten >= began:
            self._lock.abandon(hold)
            raise OutcomeUnknown(
                f"transaction {txn!r} is not among the transactions that queue {self.name!r} remembers; "
                "it may have been committed long ago, or never",
                txn_id=txn,
            )
        nothing = transactions.not_committed(hold.fence)
        if not self._lock.release(hold, MapPut(TXNS, txn, nothing)):
            raise OutcomeUnknown(f"the lock was lost while transaction {txn!r} was looked for; ask again", txn_id=txn)
        return nothing


def _stores(store: RecordStore, buffer_store: RecordStore | None) -> tuple[RecordStore, RecordStore]:
    """Return the store of the metadata and the store of the entries. Raises `InvalidRequest`."""
    metadata = as_store(store)
    return metadata, metadata if buffer_store is None else as_store(buffer_store)
