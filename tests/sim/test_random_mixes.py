"""Every primitive, under random mixes of faults: no promise is broken, and no fault kind was left out."""

from __future__ import annotations

import pytest

from .campaign import expected_kinds, random_mixes

SEEDS = {
    "store": 7700,
    "latch": 2000,
    "lock": 900,
    "election": 600,
    "across": 40,
    "circular": 1000,
    "sharded": 300,
    "ordered": 400,
    "consumer": 200,
    "rate": 60,
    "groups": 120,
    "batches": 300,
    "ledger": 300,
    "publisher": 300,
    "upkeep": 60,
    "semaphore": 400,
    "limiter": 700,
    "presence": 400,
    "poller": 300,
    "barrier": 400,
    "rwlock": 400,
}
"""Runs of each; `make soak` has a million of other seeds."""
HISTORIES = {
    "store": 7700,
    "latch": 1200,
    "lock": 900,
    "election": 250,
    "across": 0,
    "circular": 500,
    "sharded": 0,
    "ordered": 0,
    "consumer": 0,
    "rate": 0,
    "groups": 0,
    "batches": 0,
    "ledger": 0,
    "publisher": 0,
    "upkeep": 0,
    "semaphore": 250,
    "limiter": 0,
    "presence": 0,
    "poller": 0,
    "barrier": 0,
    "rwlock": 450,
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
