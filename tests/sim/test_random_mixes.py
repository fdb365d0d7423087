"""Every primitive, under random mixes of faults: no promise is broken; at scale 1 no fault kind is left out."""

from __future__ import annotations

import pytest

from tests.support.scale import SCALE, scaled

from .campaign import expected_kinds, random_mixes
from .runner import simulate
from .workload.unique import UniqueEnded

SEEDS = {
    "store": 12300,
    "latch": 600,
    "lock": 250,
    "election": 250,
    "across": 16,
    "circular": 350,
    "sharded": 100,
    "ordered": 70,
    "consumer": 70,
    "retry": 80,
    "message": 80,
    "results": 40,
    "rate": 20,
    "groups": 30,
    "batches": 80,
    "ledger": 80,
    "effects": 80,
    "writes": 80,
    "publisher": 150,
    "upkeep": 12,
    "semaphore": 150,
    "limiter": 400,
    "presence": 150,
    "poller": 150,
    "barrier": 150,
    "rwlock": 150,
}
"""Runs of each at scale 1: fewer of what takes long. `make soak` has a million of other seeds."""
FEWEST = 5
"""Runs of each at any scale."""
IN_ANY_ORDER = 50
"""More runs of each at scale 1, in which the rows of a batch have an order of their own."""
HISTORIES = {
    "store": 12300,
    "latch": 350,
    "lock": 250,
    "election": 100,
    "across": 0,
    "circular": 165,
    "sharded": 0,
    "ordered": 0,
    "consumer": 0,
    "retry": 0,
    "message": 0,
    "results": 0,
    "rate": 0,
    "groups": 0,
    "batches": 0,
    "ledger": 0,
    "effects": 0,
    "writes": 0,
    "publisher": 0,
    "upkeep": 0,
    "semaphore": 85,
    "limiter": 0,
    "presence": 0,
    "poller": 0,
    "barrier": 0,
    "rwlock": 160,
}
"""Floors at scale 1: linearizability histories that each campaign must have decided."""


@pytest.mark.parametrize("primitive", SEEDS)
def test_no_promise_is_broken_under_random_faults(primitive, proved):
    tally = random_mixes(primitive, range(scaled(SEEDS[primitive], FEWEST)))
    proved(tally.layer, primitive, tally.figures)
    assert not tally.violated, "\n".join(tally.violations)
    assert not tally.undecided
    assert tally.histories >= HISTORIES[primitive] * SCALE
    # By chance: a rare kind may not be among the 150 runs of `make long`.
    assert SCALE < 10 or not tally.never_fired(expected_kinds(primitive))


def test_the_floors_of_the_whole_campaign_are_reached():
    assert sum(SEEDS.values()) >= 15_000
    assert sum(HISTORIES.values()) >= 5_000


@pytest.mark.slow
def test_one_message_of_a_key_lives_however_messages_end():
    for seed in range(scaled(100)):
        outcome = simulate(UniqueEnded, seed)
        assert not outcome.violations, f"seed {seed}: {outcome.violations}"


@pytest.mark.parametrize("primitive", SEEDS)
def test_no_promise_is_broken_whatever_the_order_of_the_rows_of_a_batch(primitive):
    tally = random_mixes(primitive, range(scaled(IN_ANY_ORDER, FEWEST)), any_order=True)
    assert not tally.violated, "\n".join(tally.violations)
