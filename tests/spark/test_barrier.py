"""Drivers that wait for each other: real processes, of which one is killed, and started again."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time

import pytest

from latchwork import connect
from latchwork.coord import LatchLevel
from latchwork.errors import InvalidRequest, PartyLost, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.spark import SparkBarrier
from latchwork.store import MemoryStore
from latchwork.testing import FaultyStore

DRIVERS = ["orders", "stock", "mails"]
BRIEF, LONG = 3.0, 60.0
"""Seconds of a lease: of a driver that is killed, for which the others wait so long; and of one that is not, which then
does not count as dead however late it is.
"""
PROGRAM = f"""
import sys
from latchwork import connect
from latchwork.errors import PartyLost
from latchwork.spark import SparkBarrier

me, url, lease = sys.argv[1:]
with SparkBarrier(connect(url), "shop", "nightly", drivers={DRIVERS}, me=me, lease=float(lease)) as barrier:
    for line in sys.stdin:
        try:
            print(sorted(barrier.wait(f"{{me}} {{line.strip()}}", timeout=60).values()), flush=True)
        except PartyLost as lost:
            print("lost", lost.parties, flush=True)
"""


class Driver:
    """A driver that waits once for each word it is sent."""

    def __init__(self, me, url, lease=LONG):
        words = [sys.executable, "-c", PROGRAM, me, url, str(lease)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def said(self):
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def test_drivers_hear_who_was_killed_and_meet_it_again_once_it_was_started_again(tmp_path):
    url = f"sqlite:{tmp_path / 'spark.db'}?synchronous=off"
    drivers = {me: Driver(me, url, BRIEF if me == "mails" else LONG) for me in DRIVERS}
    try:
        for driver in drivers.values():
            driver.wait("first")
        assert {driver.said() for driver in drivers.values()} == {str(sorted(f"{me} first" for me in DRIVERS))}
        drivers["orders"].wait("second")
        drivers["stock"].wait("second")
        drivers["mails"].process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        assert {drivers[me].said() for me in ("orders", "stock")} == {"lost ['mails']"}
        assert time.monotonic() - began < 30, "not at the end of the waits' own time"
        drivers["mails"].end()
        drivers["mails"] = Driver("mails", url)
        drivers["mails"].wait("third")
        store = connect(url)
        there = SparkBarrier(store, "shop", "nightly", drivers=DRIVERS, me="orders")
        while there.progress().arrived != {"mails"}:
            time.sleep(0.01)
        store.close()
        for me in ("orders", "stock"):
            drivers[me].wait("third")
        assert {driver.said() for driver in drivers.values()} == {str(sorted(f"{me} third" for me in DRIVERS))}
    finally:
        for driver in drivers.values():
            driver.process.kill()
            driver.end()


def test_a_driver_whose_block_fails_counts_as_dead_at_once():
    store = MemoryStore()
    one, other = (SparkBarrier(store, "shop", "j", drivers=["p", "q"], me=me, lease=LONG) for me in ("p", "q"))
    with pytest.raises(RuntimeError), one:
        raise RuntimeError("no memory")
    with pytest.raises(PartyLost) as lost:
        other.wait(timeout=5)
    assert lost.value.parties == ["p"]
    other.close()
    other.close()


def test_a_driver_whose_block_fails_while_the_store_is_away_raises_its_own_error():
    """The error of its work, not that of the store, says what is wrong with the job."""
    store = FaultyStore(MemoryStore())
    store.policy = RetryPolicy(attempts=1)

    def works():
        with SparkBarrier(store, "shop", "j", drivers=["p"], me="p"):
            store.next("dropped")
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        works()


def test_a_driver_that_cannot_leave_says_so():
    store = FaultyStore(MemoryStore())
    store.policy = RetryPolicy(attempts=1)
    barrier = SparkBarrier(store, "shop", "j", drivers=["p"], me="p", lease=LONG)

    def works():
        with barrier:
            store.next("dropped")

    with pytest.raises(Unavailable):
        works()
    barrier.close()


def test_each_run_has_its_own_dead():
    store = MemoryStore()
    with pytest.raises(RuntimeError), SparkBarrier(store, "shop", "j", drivers=["p", "q"], me="p"):
        raise RuntimeError("no memory")
    second = SparkBarrier(store, "shop", "j", drivers=["p", "q"], me="q", generation=1)
    assert second._group.lost() == set()
    assert second.progress().missing == {"p", "q"}
    alone = SparkBarrier(store, "shop", "j", drivers=["p"], me="p", phase="load")
    assert alone.wait({"rows": 7}, timeout=5) == {"p": {"rows": 7}}
    assert alone.abort("nobody waits") is True
    alone.close()


def test_a_driver_that_the_barrier_does_not_name_is_refused_before_it_joins():
    with pytest.raises(InvalidRequest, match="'stok' of farm 'local' is not one of the parties"):
        SparkBarrier(MemoryStore(), "shop", "j", drivers=DRIVERS, me="stok")
    east = {"drivers": ["east/orders", "west/stock"], "farm_id": "east", "level": LatchLevel.XDC}
    SparkBarrier(MemoryStore(), "shop", "j", me="orders", **east)
    with pytest.raises(InvalidRequest, match="'stock' of farm 'east'"):
        SparkBarrier(MemoryStore(), "shop", "j", me="stock", **east)


def test_it_ships_to_no_executor():
    with pytest.raises(InvalidRequest, match="is for a driver"):
        pickle.dumps(SparkBarrier(MemoryStore(), "shop", "j", drivers=["p"], me="p"))
