"""What requests read is shared for a while, and a store that is away is not asked for it."""

from __future__ import annotations

import pytest

from latchwork.cli.top.feed import Fetched
from latchwork.console import reader
from latchwork.console.reader import Kept, Reader
from latchwork.errors import Refused
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore


@pytest.fixture
def store():
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock), seams=clock)
    QueueRegistry(store, "shop", farm_id="iad").create(QueueConfig("orders", shards=1))
    return store


@pytest.fixture
def request_(store):
    """A request as it comes; what they read is kept together."""
    kept = Kept(store.seams.lock())
    return lambda: Reader({"iad": store}, ["shop"], store.seams, kept)


def test_as_many_parts_are_remembered_as_may_be_and_the_oldest_is_forgotten_first(store, monkeypatch):
    monkeypatch.setattr(reader, "KEPT", 2)
    kept = Kept(store.seams.lock())
    parts = {name: Fetched(name, None, 1.0) for name in "abc"}
    kept.put(("a",), parts["a"])
    kept.put(("b",), parts["b"])
    assert [kept.get((name,)).value for name in "ab"] == ["a", "b"]
    kept.put(("a",), parts["a"])
    kept.put(("c",), parts["c"])
    assert [kept.get((name,)).value for name in "abc"] == ["a", None, "c"]
    kept.clear()
    assert kept.get(("c",)) == Fetched()


def test_what_one_request_has_read_others_show_for_as_long_as_it_is_good_enough(store, request_):
    read = iter(range(9)).__next__
    key = ("history", "iad", "orders")
    assert request_().fetched(key, read, 60.0).value == 0
    store.seams.advance(60.0)
    assert request_().fetched(key, read, 60.0).value == 0
    store.seams.advance(0.1)
    assert request_().fetched(key, read, 60.0).value == 1


def test_a_part_that_cannot_be_read_keeps_what_was_read_before_and_says_why(store, request_):
    def refused():
        raise Refused("not now")

    key = ("history", "iad", "orders")
    assert request_().fetched(key, lambda: 7, 1.0).failure is None
    store.seams.advance(2.0)
    found = request_().fetched(key, refused, 1.0)
    assert (found.value, found.failure) == (7, "not now [REFUSED]")


def test_a_store_that_is_away_is_not_asked_for_a_part_of_a_page(store, request_):
    key, others = ("history", "iad", "orders"), ("history", "lhr", "orders")
    assert request_().fetched(key, lambda: 7, 1.0).value == 7
    store.seams.advance(60.0)
    store.plan = {store._number + n: "dropped" for n in range(1, 1000)}
    asked, away = [], request_()
    found = away.fetched(key, lambda: asked.append("iad"), 1.0)
    assert (found.value, found.failure, asked) == (7, away.away["iad"], [])
    away.fetched(others, lambda: asked.append("lhr"), 1.0)
    assert asked == ["lhr"]
