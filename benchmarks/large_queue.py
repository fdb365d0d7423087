"""The large circular queue against its two anchors: the three raw calls that one message needs, and the reference.

Run it from the project's root as `python -m benchmarks.large_queue`. Targets: one message at a time >= 0.85 of the raw
loop, `enqueue_many(100)` >= 20 times the reference, 8 threads of one process >= 4 times the reference on 8 threads, and
3 calls for any batch that fits.

The reference is the illustrative implementation whose design the queue follows: it takes the lock, writes one slot,
commits and releases, and sleeps 100 ms where the lock is taken; it compiles its filters for every call. The raw loop
makes the queue's own three calls by hand (`_raw_round.py`); the last two rows hold the queue against the reference's
simpler three calls.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import count
from typing import ClassVar

import aerospike
from aerospike_helpers import expressions as exp
from aerospike_helpers.operations import list_operations, operations

from benchmarks._harness import CountingStore, Rates, aerospike_url, arguments, table, together
from benchmarks._raw_round import RawRound
from benchmarks.targets import Verdict, judged
from latchwork.queue import LargeQueue
from latchwork.store.aerospike.store import AerospikeStore

PAYLOAD = "x" * 256
SET = "bench-large-queue"
CAPACITY, SLOTS = 20_000, 100
SETS = ("reference", "simple", "raw", "ours")
LEASE_MS, NAP = 200, 0.1
THREADS = 8
TURNS = 5


class Reference:
    """Three calls a message: lock and read, write or read a slot, commit and unlock."""

    def __init__(self, client, namespace: str, name: str) -> None:
        self.client, self.namespace, self.name = client, namespace, name
        self.meta = self._key("queue-metadata")
        bins = {"locked": 0, "lock-owner": "", "lock-time-ms": 0, "head-offset": 0, "tail-offset": 0, "fencing-ctr": 0}
        client.put(self.meta, bins)
        for number in range(CAPACITY // SLOTS):
            client.put(self._key(f"queue-buffer-{number}"), {"fencing-mark": 0, "entries": []})

    def _key(self, name: str):
        return self.namespace, f"{SET}-{self.name}", name

    def _filter(self, expression, **values):
        return expression(**values).compile()

    def _lock(self, txn: str):
        while True:
            now = int(time.time() * 1000)
            steps = [
                operations.increment("fencing-ctr", 1),
                operations.write("locked", 1),
                operations.write("lock-owner", txn),
                operations.write("lock-time-ms", now),
                operations.read("head-offset"),
                operations.read("tail-offset"),
                operations.read("fencing-ctr"),
            ]
            try:
                policy = {"expressions": self._filter(_free, expired=now - LEASE_MS)}
                return self.client.operate(self.meta, steps, policy=policy)[2]
            except aerospike.exception.FilteredOut:
                time.sleep(NAP)

    def _unlock(self, txn: str, bin: str, offset: int) -> None:
        steps = [operations.write(bin, offset), operations.write("locked", 0)]
        self.client.operate(self.meta, steps, policy={"expressions": self._filter(_mine, txn=txn)})

    def enqueue(self, value, txn: str = "1") -> int:
        state = self._lock(txn)
        tail, fence = state["tail-offset"], state["fencing-ctr"]
        assert tail - state["head-offset"] < CAPACITY
        steps = [
            list_operations.list_set("entries", tail % SLOTS, [tail, value]),
            operations.write("fencing-mark", fence),
        ]
        key = self._key(f"queue-buffer-{tail // SLOTS % (CAPACITY // SLOTS)}")
        self.client.operate(key, steps, policy={"expressions": self._filter(_newer, fence=fence)})
        self._unlock(txn, "tail-offset", tail + 1)
        return tail

    def dequeue(self, txn: str = "1"):
        state = self._lock(txn)
        head = state["head-offset"]
        key = self._key(f"queue-buffer-{head // SLOTS % (CAPACITY // SLOTS)}")
        found = self.client.operate(key, [list_operations.list_get("entries", head % SLOTS)])[2]
        self._unlock(txn, "head-offset", head + 1)
        return found["entries"]


class Simple(Reference):
    """The reference's calls, with each filter compiled once and its value put in for each call."""

    templates: ClassVar[dict] = {}

    def _filter(self, expression, **values):
        ((name, value),) = values.items()
        marker = "" if isinstance(value, str) else -(2**40) - len(name)
        if expression not in self.templates:
            entries = expression(**{name: marker}).compile()
            places = [place for place, entry in enumerate(entries) if entry[2] and entry[2].get("val") == marker]
            self.templates[expression] = entries, places
        entries, places = self.templates[expression]
        filled = entries.copy()
        for place in places:
            filled[place] = (*entries[place][:2], {"val": value}, *entries[place][3:])
        return filled


def _free(expired: int):
    return exp.Or(exp.Eq(exp.IntBin("locked"), 0), exp.LT(exp.IntBin("lock-time-ms"), expired))


def _mine(txn: str):
    return exp.And(exp.Eq(exp.IntBin("locked"), 1), exp.Eq(exp.StrBin("lock-owner"), txn))


