"""Messages that are unique until they are done over two stores, and against a list of which message a key has."""

from __future__ import annotations

from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from latchwork.errors import AlreadyExists
from latchwork.queue import Outcome, QueueConfig, QueueRegistry
from latchwork.queue.sharded import unique_keys
from latchwork.queue.sharded.upkeep.timers import Timers

from .test_delayed import Own, Term
from .twins import Twins, came_to, time_passes

uniques = st.sampled_from("ab")
WAITS = ("ready", "later", "again")


class Unique(Twins):
    """One queue; `mine` has the message of each key, `state` and `payload` what is known of it, `held` who has it."""

    def start(self):
        self.mine: dict[str, str] = {}
        self.state: dict[str, str] = {}
        self.payload: dict[str, int] = {}
        self.held: dict[str, tuple] = {}
        self.published = 0

    @initialize(shards=st.integers(1, 3))
    def make(self, shards):
        config = QueueConfig("q", shards=shards, max_deliveries=2, backoff=10)
        self.queue = self.both(lambda store: QueueRegistry(store, "c", farm_id="f").create(config), self.stores)

    @rule(unique=uniques, mode=st.sampled_from(("keep", "raise", "replace")), delay=st.sampled_from((None, 5)))
    def publish(self, unique, mode, delay):
        self.published += 1
        payload = self.published
        for clock in self.clocks:
            clock.advance(2)  # whoever has the key has had the time to write its message
        made = self.both(
            lambda queue: queue.publish(payload, unique=unique, on_duplicate=mode, delay=delay), self.queue
        )
        answer, state = came_to(made), self.state.get(unique, "none")
        if state == "none":
            self.mine[unique], self.state[unique] = answer, "later" if delay else "ready"
            self.payload[unique] = payload
        elif mode == "keep":
            assert answer == self.mine[unique]
        elif mode == "raise" or state == "held":
            assert answer is AlreadyExists
        else:
            assert answer == self.mine[unique]
            self.payload[unique] = payload
            self.state[unique] = "later" if state in ("later", "again") else state

    @rule(n=st.integers(1, 2))
    def receive(self, n):
        for pair in zip(*self.both(lambda queue: queue.receive(n), self.queue), strict=True):
            (unique,) = [one for one, of in self.mine.items() if of == pair[0].message_id]
            assert self.state[unique] == "ready"
            assert pair[0].payload == self.payload[unique]
            self.state[unique], self.held[unique] = "held", pair

    @rule(unique=uniques, how=st.sampled_from(("ack", "nack", "back")))
    def settle(self, unique, how):
        if unique not in self.held:
            return
        pair = self.held.pop(unique)
        if how == "back":
            self.both(lambda queue, one: queue.give_back([one]), self.queue, pair)
            self.state[unique] = "ready"
        elif how == "nack":
            self.both(lambda one: one.nack(), pair)
            self.state[unique] = "none" if pair[0].attempts == 2 else "again"
        else:
            self.both(lambda one: one.ack(), pair)
            self.state[unique] = "none"

    @time_passes
    @rule()
    def come_due(self):
        for clock in self.clocks:
            clock.advance(30)
        self.both(lambda queue: Timers(Own(queue)).run(Term()) >= 0, self.queue)
        self.state |= {unique: "ready" for unique, state in self.state.items() if state in ("later", "again")}

    @rule(unique=uniques)
    def cancel(self, unique):
        if self.state.get(unique) in WAITS:
            assert came_to(self.both(lambda queue: queue.cancel(self.mine[unique]), self.queue)) is Outcome.DONE
            self.state[unique] = "none"


def test_a_key_has_one_message_until_it_is_done_alike_over_both_stores(agree):
    # The clock of a server goes by itself: nobody waits for a publisher that has just taken a key.
    with mock.patch.object(unique_keys, "YOUNG", 0):
        agree(Unique, "unique")
