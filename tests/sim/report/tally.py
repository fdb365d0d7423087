"""What the simulations ran, added up: figures for the closing table, and the first violations word for word."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from ..faults.kinds import Kind
from ..runner import Outcome

KEPT = 20
"""Violations that a tally keeps word for word."""


@dataclass
class Tally:
    """One layer's counts for one primitive; faults by the names of their kinds."""

    layer: str
    primitive: str
    figures: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> int:
        """`tally.runs` is the figure of that name."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self.figures[name]

    def add(self, outcome: Outcome) -> None:
        """Count one run."""
        self.figures.update(
            runs=1, calls=outcome.points, histories=outcome.histories, undecided=outcome.undecided,
            violated=int(bool(outcome.violations)), **{kind.value: times for kind, times in outcome.fired.items()},
        )  # fmt: skip
        if outcome.violations and len(self.violations) < KEPT:
            self.violations.append(f"{replay(outcome)}: {outcome.violations[0]}")

    def merge(self, other: Tally) -> None:
        """Count what another process has counted."""
        self.figures.update(other.figures)
        self.violations += other.violations

    def as_json(self) -> str:
        """For a file."""
        return json.dumps(vars(self))

    @classmethod
    def of_json(cls, text: str) -> Tally:
        """From a file."""
        fields = json.loads(text)
        return cls(**{**fields, "figures": Counter(fields["figures"])})

    def never_fired(self, kinds: tuple[Kind, ...]) -> list[str]:
        """Those of the kinds that did not happen once."""
        return [kind.value for kind in kinds if not self.figures[kind.value]]


def replay(outcome: Outcome) -> str:
    """How to see the run again."""
    if outcome.faults:
        return (
            f"python -m tests.sim replay --seed {outcome.seed} --primitive {outcome.primitive} --fault {outcome.faults}"
        )
    return f"make replay SEED={outcome.seed} PRIMITIVE={outcome.primitive}"
