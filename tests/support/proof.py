"""What a test run proved, in figures: tests report them, the closing table shows them, floors fail the whole run.

A test asks for the fixture `proved` and says `proved("processes", "lock over SQLite", killed=140, stopped=14)`; the
figures of a layer add up over its tests. They travel with the tests' reports, so they also come from other workers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from .scale import scaled

PROPERTY = "proved"
SIMULATED = ("runs", "calls", "histories", "undecided", "violated")
LAYERS: dict[str, tuple[str, ...]] = {
    "random faults": SIMULATED,
    "single faults": ("sites", *SIMULATED),
    "pairs of faults": SIMULATED,
    "mutants": ("seeded", "caught", "searched"),
    "rules, by script": ("held", "broken without"),
    "not promised, by script": ("shown",),
    "processes": ("killed", "stopped"),
    "histories": ("histories",),
    "outages": ("outages", "calls", "unknown", "violated"),
    "crashed disks": ("states",),
    "damaged files": ("files", "calls", "errors"),
    "damaged records": ("damages", "calls", "errors"),
    "hostile arguments": ("calls", "refused"),
    "state machines": ("machines",),
}
"""The layers with their columns, in the order of the table."""
FLOORS: dict[str, dict[str, int]] = {
    "single faults": {"sites": 250},
    "mutants": {"seeded": 104},
    "rules, by script": {"held": 62, "broken without": 62},
}
"""What a run of all tests must come to, at any scale."""
SCALED_FLOORS: dict[str, dict[str, int]] = {
    "single faults": {"runs": 1_700},
    "processes": {"killed": 150, "stopped": 20},
    "random faults": {"runs": 15_000, "histories": 5_000},
    "crashed disks": {"states": 50_000},
    "damaged files": {"files": 600, "calls": 30_000},
    "damaged records": {"damages": 50},
    "hostile arguments": {"calls": 3_500},
    "state machines": {"machines": 13 * 200},
}
"""What it must come to at scale 1."""
KINDS = range(1, 16)
"""The faults of docs/reliability.md, F1 to F15: each must have happened."""


def floors() -> dict[str, dict[str, int]]:
    """What this run must come to."""
    wanted = {layer: {name: scaled(floor) for name, floor in row.items()} for layer, row in SCALED_FLOORS.items()}
    return {layer: FLOORS.get(layer, {}) | wanted.get(layer, {}) for layer in (*FLOORS, *wanted)}


class Proof:
    """The figures of a run, by layer and subject. A figure named `F<number> <kind>` counts faults of that kind."""

    def __init__(self, reported: Iterable[Any] = ()) -> None:
        self.rows: dict[str, dict[str, Counter[str]]] = {}
        self.lacking: list[str] = []
        for layer, subject, figures in reported:
            self.add(layer, subject, figures)

    @classmethod
    def of_reports(cls, reports: Iterable[Any]) -> Proof:
        """What the tests of a session have reported."""
        return cls(value for report in reports for name, value in report.user_properties if name == PROPERTY)

    def add(self, layer: str, subject: str, figures: Mapping[str, int]) -> None:
        """Count these as well."""
        self.rows.setdefault(layer, {}).setdefault(subject, Counter()).update(figures)

    def as_json(self) -> str:
        """For a file; `Proof(json.loads(text))` is the way back."""
        return json.dumps([(layer, subject, row) for layer, rows in self.rows.items() for subject, row in rows.items()])

    def sums(self, layer: str) -> Counter[str]:
        """The figures of a layer, added up."""
        total: Counter[str] = Counter()
        for row in self.rows.get(layer, {}).values():
            total.update(row)
        return total

    def faults(self) -> Counter[str]:
        """How often each kind of fault has happened, in all layers."""
        total: Counter[str] = Counter()
        for layer in self.rows:
            total.update({name: times for name, times in self.sums(layer).items() if _is_fault(name)})
        return total

    def short_of(self, floors: Mapping[str, Mapping[str, int]]) -> list[str]:
        """What is under its floor, and what should be nought and is not, in words."""
        lacking = [
            f"{layer}: {self.sums(layer)[name]:,} {name}, at least {floor:,} are asked for"
            for layer, wanted in floors.items()
            for name, floor in wanted.items()
            if self.sums(layer)[name] < floor
        ]
        for layer in self.rows:
            figures = self.sums(layer)
            lacking += [f"{layer}: {figures[bad]:,} {bad}" for bad in ("undecided", "violated") if figures[bad]]
            if figures["caught"] < figures["seeded"]:
                lacking.append(f"{layer}: {figures['seeded'] - figures['caught']} not caught")
        happened = {_number(fault) for fault in self.faults()}
        return [*lacking, *(f"no fault F{number} has happened" for number in KINDS if number not in happened)]

    def table(self) -> list[str]:
        """The closing table, in lines of at most 80 columns."""
        named = [layer for layer in LAYERS if layer in self.rows]
        others = [layer for layer in self.rows if layer not in LAYERS]
        lines = [line for layer in (*named, *others) for line in (*self._layer(layer), "")]
        return [*lines, *self._faults()]

    def _layer(self, layer: str) -> list[str]:
        subjects = self.rows[layer]
        columns = LAYERS.get(layer) or sorted(
            {name for row in subjects.values() for name in row if not _is_fault(name)}
        )
        rows = sorted(subjects.items())
        if len(rows) > 1:
            rows.append(("sum", self.sums(layer)))
        cells = [[layer, *columns]] + [
            [f"  {subject}", *(f"{row[name]:,}" for name in columns)] for subject, row in rows
        ]
        widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
        return [f"{label:{widths[0]}}" + _right(numbers, widths[1:]) for label, *numbers in cells]

    def _faults(self) -> list[str]:
        fired = sorted(self.faults().items(), key=lambda pair: (_number(pair[0]), pair[0]))
        cells = [f"  {name:24}{times:>10,}" for name, times in fired]
        pairs = ["  ".join(cells[at : at + 2]) for at in range(0, len(cells), 2)]
        return ["faults fired, by kind", *pairs] if pairs else []


def _is_fault(name: str) -> bool:
    return name[0] == "F" and name[1:2].isdigit()


def _number(fault: str) -> int:
    return int(fault[1:].partition(" ")[0])


def _right(cells: list[str], widths: list[int]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
