"""Every call site of every primitive, struck by every single fault.

A run at a smaller scale than 1 takes a sample, another one each day: three of the surveyed runs, half of the sites
that they reach, or a third where a run takes long, and at each of those one of the faults.
"""

from __future__ import annotations

import pytest

from tests.support import matrix
from tests.support.scale import SCALE, scaled

from .campaign import every_single_fault
from .workload import SCENARIOS

MOST = {
    "circular": 2, "sharded": 1, "ordered": 1, "consumer": 1, "retry": 1, "message": 1, "unique": 1, "groups": 1,
    "batches": 1, "results": 1, "ledger": 1, "effects": 1, "writes": 1, "semaphore": 1, "rwlock": 1, "across": 1,
    "limiter": 40,
    "publisher": 40,
}  # fmt: skip
"""Calls of one site that are struck here at scale 1, where it is not 3: fewer of what has many sites; each site at any
scale. `make soak` strikes all calls."""
ELSEWHERE = {"rate", "upkeep"}
"""Primitives whose calls are those of others, of consumers and limiters, or that take long; the long campaign strikes
them too."""
BESIDE = {
    "retry": "sharded",
    "message": "retry",
    "results": "message",
    "unique": "message",
    "groups": "sharded",
    "batches": "sharded",
    "ledger": "sharded",
    "effects": "sharded",
    "writes": "sharded",
}
"""Primitives that make the calls of another one as well, and are struck here at their own calls only."""
SURVEYED = {
    "across": 5,
    **dict.fromkeys(("sharded", "consumer", "groups", "batches", "ledger", "effects", "writes"), 60),
}
"""Faultless runs in which call sites are looked for, where it is not 20: the last new one of these is met late."""
IN_A_SAMPLE = 3
"""Those that a sample looks at."""
LONG = {"retry", "message", "results", "unique", "groups", "batches", "writes"}
"""Primitives whose runs take long: a sample strikes a third of their sites, of the others half."""
FEWEST = {"across": 30, "rwlock": 85, "publisher": 60, "effects": 50, "message": 90, "results": 10}
"""Runs that a primitive must come to at scale 1, where it is not 100."""


@pytest.mark.slow
@pytest.mark.parametrize("primitive", [name for name in SCENARIOS if name not in ELSEWHERE])
def test_no_promise_is_broken_by_any_single_fault_at_any_call(primitive, proved):
    seeds = matrix.sample(range(SURVEYED.get(primitive, 20)), primitive, least=IN_A_SAMPLE)
    day = matrix.day() if SCALE < 1 else None
    tally = every_single_fault(
        primitive, scaled(MOST.get(primitive, 3)), beside=BESIDE.get(primitive), seeds=seeds, day=day,
        part=1 / 3 if primitive in LONG else 1 / 2,
    )  # fmt: skip
    proved(tally.layer, primitive, tally.figures)
    assert not tally.violated, "\n".join(tally.violations)
    assert not tally.undecided
    assert SCALE < 1 or tally.runs >= FEWEST.get(primitive, 100)
