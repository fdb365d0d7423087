"""What an operation costs at three sizes of whatever might make it grow: in calls, and in time.

A case makes its world at a size and returns what to measure. The sizes take turns, so that a busy moment of the
machine hits all three alike; a time is the median of its turns. The slope is that of the line through the three points
on logarithmic scales: 0 = the cost does not grow, 1 = it grows as the size does.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks._harness import CountingStore
from latchwork.store import MemoryStore, RecordStore, SQLiteStore
from latchwork.store.aerospike import AerospikeStore

TURNS = 9
SLICE = 0.02
"""Seconds of a turn."""
MOST = 40
"""Runs in a turn, so that what is measured does not itself change the size."""

Sizes = tuple[int, int, int]


@dataclass(frozen=True)
class Step:
    """What is measured. before: what has to be there for each run, neither counted nor timed."""

    run: Callable[[], object]
    before: Callable[[], object] | None = None


@dataclass(frozen=True)
class Case:
    """Something that must not grow. units: operations (or messages) in one run."""

    what: str
    of: str
    sizes: Sizes
    make: Callable[[RecordStore, int], Step]
    units: int = 1
    note: str = ""


@dataclass(frozen=True)
class Cost:
    """Storage calls and microseconds of one operation, at the three sizes."""

    calls: tuple[float, ...]
    micros: tuple[float, ...]


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Of the least-squares line through the points on logarithmic scales; 0 where there is nothing to compare."""
    if min(values) <= 0:
        return 0.0
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return statistics.linear_regression(xs, ys).slope


@contextmanager
def backends(url: str | None) -> Iterator[dict[str, Callable[[], RecordStore]]]:
    """Makers of stores, new and empty (on the real server: with names of their own), by backend."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1_000_000))

        def sqlite() -> RecordStore:
            return SQLiteStore(Path(folder) / f"{next(numbers)}.db", synchronous="off")

        makers: dict[str, Callable[[], RecordStore]] = {"memory": MemoryStore, "SQLite": sqlite}
        if url:
            makers["Aerospike"] = lambda: AerospikeStore.from_url(url)
        yield makers


def measure(case: Case, maker: Callable[[], RecordStore]) -> Cost:
    """The case on one backend."""
    stores = [CountingStore(maker()) for _ in case.sizes]
    steps = [case.make(store, size) for store, size in zip(stores, case.sizes, strict=True)]
    for step in steps:
        _run(step)
    runs, calls, times = [0] * len(steps), [0] * len(steps), [[] for _ in steps]
    for _ in range(TURNS):
        for place, (store, step) in enumerate(zip(stores, steps, strict=True)):
            spent, done, made = _turn(store, step)
            runs[place] += done
            calls[place] += made
            times[place].append(spent / done)
    for store in stores:
        store.inner.close()
    return Cost(
        tuple(made / done / case.units for made, done in zip(calls, runs, strict=True)),
        tuple(statistics.median(each) / case.units * 1e6 for each in times),
    )


def _turn(store: CountingStore, step: Step) -> tuple[float, int, int]:
    spent, runs, calls = 0.0, 0, 0
    while spent < SLICE and runs < MOST:
        if step.before:
            step.before()
        before, began = store.total(), time.perf_counter()
        step.run()
        spent += time.perf_counter() - began
        calls += store.total() - before
        runs += 1
    return spent, runs, calls


def _run(step: Step) -> None:
    if step.before:
        step.before()
    step.run()


def row(case: Case, costs: dict[str, Cost], names: Sequence[str]) -> list[str]:
    """A line of the table: the calls of one backend, as they do not hang on it, and the times of each."""
    first = next(iter(costs.values()))
    calls = f"{_three(first.calls)} ({_slope(case.sizes, first.calls)})"
    times = [
        f"{_three(costs[name].micros)} ({_slope(case.sizes, costs[name].micros)})" if name in costs else "-"
        for name in names
    ]
    sizes = " / ".join(f"{size:,}" for size in case.sizes)
    return [case.what, f"{sizes} {case.of}", calls, *times]


def _slope(sizes: Sequence[int], values: Sequence[float]) -> str:
    return f"{slope(sizes, values):+.2f}"


def _three(values: Sequence[float]) -> str:
    return " / ".join(shown(value) for value in values)


def shown(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"
