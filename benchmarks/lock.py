"""Fenced locks: acquire and release against two raw guarded writes, fairness, and how soon a released lock is taken.

Run it from the project's root as `python -m benchmarks.lock`. The raw pair is the least that a lock with a lease and a
fence can do: one guarded write that takes it, one that gives it back, with filters compiled once. Targets: 1 call to
acquire and 1 to release; 8 threads each get between half and twice their share of 2,000 acquisitions; 8 processes
acquire one lock at least 500 times a second, each at least 0.7 of its share; a released lock is taken within 6 ms in
the median.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from itertools import chain

from aerospike_helpers import expressions as exp
from aerospike_helpers.operations import expression_operations, operations

from benchmarks._harness import (
    Case,
    CountingStore,
    aerospike_url,
    arguments,
    interleaved,
    server_operations,
    table,
    together,
)  # fmt: skip
from benchmarks.targets import Verdict, judged
from latchwork.coord import FencedLock
from latchwork.store import Key, Put
from latchwork.store.aerospike.store import AerospikeStore

CONTENDERS, ACQUISITIONS, HANDOVERS = 8, 2000, 100
SECONDS = 4.0
"""For which processes contend for one lock."""
CONTENDER = """
import sys, time
from latchwork import connect
from latchwork.coord import FencedLock
lock, done, longest = FencedLock(connect(sys.argv[1]), "bench-processes", lease=60), 0, 0.0
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + float(sys.argv[2])
while (began := time.monotonic()) < end:
    lock.acquire(timeout=60).release()
    done, longest = done + 1, max(longest, time.monotonic() - began)
print(done, longest, flush=True)
"""
RUNS = 200


class Raw:
    """The anchor: the client's own two calls, and a guarded write to a resource."""

    def __init__(self, client, namespace: str) -> None:
        self.client = client
        self.key, self.resource = (namespace, "bench_lock", "raw"), (namespace, "bench_lock", "raw-resource")
        client.put(self.key, {"locked": 0, "fencing-ctr": 0})
        client.put(self.resource, {"fence": 0})
        self.free = exp.Eq(exp.IntBin("locked"), 0).compile()
        self.fence = exp.Add(exp.IntBin("fencing-ctr"), 1).compile()
        self.now = exp.Add(exp.Div(exp.LastUpdateTime(), 1_000_000), exp.SinceUpdateTime()).compile()
        held = exp.And(exp.Eq(exp.IntBin("locked"), 1), exp.Eq(exp.IntBin("fencing-ctr"), 0))
        self.held = held.compile()
        self.mine = _place(self.held)
        self.below = exp.LE(exp.IntBin("fence"), 0).compile()
        self.mark = _place(self.below)

    def acquire(self) -> int:
        steps = [
            expression_operations.expression_write("fencing-ctr", self.fence),
            operations.write("locked", 1),
            operations.write("lock-owner", "me"),
            expression_operations.expression_write("lock-time-ms", self.now),
            operations.write("lease-ms", 10_000),
            operations.write("renewals", 0),
            operations.read("fencing-ctr"),
        ]
        return self.client.operate(self.key, steps, policy={"expressions": self.free})[2]["fencing-ctr"]

    def pair(self) -> None:
        guard = _filled(self.held, self.mine, self.acquire())
        self.client.operate(self.key, [operations.write("locked", 0)], policy={"expressions": guard})

    def write(self) -> None:
        guard = _filled(self.below, self.mark, 1)
        steps = [operations.write("x", 1), operations.write("fence", 1)]
        self.client.operate(self.resource, steps, policy={"expressions": guard})


def _place(compiled) -> int:
    """Where the fence stands in a compiled filter: the last value that is 0."""
    return max(place for place, entry in enumerate(compiled) if entry[2] and entry[2].get("val") == 0)


def _filled(compiled, place: int, fence: int):
    guard = compiled.copy()
    guard[place] = (200, None, {"val": fence}, 0)
    return guard


class Ours:
    """The same through a lock."""

    def __init__(self, store) -> None:
        self.lock = FencedLock(store, "bench-ours", lease=60)
        self.grant = FencedLock(store, "bench-resource", lease=3600).acquire(timeout=60)
        self.resource = Key("bench_lock", "ours-resource")

    def pair(self) -> None:
        self.lock.acquire().release()

    def write(self) -> None:
        self.grant.operate(self.resource, Put("x", 1))


