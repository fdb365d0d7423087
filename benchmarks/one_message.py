"""What it costs to ask for one message (P26), to keep it the only one of its key (P30), and to keep its result (P31).

Run it from the project's root as `python -m benchmarks.one_message`. Targets: a key takes at most two calls more than
publishing without one, whether it is free, or its message is kept or replaced; a result none, alone and in hundreds; a
status, a cancel and a result two at most. By the server: the operations on records that it has counted, of which a call
with several rows is several. A ratio is of the rates of both cases, in turns.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from itertools import count

from benchmarks._harness import Case, CountingStore, aerospike_url, arguments, interleaved, server_operations, table
from benchmarks.targets import Verdict, judged
from latchwork.queue import Delivery, QueueConfig, QueueRegistry, ShardedQueue
from latchwork.store.aerospike.store import AerospikeStore

NUMBERS = count()
MANY, HUNDRED = 20, 100
PAYLOAD = "x" * 256
PLAIN, UNIQUE = "publish, receive, ack", "publish(unique=), receive, ack"


class Costs:
    """What each case takes, of a message: our calls, and what the server has counted."""

    def __init__(self, store: CountingStore) -> None:
        self._store, self._client, self._namespace = store, store.inner._link.connect(), store.inner.namespace
        self.rows: dict[str, tuple[float, float]] = {}

    def of(self, what: str, run: Callable[[], object], messages: int = 1) -> None:
        """Run it once."""
        self._store.calls.clear()
        served = server_operations(self._client, self._namespace)
        run()
        served = server_operations(self._client, self._namespace) - served
        self.rows[what] = self._store.total() / messages, served / messages

    def each(self, what: str, run: Callable[[str], object], ids: list[str]) -> None:
        """Run it for each of these messages."""
        self.of(what, lambda: [run(one) for one in ids], len(ids))


def a_queue(store: CountingStore, **settings: timedelta) -> ShardedQueue:
    """A queue of one shard, of which the process knows all that it learns once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig(f"q{next(NUMBERS)}", shards=1, **settings)
        queue = QueueRegistry(store, "benchone").create(config)
    acknowledged(queue, lambda delivery: delivery.ack())
    queue.publish(PAYLOAD, delay=3600)
    return queue


def acknowledged(queue: ShardedQueue, ack: Callable[[Delivery], None], unique: str | None = None) -> None:
    """Publish a message, receive and acknowledge it."""
    queue.publish(PAYLOAD, unique=unique)
    (delivery,) = queue.receive()
    ack(delivery)


def measure_keys(costs: Costs, queue: ShardedQueue) -> None:
    """What a key costs."""
    keys = [f"k{n}" for n in range(MANY)]
    costs.each("publish", lambda _: queue.publish(PAYLOAD), keys)
    queue.ack_many(queue.receive(MANY))
    costs.each("publish(unique=), the key is free", lambda key: queue.publish(PAYLOAD, unique=key), keys)
    costs.each("publish(unique=), kept", lambda key: queue.publish(PAYLOAD, unique=key), keys)
    again = {"on_duplicate": "replace"}
    costs.each("publish(unique=), replaced", lambda key: queue.publish(PAYLOAD, unique=key, **again), keys)
    held = queue.receive(MANY)
    costs.of("ack, with a key", lambda: [one.ack() for one in held], MANY)
    costs.each("publish(unique=), after an ack", lambda key: queue.publish(PAYLOAD, unique=key), keys)
    for one in queue.receive(MANY):
        queue.give_back([one])
        queue.cancel(one.message_id)
    time.sleep(1.1)  # who finds a key that was taken less than a second ago waits
    costs.each("publish(unique=), after a cancel", lambda key: queue.publish(PAYLOAD, unique=key), keys)
    queue.ack_many(queue.receive(MANY))
    ids = [queue.publish(PAYLOAD, unique=key, delay=3600) for key in keys]
    costs.each(
        "publish(unique=, delay=), replaced",
        lambda key: queue.publish(PAYLOAD, unique=key, delay=1800, **again), keys,
    )  # fmt: skip
    costs.each("cancel, delayed", queue.cancel, ids)


def measure_results(costs: Costs, queue: ShardedQueue, what: str) -> None:
    """What an acknowledgement costs that keeps a result, and one that does not."""
    queue.publish_many([PAYLOAD] * (MANY + HUNDRED))
    alone, together = queue.receive(MANY), list[Delivery]()
    costs.of(f"receive in hundreds, {what}", lambda: together.extend(queue.receive(HUNDRED)), HUNDRED)
    ids = [one.message_id for one in alone]
    costs.each("status, running", queue.status, ids)
    result = {"total": 7} if queue.config.results else None
    costs.of(f"ack, {what}", lambda: [one.ack(result) for one in alone], MANY)
    costs.of(f"ack in hundreds, {what}", lambda: queue.ack_many(together), HUNDRED)
    costs.each("status, done", queue.status, ids)
    if result is not None:
        costs.each("result", lambda one: queue.result(one, timeout=0), ids)


def measure_states(costs: Costs, queue: ShardedQueue) -> None:
    """What it costs to ask, and to cancel."""
    ids = queue.publish_many([PAYLOAD] * MANY)
    costs.each("status, ready", queue.status, ids)
    costs.each("cancel, running", queue.cancel, [one.message_id for one in queue.receive(MANY)])
    ids = queue.publish_many([PAYLOAD] * MANY)
    costs.each("cancel, ready", queue.cancel, ids)


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        store = CountingStore(AerospikeStore.from_url(url))
        costs, queue = Costs(store), a_queue(store)
        keeping = a_queue(store, results=timedelta(hours=1))
        measure_keys(costs, a_queue(store))
        measure_results(costs, queue, "no results")
        measure_results(costs, keeping, "a result")
        measure_states(costs, a_queue(store))
        rows = [(what, f"{ours:.2f}", f"{served:.2f}") for what, (ours, served) in costs.rows.items()]
        print(table(("case", "calls", "by the server"), rows) + "\n")
        done, kept = (lambda one: one.ack()), (lambda one: one.ack({"total": 7}))
        cases = [
            Case(PLAIN, lambda: acknowledged(queue, done)),
            Case(UNIQUE, lambda: acknowledged(queue, done, "k")),
            Case("publish, receive, ack(result)", lambda: acknowledged(keeping, kept)),
        ]
        rates = interleaved(cases, options.seconds)
        rows = [(case.name, rates.rate(case.name), rates.ratio(case.name, PLAIN)) for case in cases]
        print(table(("case", "messages a second", f"x {PLAIN}"), rows) + "\n")
        calls, extra = {what: ours for what, (ours, _) in costs.rows.items()}, 1e-6
        more = [(f"publish(unique=), {how}", calls["publish"] + 2) for how in ("the key is free", "kept", "replaced")]
        targets = [
            *more,
            ("ack, with a key", calls["ack, no results"] + 1),
            ("ack, a result", calls["ack, no results"]),
            ("ack in hundreds, a result", calls["ack in hundreds, no results"]),
            *((what, 2) for what in calls if what.startswith(("status", "cancel", "result"))),
        ]
        print(judged([Verdict(f"{what}: calls", most + extra, calls[what], at_least=False) for what, most in targets]))


if __name__ == "__main__":
    main()
