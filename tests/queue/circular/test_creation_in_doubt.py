"""A queue whose creation was not answered, and what its maker is told where that cannot be looked into."""

from __future__ import annotations

import pytest

from latchwork.errors import Corrupt, OutcomeUnknown, StorageFailed, Unavailable
from latchwork.queue import LargeQueue
from latchwork.queue.circular.layout import META
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore


class Unread(FaultyStore):
    """A store that loses the reply to the metadata's creation, and then cannot read the record."""

    def __init__(self, inner, failure) -> None:
        super().__init__(inner)
        self.failure, self.lost = failure, False

    def _operate(self, update):
        if update.key.name == META and not self.lost:
            self.lost = True
            self.next("reply_lost")
        return super()._operate(update)

    def _get(self, key, bins):
        if self.lost:
            raise self.failure
        return super()._get(key, bins)


@pytest.mark.parametrize("failure", [Unavailable("x"), StorageFailed("x"), Corrupt("x")])
def test_a_creation_that_was_not_answered_and_cannot_be_read_back_is_unknown(failure):
    inner = MemoryStore(ManualClock())
    with pytest.raises(OutcomeUnknown, match="may have been created"):
        LargeQueue.create(Unread(inner, failure), "q", 10)
    assert LargeQueue.open(inner, "q").info().size == 0
