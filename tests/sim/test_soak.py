"""The long campaign ends with its table, whatever happens to what it runs."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections import Counter
from itertools import pairwise

import pytest

from . import soak as soak_module
from .campaign import expected_kinds
from .commands import ROOT, Commands
from .report.tally import Tally
from .soak import FLOORS, ON_A_SERVER, PAIRS, RANDOM, REPEATED, SINGLES, Soak
from .workload import SCENARIOS

ENOUGH = 600
HANGING = "import time\nprint('here', flush=True)\ntime.sleep(600)"
PARENT = f"""
import subprocess, sys
pipe = open(sys.argv[1], "w")
child = subprocess.Popen([sys.executable, "-c", {HANGING!r}], stdout=subprocess.PIPE, pass_fds=[pipe.fileno()])
child.stdout.readline()
"""


class Clock:
    """The time of a campaign, as far as it looks at it."""

    now = 0.0

    def monotonic(self):
        return self.now


def python(code):
    return [sys.executable, "-c", code]


@pytest.fixture
def soak():
    return Soak(minutes=0.001, jobs=1, first=0)


@pytest.mark.parametrize("fires", [True, False])
def test_a_kind_of_fault_that_had_no_turn_gets_more_runs_and_is_a_failure_if_it_does_not_fire_then(
    soak, monkeypatch, fires
):
    kinds, asked = expected_kinds("latch"), []
    soak.proof.add("random faults", "latch", {"runs": 1} | {kind.value: 1 for kind in kinds[1:]})
    soak.proof.add("random faults", "lock", {"runs": 1} | {kind.value: 1 for kind in expected_kinds("lock")})

    def tally(self, limit, command, file):
        asked.append(command[:2])
        figures = {"runs": 1} | ({kinds[0].value: 1} if fires else {})
        return Tally("random faults", "latch", Counter(figures))

    monkeypatch.setattr(Soak, "tally", tally)
    soak.check_kinds()
    assert asked == [["--primitive", "latch"]]
    assert soak.failures == ([] if fires else [f"latch: {kinds[0].value} never fired"])


def test_a_command_says_how_it_ended_and_what_it_printed():
    done = Commands().run(python("print('out'); exit('why')"), ENOUGH)
    assert (done.status, done.output, done.late) == (1, "out\nwhy\n", False)


def test_a_command_that_hangs_is_ended_at_its_limit():
    done = Commands().run(python(HANGING), 0.5)
    assert done.late
    assert done.status == -signal.SIGKILL


def test_what_a_command_leaves_behind_is_ended(tmp_path):
    """The reading end of a pipe comes to its end when nobody is left that could write."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert Commands().run([*python(PARENT), str(tmp_path / "pipe")], ENOUGH).status == 0
        assert select.select([pipe], [], [], 60)[0], "it still runs"
    finally:
        os.close(pipe)


def test_commands_that_are_told_to_end_end_and_no_more_begin():
    commands = Commands()
    threading.Timer(0.2, commands.end).start()
    assert commands.run(python(HANGING), ENOUGH).late
    assert commands.run(python("print(1)"), ENOUGH).late


def test_a_step_that_raises_is_a_failure_and_the_others_follow(soak, monkeypatch):
    done = []
    monkeypatch.setattr(Soak, "steps", lambda _: iter((lambda: 1 // 0, lambda: done.append(1))))
    soak.campaign()
    assert done == [1]
    assert "ZeroDivisionError" in soak.failures[0]


def test_a_simulator_that_crashes_is_a_failure_and_no_exception(soak, tmp_path, monkeypatch):
    monkeypatch.setattr(soak_module, "_SIMULATOR", python("exit('crashed')"))
    assert soak.tally(ENOUGH, ["--primitive", "nothing"], tmp_path / "tally") is None
    assert "--primitive nothing" in soak.failures[0]
    assert "crashed" in soak.failures[0]


def test_tests_that_fail_are_told_with_their_seed(soak):
    assert not soak.test(("tests/no_such_file.py",), ENOUGH, scale=2, first=7)
    assert "'LATCHWORK_FIRST': '7'" in soak.failures[-1]


def test_stretches_have_other_seeds_than_each_other_and_than_the_test_run(soak, monkeypatch):
    soak.jobs, soak.minutes, clock, begun = 2, 10, Clock(), []
    monkeypatch.setattr(soak_module, "time", clock)

    def test(_, files, limit, scale, first):
        begun.append(range(first, first + 5 * scale))
        clock.now += 0.01 * scale
        return True

    monkeypatch.setattr(Soak, "test", test)
    soak.repeat("crashed disks", 0.5, 1, ("a",))
    seeds = sorted(begun, key=lambda some: some.start)
    assert len(seeds) > 10
    assert seeds[0].start > 0
    assert all(one.stop <= other.start for one, other in pairwise(seeds))


def test_a_campaign_from_another_seed_tests_under_other_seeds(monkeypatch):
    begun = []
    monkeypatch.setattr(Soak, "test", lambda _, files, limit, scale, first: begun.append(first))
    for first in (0, 5):
        Soak(minutes=60, jobs=1, first=first).repeat("crashed disks", 0.5, 1, ("a",))
    assert begun[5:] == [seed + 5 for seed in begun[:5]]


def test_a_layer_that_fails_five_times_is_given_up(soak, monkeypatch):
    soak.minutes, begun = 60, []
    monkeypatch.setattr(Soak, "test", lambda *_: begun.append(1))
    soak.repeat("crashed disks", 0.5, 1, ("a",))
    assert len(begun) == 5


def test_the_parts_of_the_time_leave_some_for_what_has_none():
    assert 0.8 < RANDOM + SINGLES + PAIRS + sum(part for _, part, *_ in REPEATED) < 0.95


def test_every_floor_has_a_part_of_the_time():
    assert set(FLOORS) == {"random faults", "pairs of faults", *(layer for layer, *_ in REPEATED)}


def test_every_primitive_has_rows_in_the_table():
    simulated = (
        "store latch lock election across semaphore presence barrier rwlock limiter circular sharded ordered consumer "
        "retry rate groups batches ledger effects publisher upkeep poller"
    )
    against_a_model = (
        "latches locks elections semaphores barriers rwlocks limiters groups batches effects delayed sharded circular "
        "ledger paged"
    )
    assert set(simulated.split()) <= set(SCENARIOS)
    machines = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "machines").glob("test_*.py")}
    assert set(against_a_model.split()) <= machines
    killed = {name for layer, _, _, files in REPEATED if layer == "processes" for name in files}
    assert {f"tests/queue/sharded/test_{name}.py" for name in ("crowd_killed", "payments_killed", "fleet")} <= killed


def test_only_layers_that_need_a_server_are_spared_where_the_machine_has_none():
    soak = Soak(minutes=90, jobs=1, first=0)
    soak.skipped["1 skipped: takes two minutes"] += 1
    assert spared(soak) == []
    soak.skipped["1 skipped: no real server: no asd on the PATH"] += 1
    assert spared(soak) == [f"{layer}: 0 {name}" for layer in ON_A_SERVER for name in FLOORS[layer]]


def spared(soak):
    """The floors that are not asked for, of a campaign that has reported nothing."""
    told = [what.partition(",")[0] for what in soak.verdict()]
    return [
        f"{layer}: 0 {name}" for layer, asked in FLOORS.items() for name in asked if f"{layer}: 0 {name}" not in told
    ]
