"""Pages of one side of a queue: each reads no more than was agreed, and together they leave out nothing."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest
from latchwork.queue.sharded.sides import look_at
from latchwork.store import MemoryStore
from latchwork.testing import ManualClock

from .test_one_message import made


@pytest.fixture
def queue():
    return made(MemoryStore(ManualClock()), max_deliveries=5, retry=False)


def filled(queue, side, n):
    """The queue, with so many messages on this side."""
    queue.publish_many(range(n))
    if side == "sideline":
        for delivery in queue.receive(n):
            delivery.nack()
    return queue


def pages(queue, side, limit, **options):
    """What each page has."""
    found, after = [], None
    for _ in range(20):
        page = look_at(queue, side, limit, after=after, **options)
        found.append([message.payload for message in page.messages])
        if not page.more:
            return found
        after = page.after
    raise AssertionError("the pages have no end")


@pytest.mark.parametrize("side", ["ready", "sideline"])
@pytest.mark.parametrize("limit", [1, 3, 6, 7, 8])
def test_pages_have_as_many_messages_as_were_asked_for_and_each_message_once(queue, side, limit):
    found = pages(filled(queue, side, 7), side, limit)
    assert sorted(payload for some in found for payload in some) == list(range(7))
    assert [len(some) for some in found] == [limit] * (7 // limit) + ([7 % limit] if 7 % limit else [])


def test_a_page_reads_no_more_slots_than_was_agreed_though_nothing_matches(queue):
    filled(queue, "ready", 7)
    found = pages(queue, "ready", 3, most=2, also=lambda message: message.payload == 5)
    assert [payload for some in found for payload in some] == [5]
    assert len(found) == 4


def test_a_page_goes_on_behind_what_does_not_match_until_it_is_full(queue):
    filled(queue, "ready", 7)
    page = look_at(queue, "ready", 3, also=lambda message: message.payload % 2 == 1)
    assert sorted(message.payload for message in page.messages) == [1, 3, 5]


def test_of_delayed_messages_the_next_ones_are_found_and_others_told_only_where_they_match(queue):
    for n in range(3):
        queue.publish(n, delay=10 + n)
    queue.publish("other", delay=2_000)
    for limit, more in ((2, True), (3, False), (4, False)):
        page = look_at(queue, "delayed", limit, also=lambda message: message.payload != "other")
        assert ([message.payload for message in page.messages], page.more) == ([0, 1, 2][:limit], more)
    assert look_at(queue, "delayed", 3).more


def test_a_side_that_there_is_not_is_refused(queue):
    with pytest.raises(InvalidRequest, match="it must be ready, delayed, sideline, parked"):
        look_at(queue, "late", 1)
