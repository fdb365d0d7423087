"""Every single store call of a scenario, struck by each of the five faults in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from .faults.kinds import EXHAUSTIVE, Fault, Kind
from .faults.plans import SinglePlan
from .runner import Outcome, simulate
from .workload.base import Scenario


@dataclass
class Ground:
    """Faultless runs that between them reach every call site: seed -> the points of its calls."""

    points: dict[int, list[int]] = field(default_factory=dict)
    sites: set[str] = field(default_factory=set)


def survey(kind: type[Scenario], seeds: int = 60) -> Ground:
    """Of so many faultless runs, those that reach a call site that none before them did."""
    ground = Ground()
    for seed in range(seeds):
        plan = SinglePlan()
        outcome = simulate(kind, seed, plan, quiet=True)
        if outcome.violations:
            raise AssertionError(f"{kind.name}, seed {seed}, without any fault: {outcome.violations}")
        new = set(plan.sites.values()) - ground.sites
        if new:
            ground.sites |= new
            ground.points[seed] = list(plan.sites)
    return ground


def strike_all(kind: type[Scenario], ground: Ground) -> Iterator[Outcome]:
    """A run for every point of the ground and every fault."""
    for seed, points in ground.points.items():
        for point in points:
            for fault in EXHAUSTIVE:
                yield simulate(kind, seed, SinglePlan({point: _fault(kind, fault, point)}), quiet=True)


def strike_pairs(kind: type[Scenario], ground: Ground, limit: int) -> Iterator[Outcome]:
    """Runs with two faults each, in an order that spreads over all points; at most `limit` of them."""

    def pairs() -> Iterator[Outcome]:
        for gap in (1, 2, 3, 5, 8, 13):
            for seed, points in ground.points.items():
                for first in points:
                    for one in EXHAUSTIVE:
                        for two in EXHAUSTIVE:
                            faults = {first: _fault(kind, one, first), first + gap: _fault(kind, two, first)}
                            yield simulate(kind, seed, SinglePlan(faults), quiet=True)

    return islice(pairs(), limit)


def _fault(kind: type[Scenario], fault: Kind, point: int) -> Fault:
    """Late deliveries come soon or after a lease, by turns."""
    return Fault(fault, kind.lease * (0.3, 1.2)[point % 2])
