"""The protocol of the illustrative implementation that the large queue follows, over the same store, holes included.

A transaction id commits, not a fence; a client's clock judges a lock; an overwrite destroys the head before it commits;
making a queue resets its fencing marks; a reader takes whatever lies in the slot. The counterexamples run against it
too, so that each shows that it can fail.
"""

from __future__ import annotations

from latchwork.errors import LockUnavailable, QueueFull, Refused
from latchwork.queue import Entry
from latchwork.store import Add, Bin, Exists, Key, ListRange, ListSet, Param, Put, Read

LOCKED = Bin("locked")
FREE = LOCKED.eq(0) | (Bin("lock-time-ms") < Param("expired"))
MINE = LOCKED.eq(1) & Bin("lock-owner", str).eq(Param("txn", str))
NEWER = Bin("fencing-mark") < Param("fence")


class NaiveQueue:
    """As much of the queue as the counterexamples need."""

    def __init__(self, store, name, capacity, lease=0.2):
        self.store, self.name, self.capacity, self.lease = store, name, capacity, lease
        self.meta, self.buffer = Key(name, "queue-metadata"), Key(name, "queue-buffer-0")

    @classmethod
    def create(cls, store, name, capacity, **_):
        queue = cls(store, name, capacity)
        bins = ("locked", "lock-time-ms", "head-offset", "tail-offset", "fencing-ctr")
        store.operate(queue.meta, *[Put(bin, 0) for bin in bins], Put("lock-owner", ""), exists=Exists.ANY)
        store.operate(queue.buffer, Put("fencing-mark", 0), Put("entries", [None] * capacity), exists=Exists.ANY)
        return queue

    @classmethod
    def open(cls, store, name, capacity=3):
        return cls(store, name, capacity)

    def enqueue(self, value, *, txn_id="1", overwrite_if_full=False, timeout=5.0):
        head, tail, fence = self._lock(txn_id, timeout)
        if tail - head >= self.capacity:
            if not overwrite_if_full:
                raise QueueFull("full")
            head += 1
        slot = (ListSet("entries", tail % self.capacity, value), Put("fencing-mark", fence))
        self.store.operate(self.buffer, *slot, when=NEWER.bind(fence=fence))
        self._commit(txn_id, Put("head-offset", head), Put("tail-offset", tail + 1))
        return tail

    def dequeue(self, *, txn_id="1", timeout=5.0):
        head, tail, _ = self._lock(txn_id, timeout)
        if head == tail:
            self._commit(txn_id)
            return None
        value = self._slot(head)
        self._commit(txn_id, Put("head-offset", head + 1))
        return Entry(head, value)

    def read_at(self, offset):
        head, tail = self.store.operate(self.meta, Read("head-offset"), Read("tail-offset"))
        return Entry(offset, self._slot(offset)) if head <= offset < tail else None

    def _slot(self, offset):
        return self.store.operate(self.buffer, ListRange("entries", offset % self.capacity, 1))[0][0]

    def _commit(self, txn, *ops):
        self.store.operate(self.meta, *ops, Put("locked", 0), when=MINE.bind(txn=txn))

    def _lock(self, txn, timeout):
        seams = self.store.seams
        end = seams.monotonic() + timeout
        while True:
            now = int(seams.wall() * 1000)
            ops = (Put("locked", 1), Put("lock-owner", txn), Put("lock-time-ms", now), Add("fencing-ctr", 1))
            reads = (Read("head-offset"), Read("tail-offset"), Read("fencing-ctr"))
            try:
                return self.store.operate(self.meta, *ops, *reads, when=FREE.bind(expired=now - int(self.lease * 1000)))
            except Refused:
                if seams.monotonic() >= end:
                    raise LockUnavailable("locked") from None
                seams.sleep(0.1)
