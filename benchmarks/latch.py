"""Latches against the raw client: counting down, counting by party in a record of 10,000 parties, and release lag.

Run it from the project's root as `python -m benchmarks.latch`. Targets: `count_down` at least 0.85 of a raw guarded add
that remembers a token and 0.55 of a raw increment, by party at least 0.8 of the raw guarded add with 10,000 parties,
one call each; release lag p50 <= 15 ms, p99 <= 120 ms, at most 40 reads a second and waiter.
"""

from __future__ import annotations

import statistics
import threading
import time
from itertools import count

import aerospike
from aerospike_helpers import expressions as exp
from aerospike_helpers.operations import map_operations, operations

from benchmarks._harness import Case, CountingStore, aerospike_url, arguments, interleaved, server_operations, table
from benchmarks.store import ORDERED, Raw
from benchmarks.targets import Verdict, judged
from latchwork.coord import CountDownLatch
from latchwork.store.aerospike.store import AerospikeStore

PARTIES, ROOM = 10_000, 1_000
RELEASES = 60
PARTY_ADD, PARTY_COUNT = "raw guarded add, 10,000 parties", "count_down(party=), 10,000 parties"


class RawParties:
    """The anchor: a guarded add that remembers its party, the guard compiled once; made anew as often as ours."""

    def __init__(self, client, namespace: str, numbers) -> None:
        self.client, self.numbers, self.left = client, numbers, 0
        self.key = (namespace, "bench_store", "parties")
        has = exp.MapGetByKey(None, aerospike.MAP_RETURN_COUNT, exp.ResultType.INTEGER, "PARTY", exp.MapBin("done"))
        self.template = exp.And(exp.BinExists("count"), exp.Eq(has, 0)).compile()
        self.slot = next(
            place for place, entry in enumerate(self.template) if entry[2] and entry[2].get("val") == "PARTY"
        )

    def add(self) -> None:
        if not self.left:
            self.client.put(self.key, {"count": 10**9, "done": _parties()})
            self.left = ROOM
        self.left -= 1
        party = next(self.numbers)
        guard = self.template.copy()
        guard[self.slot] = (200, None, {"val": party}, 0)
        steps = [
            operations.increment("count", -1),
            map_operations.map_put("done", party, 1, ORDERED),
            operations.read("count"),
        ]
        self.client.operate(self.key, steps, policy={"expressions": guard})


def _parties():
    return aerospike.KeyOrderedDict(dict.fromkeys(range(PARTIES - ROOM // 2), 1))


class Parties:
    """Ours: a latch in which about 10,000 parties have counted; made anew when there are too many more."""

    def __init__(self, store, client, namespace: str, numbers) -> None:
        self.store, self.client, self.namespace, self.numbers, self.left = store, client, namespace, numbers, 0

    def add(self) -> None:
        if not self.left:
            self._make()
        self.left -= 1
        self.latch.count_down(party=next(self.numbers))

    def _make(self) -> None:
        CountDownLatch.get(self.store, "bench", "parties", farm_id="dc1").delete()
        self.latch = CountDownLatch.create(self.store, "bench", "parties", 10**9, farm_id="dc1")
        self.client.put((self.namespace, *self.latch._key), {"done#dc1": _parties()})
        self.left = ROOM


def release_lags(store) -> tuple[list[float], float]:
    """Milliseconds from a last count to the waiter's return, and the waiters' reads a second."""
    lags, reads, waited = [], 0, 0.0
    for number in range(RELEASES):
        latch = CountDownLatch.create(store, "bench", f"lag{number}", 1, farm_id="dc1", ttl=60)
        seen: list[float] = []
        waiter = threading.Thread(
            target=lambda latch=latch, seen=seen: latch.wait(30) and seen.append(time.perf_counter())
        )
        before, began = store.calls["get"], time.perf_counter()
        waiter.start()
        time.sleep(0.5 + number * 0.0173 % 0.1)  # past the quick first reads, at every phase of the slow ones
        latch.count_down()
        counted = time.perf_counter()
        waiter.join()
        lags.append((seen[0] - counted) * 1000)
        waited += seen[0] - began
        reads += store.calls["get"] - before
        latch.delete()
    return lags, reads / waited


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        inner = AerospikeStore.from_url(url)
        store = CountingStore(inner)
        client, namespace = inner._link.connect(), inner.namespace
        numbers = count(10**6)
        raw, raw_parties, parties = (
            Raw(client, namespace),
            RawParties(client, namespace, numbers),
            Parties(inner, client, namespace, numbers),
        )
        CountDownLatch.get(store, "bench", "calls", farm_id="dc1").delete()
        latch = CountDownLatch.create(inner, "bench", "calls", 10**9, farm_id="dc1")
        cases = [
            Case("raw increment", raw.increment),
            Case("raw guarded add", raw.guarded_add),
            Case("count_down", latch.count_down),
            Case(PARTY_ADD, raw_parties.add),
            Case(PARTY_COUNT, parties.add),
        ]
        for _ in range(300):  # fill the memories of tokens, so that their steady state is measured
            raw.guarded_add()
            latch.count_down()
        rates = interleaved(cases, options.seconds)
        calls = {}
        counted = CountDownLatch.get(store, "bench", "calls", farm_id="dc1")
        for case in (
            Case("count_down", counted.count_down),
            Case(PARTY_COUNT, Parties(store, client, namespace, numbers).add),
        ):
            case.run()
            before, served = store.total(), server_operations(client, namespace)
            for _ in range(200):
                case.run()
            calls[case.name] = ((store.total() - before) / 200, (server_operations(client, namespace) - served) / 200)
        rows = [
            (case.name, rates.rate(case.name), rates.ratio(case.name, "raw increment"),
             rates.ratio(case.name, PARTY_ADD if "parties" in case.name else "raw guarded add"),
             *calls.get(case.name, ("1", "1")))
            for case in cases
        ]  # fmt: skip
        print(table(("case", "a second", "x raw increment", "x its raw guarded add", "calls", "server's count"), rows))
        lags, reads = release_lags(store)
        client.truncate(namespace, "bench_store", 0)
    ordered = sorted(lags)
    print(
        f"\nrelease lag over {RELEASES} releases: p50 {statistics.median(lags):.0f} ms, "
        f"p99 {ordered[int(len(ordered) * 0.99)]:.0f} ms, max {ordered[-1]:.0f} ms; {reads:.1f} reads a second and "
        "waiter (the Java library: uniform over 5,000 ms)\n"
    )
    p99 = ordered[int(len(ordered) * 0.99)]
    print(judged([
        Verdict("count_down / raw guarded add", 0.85, rates.ratio("count_down", "raw guarded add")),
        Verdict("count_down / raw increment", 0.55, rates.ratio("count_down", "raw increment")),
        Verdict("count_down: calls", 1, calls["count_down"][0], at_least=False),
        Verdict("count_down(party=) of 10,000 / raw", 0.8, rates.ratio(PARTY_COUNT, PARTY_ADD)),
        Verdict("count_down(party=): calls", 1.1, calls[PARTY_COUNT][0], at_least=False),
        Verdict("latch release lag: p50 ms", 15, statistics.median(lags), at_least=False),
        Verdict("latch release lag: p99 ms", 120, p99, at_least=False),
        Verdict("latch: reads a second and waiter", 40, reads, at_least=False),
    ]))  # fmt: skip


if __name__ == "__main__":
    main()
