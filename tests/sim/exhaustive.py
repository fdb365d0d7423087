"""Every single store call of a scenario, struck by each of the five faults in turn; every batch by a sixth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product

from .faults.kinds import EXHAUSTIVE, Fault, Kind
from .faults.plans import SinglePlan
from .runner import Outcome, simulate
from .workload.base import Scenario


@dataclass
class Ground:
    """Faultless runs that between them reach every call site: seed -> the points of its calls, and how often each site
    is among them."""

    points: dict[int, list[int]] = field(default_factory=dict)
    batches: dict[int, list[int]] = field(default_factory=dict)
    sites: Counter[str] = field(default_factory=Counter)


def survey(kind: type[Scenario], seeds: int = 60, most: int = 1_000_000) -> Ground:
    """Of so many faultless runs, those that reach a call site that none before them did.

    most: of the calls of one site, only so many are to be struck.
    """
    ground = Ground()
    for seed in range(seeds):
        plan = SinglePlan()
        outcome = simulate(kind, seed, plan, quiet=True)
        if outcome.violations:
            raise AssertionError(f"{kind.name}, seed {seed}, without any fault: {outcome.violations}")
        if set(plan.sites.values()) - set(ground.sites):
            ground.points[seed] = []
            for point, site in plan.sites.items():
                if ground.sites[site] < most:
                    ground.sites[site] += 1
                    ground.points[seed].append(point)
            struck = set(ground.points[seed])
            ground.batches[seed] = [point for point in plan.batches if point in struck]
    return ground


def strike_all(kind: type[Scenario], ground: Ground) -> Iterator[Outcome]:
    """A run for every point of the ground and every fault, and for every batch without a node (F15)."""
    for seed, points in ground.points.items():
        for point in points:
            for fault in EXHAUSTIVE:
                yield simulate(kind, seed, SinglePlan({point: _fault(kind, fault, point)}), quiet=True)
        for point in ground.batches[seed]:
            yield simulate(kind, seed, SinglePlan({point: Fault(Kind.NO_NODE)}), quiet=True)


def strike_pairs(kind: type[Scenario], ground: Ground, limit: int) -> Iterator[Outcome]:
    """Runs with two faults each, in an order that spreads over all points; at most `limit` of them."""
    points = [(seed, point) for seed, points in ground.points.items() for point in points]
    every = product((1, 2, 3, 5, 8, 13), points, EXHAUSTIVE, EXHAUSTIVE)
    for gap, (seed, first), one, two in islice(every, limit):
        faults = {first: _fault(kind, one, first), first + gap: _fault(kind, two, first)}
        yield simulate(kind, seed, SinglePlan(faults), quiet=True)


def _fault(kind: type[Scenario], fault: Kind, point: int) -> Fault:
    """Late deliveries come soon or after a lease, by turns."""
    return Fault(fault, kind.lease * (0.3, 1.2)[point % 2])
