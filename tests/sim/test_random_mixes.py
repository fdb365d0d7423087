"""Every primitive, under random mixes of faults: no promise is broken, and no fault kind was left out."""

from __future__ import annotations

import pytest

from .campaign import expected_kinds, random_mixes

SEEDS = {
    "store": 7700,
    "latch": 2000,
    "lock": 900,
    "election": 600,
    "across": 60,
    "circular": 2000,
    "sharded": 1300,
    "ordered": 1000,
    "consumer": 700,
    "groups": 1000,
    "batches": 600,
    "ledger": 500,
    "publisher": 500,
    "semaphore": 700,
    "limiter": 1500,
    "presence": 700,
    "barrier": 700,
    "rwlock": 700,
}
HISTORIES = {
    "store": 7700,
    "latch": 1200,
    "lock": 900,
    "election": 250,
    "across": 0,
    "circular": 1000,
    "sharded": 0,
    "ordered": 0,
    "consumer": 0,
    "groups": 0,
    "batches": 0,
    "ledger": 0,
    "publisher": 0,
    "semaphore": 400,
    "limiter": 0,
    "presence": 0,
    "barrier": 0,
    "rwlock": 500,
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
