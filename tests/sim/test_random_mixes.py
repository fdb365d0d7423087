"""Every primitive, under random mixes of faults: no promise is broken, and no fault kind was left out."""

from __future__ import annotations

import pytest

from .campaign import expected_kinds, random_mixes

SEEDS = {"store": 6000, "latch": 3000, "lock": 1000, "election": 700, "circular": 2500, "sharded": 1500, "ledger": 500}
HISTORIES = {"store": 6000, "latch": 1800, "lock": 1000, "election": 300, "circular": 1300, "sharded": 0, "ledger": 0}
"""Floors: linearizability histories that each campaign must have decided."""


@pytest.mark.parametrize("primitive", SEEDS)
def test_no_promise_is_broken_under_random_faults(primitive, proved):
    tally = random_mixes(primitive, range(SEEDS[primitive]))
    proved(tally.layer, primitive, tally.figures)
    assert not tally.violated, "\n".join(tally.violations)
    assert not tally.undecided
    assert tally.histories >= HISTORIES[primitive]
    assert not tally.never_fired(expected_kinds(primitive))


def test_the_floors_of_the_whole_campaign_are_reached():
    assert sum(SEEDS.values()) >= 15_000
    assert sum(HISTORIES.values()) >= 5_000
