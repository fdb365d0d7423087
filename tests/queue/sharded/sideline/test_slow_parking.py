"""A message that is still being parked while parked messages are brought back."""

from __future__ import annotations

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.redrive import GRACE
from latchwork.queue.sharded.slots import Slot
from latchwork.store import MemoryStore


def test_a_message_whose_slot_was_empty_at_first_is_brought_back_with_the_others(clock):
    queue = QueueRegistry(MemoryStore(clock), "c").create(QueueConfig("q", shards=1))
    slot = Slot(0, queue.parked.pointers.reserve({0: 1})[0])
    clock.at(GRACE / 2, lambda: queue.parked.pointers.write([slot], [Envelope('"m"', "m1")]))
    assert [one.message_id for one in queue.redrive(10)] == ["m1"]
