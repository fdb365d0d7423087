"""What was run, added up: the closing table, and the floors under which a layer fails."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..faults.kinds import Kind
from ..runner import Outcome

KEPT = 20
"""Violations that a tally keeps word for word."""


@dataclass
class Tally:
    """One layer's counts for one primitive."""

    layer: str
    primitive: str
    runs: int = 0
    histories: int = 0
    undecided: int = 0
    calls: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    violated: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count one run."""
        self.runs += 1
        self.histories += outcome.histories
        self.undecided += outcome.undecided
        self.calls += outcome.points
        for kind, times in outcome.fired.items():
            self.fired[kind.value] += times
        if outcome.violations:
            self.violated += 1
            if len(self.violations) < KEPT:
                self.violations.append(f"{replay(outcome)}: {outcome.violations[0]}")

    def merge(self, other: Tally) -> None:
        """Count what another process has counted."""
        self.runs += other.runs
        self.histories += other.histories
        self.undecided += other.undecided
        self.calls += other.calls
        self.fired += other.fired
        self.violations += other.violations
        self.violated += other.violated

    def as_json(self) -> str:
        """For a file."""
        return json.dumps(self.__dict__)

    @classmethod
    def of_json(cls, text: str) -> Tally:
        """From a file."""
        fields = json.loads(text)
        return cls(**{**fields, "fired": Counter(fields["fired"])})

    def never_fired(self, kinds: tuple[Kind, ...]) -> list[str]:
        """Those of the kinds that did not happen once."""
        return [kind.value for kind in kinds if not self.fired[kind.value]]


def replay(outcome: Outcome) -> str:
    """How to see the run again."""
    if outcome.faults:
        return (
            f"python -m tests.sim replay --seed {outcome.seed} --primitive {outcome.primitive} --fault {outcome.faults}"
        )
    return f"make replay SEED={outcome.seed} PRIMITIVE={outcome.primitive}"


def save(tally: Tally, folder: Path) -> None:
    """Write the tally where the closing table finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{tally.layer}-{tally.primitive}.json").write_text(tally.as_json())


def table(tallies: list[Tally]) -> str:
    """All layers, a line each, and the faults fired by kind."""
    head = ("layer", "primitive", "runs", "store calls", "histories", "undecided", "violated")
    rows = [
        (t.layer, t.primitive, *(f"{n:,}" for n in (t.runs, t.calls, t.histories, t.undecided, t.violated)))
        for t in sorted(tallies, key=lambda tally: (tally.layer, tally.primitive))
    ]
    lines = ["{:12} {:10} {:>10} {:>13} {:>10} {:>9} {:>8}".format(*row) for row in (head, *rows)]
    lines.append("")
    fired: Counter[str] = sum((tally.fired for tally in tallies), Counter())
    lines.append("faults fired: " + ", ".join(f"{kind} {fired[kind]:,}" for kind in sorted(fired)))
    for tally in tallies:
        lines += [f"  {name}: {value}" for name, value in tally.extra.items()]
    return "\n".join(lines)