def rates(options, store, client, namespace: str) -> tuple[str, list[Verdict]]:
    """The table of calls and rates."""
    raw, ours = Raw(client, namespace), Ours(store)
    cases = {
        "raw: take, give back": Case("raw pair", raw.pair),
        "acquire, release": Case("pair", ours.pair),
        "raw: guarded write": Case("raw write", raw.write),
        "grant.operate": Case("write", ours.write),
    }
    found = interleaved(list(cases.values()), options.seconds)
    anchors = {"pair": "raw pair", "write": "raw write", "raw pair": "raw pair", "raw write": "raw write"}
    rows = [
        (
            title,
            found.rate(case.name),
            found.ratio(case.name, anchors[case.name]),
            *_calls(case, store, client, namespace),
        )
        for title, case in cases.items()
    ]
    calls = {row[0]: row[3] for row in rows}
    verdicts = [Verdict("lock, acquire and release: calls", 2, calls["acquire, release"], at_least=False)]
    return table(("case", "a second", "x raw", "calls", "server's count"), rows), verdicts


def _calls(case: Case, store, client, namespace: str) -> tuple[float, float]:
    calls, served = store.total(), server_operations(client, namespace)
    for _ in range(RUNS):
        case.run()
    return (store.total() - calls) / RUNS, (server_operations(client, namespace) - served) / RUNS


def fairness(store) -> tuple[str, list[Verdict]]:
    """How the acquisitions of some contenders are shared, and what each cost."""
    shares: Counter[int] = Counter()
    start = threading.Barrier(CONTENDERS)

    def contend(me: int) -> None:
        lock = FencedLock(store, "bench-fair", lease=60)
        start.wait()
        while True:
            with lock.acquire(timeout=60):
                if shares.total() >= ACQUISITIONS:
                    return
                shares[me] += 1

    calls, began = store.total(), time.perf_counter()
    together([lambda me=me: contend(me) for me in range(CONTENDERS)])
    spent, share = time.perf_counter() - began, ACQUISITIONS / CONTENDERS
    row = (min(shares.values()) / share, max(shares.values()) / share, ACQUISITIONS / spent)
    head = (f"{CONTENDERS} contenders: least share", "largest share", "acquisitions a second", "calls each")
    verdicts = [
        Verdict("lock, 8 contenders: least share", 0.5, row[0]),
        Verdict("lock, 8 contenders: largest share", 2, row[1], at_least=False),
    ]
    return table(head, [(*row, (store.total() - calls) / ACQUISITIONS)]), verdicts


def processes(url: str) -> tuple[str, list[Verdict]]:
    """How the acquisitions of some processes are shared."""
    command = [sys.executable, "-c", CONTENDER, url, str(SECONDS)]
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(CONTENDERS)
        ]
        for one in contenders:
            one.stdout.readline()
        for one in contenders:
            one.stdin.close()
        found = [tuple(map(float, one.stdout.readline().split())) for one in contenders]
    total = sum(done for done, _ in found)
    share, rate = min(done for done, _ in found) * CONTENDERS / total, total / SECONDS
    longest = max(seconds for _, seconds in found) * 1000
    head = (f"{CONTENDERS} processes: least share", "acquisitions a second", "longest wait ms")
    verdicts = [
        Verdict("lock, 8 processes: least share", 0.7, share),
        Verdict("lock, 8 processes: a second", 500, rate),
    ]
    return table(head, [(share, rate, longest)]), verdicts


def handover(store) -> tuple[str, list[Verdict]]:
    """Milliseconds from a release to the acquisition of the one who waits."""
    holder, waiter = FencedLock(store, "bench-hand", lease=60), FencedLock(store, "bench-hand", lease=60)
    lags = []
    for number in range(HANDOVERS):
        grant, taken = holder.acquire(timeout=60), []
        waiting = threading.Thread(target=lambda taken=taken: taken.append(_timed(waiter)))
        waiting.start()
        time.sleep(0.05 + number % 20 / 1000)
        released = time.perf_counter()
        grant.release()
        waiting.join()
        lags.append((taken[0] - released) * 1000)
    lags.sort()
    median = statistics.median(lags)
    verdicts = [Verdict("lock, handover: median ms", 6, median, at_least=False)]
    return table(("handover", "median ms", "p99 ms"), [("one waits", median, lags[-2])]), verdicts


def _timed(lock: FencedLock) -> float:
    with lock.acquire(timeout=60):
        return time.perf_counter()


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        store = CountingStore(AerospikeStore.from_url(url))
        client, namespace = store.inner._link.connect(), store.inner.namespace
        parts = [rates(options, store, client, namespace), fairness(store), processes(url), handover(store)]
        print(*(shown for shown, _ in parts), judged(chain(*(verdicts for _, verdicts in parts))), sep="\n\n")
        for name in ("bench_lock", "latchwork_locks"):
            client.truncate(namespace, name, 0)


if __name__ == "__main__":
    main()
