"""Damaged entries among a large queue's transactions: an error of ours for who asks for them, and for nobody else."""

from __future__ import annotations

import pytest

from latchwork.errors import Corrupt, OutcomeUnknown
from latchwork.queue import LargeQueue
from latchwork.queue.circular import transactions
from latchwork.queue.circular.lock import QueueLock
from latchwork.queue.circular.transactions import NAMED_FORGOTTEN
from latchwork.store import MapPut, MapRemove, Put
from latchwork.store.local.memory import MemoryStore
from latchwork.testing.clock import ManualClock
from tests.support.scale import length


@pytest.fixture
def queue():
    return LargeQueue.create(MemoryStore(ManualClock()), "large", 8)


def damage(queue, *ops):
    queue._store.operate(queue.layout.meta, *ops)


ENTRIES = ["text", [], [1], [1, 2, "x"], [None, None, None], {}, 5]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_transaction_whose_entry_is_damaged_is_neither_committed_nor_not(queue, entry):
    damage(queue, MapPut("txns", "t", entry))
    with pytest.raises(Corrupt, match="txns"):
        queue.transaction("t")
    with pytest.raises(Corrupt, match="txns"):
        queue.enqueue("a", txn_id="t")
    assert queue.enqueue("b") == 0, "others are not held up"


@pytest.mark.parametrize("ops", [(Put("txns", None),), (MapRemove("txns", ("",)),), (MapPut("txns", "", "x"),)])
def test_without_a_note_of_what_was_forgotten_nobody_is_told_that_nothing_was_committed(queue, ops):
    damage(queue, *ops)
    with pytest.raises(Corrupt, match="forgotten"):
        queue.transaction("t")
    assert queue.enqueue("b") == 0, "the lock was given back"


def test_a_commit_in_doubt_stays_so_where_the_note_of_it_is_damaged(queue, monkeypatch):
    commit, repeat = QueueLock.commit, queue._store.repeat

    def unanswered(update):
        repeat(update)
        damage(queue, MapPut("txns", "t", "x"))
        raise OutcomeUnknown("no answer")

    def commit_without_an_answer(self, *args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(self.store, "repeat", unanswered)
            return commit(self, *args, **options)

    monkeypatch.setattr(QueueLock, "commit", commit_without_an_answer)
    with pytest.raises(OutcomeUnknown, match="damaged"):
        queue.enqueue("a", txn_id="t")


def test_damaged_entries_do_not_keep_the_others_from_being_forgotten(queue, monkeypatch):
    kept = length(1024, least=280)
    monkeypatch.setitem(transactions.REMEMBERED, NAMED_FORGOTTEN, kept)
    damage(queue, *(MapPut("txns", f"bad {n}", entry) for n, entry in enumerate(ENTRIES)), MapPut("txns", 7, [0, 1, 1]))
    for n in range(2 * kept):
        queue.enqueue(n, txn_id=n)
        queue.dequeue()
    assert len(queue._store.get(queue.layout.meta).bins["txns"]) < 1.6 * kept
