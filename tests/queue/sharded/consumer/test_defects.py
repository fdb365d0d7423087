"""A defect at any step between a claim and its settlement, once, leaves no message in hand until the sweep."""

from __future__ import annotations

from contextlib import suppress

import pytest

from latchwork.coord import RateLimiter
from latchwork.queue import BatchingConfig, Consumer
from latchwork.store import MemoryStore
from latchwork.testing.stores import FaultyStore

from .alone import OneThread, made

SWEEP = 60
TURNS = 60


def a_defect():
    raise RuntimeError("dictionary changed size during iteration")


def plain(queue, handler):
    return Consumer(queue, handler, upkeep=False)


def at_a_rate(queue, handler):
    return Consumer(queue, handler, upkeep=False, rate=RateLimiter(queue.store, "r", 100, 1))


def of_each_key(queue, handler):
    rate = RateLimiter(queue.store, "r", 1, 2)
    return Consumer(queue, handler, upkeep=False, rate=rate, per_key=lambda delivery: str(delivery.payload))


def in_order(queue, handler):
    return Consumer(queue, handler, upkeep=False, ordered=True, rate=RateLimiter(queue.store, "r", 100, 1))


def in_batches(queue, handler):
    return Consumer(queue, lambda deliveries: [handler(one) for one in deliveries], upkeep=False)


@pytest.mark.parametrize("kind", [plain, at_a_rate, of_each_key, in_order, in_batches])
def test_a_defect_of_any_call_costs_no_message_a_sweep(kind):
    call, hit = 0, True
    while hit:
        call += 1
        clock = OneThread()
        store = FaultyStore(MemoryStore(clock))
        queue = made(store, **({"batching": BatchingConfig(2, 1)} if kind is in_batches else {}))
        queue.publish_many(["a", "b", "c"])
        handled = []
        consumer = kind(queue, lambda delivery, handled=handled: handled.append(delivery.payload))
        store.plan = {store.total + call: a_defect}
        before, began = store.total, clock.monotonic()
        for _ in range(TURNS):
            with suppress(RuntimeError):  # the worker reports it, and takes its next turn
                consumer._turns.take()
            consumer._move_on()
            if len(set(handled)) == 3 and not consumer._prefetched.waiting and not consumer._settlements.collected:
                break
            clock.advance(0.3)
        hit = store.total >= before + call
        assert set(handled) == {"a", "b", "c"}, f"call {call}"
        assert clock.monotonic() - began < SWEEP / 2, f"call {call}"
        assert consumer.runs.open_runs == 0
    assert call > 4
