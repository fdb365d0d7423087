"""Many runs: random mixes, exhaustive faults, mutants; each gives a tally."""

from __future__ import annotations

from collections.abc import Iterable

from .exhaustive import strike_all, strike_pairs, survey
from .faults.kinds import Kind
from .mutants import Mutant
from .report.tally import Tally
from .runner import Outcome, simulate
from .workload import SCENARIOS


def random_mixes(primitive: str, seeds: Iterable[int]) -> Tally:
    """A run with a random mix of faults for each seed."""
    tally = Tally("random", primitive)
    for seed in seeds:
        tally.add(simulate(SCENARIOS[primitive], seed))
    return tally


def every_single_fault(primitive: str, pairs: int = 0, most: int = 1_000_000) -> Tally:
    """Every call of the surveyed runs (of one call site at most so many) with every fault; and pairs of faults."""
    kind = SCENARIOS[primitive]
    ground = survey(kind, most=most)
    tally = Tally("exhaustive", primitive)
    for outcome in strike_all(kind, ground):
        tally.add(outcome)
    for outcome in strike_pairs(kind, ground, pairs):
        tally.add(outcome)
    points = sum(map(len, ground.points.values()))
    tally.extra["call sites"] = f"{primitive}: {len(ground.sites)} sites, {points} calls, each with 5 faults"
    return tally


def catch(mutant: Mutant, most: int = 4000) -> Outcome | None:
    """The first run, by seed, in which a checker catches the mutant; None where none of so many does."""
    with mutant.patch():
        for seed in range(most):
            outcome = simulate(SCENARIOS[mutant.primitive], seed)
            if outcome.violations:
                return outcome
    return None


def expected_kinds(primitive: str) -> tuple[Kind, ...]:
    """The kinds of fault that a long campaign on the primitive must have fired."""
    kind = SCENARIOS[primitive]
    return (*kind.kinds, *kind.environment, Kind.WRAP)
