"""What groups (P17) and batches that end (P18) cost: calls a message, beside a queue that has neither.

Run it from the project's root as `python -m benchmarks.groups`. Targets: publishing costs as much with 20 groups as
with none; a group's acknowledgement is 1 call, 0.01 in hundreds; into a batch two calls more a publish, however many
messages, and an acknowledgement one call more, 0.02 in hundreds; as much where results are kept, and 2 calls for each
500 results that are read. Rates are printed beside, and are judged by nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from itertools import count

from benchmarks._harness import CountingStore, aerospike_url, arguments, table
from benchmarks.targets import Verdict, judged
from latchwork.queue import QueueBatch, QueueConfig, QueueRegistry, ShardedQueue
from latchwork.store.aerospike.store import AerospikeStore

HUNDRED, THOUSAND = 100, 1_000
PAYLOAD = "x" * 256
NAMES = count()


class Costs:
    """Calls a message, and messages a second, of what was measured. Nothing is measured twice."""

    def __init__(self, store: CountingStore) -> None:
        self.store = store
        self.rows: list[tuple[str, float, float]] = []

    def of(self, what: str, messages: int, run: Callable[[], object]) -> None:
        """Run it once."""
        self.store.calls.clear()
        began = time.perf_counter()
        run()
        self.rows.append((what, self.store.total() / messages, messages / (time.perf_counter() - began)))

    def calls(self, what: str) -> float:
        """Calls a message."""
        return next(calls for name, calls, _ in self.rows if name == what)


def a_queue(store: CountingStore, groups: int = 0, *, results: timedelta | None = None) -> ShardedQueue:
    """A queue of one shard, so that hundreds are claimed together, with so many groups."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = QueueRegistry(store, "benchgroups").create(QueueConfig(f"q{next(NAMES)}", shards=1, results=results))
    for number in range(groups):
        queue.group(f"g{number}")
    queue.publish(PAYLOAD)  # the process knows its shards from here on
    return queue


def acknowledged(costs: Costs, view: ShardedQueue, what: str) -> None:
    """Acknowledge ten messages one by one, and a hundred together."""
    found, more = view.receive(10), view.receive(HUNDRED)
    costs.of(f"ack 1, {what}", len(found), lambda: [delivery.ack() for delivery in found])
    costs.of(f"ack 100, {what}", len(more), lambda: view.ack_many(more))


def published(costs: Costs, into: ShardedQueue | QueueBatch, what: str) -> None:
    """Publish a hundred messages one by one, and a thousand together."""
    costs.of(f"publish 1, {what}", HUNDRED, lambda: [into.publish(PAYLOAD) for _ in range(HUNDRED)])
    costs.of(f"publish 1,000, {what}", THOUSAND, lambda: into.publish_many([PAYLOAD] * THOUSAND))


def measure(costs: Costs) -> None:
    """All cases."""
    for groups in (0, 1, 20):
        queue = a_queue(costs.store, groups)
        published(costs, queue, f"{groups} groups")
        if groups == 0:
            acknowledged(costs, queue, "no groups")
        for place, group in enumerate(queue.groups()[:2], 1):
            acknowledged(costs, group, f"{groups} groups, number {place} of them")
        for group in queue.groups():
            group.drop()
    queue = a_queue(costs.store)
    queue.ack_many(queue.receive(1))
    batch = queue.batch(f"b{next(NAMES)}")
    published(costs, batch, "into a batch")
    acknowledged(costs, queue, "of a batch")
    batch.close()
    costs.of("wait once, 1,100 messages", 1, lambda: batch.wait(0))
    queue = a_queue(costs.store, results=timedelta(hours=1))
    queue.ack_many(queue.receive(1))
    batch = queue.batch(f"b{next(NAMES)}")
    published(costs, batch, "into a batch with results")
    acknowledged(costs, queue, "of a batch with results")
    batch.close()
    while some := queue.receive(THOUSAND):
        queue.ack_many(some)
    costs.of("read 1,100 results", HUNDRED + THOUSAND, lambda: [one.result() for one in batch.results(0)])


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        costs = Costs(CountingStore(AerospikeStore.from_url(url)))
        measure(costs)
        print(
            table(("case", "calls a message", "messages a second"), [(n, f"{c:.4f}", r) for n, c, r in costs.rows])
            + "\n"
        )
        of, extra = costs.calls, 1e-6
        targets = [
            ("publish 1, 20 groups", of("publish 1, 0 groups")),
            ("publish 1,000, 20 groups", of("publish 1,000, 0 groups")),
            ("ack 1, 20 groups, number 1 of them", 1),
            ("ack 100, 20 groups, number 1 of them", 0.01),
            ("publish 1, into a batch", of("publish 1, 0 groups") + 2),
            ("publish 1,000, into a batch", of("publish 1,000, 0 groups") + 0.002),
            ("ack 1, of a batch", of("ack 1, no groups") + 1),
            ("ack 100, of a batch", of("ack 100, no groups") + 0.02),
            ("publish 1, into a batch with results", of("publish 1, into a batch")),
            ("publish 1,000, into a batch with results", of("publish 1,000, into a batch")),
            ("ack 1, of a batch with results", of("ack 1, of a batch")),
            ("ack 100, of a batch with results", of("ack 100, of a batch")),
            ("read 1,100 results", 6 / (HUNDRED + THOUSAND)),
        ]
        print(judged([Verdict(f"{what}: calls", most + extra, of(what), at_least=False) for what, most in targets]))


if __name__ == "__main__":
    main()