def _newer(fence: int):
    return exp.LT(exp.IntBin("fencing-mark"), fence)


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        inner = AerospikeStore.from_url(url)
        client, namespace = inner._link.connect(), inner.namespace
        for name in SETS:
            client.truncate(namespace, f"{SET}-{name}", 0)
        time.sleep(0.2)
        queue = LargeQueue.create(inner, f"{SET}-ours", CAPACITY, entries_per_record=SLOTS)
        beside = LargeQueue.create(inner, f"{SET}-raw", CAPACITY, entries_per_record=SLOTS)
        raw, reference = RawRound(client, namespace, beside.layout), Reference(client, namespace, "reference")
        anchors = reference, raw, Simple(client, namespace, "simple")
        slices = _measured(_cases(*anchors, queue), options.seconds)
        store = CountingStore(inner)
        calls = _counted(_cases(*anchors, LargeQueue.open(store, queue.name)), store)
        print(_report(Rates(slices), calls))
        for name in SETS:
            client.truncate(namespace, f"{SET}-{name}", 0)


def _cases(reference: Reference, raw: RawRound, simple: Simple, queue: LargeQueue):
    """Name -> (messages in a slice, the work of the slice); what one case puts in, the next one takes out."""
    single, many, threaded = 200, 4000, 800
    ids = count()
    hundred = [PAYLOAD] * 100

    def times(work, number):
        return lambda: [work() for _ in range(number)]

    def stubbornly(work):
        """The reference gives up where its lock was broken, and asks its caller to try again."""

        def attempt():
            while True:
                try:
                    return work(str(next(ids)))
                except aerospike.exception.FilteredOut:
                    continue

        return attempt

    def in_threads(work, number):
        def run() -> None:
            together([times(work, number // THREADS) for _ in range(THREADS)])

        return run

    return {
        "reference: enqueue": (single, times(lambda: reference.enqueue(PAYLOAD), single)),
        "reference: dequeue": (single, times(reference.dequeue, single)),
        "raw loop: enqueue": (single, times(lambda: raw.enqueue(PAYLOAD), single)),
        "raw loop: dequeue": (single, times(raw.dequeue, single)),
        "simple: enqueue": (single, times(lambda: simple.enqueue(PAYLOAD), single)),
        "simple: dequeue": (single, times(simple.dequeue, single)),
        "enqueue": (single, times(lambda: queue.enqueue(PAYLOAD), single)),
        "dequeue": (single, times(queue.dequeue, single)),
        "enqueue_many(100)": (many, times(lambda: queue.enqueue_many(hundred), many // 100)),
        "dequeue_many(100)": (many, times(lambda: queue.dequeue_many(100), many // 100)),
        "reference: enqueue, 8 threads": (
            threaded,
            in_threads(stubbornly(lambda txn: reference.enqueue(PAYLOAD, txn)), threaded),
        ),
        "reference: dequeue, 8 threads": (threaded, in_threads(stubbornly(reference.dequeue), threaded)),
        "enqueue, 8 threads": (threaded, in_threads(lambda: queue.enqueue(PAYLOAD), threaded)),
        "dequeue, 8 threads": (threaded, in_threads(queue.dequeue, threaded)),
    }


def _measured(cases, seconds: float) -> dict[str, list[float]]:
    slices: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(max(5, round(seconds / 0.2))):
        for name, (messages, work) in cases.items():
            work()  # a lead-in, as `interleaved` has one
            began = time.perf_counter()
            work()
            slices[name].append(messages / (time.perf_counter() - began))
    return slices


def _counted(cases, store: CountingStore) -> dict[str, float]:
    """Calls a message of the queue's own cases; apart from the times, which counting would lengthen."""
    calls: Counter[str] = Counter()
    for _ in range(TURNS):
        for name, (messages, work) in cases.items():
            if ":" not in name:
                before = store.total()
                work()
                calls[name] += (store.total() - before) / messages / TURNS
    return calls


ANCHORS = (
    ("enqueue", "raw loop: enqueue", ">= 0.85"),
    ("dequeue", "raw loop: dequeue", ">= 0.85"),
    ("enqueue_many(100)", "reference: enqueue", ">= 20"),
    ("dequeue_many(100)", "reference: dequeue", ">= 20"),
    ("enqueue, 8 threads", "reference: enqueue, 8 threads", ">= 4"),
    ("dequeue, 8 threads", "reference: dequeue, 8 threads", ">= 4"),
    ("enqueue", "simple: enqueue", ""),
    ("dequeue", "simple: dequeue", ""),
)


def _report(rates: Rates, calls: dict[str, float]) -> str:
    rows = []
    for name, anchor, target in ANCHORS:
        rate, ratio = rates.rate(name), rates.ratio(name, anchor)
        rows.append([name, calls[name], rate, anchor, rates.rate(anchor), ratio, target])
    head = ["large queue", "calls a message", "a s", "anchor", "a s", "ratio", "target"]
    verdicts = [Verdict(f"large queue, {row[0]} / {row[3]}", float(row[6][3:]), row[5]) for row in rows if row[6]]
    verdicts += [
        Verdict(f"large queue, {name}: calls a message", limit, calls[name], at_least=False)
        for name, limit in (("enqueue", 3), ("dequeue", 3), ("enqueue_many(100)", 0.03), ("dequeue_many(100)", 0.03))
    ]
    return f"{table(head, rows)}\n\n{judged(verdicts)}"


if __name__ == "__main__":
    main()
