"""What a delayed message costs (P16), beside one that is published at once, and how late it comes.

Run it from the project's root as `python -m benchmarks.delayed`. Targets: publishing with a delay is at most 2 calls,
0.05 a message in hundreds; moving at most 0.05 calls a message in hundreds; at 1,000 messages due a second the median
comes at most 0.5 s late, and 99 of 100 at most 2 s. A ratio is of the rates of both kinds, in turns.
"""

from __future__ import annotations

import statistics
import threading
import time
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from itertools import count

from benchmarks._harness import Case, CountingStore, aerospike_url, arguments, interleaved, table
from benchmarks.targets import Verdict, judged
from latchwork.queue import QueueConfig, QueueRegistry, ShardedQueue
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.queue.sharded.upkeep.upkeep import upkeep_of
from latchwork.store.aerospike.store import AerospikeStore

HUNDREDS, FAR = 500, 3_600.0
"""Messages in one call, and seconds of a delay that does not end here."""
RATE, SECONDS, AHEAD = 1_000, 10, 4.0
"""Messages that are due a second, for how long, and how long before the first of them is due they are published."""
PAYLOAD = "x" * 256
NAMES = count()


class Term:
    """A leadership that lasts."""

    def check(self) -> None:
        """It leads."""


class One:
    """Timers of this queue alone."""

    def __init__(self, queue: ShardedQueue) -> None:
        self._queue = queue

    def queues(self) -> list[ShardedQueue]:
        """The queue."""
        return [self._queue]


def a_queue(store: CountingStore, client: str = "benchdelayed") -> ShardedQueue:
    """A new queue whose shards this process knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = QueueRegistry(store, client).create(QueueConfig(f"q{next(NAMES)}", shards=8))
    queue.publish(PAYLOAD)
    queue.publish(PAYLOAD, delay=FAR)
    return queue


def published(store: CountingStore, seconds: float) -> list[tuple[str, float, float, float]]:
    """Of each way to publish its calls and messages a second, and the ratio to publishing at once."""
    rows = []
    for messages, title in ((1, "1"), (HUNDREDS, f"{HUNDREDS}")):
        queue, many = a_queue(store), [PAYLOAD] * messages
        ways: dict[str, Callable[[], object]] = {
            f"publish {title}": lambda queue=queue, many=many: queue.publish_many(many),
            f"publish {title}, delayed": lambda queue=queue, many=many: queue.publish_many(many, delay=FAR),
        }
        rates = interleaved([Case(name, run, messages) for name, run in ways.items()], seconds)
        for name, run in ways.items():
            rows.append((name, calls(store, run) / messages, rates.rate(name), rates.ratio(name, f"publish {title}")))
    return rows


def calls(store: CountingStore, run: Callable[[], object]) -> int:
    """Calls that it makes."""
    store.calls.clear()
    run()
    return store.total()


def moved(store: CountingStore, messages: int) -> tuple[str, float, float, str]:
    """Calls a message and messages a second of moving so many that are due."""
    queue = a_queue(store)
    timers = Timers(One(queue))
    timers.run(Term())
    at = datetime.fromtimestamp(time.time() + 2 + messages / 5_000, timezone.utc)
    for first in range(0, messages, 1_000):
        queue.publish_many([PAYLOAD] * min(1_000, messages - first), at=at)
    time.sleep(max(0.0, at.timestamp() - time.time()) + 0.5)
    store.calls.clear()
    began = time.perf_counter()
    timers.run(Term())
    spent, made = time.perf_counter() - began, store.total()
    assert queue.depth().ready == messages + 1, queue.depth()
    return f"move {messages:,} that are due", made / messages, messages / spent, "-"


def single(store: CountingStore) -> list[tuple[str, float, str, str]]:
    """Calls of what is done with one message, and of a look at which nothing is due."""
    queue = a_queue(store)
    queue.publish(PAYLOAD, delay=FAR, message_id="one")
    (delivery,) = queue.receive()
    timers = Timers(One(queue))
    timers.run(Term())
    done = {
        "cancel": lambda: queue.cancel("one"),
        "nack(delay=)": lambda: delivery.nack(delay=FAR),
        "a look at a queue with messages that are not due": lambda: timers.run(Term()),
    }
    return [(name, float(calls(store, run)), "-", "-") for name, run in done.items()]


def lateness(store: CountingStore) -> list[float]:
    """Seconds by which each message comes late, while a process does the upkeep, and this one receives."""
    queue = a_queue(store, f"benchlate{next(NAMES)}")
    queue.ack_many(queue.receive(10))
    upkeep, late = upkeep_of(queue.registry), []
    upkeep.join("benchmark")
    while not upkeep.leads:
        time.sleep(0.05)
    time.sleep(5)  # until its timers know of the queue

    def receive() -> None:
        while len(late) < RATE * SECONDS:
            found = queue.receive(1_000, timeout=1)
            now = time.time()
            late.extend(now - delivery.payload for delivery in found)
            queue.ack_many(found)

    receiver = threading.Thread(target=receive)
    receiver.start()
    begin, step = time.time() + AHEAD, 0.05
    for number in range(round(SECONDS / step)):
        due = begin + number * step
        many = [due] * round(RATE * step)
        queue.publish_many(many, at=datetime.fromtimestamp(due, timezone.utc))
        time.sleep(max(0.0, due - AHEAD - time.time()))
    receiver.join()
    upkeep.leave("benchmark")
    return late


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        store = CountingStore(AerospikeStore.from_url(url))
        rows = published(store, options.seconds)
        rows += [moved(store, HUNDREDS), moved(store, 20_000)]
        shown = [(name, f"{each:.4f}", rate, ratio) for name, each, rate, ratio in [*rows, *single(store)]]
        print(table(("case", "calls a message", "messages a second", "x at once"), shown) + "\n")
        late = lateness(store)
        median, cuts = statistics.median(late), statistics.quantiles(late, n=100)
        print(table((f"{RATE:,} due a second", "median s late", "p99", "worst"), [
            (f"{len(late):,} messages", median, cuts[98], max(late)),
        ]) + "\n")  # fmt: skip
        costs = {row[0]: row[1] for row in rows}
        targets = {
            "publish 1, delayed": 2.0, f"publish {HUNDREDS}, delayed": 0.05, f"move {HUNDREDS} that are due": 0.05,
            "move 20,000 that are due": 0.05,
        }  # fmt: skip
        print(judged([
            *(Verdict(f"{what}: calls", most, costs[what], at_least=False) for what, most in targets.items()),
            Verdict("delayed, 1,000 a second: median s late", 0.5, median, at_least=False),
            Verdict("delayed, 1,000 a second: p99 s late", 2, cuts[98], at_least=False),
        ]))  # fmt: skip


if __name__ == "__main__":
    main()
