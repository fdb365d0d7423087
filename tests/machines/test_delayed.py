"""Delayed messages over two stores, and against a list of what waits until when."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from latchwork.errors import AlreadyExists
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.delayed.entries import WIDTH
from latchwork.queue.sharded.upkeep.timers import Timers

from .twins import Twins, came_to, time_passes

picks = st.integers(0, 5)
delays = st.sampled_from((0.1, 1.0, 5.0, 40.0))


class Term:
    """A leadership that lasts."""

    def check(self):
        """It leads."""


class Own:
    """One queue, for the timers."""

    def __init__(self, queue):
        self._queue = queue

    def queues(self):
        return [self._queue]


class Delayed(Twins):
    """One queue; `waits` has when each message is due, `moved` those that are in the queue.

    `failed` has those of `waits` that wait for their next attempt. Their ids are free: they wait under other names.
    """

    def start(self):
        self.waits: dict[str, float] = {}
        self.failed: set[str] = set()
        self.moved: dict[str, float] = {}
        self.cancelled: set[str] = set()

    @initialize(shards=st.integers(1, 3))
    def make(self, shards):
        config = QueueConfig("q", shards=shards, max_deliveries=1000)
        self.queue = self.both(lambda store: QueueRegistry(store, "c", farm_id="f").create(config), self.stores)
        self.known = self.both(lambda queue: Timers(Own(queue)), self.queue)

    @rule(delay=delays, n=st.integers(1, 3), twice=st.booleans())
    def publish(self, delay, n, twice):
        ids = [f"m{len(self.waits) + len(self.moved) + len(self.cancelled) + place}" for place in range(n)]
        if twice and (published := self.waits.keys() - self.failed):
            ids = [min(published)]
        answers = self.both(lambda queue: queue.publish_many(ids, message_ids=ids, delay=delay), self.queue)
        if ids[0] in self.waits:
            assert came_to(answers) is AlreadyExists
            return
        if came_to(answers) is not AlreadyExists:  # the id of one that was cancelled is kept until it expires
            self.waits |= dict.fromkeys(ids, self.now + delay)

    @rule(pick=picks)
    def cancel(self, pick):
        known = sorted({*self.waits, *self.moved, *self.cancelled, "nobody"})
        name = known[pick % len(known)]
        cancelled = came_to(self.both(lambda queue: queue.cancel(name), self.queue))
        assert bool(cancelled) == (name in self.waits or name in self.moved)
        if cancelled:
            self.waits.pop(name, None)
            self.failed.discard(name)
            self.moved.pop(name, None)
            self.cancelled.add(name)

    @time_passes
    @rule(seconds=st.sampled_from((0.0, 0.3, 2.0, 45.0)), elected=st.booleans())
    def move(self, seconds, elected):
        """By the leader that there is, or by one that has just been elected; it looks once in 4 s for new queues."""
        for clock in self.clocks:
            clock.advance(seconds)
        movers = self.both(lambda queue: Timers(Own(queue)), self.queue) if elected else self.known
        self.both(lambda mover: mover.run(Term()) >= 0, movers)
        due = {name: at for name, at in self.waits.items() if at <= self.now}
        ready = {message.payload for message in self.queue[0].peek(100)} - self.moved.keys()
        assert ready <= due.keys(), "none comes early"
        if elected:
            assert ready >= {name for name, at in due.items() if at + WIDTH / 1000 <= self.now}, "each one comes"
        for name in ready:
            self.moved[name] = self.waits.pop(name)
            self.failed.discard(name)

    @rule(n=st.integers(1, 4), again=st.booleans())
    def handle(self, n, again):
        found = self.both(lambda queue: queue.receive(n), self.queue)
        names = [delivery.payload for delivery in found[0]]
        assert len(set(names)) == len(names)
        assert set(names) <= self.moved.keys()
        for name in names:
            del self.moved[name]
        if again and names:
            self.both(lambda deliveries: [one.nack(delay=1) for one in deliveries], found)
            self.waits |= dict.fromkeys(names, self.now + 1)
            self.failed |= set(names)
        else:
            self.both(lambda queue, deliveries: queue.ack_many(deliveries), self.queue, found)
            self.cancelled |= set(names)  # done with; a number is used once

    @invariant()
    def as_many_wait_as_should(self):
        if hasattr(self, "queue"):
            depth = self.both(lambda queue: queue.depth(), self.queue)  # it may wait, so both sides are asked
            assert came_to(depth).delayed == len(self.waits)


def test_delayed_messages_come_alike_over_both_stores_and_as_a_list_says(agree):
    agree(Delayed, "delayed")
