"""Schedules in a process of their own: on a machine without time zones, under hostile names of them, under any `TZ`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from latchwork.queue import Schedule
from latchwork.store import SQLiteStore
from latchwork.testing.clock import ManualClock

from .test_schedules import MINUTE, registry_on
from .zones_process import NAMES

MACHINES = ("with zones", "without zones")
BERLIN = ["2026-01-01T02:00:00+00:00", "2026-01-02T02:00:00+00:00"]
UTC = ["2026-01-01T03:00:00+00:00", "2026-01-02T03:00:00+00:00"]
EVERY = ["2026-01-01T00:01:00+00:00", "2026-01-01T00:02:00+00:00"]


@pytest.fixture(scope="module", params=MACHINES)
def machine(request, tmp_path_factory):
    """What such a process says; without zones: there are no files of the system's, and no package `tzdata`."""
    folder = tmp_path_factory.mktemp("zones")
    registry = registry_on(SQLiteStore(folder / "s.db", synchronous="off", seams=ManualClock()))
    registry.schedule(Schedule("berlin", "q", "of Berlin", cron="* * * * *", tz="Europe/Berlin", missed="all"))
    registry.schedule(Schedule("every", "q", "every", every=MINUTE, missed="all"))
    registry.store.close()
    environment = dict(os.environ)
    if request.param == "without zones":
        (folder / "tzdata.py").write_text("raise ModuleNotFoundError(__name__)")
        environment |= {"PYTHONTZPATH": "", "PYTHONPATH": f"{folder}:{environment.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "tests.queue.sharded.delayed.zones_process", str(folder / "s.db")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert bool(found["zones"]) is (request.param == "with zones"), "the machine is as it should be"
    return request.param, found


def test_no_hostile_name_of_a_zone_is_taken_on_any_machine(machine):
    kind, found = machine
    refused = ("INVALID_REQUEST: ",) if kind == "with zones" else ("INVALID_REQUEST: ", "MISCONFIGURED: ")
    for name, said in zip(NAMES, found["names"], strict=True):
        assert isinstance(said, str), (name, said)
        assert said.startswith(refused), (name, said)
        assert said.isprintable(), name
        assert len(said) < 400, name


def test_the_time_zone_of_the_machine_moves_no_tick(machine):
    kind, found = machine
    for every, utc, berlin in found["system"]:
        assert (every, utc) == (EVERY, UTC)
        assert berlin == BERLIN if kind == "with zones" else "MISCONFIGURED" in berlin and "tzdata" in berlin


def test_a_machine_that_does_not_know_a_zone_blames_no_schedule_and_publishes_the_others(machine):
    kind, found = machine
    upkeep, said = found["upkeep"], " ".join(found["upkeep"]["log"])
    assert upkeep["listed"] == [["berlin", "Europe/Berlin"], ["every", "UTC"]]
    assert upkeep["published"].count("every") == 3
    assert upkeep["published"].count("of Berlin") == (3 if kind == "with zones" else 0)
    assert ("this machine does not know the time zone 'Europe/Berlin'" in said) is (kind == "without zones")
    assert "put it again" not in said
