"""Many runs: random mixes, exhaustive faults, mutants; each gives a tally."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from typing import TypeVar

from .exhaustive import SEEDS, strike_all, strike_pairs, survey
from .faults.kinds import Kind
from .mutants import Mutant
from .report.tally import Tally
from .runner import Outcome, simulate
from .workload import SCENARIOS

T = TypeVar("T")
ALL = 1_000_000
"""More calls than any run has."""
BESIDE_A_SAMPLE = range(5)
"""Runs of the primitive beside that a sample surveys: a site that these do not reach is struck twice, at most."""
KNOWN = Path(__file__).with_name("caught.json")
"""`known_seeds` in a file, as `python -m tests.sim mutants --write` has found them."""


def random_mixes(
    primitive: str, seeds: Iterable[int], seconds: float | None = None, *, any_order: bool = False
) -> Tally:
    """A run with a random mix of faults for each seed, as far as the time allows.

    any_order: of the rows of each batch.
    """
    tally = Tally("random faults", primitive)
    for seed in _in_time(seeds, seconds):
        tally.add(simulate(SCENARIOS[primitive], seed, any_order=any_order))
    return tally


def every_single_fault(
    primitive: str,
    most: int = ALL,
    seconds: float | None = None,
    *,
    beside: str | None = None,
    seeds: Iterable[int] = SEEDS,
    day: str | None = None,
    part: float = 1.0,
) -> Tally:
    """Every fault at the calls of the surveyed runs (of one call site at most so many).

    The first call of each site is always struck, its others as far as the time allows.
    beside: a primitive whose call sites are left out, as they are struck there.
    seeds: faultless runs that are surveyed.
    day: a sample is taken: one fault at this part of the calls, other ones each day.
    """
    kind, began = SCENARIOS[primitive], time.monotonic()
    known = _sites_of(beside, SEEDS if day is None else BESIDE_A_SAMPLE) if beside else ()
    calls = [call for call in survey(kind, seeds, most) if call.site not in known]
    first = [call for call in calls if call.turn == 0]
    tally = Tally("single faults", primitive)
    for outcome in strike_all(kind, first, day, part):
        tally.add(outcome)
    left = None if seconds is None else seconds - (time.monotonic() - began)
    for outcome in _in_time(strike_all(kind, calls[len(first) :], day, part), left):
        tally.add(outcome)
    tally.figures["sites"] = len(first)
    return tally


@cache
def _sites_of(primitive: str, seeds: range) -> frozenset[str]:
    return frozenset(call.site for call in survey(SCENARIOS[primitive], seeds, most=1))


def pairs_of_faults(primitive: str, runs: int, seconds: float | None = None) -> Tally:
    """So many runs with two faults each, spread over all calls, as far as the time allows."""
    kind = SCENARIOS[primitive]
    tally = Tally("pairs of faults", primitive)
    for outcome in _in_time(strike_pairs(kind, survey(kind), runs), seconds):
        tally.add(outcome)
    return tally


def _in_time(things: Iterable[T], seconds: float | None) -> Iterator[T]:
    """The things, until so many seconds are over."""
    if seconds is None:
        return iter(things)
    end = time.monotonic() + seconds
    return takewhile(lambda _: time.monotonic() < end, things)


def catch(mutant: Mutant, most: int = 8000, known: int | None = None) -> Outcome | None:
    """The first run in which a checker catches the mutant: that of the known seed, then by seed; None where none does.

    A run in which the mutant itself fails, as one does that the code has moved away from under, proves nothing.
    """
    with mutant.patch():
        for seed in chain(() if known is None else (known,), range(mutant.first, mutant.first + most)):
            outcome = simulate(SCENARIOS[mutant.primitive], seed)
            if outcome.violations and not outcome.senseless:
                return outcome
    return None


def known_seeds() -> dict[str, int]:
    """A seed under which each mutant is caught, in little time, by the mutant's id."""
    seeds: dict[str, int] = json.loads(KNOWN.read_text())
    return seeds


def expected_kinds(primitive: str) -> tuple[Kind, ...]:
    """The kinds of fault that a long campaign on the primitive must have fired."""
    kind = SCENARIOS[primitive]
    return (*kind.kinds, *kind.environment, *kind.rare, Kind.WRAP, Kind.CONNECTION, Kind.NO_NODE)
