"""One integer fixes everything: the same seed gives the same history, in every process, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scale import length, scaled

from .runner import simulate
from .stage import Stage
from .workload import SCENARIOS

ROOT = Path(__file__).parents[2]
SEEDS = range(length(3, 2))
AGAIN = SEEDS[: scaled(3)]
PROGRAM = """
from tests.sim.runner import simulate
from tests.sim.workload import SCENARIOS
for name, kind in SCENARIOS.items():
    print(name, simulate(kind, 0).digest())
"""


@pytest.mark.parametrize("primitive", SCENARIOS)
def test_the_same_seed_gives_the_same_history_also_where_it_is_traced(primitive):
    kind = SCENARIOS[primitive]
    first = [simulate(kind, seed).digest() for seed in SEEDS]
    assert first[: len(AGAIN)] == [simulate(kind, seed, trace=True).digest() for seed in AGAIN]
    assert len(set(first)) == len(first)


@pytest.mark.long
def test_the_history_does_not_depend_on_the_process():
    """Sets are in another order there: a process of its own, and what strings hash to is fixed for it."""
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", PROGRAM]
    there = subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    here = [[name, simulate(kind, 0).digest()] for name, kind in SCENARIOS.items()]
    assert [line.split() for line in there.splitlines()] == here


def test_a_thread_that_never_waits_is_told_of_and_ends():
    stage = Stage()

    def hasty(store):
        end = store.seams.monotonic() + 5.0
        while store.seams.monotonic() < end:
            pass

    stage.act("hasty", hasty)
    stage.play()
    ((name, failure),) = stage.world.failures
    assert (name, str(failure)) == ("hasty", "a thread reads the clock again and again")
    assert "hasty" in stage.said, "it came to its end"
