"""The depth of a queue says what has expired unread, though no sweep has run and nobody has received."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from latchwork.queue import Consumer, QueueConfig, QueueRegistry
from latchwork.queue.sharded.depth import GRACE
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.slots import Slot
from latchwork.queue.sharded.stats import stats_of
from latchwork.queue.sharded.subqueue import LATE
from latchwork.queue.sharded.transfer import into
from latchwork.seams import Seams
from latchwork.store import MemoryStore
from tests.support.waiting import until

DAYS = 86_400


def opened(store, shards=2):
    config = QueueConfig("q", shards=shards, message_expiry=timedelta(days=15), queue_expiry=timedelta(days=15))
    return QueueRegistry(store, "c").create(config)


def told(queue):
    depth = queue.depth()
    return depth.ready, depth.sideline, depth.parked, depth.expired


def looked_again(queue, clock):
    """A consumer finds that what was empty stays empty."""
    for _ in range(4):
        clock.advance(10)
        queue.receive(100)


def test_what_expired_unread_is_told_without_a_sweep(store, clock):
    queue = opened(store)
    queue.publish_many(range(30))
    assert told(queue) == (30, 0, 0, 0)
    clock.advance(10 * DAYS)
    queue.publish_many(range(7))
    assert told(queue) == (37, 0, 0, 0)
    clock.advance(6 * DAYS)
    assert told(queue) == (7, 0, 0, 30)
    assert stats_of(queue).oldest_age == pytest.approx(6 * DAYS, abs=1)


def test_it_is_told_once_where_it_is_received_too(store, clock):
    queue = opened(store)
    queue.publish_many(range(30))
    clock.advance(10 * DAYS)
    queue.publish_many(range(7))
    clock.advance(6 * DAYS)
    assert told(queue)[3] == 30
    assert len(queue.receive(100)) == 7
    assert told(queue)[0] == 0
    looked_again(queue, clock)
    assert told(queue) == (0, 0, 0, 30)


def test_what_expired_in_the_sideline_and_among_the_parked_is_told(store, clock):
    queue = opened(store)
    queue.publish_many(range(4))
    one, two, *_ = queue.receive(4)
    queue._move([one], into(queue.sideline.pointers), [one.held.envelope])
    queue._move([two], into(queue.parked.pointers), [two.held.envelope])
    assert told(queue) == (0, 1, 1, 0)
    clock.advance(16 * DAYS)
    assert told(queue) == (0, 0, 0, 2)


@pytest.mark.parametrize("side", ["sideline", "parked"])
def test_messages_that_were_removed_one_by_one_do_not_count_nor_expire(store, clock, side):
    """A tombstone keeps the id of its message for a while, and is no message."""
    queue = opened(store, 1)
    queue.publish_many(range(4), message_ids=list("abcd"))
    target = getattr(queue, side)
    for held in queue.receive(4):
        queue._move([held], into(target.pointers), [held.held.envelope])
    number = ("sideline", "parked").index(side) + 1
    store.reset()
    target.discard([target.peek(4)[2]])
    store.reset()
    assert told(queue)[number] == 3
    assert store.total == 5, "it costs no call more"
    target.redrive([target.peek(1)[0]])
    (part,) = [getattr(stats_of(queue), side)]
    assert (part.waiting, part.is_exact, part.left > 14 * DAYS) == (2, True, True)
    clock.advance(2 * 3600)  # by now the tombstones are gone
    assert told(queue)[number] == 2
    target.discard(target.peek(4))
    assert told(queue)[number] == 0
    assert getattr(stats_of(queue), side).left is None


def test_of_many_parked_messages_the_number_is_an_upper_bound(store):
    queue = opened(store, 1)
    queue.publish_many(range(101))
    for held in queue.receive(101):
        queue._move([held], into(queue.parked.pointers), [held.held.envelope])
    queue.parked.discard([queue.parked.peek(3)[2]])
    parked = stats_of(queue).parked
    assert (parked.waiting, parked.is_exact) == (101, False)


def test_it_costs_five_calls_where_nothing_expired(store):
    queue = opened(store, shards=8)
    queue.publish_many(range(30))
    store.reset()
    queue.depth()
    assert store.total == 5


@pytest.mark.parametrize("received", ["after the heads were read", "after the last was found"])
def test_it_is_right_while_somebody_receives(clock, received):
    """The empty slots that a consumer claims meanwhile count once: as received."""
    store = MemoryStore(clock)
    queue, there = opened(store, 1), opened(store, 1)
    queue.publish_many(range(20))
    clock.advance(10 * DAYS)
    queue.publish_many(["a", "b", "c"])
    clock.advance(6 * DAYS)
    if received == "after the heads were read":
        clock.at(GRACE / 2, lambda: there.receive(2))
    else:
        states, turn = queue.pointers.states, iter(((), there.receive))
        queue.pointers.states = lambda: ((look := next(turn)) and look(1), states())[1]
    depth = queue.depth()
    assert there.depth().fired > 0
    assert depth.ready == len(there.peek(10))
    assert depth.expired <= 20
    looked_again(there, clock)
    assert there.depth().expired == 20


def test_a_slot_whose_publisher_is_still_writing_has_not_expired(clock):
    queue = opened(MemoryStore(clock), 1)
    slot = Slot(0, queue.pointers.reserve({0: 1})[0])
    clock.at(GRACE / 2, lambda: queue.pointers.write([slot], [Envelope('"m"', "m1")]))
    assert told(queue) == (1, 0, 0, 0)


def test_a_message_that_is_written_long_after_its_slot_was_found_empty_is_ready_in_the_end(store, clock):
    queue = opened(store, 1)
    slot = Slot(0, queue.pointers.reserve({0: 1})[0])
    assert told(queue) == (0, 0, 0, 1)
    queue.pointers.write([slot], [Envelope('"m"', "m1")])
    clock.advance(queue.pointers.sweep / 2)  # no create that is acknowledged comes later
    assert told(queue) == (1, 0, 0, 0)
    assert stats_of(queue).oldest_age == pytest.approx(queue.pointers.sweep / 2, abs=1)


def test_slots_that_were_found_empty_are_looked_at_once_more_and_then_no_more(store, clock):
    queue, waits = opened(store, 1), opened(store, 1).pointers.sweep / 2
    queue.publish_many(range(3))
    clock.advance(16 * DAYS)
    costs = []
    for pause in (0, 1, waits, 1, waits, DAYS):
        clock.advance(pause)
        began = clock.monotonic()
        store.reset()
        assert told(queue) == (0, 0, 0, 3)
        costs.append((store.total, clock.monotonic() - began))
    looks = (8, GRACE)
    assert costs == [looks, (4, 0), looks, (4, 0), (4, 0), (4, 0)]


def test_messages_that_expire_later_are_looked_at_once_more_too(clock):
    queue = opened(MemoryStore(clock), 1)
    queue.publish_many(range(3))
    clock.advance(DAYS)
    queue.publish_many(range(4))
    clock.advance(14.5 * DAYS)
    waits = []
    for pause in (0, queue.pointers.sweep, DAYS, queue.pointers.sweep, DAYS):
        clock.advance(pause)
        began = clock.monotonic()
        queue.depth()
        waits.append(clock.monotonic() - began)
    assert told(queue) == (0, 0, 0, 7)
    assert waits == [GRACE, GRACE, GRACE, GRACE, 0]


class Ahead(Seams):
    """The real clock, some seconds ahead."""

    by = 0.0

    def monotonic(self):
        return super().monotonic() + self.by

    def boottime(self):
        return super().boottime() + self.by

    def wall(self):
        return super().wall() + self.by


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_number_that_expired_does_not_go_down_while_every_worker_is_busy(ordered, shards):
    seams, busy, ends = Ahead(), threading.Event(), threading.Event()
    queue = opened(MemoryStore(seams), shards)
    queue.publish_many(range(12))
    seams.by = 16 * DAYS
    queue.publish("m")
    there = opened(queue.store, shards)
    assert told(there)[3] == 12
    handler = lambda _: busy.set() or ends.wait(60)  # noqa: E731 - it is one
    with Consumer(queue, handler, concurrency=1, ordered=ordered, upkeep=False):
        try:
            assert busy.wait(20)
            seams.by += LATE + 1
            assert until(lambda: opened(queue.store, shards).depth().expired == 12, 20)
        finally:
            ends.set()


def test_a_part_of_a_queue_is_half_over_once_a_message_has_waited_for_half_of_its_life(clock):
    queue = opened(MemoryStore(clock))
    assert not stats_of(queue).ready.is_half_over, "nothing waits"
    queue.publish("m")
    clock.advance(7 * DAYS)
    assert not stats_of(queue).ready.is_half_over
    clock.advance(DAYS)
    assert stats_of(queue).ready.is_half_over
