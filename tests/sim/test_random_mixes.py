"""Every primitive, under random mixes of faults: no promise is broken, and no fault kind was left out."""

from __future__ import annotations

import pytest

from .campaign import expected_kinds, random_mixes

SEEDS = {
    "store": 9000,
    "latch": 1500,
    "lock": 500,
    "election": 350,
    "across": 25,
    "circular": 800,
    "sharded": 200,
    "ordered": 150,
    "consumer": 150,
    "rate": 40,
    "groups": 80,
    "batches": 200,
    "ledger": 150,
    "publisher": 300,
    "upkeep": 30,
    "semaphore": 250,
    "limiter": 600,
    "presence": 250,
    "poller": 300,
    "barrier": 250,
    "rwlock": 250,
}
"""Runs of each: enough that what a change breaks is seen. `make soak` has a million of other seeds."""
HISTORIES = {
    "store": 9000,
    "latch": 900,
    "lock": 500,
    "election": 150,
    "across": 0,
    "circular": 400,
    "sharded": 0,
    "ordered": 0,
    "consumer": 0,
    "rate": 0,
    "groups": 0,
    "batches": 0,
    "ledger": 0,
    "publisher": 0,
    "upkeep": 0,
    "semaphore": 150,
    "limiter": 0,
    "presence": 0,
    "poller": 0,
    "barrier": 0,
    "rwlock": 280,
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
