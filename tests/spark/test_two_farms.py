"""Two Spark jobs in two farms, a store each: a phase begins in either when both have done the one before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.multi_dc import Shipper
from latchwork.coord import LatchLevel
from latchwork.spark.phase import job_phase
from latchwork.store.connect import connect
from tests.support.real_servers import or_skip
from tools import servers

from .conftest import BOTH
from .farm_process import FARMS, PARTITIONS, PHASES

ROOT = Path(__file__).parents[2]
LATCHES = [
    job_phase("shop", "nightly", phase=phase, generation=0, farm_id="any", level=LatchLevel.XDC) for phase in PHASES
]
PATIENCE = 240
"""Seconds until a farm that does not go on fails the test."""


class Link:
    """Ships one farm's bins into the other's store; while it is cut, what it has collected waits."""

    def __init__(self, farm, source, target):
        self.shipper, self.target, self.cut, self.held = Shipper(farm, source), target, False, []

    def ship(self):
        for latch in LATCHES:
            shipment = self.shipper.collect(latch.key)
            if shipment is not None:
                self.held.append(shipment)
        if not self.cut:
            while self.held:
                self.held.pop(0).deliver(self.target)

    def heal(self):
        """All that waited arrives, the newest first, and then once more in order."""
        for shipment in reversed(self.held):
            shipment.deliver(self.target)
        self.cut = False
        self.ship()


@pytest.fixture(params=BOTH)
def urls(request, tmp_path):
    """A store for each farm."""
    if request.param == "sqlite":
        yield [f"sqlite:{tmp_path / farm}.db" for farm in FARMS]
        return
    first = request.getfixturevalue("aerospike_server")
    request.getfixturevalue("aerospike_store")
    with or_skip():
        second = servers.started(servers.Asd())
    yield [first.url, second.url]
    second.close()


@pytest.fixture
def world(urls, tmp_path):
    made = World(urls, tmp_path)
    yield made
    made.close()


class World:
    """Two farms that run, and the links between them."""

    def __init__(self, urls, folder):
        self.folder, self.stores = folder / "shared", [connect(url) for url in urls]
        self.folder.mkdir()
        self.links = [
            Link(farm, source, target)
            for farm, source, target in zip(FARMS, self.stores, reversed(self.stores), strict=True)
        ]
        self.log = (folder / "log").open("w+b")
        self.farms = [self._start(farm, url) for farm, url in zip(FARMS, urls, strict=True)]

    def _start(self, farm, url):
        command = [sys.executable, "-m", "tests.spark.farm_process", farm, url, str(self.folder)]
        return subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=self.log, env=os.environ)

    def until(self, condition):
        """Ship until the condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert not any(farm.poll() for farm in self.farms), self.told()
            assert time.monotonic() < end, self.told()
            for link in self.links:
                link.ship()
            time.sleep(0.05)

    def released(self, phase, farm):
        return (self.folder / f"{phase}-{farm}.released").exists()

    def looks(self, phase, farm):
        """How often the farm has looked in vain whether the phase is over."""
        mark = self.folder / f"{phase}-{farm}.waiting"
        return mark.stat().st_size if mark.exists() else 0

    def output(self, phase, farm):
        return [int((self.folder / f"{phase}-{farm}-{partition}").read_text()) for partition in range(PARTITIONS)]

    def told(self):
        self.log.seek(0)
        return self.log.read()[-4000:].decode(errors="replace")

    def close(self):
        for farm in self.farms:
            farm.terminate()
            farm.wait(30)
        self.log.close()
        for store in self.stores:
            store.close()


@pytest.mark.long
def test_two_spark_jobs_wait_for_each_others_phase_through_a_partition_that_heals(world):
    to_fra = world.links[1]
    to_fra.cut = True
    world.until(lambda: world.released("load", "iad"))  # it has all of fra's work and its own
    seen = world.looks("load", "fra")
    world.until(lambda: world.looks("load", "fra") >= seen + 3)
    assert not world.released("load", "fra"), "released without having heard of the other farm's work"
    to_fra.heal()
    world.until(lambda: all(farm.poll() == 0 for farm in world.farms))
    for farm, store in zip(FARMS, world.stores, strict=True):
        assert world.output("report", farm) == [11 * (partition + 1) for partition in range(PARTITIONS)]
        for latch in LATCHES:
            shares = {share.farm: (share.remaining, len(share.counted)) for share in latch.shares(store)}
            assert shares == dict.fromkeys(FARMS, (0, PARTITIONS))
