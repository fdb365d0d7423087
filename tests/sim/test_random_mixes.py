"""Every primitive, under random mixes of faults: no promise is broken, and no fault kind was left out."""

from __future__ import annotations

import pytest

from .campaign import expected_kinds, random_mixes

SEEDS = {
    "store": 10600,
    "latch": 1300,
    "lock": 450,
    "election": 300,
    "across": 20,
    "circular": 750,
    "sharded": 130,
    "ordered": 100,
    "consumer": 100,
    "rate": 30,
    "groups": 45,
    "batches": 110,
    "ledger": 110,
    "publisher": 250,
    "upkeep": 20,
    "semaphore": 200,
    "limiter": 500,
    "presence": 200,
    "poller": 250,
    "barrier": 200,
    "rwlock": 200,
}
"""Runs of each: fewer of what takes long. `make soak` has a million of other seeds."""
HISTORIES = {
    "store": 10600,
    "latch": 780,
    "lock": 450,
    "election": 130,
    "across": 0,
    "circular": 375,
    "sharded": 0,
    "ordered": 0,
    "consumer": 0,
    "rate": 0,
    "groups": 0,
    "batches": 0,
    "ledger": 0,
    "publisher": 0,
    "upkeep": 0,
    "semaphore": 120,
    "limiter": 0,
    "presence": 0,
    "poller": 0,
    "barrier": 0,
    "rwlock": 220,
}
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
