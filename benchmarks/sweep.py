"""The sweep of abandoned messages against the Java pattern: a load and a delete for each of them.

Run it from the project's root as `python -m benchmarks.sweep`. Targets: at most 8 calls per 1,000 abandoned messages,
and a queue of 512 idle shards costs next to nothing.
"""

from __future__ import annotations

import time
import warnings
from datetime import timedelta

import aerospike
from aerospike_helpers.operations import operations

from benchmarks._harness import CountingStore, aerospike_url, arguments, server_operations, table
from benchmarks.targets import Verdict, judged
from latchwork.queue import QueueConfig, QueueRegistry, Sweeper
from latchwork.store.aerospike.store import AerospikeStore

SECONDS = 1
"""The sweep duration, as short as it may be."""
PAYLOAD = b"x" * 256
SEND = {"key": aerospike.POLICY_KEY_SEND, "commit_level": aerospike.POLICY_COMMIT_LEVEL_ALL, "max_retries": 0}


class Leading:
    """A leadership that lasts."""

    epoch = 1

    def check(self) -> None:
        """It leads."""


class Election:
    """An election that was won."""

    leadership = Leading()


class Java:
    """The calls of the Java sweep, without its checks: a batch read of 1,000, then reserve, put and delete for each."""

    def __init__(self, client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.meta = self.key("POINTERS")

    def key(self, name: object):
        return (self.namespace, "bench_sweep_set", f"java_{name}")

    def abandon(self, n: int) -> None:
        for pointer in range(n):
            self.client.put(self.key(pointer), {"data": PAYLOAD, "fireTS": 1}, policy=SEND)

    def sweep(self, n: int) -> int:
        calls = 0
        for first in range(0, n, 1000):
            keys = [self.key(pointer) for pointer in range(first, min(first + 1000, n))]
            rows = self.client.batch_read(keys).batch_records
            calls += 1
            for key, row in zip(keys, rows, strict=True):
                steps = [operations.increment("LOAD_POINTER", 1), operations.read("LOAD_POINTER")]
                pointer = self.client.operate(self.meta, steps, policy=SEND)[2]["LOAD_POINTER"]
                self.client.put(self.key(f"SIDELINE_{pointer}"), row.record[2], policy=SEND)
                self.client.remove(key)
                calls += 3
            steps = [operations.increment("sweepPointer", len(keys))]
            self.client.operate(self.meta, steps, policy=SEND)
            calls += 1
        return calls


def a_registry(store, shards: int):
    registry = QueueRegistry(store, f"bench{store.seams.unique()[:8]}", farm_id="b")
    span = timedelta(seconds=SECONDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("sweep", shards=shards, codec="bytes", sweep_duration=span, handler_timeout=span / 2,
                             unsafe_limits=True)  # fmt: skip
    return registry, registry.create(config)


def swept(store, client, namespace: str, messages: int, shards: int) -> tuple[float, int, int]:
    """Seconds, calls and the server's operations of a sweep that finds so many abandoned messages."""
    registry, queue = a_registry(store, shards)
    for first in range(0, messages, 10_000):
        queue.publish_many([PAYLOAD] * min(10_000, messages - first))
    while queue.receive(1000):
        pass
    time.sleep(SECONDS + 0.2)
    sweeper = Sweeper(registry, Election())
    store.calls.clear()
    before, began = server_operations(client, namespace), time.perf_counter()
    report = sweeper.run_once()
    spent = time.perf_counter() - began
    assert report.ok, report
    assert report.rehomed == messages, report
    return spent, store.total(), server_operations(client, namespace) - before


def idle(store, shards: int) -> tuple[float, int]:
    """Seconds and calls of a sweep that finds nothing."""
    registry, _ = a_registry(store, shards)
    sweeper = Sweeper(registry, Election())
    store.calls.clear()
    began = time.perf_counter()
    assert sweeper.run_once().ok
    return time.perf_counter() - began, store.total()


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        store = CountingStore(AerospikeStore.from_url(url))
        client, namespace = store.inner._link.connect(), store.inner.namespace
        rows = []
        for messages, shards in ((1_000, 1), (1_000, 32), (20_000, 8)):
            java = Java(client, namespace)
            java.abandon(messages)
            began = time.perf_counter()
            calls = java.sweep(messages)
            spent = time.perf_counter() - began
            ours, made, served = swept(store, client, namespace, messages, shards)
            thousands = messages / 1000
            rows.append((f"Java pattern, {messages:,}", messages / spent, 1.0, calls / thousands, 3.0))
            rows.append((f"sweep of {messages:,} in {shards} shards", messages / ours, spent / ours, made / thousands,
                         served / messages))  # fmt: skip
        head = ("case", "messages a second", "x Java", "calls per 1,000", "server's operations a message")
        print(table(head, rows) + "\n")
        verdicts = [Verdict(f"{row[0]}: calls per 1,000", 8, row[3], at_least=False) for row in rows[1::2]]
        for shards in (32, 512):
            spent, calls = idle(store, shards)
            print(f"- a sweep of {shards} idle shards: {calls} calls, {spent * 1000:.1f} ms")
        print("\n" + judged(verdicts))
        client.truncate(namespace, "bench_sweep_set", 0)


if __name__ == "__main__":
    main()
