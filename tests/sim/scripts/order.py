"""Messages of one key, from one thread, keep their order (P5, P6, P15, P16)."""

from __future__ import annotations

from unittest import mock

from latchwork.queue.sharded.delayed.entries import DelayedMessages
from latchwork.queue.sharded.ledger import dedup
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.queue.sharded.ledger.ledger import _Attempt as LedgerAttempt
from latchwork.queue.sharded.publishing import publisher
from latchwork.queue.sharded.transfer import reserve_slots
from latchwork.queue.sharded.upkeep import timers
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock

from .common import patched
from .later import delivered, queue_on, run

FEW = list(range(8))


def dedup_keys():
    """P15.5: messages with dedup keys, in one call."""
    queue = queue_on(MemoryStore(ManualClock()))
    queue.publish_many(FEW, key="k", dedups=[str(n) for n in FEW])
    return delivered(queue) == FEW


def last_first():
    real = dedup._Attempt._reserve
    return mock.patch.object(dedup._Attempt, "_reserve", lambda self, keys: real(self, keys[::-1]))


def put_off_alike():
    """P16.13: messages that are due at one time, whose ids are in a map."""
    clock = ManualClock()
    queue = queue_on(MemoryStore(clock))
    for n in FEW:
        queue.publish(n, key="k", delay=1, message_id=f"z{9 - n}")
    queue.publish_many(FEW, key="k", delay=1, message_ids=[f"a{9 - n}" for n in FEW])
    run(queue, clock, 3)
    return delivered(queue) == FEW * 2


def another_server_is_behind():
    """P16.13: the server that stores the second message has a clock that is 50 ms behind."""
    clock = ManualClock()
    store = MemoryStore(clock)
    queue = queue_on(store)
    queue.publish("first", key="k", delay=1)
    with mock.patch.object(clock, "wall", lambda real=clock.wall: real() - 0.05):
        queue.publish("second", key="k", delay=1)
    run(queue, clock, 3)
    return delivered(queue) == ["first", "second"]


def with_and_without_dedup():
    """P5.21: a thread publishes messages of one key, every second one with a dedup key."""
    queue = queue_on(MemoryStore())  # its thread is a real one, and is waited for
    one = queue.publisher()
    with mock.patch.object(one, "_keep_sending"):  # all wait before the first is stored
        for n in FEW:
            one.publish(n, key="k", dedup=str(n) if n % 2 else None)
    one.close()
    return delivered(queue) == FEW


def each_terms_for_itself():
    real = publisher.Publisher._taken

    def taken(self, due, some):
        ready = sorted(some, key=lambda one: one.terms != some[0].terms)
        some.clear()
        some.extend(ready)
        return real(self, due, some)

    return mock.patch.object(publisher.Publisher, "_taken", taken)


def attempt_that_died_before_its_rows_were_written():
    """P6.7: consumers have passed the slots of an attempt that died; the next has rows behind them."""
    clock = ManualClock()
    queue = queue_on(MemoryStore(clock))
    ledger, rows = Ledger(queue, "job", batch=4), [Outgoing(n, f"{9 - n}", key="k") for n in FEW]
    found, _ = reserve_slots(queue.pointers, dict.fromkeys(range(4), 0))
    slots = {row.message_id: slot for row, slot in zip(rows[:4], found.values(), strict=True)}
    ledger._records(0).create(0, slots, 0.0)
    queue.receive(1, timeout=5)
    ledger.publish(0, rows)
    return delivered(queue) == FEW


def completed_at_the_end():
    real = LedgerAttempt._complete
    return mock.patch.object(LedgerAttempt, "_complete", lambda self: None if self._buffer else real(self))


RULES = [
    ("P15.5 order", dedup_keys, last_first),
    ("P16.13 order", put_off_alike, patched(timers, "in_order", sorted)),
    ("P16.13 clocks", another_server_is_behind, patched(DelayedMessages, "_least", lambda *_: 0)),
    ("P5.21 passed", with_and_without_dedup, each_terms_for_itself),
    ("P6.7 left", attempt_that_died_before_its_rows_were_written, completed_at_the_end),
]
