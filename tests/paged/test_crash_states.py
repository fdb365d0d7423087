"""After a crash of the machine at any step: a prefix, with everything acknowledged in it, and no cursor fallen back."""

from collections import Counter

import pytest

from tests.proof import FIRST, SCALE

from .crashes import SHAPES, explore

SEEDS = 5 * SCALE
FLOOR = 50_000
"""Crash states that five seeds must come to, or the test proves too little."""

STEPS = ("create", "write", "sync", "rename", "allocate", "truncate", "unlink")

reached = Counter()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_crash_state_keeps_the_promises(shape):
    for seed in range(FIRST, FIRST + SEEDS):
        reached.update(explore(shape, seed, each_step=10))


def test_enough_crash_states_were_reached_of_every_kind(proved):
    if not reached:
        pytest.skip("counts what the tests before it did in the same run")
    states = reached["states"] + reached["states in recovery"] + reached["states after recovery"]
    proved("crashed disks", "paged queue", states=states, **{"F9 files": states})
    assert states >= FLOOR * SEEDS // 5
    assert all(reached[f"did {step}"] for step in STEPS)
    assert all(reached[f"kept {keep}"] for keep in ("0%", "15%", "50%", "85%", "100%"))
