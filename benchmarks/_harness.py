"""What the benchmarks share: interleaved runs, a table of ratios, and counts of calls.

Rates on a shared machine move by a third from run to run, so only ratios inside one run count: the cases take turns in
short slices, and a ratio is the median of the ratios within the turns.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from latchwork.store.port import DelegatingStore, Key, Record, RecordStore, Removal, Row, Update, Values
from tools import servers

INSTALL = "Install what the benchmarks compare with: pip install --editable '.[peers]'"
"""What is said where another system is not installed."""
SLICE = 0.1
"""Seconds that one case runs before the next takes its turn."""
LEAD_IN = 0.1
"""Seconds that it runs before that without being timed. Where many threads have just used all cores, Linux leaves the
server's thread on the client's core for a while, and a call of the case after takes a third of its usual time."""


@dataclass(frozen=True)
class Case:
    """Something to measure: `run` does the work of `units` (messages, updates) once."""

    name: str
    run: Callable[[], object]
    units: int = 1


class Rates:
    """What was measured: for each case one rate a turn."""

    def __init__(self, slices: dict[str, list[float]]) -> None:
        self.slices = slices

    def rate(self, name: str) -> float:
        """Units a second of a case; the median of its turns."""
        return statistics.median(self.slices[name])

    def ratio(self, name: str, anchor: str) -> float:
        """How much faster a case is than the anchor; the median over the turns of the ratio within a turn."""
        pairs = zip(self.slices[name], self.slices[anchor], strict=True)
        return statistics.median(rate / other for rate, other in pairs)


def interleaved(cases: Sequence[Case], seconds: float, between: Callable[[], object] = lambda: None) -> Rates:
    """Run the cases in turns until each has had so many seconds; `between` is called after each turn, untimed."""
    slices: dict[str, list[float]] = {case.name: [] for case in cases}
    for turn in range(max(5, round(seconds / SLICE))):
        shift = turn % len(cases)
        for case in [*cases[shift:], *cases[:shift]]:
            slices[case.name].append(_rate(case))
        between()
    return Rates(slices)


def _rate(case: Case) -> float:
    _run_for(case, LEAD_IN)
    return _run_for(case, SLICE)


def _run_for(case: Case, seconds: float) -> float:
    began, runs = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds:
        case.run()
        runs += 1
    return runs * case.units / spent


def together(runs: Sequence[Callable[[], object]]) -> None:
    """Run them all at once, a thread for each. Raises the first failure: a row whose threads died is no row."""
    failures: list[BaseException] = []

    def kept(run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)

    threads = [threading.Thread(target=kept, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


SETTLED = 0.3
"""Seconds in which a server has removed what was truncated, so that the next slice does not share its processor."""


def emptied(client: Any, namespace: str, *sets: str) -> None:
    """Remove all records of these sets: what is only written would fill any namespace on a machine quick enough."""
    for name in sets:
        client.truncate(namespace, name, 0)
    time.sleep(SETTLED)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The rows as a Markdown table."""
    lines = [list(head), ["---"] * len(head), *([_shown(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if cell >= 100 else f"{cell:.2f}"
    return str(cell)


class CountingStore(DelegatingStore):
    """A store that counts the calls which reach its backend, by verb."""

    def __init__(self, inner: RecordStore) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.read = 0
        """Records that were read."""

    def total(self) -> int:
        """Calls so far."""
        return self.calls.total()

    def _get(self, key: Key, bins: Sequence[str]) -> Record | None:
        self.calls["get"] += 1
        self.read += 1
        return self.inner._get(key, bins)

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        self.calls["get_many"] += 1
        self.read += len(keys)
        return self.inner._get_many(keys, bins)

    def _operate(self, update: Update) -> Values:
        self.calls["operate"] += 1
        return self.inner._operate(update)

    def _operate_many(self, updates: Sequence[Update]) -> list[Row]:
        self.calls["operate_many"] += 1
        return self.inner._operate_many(updates)

    def _delete(self, removal: Removal) -> bool:
        self.calls["delete"] += 1
        return self.inner._delete(removal)

    def _delete_many(self, removals: Sequence[Removal]) -> list[object]:
        self.calls["delete_many"] += 1
        return self.inner._delete_many(removals)

    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        self.calls["query"] += 1
        return self.inner._query(set, bin, equals)


_COUNTED = ("client_read_success", "client_read_filtered_out", "client_read_not_found", "client_write_success",
            "client_write_filtered_out", "client_write_error", "client_delete_success", "client_delete_not_found",
            "client_delete_filtered_out", "batch_sub_read_success", "batch_sub_read_not_found",
            "batch_sub_write_success", "batch_sub_delete_success", "pi_query_short_basic_complete",
            "si_query_short_basic_complete")  # fmt: skip


def server_operations(client, namespace: str) -> int:
    """Record operations that the server has counted in the namespace; a batch counts once for each of its rows."""
    answer = client.info_random_node(f"namespace/{namespace}").rpartition("\t")[2]
    settings = dict(pair.split("=", 1) for pair in answer.strip().split(";") if "=" in pair)
    return sum(int(settings.get(name, 0)) for name in _COUNTED)


@contextmanager
def aerospike_url(given: str | None) -> Iterator[str]:
    """The store URL to measure: the one given, else that of a server started for the purpose and ended after it."""
    if given:
        yield given
        return
    server = servers.start_aerospike()
    try:
        yield server.url
    finally:
        server.close()


def arguments(description: str, seconds: float = 3.0) -> argparse.Namespace:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=seconds, help="how long each case runs (default %(default)s)")
    parser.add_argument("--url", help="aerospike://host:port/namespace; default: a server of its own")
    return parser.parse_args()
