"""One store a farm and a shipper between them: the XDC latch is released everywhere, once, and never early.

The links delay, reorder, duplicate and are cut for a while; each seed is another network.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from examples.multi_dc import Shipper
from latchwork.coord import CountDownLatch, CountUpDownLatch, LatchLevel
from latchwork.errors import NotFound
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock

FARMS = ("fra", "iad", "sin")


class Network:
    """The farms' stores and the links between them, all by one seed and one clock."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock(seed=seed)
        self.stores = {farm: MemoryStore(self.clock) for farm in FARMS}
        self.shippers = {(a, b): Shipper(a, self.stores[a]) for a in FARMS for b in FARMS if a != b}
        self.cut_until = {link: self.chance.choice([0, 0, 20]) for link in self.shippers}
        self.landed = 0

    def ship(self, key) -> None:
        """Collect on every link; each shipment arrives later, perhaps twice, perhaps after the next one."""
        for link, shipper in self.shippers.items():
            if self.clock.monotonic() < self.cut_until[link]:
                continue
            shipment = shipper.collect(key)
            for _ in range(0 if shipment is None else self.chance.choice([1, 1, 2])):
                self.clock.at(self.chance.uniform(0.01, 3), lambda s=shipment, b=link[1]: self._land(s, b))

    def _land(self, shipment, farm) -> None:
        shipment.deliver(self.stores[farm])
        self.landed += 1

    def settle(self, key) -> None:
        """Heal all links and let the last state of every bin arrive last, as a shipper that retries does."""
        self.cut_until = dict.fromkeys(self.cut_until, 0)
        self.clock.advance(30)
        for (_, b), shipper in self.shippers.items():
            shipper._shipped.clear()
            shipment = shipper.collect(key)
            if shipment is not None:
                self._land(shipment, b)


def latches(network, shares):
    return {
        farm: CountDownLatch.create(
            network.stores[farm], "shop", "x", parties=range(shares[farm]), farm_id=farm, farms=FARMS,
            level=LatchLevel.XDC,
        )
        for farm in FARMS
    }  # fmt: skip


def released(latch):
    try:
        return latch.wait(0)
    except NotFound:
        return False


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(60))
def test_the_latch_is_released_everywhere_and_in_no_farm_before_all_work_is_done(seed):
    network = Network(seed)
    shares = {farm: network.chance.randint(0, 4) for farm in FARMS}
    handles = latches(network, shares)
    todo = [(farm, party) for farm in FARMS for party in range(shares[farm])] * 2
    network.chance.shuffle(todo)
    done = set()
    while todo:
        farm, party = todo.pop()
        handles[farm].count_down(party=party)
        done.add((farm, party))
        network.ship(handles[farm]._key)
        network.clock.advance(network.chance.uniform(0, 1))
        if len(done) < sum(shares.values()):
            assert not any(released(latch) for latch in handles.values()), "released early"
    network.settle(handles["fra"]._key)
    assert network.landed or not sum(shares.values())
    assert all(latch.wait(0) for latch in handles.values())
    assert all(latch.missing([f"{farm}/{n}" for farm in FARMS for n in range(shares[farm])]) == set()
               for latch in handles.values())  # fmt: skip
    assert {farm: latch.counts() for farm, latch in handles.items()} == dict.fromkeys(FARMS, dict.fromkeys(FARMS, 0))


def test_a_partition_holds_the_latch_until_it_heals():
    network = Network(1)
    network.cut_until = dict.fromkeys(network.cut_until, 100)
    handles = latches(network, dict.fromkeys(FARMS, 1))
    for latch in handles.values():
        latch.count_down(party=0)
        network.ship(latch._key)
    network.clock.advance(50)
    assert not any(released(latch) for latch in handles.values())
    assert handles["fra"].progress().absent_farms == ("iad", "sin")
    network.settle(handles["fra"]._key)
    assert all(latch.wait(0) for latch in handles.values())


def test_a_farm_never_ships_the_bins_of_another():
    network = Network(2)
    network.cut_until = dict.fromkeys(network.cut_until, 0)
    handles = latches(network, dict.fromkeys(FARMS, 2))
    for _ in range(3):
        network.ship(handles["fra"]._key)
        network.clock.advance(10)
    shipper = Shipper("fra", network.stores["fra"])
    assert {name.rpartition("#")[2] for name in shipper.collect(handles["fra"]._key).bins} == {"fra"}


def test_a_count_up_in_flight_can_come_too_late_which_is_why_it_is_not_promised_across_shipped_stores():
    network = Network(3)
    shares = {"fra": 0, "iad": 0, "sin": 1}
    up = {
        farm: CountUpDownLatch.create(
            network.stores[farm], "shop", "u", shares[farm], farm_id=farm, farms=FARMS, level=LatchLevel.XDC
        )
        for farm in FARMS
    }
    network.settle(up["fra"]._key)
    assert not released(up["iad"])
    up["fra"].count_up()  # sin has found more work and handed it to fra, and only then is done itself
    up["sin"].count_down()
    network.shippers["sin", "iad"].collect(up["sin"]._key).deliver(network.stores["iad"])
    assert released(up["iad"]), "the count-up of fra, still under way, could not hold iad"
    network.settle(up["fra"]._key)
    assert not released(up["iad"])


def test_the_example_runs_as_the_readme_says():
    root = Path(__file__).parents[3]
    assert "`examples/multi_dc.py`" in (root / "README.md").read_text()
    done = subprocess.run(
        [sys.executable, "examples/multi_dc.py"], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    for farm in FARMS:
        assert f"{farm}: released=True; I see {dict.fromkeys(FARMS, 0)}" in done.stdout
