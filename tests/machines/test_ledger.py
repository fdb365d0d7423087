"""Publishing through a ledger over two stores: attempts that end half-way and are repeated, and each message once."""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from latchwork.errors import InvalidRequest, NonDeterministicInput, Refused
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing, Published

from .twins import Twins, came_to, failed

CLIENT = f"l{os.getpid()}"
INPUTS = (
    ("a", "b", "c", "d", "e"),
    ("a", "a", "a", "b"),
    ("e", "d", "c", "b", "a"),
    ("a", "b"),
    (),
)
"""Payloads of a partition; the third is the first in another order."""
scopes, partitions = st.sampled_from(("s", "t")), st.integers(0, 1)
batches = st.sampled_from((None, 1, 2, 3))


class Interrupted(Exception):
    """The program that publishes ends here."""


class Ledgers(Twins):
    """One queue, two scopes of two partitions, and somebody who takes what was published."""

    def start(self):
        self.published = {(scope, partition): Counter() for scope in "st" for partition in (0, 1)}
        self.taken: Counter = Counter()

    @initialize(shards=st.integers(1, 3))
    def make(self, shards):
        self.registries = self.both(lambda store: QueueRegistry(store, CLIENT, farm_id="f"), self.stores)
        config = QueueConfig("q", shards=shards)
        self.queues = self.both(lambda registry: registry.create(config), self.registries)

    @rule(
        scope=scopes, partition=partitions, payloads=st.sampled_from(INPUTS), batch=batches, labelled=st.booleans(),
        stops=st.none() | st.integers(0, 4),
    )  # fmt: skip
    def publish(self, *, scope, partition, payloads, batch, labelled, stops):
        """One attempt, which may stop before one of its messages."""
        rows = [f"{scope}{partition}{payload}" for payload in payloads]
        stops = None if stops is None or stops >= len(rows) else stops

        def given():
            for place, row in enumerate(rows):
                if place == stops:
                    raise Interrupted
                yield Outgoing(row, key=row, headers={"h": "1"}) if labelled else Outgoing(row)

        def attempt(queue):
            try:
                return Ledger(queue, scope, batch=batch).publish(partition, given())
            except Interrupted:
                return None

        answers = self.both(attempt, self.queues)
        known = self.published[scope, partition]
        before, wanted = known.total(), Counter((row, labelled) for row in rows)
        foreign = known - wanted
        known |= self.flushed(
            known, [(row, labelled) for row in rows[:stops]], None if stops is None else batch or 1000
        )
        if stops is not None:
            assert came_to(answers) is None
        elif foreign:
            assert came_to(answers) is NonDeterministicInput
        else:
            assert came_to(answers) == Published(len(rows), known.total() - before)

    @staticmethod
    def flushed(known: Counter, rows: list, batch: int | None) -> Counter:
        """What these rows add to the ledger where only whole batches were published; all of them with None."""
        seen: Counter = Counter()
        new = []
        for row in rows:
            seen[row] += 1
            if seen[row] > known[row]:
                new.append(row)
        return known + Counter(new if batch is None else new[: len(new) // batch * batch])

    @rule(scope=scopes, partition=partitions)
    def ask(self, scope, partition):
        found = self.both(lambda queue: Ledger(queue, scope).published(partition), self.queues)
        assert came_to(found) == self.published[scope, partition].total()

    @precondition(lambda self: any(self.published.values()))
    @rule(n=st.integers(1, 5))
    def take(self, n):
        answers = self.both(lambda queue: queue.receive(n), self.queues)
        for delivery in came_to(answers):
            self.taken[delivery.payload, bool(delivery.headers)] += 1
        assert not failed(self.both(lambda queue, got: queue.ack_many(got), self.queues, answers))

    @rule(scope=scopes, partition=partitions)
    def be_refused(self, scope, partition):
        twice = [Outgoing("x", message_id="own"), Outgoing("x", message_id="own")]
        refused = self.both(lambda queue: Ledger(queue, scope).publish(partition, twice), self.queues)
        assert came_to(refused) is InvalidRequest
        self.both(lambda registry: registry.deactivate("q"), self.registries)
        refused = self.both(lambda queue: Ledger(queue, scope).publish(partition, []), self.queues)
        assert came_to(refused) is Refused
        self.queues = self.both(lambda registry, queue: registry.create(queue.config), self.registries, self.queues)

    @invariant()
    def every_message_is_there_once(self):
        if hasattr(self, "queues"):
            waiting = Counter((one.payload, bool(one.headers)) for one in self.queues[0].peek_all())
            assert waiting + self.taken == sum(self.published.values(), Counter())


def test_ledgers_publish_alike_over_both_stores_and_each_message_once(agree):
    agree(Ledgers, "ledgers")
