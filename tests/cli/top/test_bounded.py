"""A page reads so many records at most, whatever a queue holds or held."""

from __future__ import annotations

import pytest

from latchwork.cli.top import pages
from latchwork.cli.top.actions import run_of_filter
from latchwork.cli.top.feed import Feed
from latchwork.console.messages import message_of
from latchwork.console.reader import Kept, Reader
from latchwork.deadline import Deadline
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.pointers import FIRE, LOAD
from latchwork.queue.sharded.sides import MOST_READ, SIDES, look_at
from latchwork.queue.sharded.slots import Slot
from latchwork.store import Exists, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore

MANY = 1_000_000
KEY = ("f", "shop", "orders")


@pytest.fixture
def store():
    return CountingStore(MemoryStore(ManualClock()))


@pytest.fixture
def orders(store):
    """A queue in each of whose sides a million messages have expired, and after them one waits."""
    queue = QueueRegistry(store, "shop", farm_id="f").create(QueueConfig("orders", shards=1))
    for pointers in (queue.pointers, queue.sideline.pointers, queue.parked.pointers):
        store.operate(pointers.pointers_key(0), Put(LOAD, MANY), Put(FIRE, 0), exists=Exists.ANY)
    queue.publish("m", message_id="last")
    return queue


@pytest.mark.parametrize("side", SIDES)
def test_a_page_over_a_million_expired_messages_takes_a_dozen_calls_and_says_more(store, orders, side):
    orders.publish("m", delay=60, message_id="later")
    feed = Feed({"f": store}, ["shop"], 2.0, store.seams)
    feed.look()
    store.reset()
    pages.MessagePage(KEY, side).table(feed)
    while feed._wanted:
        feed.work()
    table = pages.MessagePage(KEY, side).table(feed)
    assert store.total <= MOST_READ / 1_000 + 10, store.calls
    assert any("of more; a page looks at 10,000 records at most" in note.text for note in table.notes) == (
        side != "delayed"
    )
    assert ("there are more" in table.empty) == (side != "delayed")


def test_an_id_is_looked_for_in_a_bounded_number_of_records_too(store, orders):
    reader = Reader({"f": store}, ["shop"], store.seams, Kept(store.seams.lock()))
    store.reset()
    found = message_of(reader, KEY, "last", None, payloads=True)
    assert store.total <= 3 * MOST_READ / 1_000 + 30, store.calls
    assert ("state", "ready") in found.facts, "its state is known at once, wherever it stands"
    store.reset()
    pages.MessagePage(KEY, "parked", "last").table(reader)
    assert store.total <= MOST_READ / 1_000 + 30, store.calls


@pytest.mark.parametrize("side", ["sideline", "parked"])
def test_choosing_what_matches_a_filter_ends_within_the_time_of_a_page_and_says_that_others_may_match(
    store, orders, side, monkeypatch
):
    """A store in which each call takes 0.1 s."""
    count = CountingStore._count

    def slowly(self, *asked):
        store.seams.advance(0.1)
        return count(self, *asked)

    monkeypatch.setattr(CountingStore, "_count", slowly)
    with Deadline(store.seams, 2.0) as page:
        chosen = run_of_filter(orders, "redrive", side, "refunds").chosen
        assert page.left() > 0.5
    assert chosen.more


def test_pages_lead_through_all_of_a_side_each_message_once(store):
    queue = QueueRegistry(store, "shop", farm_id="f").create(QueueConfig("orders", shards=3))
    queue.publish_many(range(700), message_ids=[f"m-{n}" for n in range(700)])
    for delivery in queue.receive(30)[::2]:
        queue.hand_back([delivery])  # slots before the others
    seen, after = [], None
    while True:
        look = look_at(queue, "ready", 100, most=130, after=after)
        seen += [message.message_id for message in look.messages]
        assert len(look.messages) <= 100
        after = look.after
        if not look.more:
            break
    assert sorted(seen) == sorted(message.message_id for message in queue.peek_all())
    assert look_at(queue, "ready", 10, after=Slot(2, 10**9)).messages == []
