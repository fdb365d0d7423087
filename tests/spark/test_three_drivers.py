"""Three Spark drivers, each with a session and partitions of its own, of which one is killed in the middle of a job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .farm_driver import FARMS, LEASE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long


class Driver:
    """One driver's process, which says each thing in a line."""

    def __init__(self, farm, url, folder):
        command = [sys.executable, "-m", "tests.spark.farm_driver", farm, url, str(folder)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip

    def tell(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def said(self):
        return self.process.stdout.readline().strip()

    def kill(self):
        """End it and its Java process as a machine that goes away does."""
        os.killpg(self.process.pid, 9)
        self.process.wait(30)


def test_the_others_hear_of_a_driver_that_was_killed_and_it_counts_in_the_next_generation(tmp_path):
    url = f"sqlite:{tmp_path / 'spark.db'}?synchronous=off"
    drivers = {farm: Driver(farm, url, tmp_path) for farm in FARMS}
    try:
        assert [driver.said() for driver in drivers.values()] == ["ready"] * 3
        for driver in drivers.values():
            driver.tell(0)
        assert [driver.said() for driver in drivers.values()] == ["joined"] * 3
        for farm in ("ewr", "lga"):
            drivers[farm].tell("count")
        assert [drivers[farm].said() for farm in ("ewr", "lga")] == ["counted"] * 2, "and now they wait"
        time.sleep(LEASE / 3)  # and have looked at the members
        drivers["jfk"].kill()
        began = time.monotonic()
        assert [drivers[farm].said() for farm in ("ewr", "lga")] == ["lost ['jfk/driver']"] * 2
        assert time.monotonic() - began < 60, "not at the end of the waits' own time"
        print(f"heard after {time.monotonic() - began:.1f} s, with a lease of {LEASE:g} s")
        drivers["jfk"] = Driver("jfk", url, tmp_path)
        assert drivers["jfk"].said() == "ready"
        for driver in drivers.values():
            driver.tell(1)
        assert [driver.said() for driver in drivers.values()] == ["joined"] * 3
        for driver in drivers.values():
            driver.tell("count")
        assert [driver.said() for driver in drivers.values()] == ["counted"] * 3
        assert [driver.said() for driver in drivers.values()] == ["True"] * 3
    finally:
        for driver in drivers.values():
            driver.kill()
