"""After a crash of the machine at any step: a prefix, with everything acknowledged in it, and no cursor fallen back."""

from collections import Counter

import pytest

from tests.support.scale import FIRST, SCALE, length, scaled

from .crashes import KEEPS, SHAPES, explore

SEEDS = scaled(5)
EACH_STEP = length(8, least=len(KEEPS))
"""States that are taken at each step."""
PART = 1 if SCALE >= 0.25 else 0.6
"""How much of each workload is done."""
LEAST = 500
"""States that a seed comes to, on average, in each shape; tests/support/proof.py has the floor of their sum."""
STEPS = ("create", "write", "sync", "rename", "allocate", "truncate")
"""What every shape does to its files."""


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_crash_state_keeps_the_promises(shape, proved):
    reached = Counter()
    for seed in range(FIRST, FIRST + SEEDS):
        reached.update(explore(shape, seed, each_step=EACH_STEP, actions=round(shape.length * PART)))
    states = reached["states"] + reached["states in recovery"] + reached["states after recovery"]
    assert states >= LEAST * SEEDS
    proved("crashed disks", "paged queue", states=states, **{"F9 files": states})
    assert all(reached[f"did {step}"] for step in (*STEPS, *(["unlink"] if shape.lifetime else [])))
    assert all(reached[f"kept {keep:.0%}"] for keep in KEEPS)
