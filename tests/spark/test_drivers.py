"""The drivers of a latch: three real processes, of which one is killed, and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from latchwork import connect
from latchwork.coord import LatchLevel
from latchwork.errors import PartyLost
from latchwork.spark import SparkLatch
from latchwork.store import MemoryStore

FARMS = ["ewr", "jfk", "lga"]
BRIEF, LONG = 2.0, 60.0
"""Seconds of a lease: of a driver that is killed, for which the others wait so long; and of one that is not, which then
does not count as dead however late it is.
"""
PROGRAM = f"""
import sys
from latchwork import connect
from latchwork.coord import LatchLevel
from latchwork.errors import PartyLost
from latchwork.spark import SparkLatch, latch as module

class Task:
    def partitionId(self):
        return 0

module._task = Task
farm, url, lease = sys.argv[1:]
for line in sys.stdin:
    generation = int(line)
    latch = SparkLatch.get_or_create(
        connect(url), "shop", "nightly", 1, generation=generation, farms={FARMS}, farm_id=farm, level=LatchLevel.XDC
    )
    with latch.join(lease=float(lease)):
        print("joined", flush=True)
        if sys.stdin.readline().strip() == "count":
            latch.count_down_partition()
        try:
            print(latch.wait(60, progress=False), flush=True)
        except PartyLost as lost:
            print("lost", lost.parties, flush=True)
"""


class Driver:
    """A driver of one farm, which takes part in each generation that it is sent."""

    def __init__(self, farm, url, lease=LONG):
        words = [sys.executable, "-c", PROGRAM, farm, url, str(lease)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def said(self):
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def test_the_others_hear_within_a_lease_which_driver_was_killed_and_it_takes_part_in_the_next_generation(tmp_path):
    url = f"sqlite:{tmp_path / 'spark.db'}?synchronous=off"
    drivers = {farm: Driver(farm, url, BRIEF if farm == "jfk" else LONG) for farm in FARMS}
    try:
        for driver in drivers.values():
            driver.tell(0)
        assert [driver.said() for driver in drivers.values()] == ["joined"] * 3
        drivers["jfk"].process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        for farm in ("ewr", "lga"):
            drivers[farm].tell("count")
        assert [drivers[farm].said() for farm in ("ewr", "lga")] == ["lost ['jfk/driver']"] * 2
        assert time.monotonic() - began < 30, "not at the end of the waits' own time"
        drivers["jfk"].end()
        drivers["jfk"] = Driver("jfk", url)
        for driver in drivers.values():
            driver.tell(1)
        assert [driver.said() for driver in drivers.values()] == ["joined"] * 3
        for driver in drivers.values():
            driver.tell("count")
        assert [driver.said() for driver in drivers.values()] == ["True"] * 3
    finally:
        for driver in drivers.values():
            driver.process.kill()
            driver.end()


def create(store, farm, **options):
    return SparkLatch.create(store, "shop", "j", 2, farms=FARMS[:2], farm_id=farm, **options)


@pytest.fixture
def count(monkeypatch):
    def partition(latch, number):
        class Task:
            def partitionId(self):  # noqa: N802 - Spark's name
                return number

        monkeypatch.setattr("latchwork.spark.latch._task", Task)
        latch.count_down_partition()

    return partition


def test_a_driver_whose_block_fails_counts_as_dead_at_once_and_not_once_it_has_joined_again():
    store = MemoryStore()
    ours, theirs = (create(store, farm, level=LatchLevel.XDC) for farm in FARMS[:2])
    with pytest.raises(RuntimeError), theirs.join():
        raise RuntimeError("no memory")
    for progress in (True, False, None):
        with pytest.raises(PartyLost) as lost:
            ours.wait(5, progress=progress)
        assert lost.value.parties == ["jfk/driver"]
    with theirs.join():
        assert ours.wait(0.1, progress=False) is False


def test_a_driver_that_leaves_or_dies_after_its_share_has_counted_ends_no_wait(count):
    store = MemoryStore()
    ours, theirs = (create(store, farm, level=LatchLevel.XDC) for farm in FARMS[:2])
    with ours.join("first"):
        pass
    for number in (0, 1):
        count(theirs, number)
    with pytest.raises(RuntimeError), theirs.join():
        raise RuntimeError("no memory")
    assert ours.wait(0.1, progress=False) is False
    for number in (0, 1):
        count(ours, number)
    assert ours.wait(5, progress=False) is True


def test_a_driver_that_died_before_its_farm_brought_its_share_is_named():
    store = MemoryStore()
    ours = create(store, "ewr", level=LatchLevel.XDC)
    absent = SparkLatch.get(store, "shop", "j", farm_id="jfk", level=LatchLevel.XDC)
    with pytest.raises(RuntimeError), absent.join("loader"):
        raise RuntimeError("no memory")
    with pytest.raises(PartyLost) as lost:
        ours.wait(5)
    assert lost.value.parties == ["jfk/loader"]


def test_at_dc_level_only_a_driver_of_this_farm_is_waited_for():
    store = MemoryStore()
    ours = SparkLatch.create(store, "shop", "j", 2, farm_id="ewr")
    theirs = SparkLatch.create(store, "shop", "j", 2, farm_id="jfk")
    with pytest.raises(RuntimeError), theirs.join():
        raise RuntimeError("no memory")
    assert ours.wait(0.1, progress=False) is False
    with pytest.raises(RuntimeError), ours.join():
        raise RuntimeError("no memory")
    with pytest.raises(PartyLost):
        ours.wait(5, progress=False)


def test_the_drivers_of_one_generation_or_barrier_are_not_those_of_another():
    store = MemoryStore()
    first, second = (SparkLatch.create(store, "shop", "j", 2, generation=n) for n in (0, 1))
    with pytest.raises(RuntimeError), first.join():
        raise RuntimeError("no memory")
    assert second.wait(0.1, progress=False) is False


def test_a_latch_whose_driver_has_joined_ships_without_its_membership(tmp_path):
    import pickle

    store = connect(f"sqlite:{tmp_path / 'store.db'}")
    latch = SparkLatch.create(store, "shop", "j", 2)
    with latch.join() as membership:
        copy = pickle.loads(pickle.dumps(latch))
        assert copy.missing() == ["local/0", "local/1"]
        assert not membership.lost.is_set()
