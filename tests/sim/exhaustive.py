"""Every single store call of a scenario, struck by each of the five faults in turn; every batch, and every call
of a thread of the library, by a sixth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from random import Random
from typing import NamedTuple

from .faults.kinds import EXHAUSTIVE, Fault, Kind
from .faults.plans import SinglePlan
from .runner import Outcome, simulate
from .workload.base import Scenario

SEEDS = range(60)
"""Faultless runs in which call sites are looked for, where nothing else is said."""


@dataclass(frozen=True)
class Call:
    """A store call of a faultless run: where it is, the how-manieth of its call site, and whether it is a batch, and a
    step of a thread of the library.
    """

    seed: int
    point: int
    site: str
    turn: int
    batch: bool
    step: bool


def survey(kind: type[Scenario], seeds: Iterable[int] = SEEDS, most: int = 1_000_000) -> list[Call]:
    """Return the calls to strike: of faultless runs, those that reach a call site that none before them did.

    The first call of each site comes before the second of any.
    most: of the calls of one site, only so many; if 1, short runs are taken before long ones.
    """
    runs = [_faultless(kind, seed) for seed in seeds]
    if most == 1:
        runs.sort(key=lambda run: len(run.plan.sites))
    calls: list[Call] = []
    met: Counter[str] = Counter()
    for seed, plan in runs:
        if set(plan.sites.values()) - set(met):
            batches, steps = set(plan.batches), set(plan.steps)
            for point, site in plan.sites.items():
                if met[site] < most:
                    calls.append(Call(seed, point, site, met[site], point in batches, point in steps))
                    met[site] += 1
    return sorted(calls, key=lambda call: call.turn)


class _Run(NamedTuple):
    """A faultless run: its seed, and the plan that has noted its calls."""

    seed: int
    plan: SinglePlan


def _faultless(kind: type[Scenario], seed: int) -> _Run:
    plan = SinglePlan()
    outcome = simulate(kind, seed, plan, quiet=True)
    if outcome.violations:
        raise AssertionError(f"{kind.name}, seed {seed}, without any fault: {outcome.violations}")
    return _Run(seed, plan)


def strike_all(
    kind: type[Scenario], calls: Iterable[Call], day: str | None = None, part: float = 1.0
) -> Iterator[Outcome]:
    """Yield a run for every call and every fault, for every batch without a node (F15), and for every step of a thread
    of the library that fails of itself (F16).

    day: a part of the calls is struck, by one of the faults only; each day by another one, and other calls.
    """
    chance = Random(f"{day} {kind.name}")
    if day is not None:
        every = list(calls)
        calls = chance.sample(every, max(min(2, len(every)), int(len(every) * part)))
    for call in calls:
        faults = [_fault(kind, fault, call.point) for fault in EXHAUSTIVE]
        if call.batch:
            faults.append(Fault(Kind.NO_NODE))
        if call.step and Kind.DEFECT in kind.kinds:
            faults.append(Fault(Kind.DEFECT))
        if day is not None:
            faults = [chance.choice(faults)]
        for fault in faults:
            yield simulate(kind, call.seed, SinglePlan({call.point: fault}), quiet=True)


def strike_pairs(kind: type[Scenario], calls: Iterable[Call], limit: int) -> Iterator[Outcome]:
    """Yield runs with two faults each, in an order that spreads over all calls; at most `limit` of them."""
    every = product((1, 2, 3, 5, 8, 13), calls, EXHAUSTIVE, EXHAUSTIVE)
    for gap, call, one, two in islice(every, limit):
        faults = {call.point: _fault(kind, one, call.point), call.point + gap: _fault(kind, two, call.point)}
        yield simulate(kind, call.seed, SinglePlan(faults), quiet=True)


def _fault(kind: type[Scenario], fault: Kind, point: int) -> Fault:
    """Late deliveries come soon or after a lease, by turns."""
    return Fault(fault, kind.lease * (0.3, 1.2)[point % 2])
