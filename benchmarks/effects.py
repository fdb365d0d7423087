"""What effects that happen once cost (P23), beside the same handler without them.

Run it from the project's root as `python -m benchmarks.effects`. A message is published, received, handled and
acknowledged. Targets: an effect on a record is one call, two and 0.2 where the record has had more than 100; a step is
two; a message that goes with a write (P28) takes two calls more than the write, 0.05 in hundreds. By the server: the
operations on records that it has counted, of which a call with several rows is several. A ratio is of the rates of both
handlers, in turns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import count

from benchmarks._harness import Case, CountingStore, aerospike_url, arguments, interleaved, server_operations, table
from benchmarks.targets import Verdict, judged
from latchwork.queue import Delivery, Publish, QueueConfig, QueueRegistry, ShardedQueue
from latchwork.store import Add, Exists, Key, Put, Update
from latchwork.store.aerospike.store import AerospikeStore

NUMBERS = count()
MANY = 300
"""Messages over which calls are counted: the making of room, each 50 effects, counts with its part."""
PAYLOAD = "x" * 256
HOT = Key("bench_accounts", "hot")
PLAIN, EFFECT, BUSY, STEP = "store.operate", "delivery.operate", "delivery.operate, a busy record", "delivery.once"
WRITE, PASS = "store.operate, publish=", "delivery.operate, publish="
Handler = Callable[[Delivery], object]


def cold(delivery: Delivery) -> Key:
    """The key of a record of the message's own."""
    return Key("bench_accounts", delivery.message_id)


def handlers(store: CountingStore, mails: ShardedQueue) -> dict[str, Handler]:
    """The handlers, by name."""
    return {
        PLAIN: lambda delivery: store.operate(cold(delivery), Add("balance", 1), exists=Exists.ANY, ttl=600),
        EFFECT: lambda delivery: delivery.operate(cold(delivery), Add("balance", 1), ttl=600),
        BUSY: lambda delivery: delivery.operate(HOT, Add("balance", 1)),
        STEP: lambda delivery: delivery.once("step").run(lambda: 7),
        WRITE: lambda delivery: store.operate(
            cold(delivery), Add("balance", 1), exists=Exists.ANY, ttl=600, publish=Publish(PAYLOAD, queue=mails)
        ),
        PASS: lambda delivery: delivery.operate(
            cold(delivery), Add("balance", 1), ttl=600, publish=Publish(PAYLOAD, queue=mails)
        ),
    }


def in_hundreds(store: CountingStore, mails: ShardedQueue) -> float:
    """Calls that a message takes more than its write, where 300 go together."""
    writes = [
        Update(Key("bench_accounts", f"m{next(NUMBERS)}"), (Add("balance", 1),), exists=Exists.ANY, ttl=600)
        for _ in range(MANY)
    ]
    store.calls.clear()
    store.operate_many(writes, publish=[Publish(PAYLOAD, queue=mails)] * MANY).raise_unless()
    return (store.total() - 1) / MANY


def handled(queue: ShardedQueue, handle: Handler) -> None:
    """Publish a message, receive and handle it, acknowledge it."""
    queue.publish(PAYLOAD)
    (delivery,) = queue.receive()
    handle(delivery)
    delivery.ack()


def calls(store: CountingStore, queue: ShardedQueue, handle: Handler) -> tuple[float, float]:
    """Calls that the handler makes, of a message; operations on records that the server has counted for it."""
    client, namespace = store.inner._link.connect(), store.inner.namespace
    queue.publish_many([PAYLOAD] * MANY)
    deliveries = queue.receive(MANY)
    store.calls.clear()
    served = server_operations(client, namespace)
    for delivery in deliveries:
        handle(delivery)
    made = store.total() / MANY, (server_operations(client, namespace) - served) / MANY
    queue.ack_many(deliveries)
    return made


def repeated(store: CountingStore, queue: ShardedQueue, handle: Handler) -> float:
    """Calls that the handler makes of a message whose effect was made before."""
    queue.publish(PAYLOAD)
    (first,) = queue.receive()
    handle(first)
    second = Delivery(first.payload, first.held, first.view, store.seams.monotonic())
    store.calls.clear()
    handle(second)
    second.ack()
    return float(store.total() - 1)


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        store = CountingStore(AerospikeStore.from_url(url))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            registry = QueueRegistry(store, "bencheffects")
            queue, mails = (registry.create(QueueConfig(f"q{next(NUMBERS)}", shards=8)) for _ in range(2))
        store.operate(HOT, Put("balance", 0), exists=Exists.ANY)
        ways = handlers(store, mails)
        calls(store, queue, ways[BUSY])  # from now on it has had more than 100 effects
        together = in_hundreds(store, mails)
        together = in_hundreds(store, mails)  # the first of a process asks for the server's time
        counts = {name: calls(store, queue, handle) for name, handle in ways.items()}
        cost = {name: made for name, (made, _) in counts.items()}
        again = {name: repeated(store, queue, handle) for name, handle in ways.items() if name not in (PLAIN, WRITE)}
        cases = [Case(name, lambda handle=handle: handled(queue, handle)) for name, handle in ways.items()]
        rates = interleaved(cases, options.seconds)
        rows = [
            (name, *(f"{one:.2f}" for one in counts[name]), f"{again[name]:.0f}" if name in again else "-",
             rates.rate(name), rates.ratio(name, PLAIN))
            for name in ways
        ]  # fmt: skip
        head = ("handler", "calls", "by the server", "calls if done before", "messages a second", f"x {PLAIN}")
        print(table(head, rows) + "\n")
        print(judged([
            Verdict("delivery.operate: calls", 1, cost[EFFECT], at_least=False),
            Verdict("delivery.operate, a busy record: calls", 2.2, cost[BUSY], at_least=False),
            Verdict("delivery.once: calls", 2, cost[STEP], at_least=False),
            Verdict("store.operate, publish=: calls more than the write", 2, cost[WRITE] - cost[PLAIN], at_least=False),
            Verdict("delivery.operate, publish=: calls more", 2, cost[PASS] - cost[EFFECT], at_least=False),
            Verdict("300 writes with publish=: calls more, a message", 0.05, together, at_least=False),
        ]))  # fmt: skip


if __name__ == "__main__":
    main()
