"""The constants of the request flow, measured: what each kind of operation takes on a real server, from one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import count

from benchmarks._growth import shown
from benchmarks._harness import Case, interleaved, table
from latchwork.store import Add, Bin, Exists, Key, Once, Put, Read, Removal, Update
from latchwork.store.aerospike.store import AerospikeStore
from latchwork.store.model.expr import Bound, Param
from tools.growth_cases import counted, name_of

VALUE = b"x" * 256
ROWS = 100
PARTIES = (10_000, 50_000, 100_000)
SAMPLES = 50
_ENOUGH = Bin("n") >= Param("least")
_TOKENS = Once(64, result=Bin("n"))


def markdown(url: str, seconds: float) -> str:
    """The table of kinds."""
    store = AerospikeStore.from_url(url)
    found = interleaved(_cases(store), seconds)
    anchor = found.rate("update")
    rows = [(name, shown(1e6 / found.rate(name)), shown(anchor / found.rate(name))) for name in found.slices]
    return table(("one row", "microseconds", "x update"), rows)


def _cases(store: AerospikeStore) -> list[Case]:
    space, numbers = name_of(store), count()
    key, absent = Key(space, "record"), Key(space, "absent")
    store.operate(key, Put("n", 0), Put("v", VALUE), exists=Exists.ANY)
    many = [Key(space, f"many-{number}") for number in range(ROWS)]
    store.operate_many([Update(one, (Put("n", 0), Put("v", VALUE)), exists=Exists.ANY) for one in many])
    made: list[Key] = []

    def create() -> None:
        made.append(Key(space, f"made-{next(numbers)}"))
        store.operate(made[-1], Put("v", VALUE), exists=Exists.CREATE)

    def delete() -> None:
        if not made:
            made.extend(create_rows())
        store.delete(made.pop())

    def create_rows() -> list[Key]:
        keys = [Key(space, f"made-{next(numbers)}") for _ in range(ROWS)]
        store.operate_many([Update(one, (Put("v", VALUE),), exists=Exists.CREATE) for one in keys])
        return keys

    def delete_rows() -> None:
        if len(made) < ROWS:
            made.extend(create_rows())
        store.delete_many([Removal(made.pop()) for _ in range(ROWS)])

    def update_rows() -> None:
        store.operate_many([Update(one, (Add("n", 1), Read("n"))) for one in many])

    guard = Bound(_ENOUGH, {"least": 0})
    singles: list[tuple[str, Callable[[], object]]] = [
        ("read", lambda: store.get(key, "n")),
        ("read, absent", lambda: store.get(absent)),
        ("update", lambda: store.operate(key, Add("n", 1))),
        ("update, guarded", lambda: store.operate(key, Add("n", 1), when=guard)),
        ("update, guarded, exactly once", lambda: store.operate(key, Add("n", 1), when=guard, once=_TOKENS)),
        ("create", create),
        ("delete", delete),
    ]
    batches: list[tuple[str, Callable[[], object]]] = [
        (f"read in a batch of {ROWS}", lambda: store.get_many(many, "n")),
        (f"update in a batch of {ROWS}", update_rows),
        (f"create in a batch of {ROWS}", lambda: made.extend(create_rows())),
        (f"delete in a batch of {ROWS}", delete_rows),
    ]
    return [Case(name, run) for name, run in singles] + [Case(name, run, ROWS) for name, run in batches]


def large_latches(url: str) -> str:
    """What a count costs in latches of many thousands of parties, and how long all counts of such a job take."""
    store = AerospikeStore.from_url(url)
    latches = [(counted(store, parties - SAMPLES), count(parties)) for parties in PARTIES]
    times: list[list[float]] = [[] for _ in PARTIES]
    for _ in range(SAMPLES):
        for (latch, numbers), spent in zip(latches, times, strict=True):
            began = time.perf_counter()
            latch.count_down(party=next(numbers))
            spent.append(time.perf_counter() - began)
    rows = []
    for parties, (latch, _), spent in zip(PARTIES, latches, times, strict=True):
        latch.delete()
        last = statistics.quantiles(spent, n=4)[0]
        rows.append((f"{parties:,}", f"{last * 1000:.2f}", f"{1 / last:,.0f}", f"{last * parties / 2:,.0f}"))
    return table(("partitions", "ms for the last count", "counts a second then", "seconds for all counts"), rows)
