"""The Aerospike store against the raw client: an increment, add and read, and a guarded add that remembers a token.

Run it from the project's root as `python -m benchmarks.store`. The target for an exactly-once add is 0.85 of the raw
guarded add and 0.55 of a raw increment, in one call.
"""

from __future__ import annotations

from itertools import count

import aerospike
from aerospike_helpers import expressions as exp
from aerospike_helpers.operations import map_operations, operations

from benchmarks._harness import (
    Case,
    CountingStore,
    aerospike_url,
    arguments,
    interleaved,
    server_operations,
    table,
)  # fmt: skip
from benchmarks.targets import Verdict, judged
from latchwork.store import Add, Bin, Exists, Key, Once, Put, Read
from latchwork.store.aerospike.store import AerospikeStore
from latchwork.store.model.form import Form

ORDERED = {"map_order": aerospike.MAP_KEY_ORDERED}
KEEP = 64
TARGETS = {"raw guarded add": 0.85, "raw increment": 0.55}


class Raw:
    """The anchors: the client's own calls, the guard compiled once and its token put in for each call."""

    def __init__(self, client, namespace: str) -> None:
        self.client = client
        self.key = (namespace, "bench_store", "raw")
        self.tokens = (f"{number:034d}" for number in count())
        self.client.put(self.key, {"count": 0}, policy={"key": aerospike.POLICY_KEY_SEND})
        self.template = _guard("TOKEN").compile()
        self.slots = [place for place, entry in enumerate(self.template) if entry[2] and entry[2].get("val") == "TOKEN"]

    def increment(self) -> None:
        self.client.increment(self.key, "count", 1)

    def add_and_read(self) -> None:
        self.client.operate(self.key, [operations.increment("count", 1), operations.read("count")])

    def guarded_add(self) -> None:
        token = next(self.tokens)
        guard = self.template.copy()
        for place in self.slots:
            guard[place] = (200, None, {"val": token}, 0)
        steps = [
            operations.increment("count", 1),
            operations.read("count"),
            map_operations.map_put("ops", token, 1, ORDERED),
            map_operations.map_remove_by_index_range("ops", -KEEP, KEEP, aerospike.MAP_RETURN_NONE, True),
        ]
        self.client.operate(self.key, steps, policy={"expressions": guard})


def _guard(token: str):
    ops = exp.MapBin("ops")
    has = exp.MapGetByKey(None, aerospike.MAP_RETURN_COUNT, exp.ResultType.INTEGER, token, ops)
    oldest = exp.MapGetByIndex(None, aerospike.MAP_RETURN_KEY, exp.ResultType.STRING, 0, ops)
    room = exp.Or(exp.LT(exp.MapSize(None, ops), KEEP), exp.LT(oldest, token))
    fresh = exp.Or(exp.Not(exp.BinExists("ops")), exp.And(exp.Eq(has, 0), room))
    return exp.And(exp.BinExists("count"), fresh)


class Ours:
    """The same through the store."""

    def __init__(self, store) -> None:
        self.store = store
        self.key = Key("bench_store", "ours")
        self.present = Bin("count") >= Bin("count")
        self.add = Form(Add("count", 1), when=self.present, once=Once(KEEP, answer="count"))
        self.computed = Once(KEEP, result=Bin("count"))
        store.operate(self.key, Put("count", 0), exists=Exists.ANY)

    def add_and_read(self) -> None:
        self.store.operate(self.key, Add("count", 1), Read("count"))

    def once(self) -> None:
        self.store.once(self.add.fill(self.key))

    def once_computed(self) -> None:
        self.store.operate(self.key, Add("count", 1), when=self.present, once=self.computed)


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        store = AerospikeStore.from_url(url)
        client, namespace = store._link.connect(), store.namespace
        raw = Raw(client, namespace)
        anchors = [
            Case("raw increment", raw.increment),
            Case("raw operate(add, read)", raw.add_and_read),
            Case("raw guarded add", raw.guarded_add),
        ]
        cases = [*anchors, *_ours(store)]
        rates = interleaved(cases, options.seconds)
        counting = CountingStore(store)
        counted = _ours(counting)
        print(table(*_report(cases, rates, _calls(counted, counting), _calls(counted, client, namespace))))
        client.truncate(namespace, "bench_store", 0)
    once = "store.once(form, answer)"
    print("\n" + judged(Verdict(f"once / {name}", ratio, rates.ratio(once, name)) for name, ratio in TARGETS.items()))


def _ours(store) -> list[Case]:
    ours = Ours(store)
    return [
        Case("store.operate(Add, Read)", ours.add_and_read),
        Case("store.once(form, answer)", ours.once),
        Case("store.operate(once, computed result)", ours.once_computed),
    ]


def _calls(cases, counted, namespace: str | None = None, runs: int = 200) -> dict[str, float]:
    """Calls for each run of a case: at the store's boundary, or as the server counts them."""
    found = {}
    for case in cases:
        total = (lambda: server_operations(counted, namespace)) if namespace else counted.total
        before = total()
        for _ in range(runs):
            case.run()
        found[case.name] = (total() - before) / runs
    return found


def _report(cases, rates, calls, served):
    head = ("case", "a second", "x raw increment", "x raw guarded add", "calls", "server's count")
    rows = [
        (
            case.name, rates.rate(case.name), rates.ratio(case.name, "raw increment"),
            rates.ratio(case.name, "raw guarded add"), calls.get(case.name, "1"), served.get(case.name, "1"),
        )
        for case in cases
    ]  # fmt: skip
    return head, rows


if __name__ == "__main__":
    main()
