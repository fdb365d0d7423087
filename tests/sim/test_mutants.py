"""A simulation that cannot fail proves nothing: each rule is taken out once, and a checker must notice."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from .campaign import catch, known_seeds
from .mutants import MUTANTS
from .report.tally import replay
from .runner import simulate
from .workload import SCENARIOS

SEARCHED = [mutant for mutant in MUTANTS if not mutant.scripted]


@cache
def is_clean(primitive, seed):
    """Whether the same run breaks no promise with all rules in place: one seed shows several mutants."""
    return not simulate(SCENARIOS[primitive], seed).violations


@pytest.mark.slow  # one whose seed is not known any more is searched for
@pytest.mark.parametrize("mutant", SEARCHED, ids=lambda mutant: mutant.id)
def test_a_rule_taken_out_is_noticed(mutant, proved):
    """In the run that is known to show it; in any, where the code has changed since. `make soak` searches for all.

    A search takes up to minutes: `python -m tests.sim mutants --write` keeps what it finds.
    """
    known = known_seeds().get(mutant.id)
    outcome = catch(mutant, known=known)
    was_searched = outcome is None or outcome.seed != known
    proved("mutants", mutant.primitive, seeded=1, caught=int(outcome is not None), searched=int(was_searched))
    assert outcome is not None, f"no checker notices that {mutant.rule!r} is gone"
    assert is_clean(mutant.primitive, outcome.seed), "the checker notices something else"
    print(f"caught: {mutant.name} ({mutant.rule}): {replay(outcome)}")


def test_seeds_are_known_of_the_mutants_that_there_are():
    assert known_seeds().keys() <= {mutant.id for mutant in SEARCHED}


def test_every_primitive_has_at_least_four_mutants():
    counts = Counter(mutant.primitive for mutant in MUTANTS)
    assert all(counts[primitive] >= 4 for primitive in SCENARIOS), counts
