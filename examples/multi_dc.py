"""Three data centres, one store each, one latch across them.

    python examples/multi_dc.py

Each data centre ("farm") has a store of its own; here three SQLite files, in production three Aerospike clusters. A
shipper copies what a farm wrote to the other farms, as XDR does when it is told to ship changed bins only
(docs/multi-dc.md). Each farm brings its own share of the work, counts only in its own bins, and waits for all: the
latch is released in every farm, and in none before all shares have arrived and are done.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import latchwork
from latchwork.coord import CountDownLatch, LatchLevel
from latchwork.store import NEVER, Exists, Key, Put, RecordStore

FARMS = {"fra": 3, "iad": 5, "sin": 4}
"""The farms, and how many tasks each has."""
KEY = Key("D_LTCH#distributed_latch", "D_LTCH#shop#nightly")
LINK_DELAY = 0.2
"""Seconds that a shipment is under way."""


@dataclass(frozen=True)
class Shipment:
    """Bins of one record on their way to another farm; ttl in seconds."""

    key: Key
    bins: dict[str, Any]
    ttl: int

    def deliver(self, store: RecordStore) -> None:
        """Write them into the other farm's record, made where it is not there yet."""
        puts = [Put(name, value) for name, value in self.bins.items()]
        store.operate(self.key, *puts, exists=Exists.ANY, ttl=self.ttl)


class Shipper:
    """Copies a farm's own bins, and of those only the changed ones: a farm never overwrites another's."""

    def __init__(self, farm: str, store: RecordStore) -> None:
        self.farm, self.store = farm, store
        self._shipped: dict[Key, dict[str, Any]] = {}

    def collect(self, key: Key) -> Shipment | None:
        """What has changed in this farm's bins of the record since the last time; None for nothing."""
        record = self.store.get(key)
        if record is None:
            return None
        mine = {name: value for name, value in record.bins.items() if name.endswith(f"#{self.farm}")}
        before = self._shipped.get(key, {})
        changed = {name: value for name, value in mine.items() if before.get(name) != value}
        self._shipped[key] = mine
        return Shipment(key, changed, max(record.ttl, NEVER)) if changed else None


def ship(shipper: Shipper, others: list[RecordStore], stop: threading.Event) -> None:
    """One farm's outgoing link: what it collects arrives everywhere else a little later."""
    while not stop.wait(0.05):
        shipment = shipper.collect(KEY)
        if shipment is not None:
            time.sleep(LINK_DELAY)
            for store in others:
                shipment.deliver(store)


def work(farm: str, tasks: int, store: RecordStore, began: float, lines: list[str]) -> None:
    """One farm: bring its share, do its tasks, wait for everybody's."""
    latch = CountDownLatch.create(
        store, "shop", "nightly", parties=range(tasks), farm_id=farm, farms=FARMS, level=LatchLevel.XDC
    )
    for task in range(tasks):
        time.sleep(0.1 * tasks)
        latch.count_down(party=task)
    lines.append(f"{time.monotonic() - began:4.1f} s  {farm}: my {tasks} tasks are done; I see {latch.counts()}")
    released = latch.wait(timeout=30)
    lines.append(f"{time.monotonic() - began:4.1f} s  {farm}: released={released}; I see {latch.counts()}")


def main() -> None:
    """Run the three farms and print what each saw, in order."""
    with tempfile.TemporaryDirectory() as folder:
        stores = {farm: latchwork.connect(f"sqlite:{Path(folder) / farm}.db?synchronous=normal") for farm in FARMS}
        stop, lines, began = threading.Event(), [], time.monotonic()
        links = [
            threading.Thread(
                target=ship, args=(Shipper(farm, store), [s for s in stores.values() if s is not store], stop)
            )
            for farm, store in stores.items()
        ]
        farms = [
            threading.Thread(target=work, args=(farm, tasks, stores[farm], began, lines))
            for farm, tasks in FARMS.items()
        ]
        for thread in (*links, *farms):
            thread.start()
        for thread in farms:
            thread.join()
        stop.set()
        for thread in links:
            thread.join()
        for store in stores.values():
            store.close()
        print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
