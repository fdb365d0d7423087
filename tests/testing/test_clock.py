"""The clock that stands still: what is planned for one moment is done in the order in which it was planned."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing import ManualClock, bring_back


def test_what_is_planned_for_one_moment_is_done_in_the_order_in_which_it_was_planned():
    clock, done = ManualClock(), []
    for seconds, name in ((1, "a"), (1, "b"), (9, "first"), (9, "second")):
        clock.at(seconds, lambda name=name: done.append(name))
    clock.advance(1)
    clock.at(8, lambda: done.append("third"))
    clock.advance(8)
    assert done == ["a", "b", "first", "second", "third"]


def test_upkeep_at_once_needs_a_manual_clock():
    queue = QueueRegistry(MemoryStore(), "c").create(QueueConfig("q", shards=1))
    with pytest.raises(InvalidRequest, match="make it with a ManualClock"):
        bring_back(queue)


def test_upkeep_at_once_lets_more_than_six_sweep_durations_pass():
    clock = ManualClock()
    queue = QueueRegistry(MemoryStore(clock), "c").create(QueueConfig("q", shards=1, sweep_duration=300))
    began = clock.monotonic()
    bring_back(queue)
    assert clock.monotonic() - began > 6 * 300


def test_a_wait_for_what_nobody_can_set_any_more_fails_at_once():
    clock = ManualClock()
    event = clock.event()
    with pytest.raises(AssertionError, match="would wait without end"):
        event.wait()
    event.set()
    assert event.wait()
