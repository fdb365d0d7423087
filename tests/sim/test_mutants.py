"""A simulation that cannot fail proves nothing: each rule is taken out once, and a checker must notice."""

from __future__ import annotations

from collections import Counter

import pytest

from .campaign import catch
from .mutants import MUTANTS
from .report.tally import replay
from .workload import SCENARIOS


@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in MUTANTS if not mutant.scripted],
    ids=lambda mutant: f"{mutant.primitive}: {mutant.name}",
)
def test_a_rule_taken_out_is_noticed(mutant, proved):
    outcome = catch(mutant)
    proved("mutants", mutant.primitive, seeded=1, caught=int(outcome is not None))
    assert outcome is not None, f"no checker notices that {mutant.rule!r} is gone"
    print(f"caught: {mutant.name} ({mutant.rule}): {replay(outcome)}")


def test_every_primitive_has_at_least_four_mutants():
    counts = Counter(mutant.primitive for mutant in MUTANTS)
    assert all(counts[primitive] >= 4 for primitive in SCENARIOS), counts
