"""What a bin can hold, seen from those that put containers of their own around it."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest
from latchwork.queue import LargeQueue
from latchwork.seams import SYSTEM
from latchwork.store.contract.records import raises
from latchwork.store.contract.text import nested
from latchwork.store.model import values

AROUND = 2
"""Levels that a large queue puts around a value."""


def test_a_large_queue_gives_back_every_value_that_it_takes_however_deep(store):
    queue, deep = LargeQueue.create(store, f"deep{SYSTEM.unique()}", 8), nested(values.MAX_DEPTH - AROUND)
    raises(InvalidRequest, queue.enqueue, [deep])
    assert [queue.enqueue(value) for value in ("first", deep, "third")] == [0, 1, 2]
    assert [entry.value for entry in queue.dequeue_many(3)] == ["first", deep, "third"]


@pytest.mark.parametrize("kind", [list, dict, type("Names", (dict,), {})])
def test_a_value_without_end_is_refused_whatever_it_is_made_of(kind):
    endless = kind()
    endless.append(endless) if kind is list else endless.update(k=endless)
    assert "levels" in str(raises(InvalidRequest, values.taken, endless))
