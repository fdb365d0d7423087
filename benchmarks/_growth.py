"""What an operation costs at three sizes of whatever might make it grow: in calls, and in time.

A case makes its world at a size and returns what to measure. The sizes take turns, so that a busy moment of the
machine hits all three alike; a time is the lower quartile of its turns. The slope is that of the line through the three
points on logarithmic scales: 0 = the cost does not grow, 1 = it grows as the size does.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks._harness import CountingStore
from latchwork.store import MemoryStore, RecordStore, SQLiteStore
from latchwork.store.aerospike.store import AerospikeStore
from tools.growth import Case, Step, slope

TURNS = 9
SLICE = 0.02
"""Seconds of a turn."""
LEAST, LONGEST = 3, 1.5
"""Turns at least, and seconds after which there are no more."""
MOST = 40
"""Runs in a turn, so that what is measured does not itself change the size."""


@dataclass(frozen=True)
class Cost:
    """Storage calls and microseconds of one operation, at the three sizes."""

    calls: tuple[float, ...]
    micros: tuple[float, ...]


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


def measure(case: Case, maker: Callable[[], RecordStore]) -> dict[str, Cost]:
    """The costs of what is done, on one backend."""
    stores = [CountingStore(maker()) for _ in case.sizes]
    worlds = [case.make(store, size) for store, size in zip(stores, case.sizes, strict=True)]
    found = {steps[0].what: _cost(stores, steps) for steps in zip(*worlds, strict=True)}
    for store in stores:
        store.inner.close()
    return found


def _cost(stores: Sequence[CountingStore], steps: Sequence[Step]) -> Cost:
    """Of one step in worlds of three sizes."""
    for step in steps:
        _run(step)
    turns: list[list[_Turn]] = [[] for _ in steps]
    end = time.perf_counter() + LONGEST
    while len(turns[0]) < TURNS and (len(turns[0]) < LEAST or time.perf_counter() < end):
        for store, step, seen in zip(stores, steps, turns, strict=True):
            seen.append(_turn(store, step))
    units = [step.units for step in steps]
    calls = [sum(turn.calls for turn in seen) / sum(turn.runs for turn in seen) for seen in turns]
    times = [statistics.quantiles([turn.seconds / turn.runs for turn in seen], n=4)[0] * 1e6 for seen in turns]
    return Cost(_each(calls, units), _each(times, units))


def _each(values: Sequence[float], units: Sequence[int]) -> tuple[float, ...]:
    return tuple(value / n for value, n in zip(values, units, strict=True))


class _Turn(NamedTuple):
    seconds: float
    runs: int
    calls: int


def _turn(store: CountingStore, step: Step) -> _Turn:
    spent, runs, calls = 0.0, 0, 0
    while spent < SLICE and runs < MOST:
        if step.before:
            step.before()
        before, began = store.total(), time.perf_counter()
        step.run()
        spent += time.perf_counter() - began
        calls += store.total() - before
        runs += 1
    return _Turn(spent, runs, calls)


def _run(step: Step) -> None:
    if step.before:
        step.before()
    step.run()


def rows(case: Case, found: dict[str, dict[str, Cost]]) -> Iterator[list[str]]:
    """Lines of the table, by what is done. found: the costs by backend; calls are those of one backend, as they do not
    hang on it, times are given for each.
    """
    first = next(iter(found.values()))
    sizes = " / ".join(f"{size:,}" for size in case.sizes)
    for what, cost in first.items():
        times = [_three(case.sizes, costs[what].micros) for costs in found.values()]
        yield [what, f"{sizes} {case.of}", _three(case.sizes, cost.calls), *times]


def _three(sizes: Sequence[int], values: Sequence[float]) -> str:
    return f"{' / '.join(map(shown, values))} ({slope(sizes, values):+.2f})"


def shown(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"
