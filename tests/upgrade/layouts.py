"""The layouts of what is stored (docs/design.md section 4), as found in records that are really stored.

A story makes one of everything. Of each record it keeps the bins, and of each bin the kinds of value in it, with the
names in its maps. `python -m tests.upgrade.layouts` writes them to layouts.json; it refuses what an older version could
not read under the same version number.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from latchwork import once
from latchwork.coord import (
    Barrier,
    CountDownLatch,
    FencedLock,
    Group,
    LeaseElection,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
)
from latchwork.queue import LargeQueue, PagedQueue, Publish, QueueConfig, QueueRegistry, Schedule
from latchwork.queue.ledger import Ledger, Outgoing
from latchwork.queue.paged.layout import FORMAT_VERSION
from latchwork.queue.sharded.workers import WorkerReport, reporting, settling, stopping
from latchwork.store import Add, Key, MemoryStore, Put
from latchwork.testing import ManualClock, bring_back
from latchwork.version import __version__
from tests.support.waiting import until

FILE = Path(__file__).with_name("layouts.json")
NAME = re.compile(r"[A-Za-z][A-Za-z_-]*")


class Layouts:
    """The layouts of all records of a store that were seen: set and key -> bin -> kinds of value."""

    def __init__(self, store):
        self._store, self.found = store, {}

    def see(self):
        for key, stored in list(self._store._records.items()):
            layout = self.found.setdefault(f"{key.set} {general(key.name)}", {})
            for name, value in stored.bins.items():
                layout[general(name)] = sorted({*layout.get(general(name), ()), *kinds(value)})
            version = stored.bins.get("v")
            if version is not None:
                layout["v"] = [f"version {version}"]


def general(name):
    """The name without numbers and ids, which differ from run to run."""
    return re.sub(r"[0-9a-f]{12,}|[0-9]+", "#", name) if isinstance(name, str) else f"<{type(name).__name__}>"


def kinds(value, at=""):
    """Each kind of value at each place in a value: "int", "[0] text", ".name int"."""
    if isinstance(value, dict):
        found = {f"{at} map by {type(key).__name__}".strip() for key in value} or {f"{at} map".strip()}
        named = {key: key if isinstance(key, str) and NAME.fullmatch(key) else "#" for key in value}
        return found.union(*(kinds(inner, f"{at}.{named[key]}") for key, inner in value.items()))
    if isinstance(value, list | tuple):
        each = (kinds(inner, f"{at}[{place if len(value) < 9 else '*'}]") for place, inner in enumerate(value))
        return {f"{at} list".strip()}.union(*each)
    return {f"{at} {type(value).__name__}".strip()}


def story(folder):
    """Make one of everything; the layouts."""
    clock = ManualClock()
    store = MemoryStore(clock)
    layouts = Layouts(store)
    for step in (_coordination, _queues, _large):
        step(store, clock, layouts.see)
        layouts.see()
    return {**layouts.found, **_election(), **_paged(folder)}


def _coordination(store, clock, see):
    latch = CountDownLatch.create(store, "c", "latch", parties=["a", "b"])
    latch.count_down(party="a")
    CountDownLatch.create(store, "c", "plain", 2).count_down()
    barrier = Barrier(store, "c", "barrier", parties=["a"])
    barrier.wait("a", {"x": 1}, timeout=10)
    grant = FencedLock(store, "lock").acquire(timeout=0)
    grant.operate(Key("tests", "resource"), Put("x", 1))
    permits = Semaphore(store, "semaphore", permits=2).acquire(timeout=0)
    permits.operate(Key("tests", "shared"), Put("x", 1))
    lock = ReadWriteLock(store, "rwlock")
    lock.write(timeout=0).release()
    reading = lock.read(timeout=0)
    member = Group(store, "group").join("a", meta={"x": 1}, keep_alive=False)
    RateLimiter(store, "limiter", 5, 60.0).try_acquire()
    once(store, key="step").run(lambda: 7)
    see()
    for held in (grant, permits, reading):
        held.release()
    member.leave()


def _election():
    store = MemoryStore()  # with a clock that goes by itself: the campaign runs in a thread
    layouts = Layouts(store)
    election = LeaseElection(store, "election", candidate="a")
    election.start()
    until(lambda: election.leadership)
    layouts.see()
    election.stop()
    return layouts.found


def _queues(store, clock, see):
    registry = QueueRegistry(store, "c", farm_id="f")
    queue = registry.create(QueueConfig("q", shards=1, backoff=1.0, max_deliveries=2, sweep_duration=300))
    queue.pause(by="a person")
    queue.resume(by="a person")
    group = queue.group("g", start="oldest")
    batch = queue.batch("b", then=Publish("then"), on_parked=Publish("parked"))
    batch.publish_many(["x", "y"])
    queue.publish("plain", key="k", headers={"h": "1"})
    queue.publish("later", delay=60, message_id="later")
    queue.publish("never", delay=60, message_id="never")
    queue.cancel("never")
    queue.publish("once", dedup="d")
    Ledger(queue, "job/1").publish(0, [Outgoing("row")])
    registry.schedule(Schedule("tick", queue="q", payload=1, every=60.0))
    registry.pause_schedule("tick", by="a person")
    store.operate_many([
        reporting(queue, WorkerReport("w", 0, 1, 1, 1, 1, 1)), settling(queue, "w"), stopping(queue, "stopped")
    ])  # fmt: skip
    see()
    for _ in range(2):
        for one in queue.receive(10):
            one.operate(Key("tests", "balance"), Add("n", 1))
            one.once("mail").run(lambda: 1)
            one.extend()
            see()
            if one.payload in {"x", "plain"}:
                one.nack(error="no")
            else:
                one.ack()
        for one in group.receive(10):
            one.nack(error="no")
        see()
        bring_back(queue)
        see()
    batch.close()
    queue.batch("stopped").cancel()
    answers = registry.create(QueueConfig("answers", shards=1, results=60))
    answers.publish("asks")
    answers.receive()[0].ack({"n": 1})
    with answers.batch("asked") as asked:
        asked.publish("asks")
    answers.receive()[0].ack({"n": 1})
    registry.create(QueueConfig("side", shards=1, retry=False)).publish("x")
    side = registry.get("side")
    side.receive()[0].nack()
    for delay in (None, 60):
        side.publish("one", unique=f"key {delay}", delay=delay)
        side.publish("other", unique=f"key {delay}", delay=delay, on_duplicate="replace")


def _large(store, clock, see):
    queue = LargeQueue.create(store, "large", 20, entries_per_record=5)
    queue.enqueue_many(["a", "b", "c"], txn_id="t")
    queue.group("g").read(1)
    queue.dequeue(txn_id="u")


def _paged(folder):
    queue = PagedQueue.open(folder, "p", page_size=4096)
    queue.append_many([b"a", b"b"])
    queue.cursor("reader").commit()
    queue.close()
    sizes = {general(path.name): [f"{path.stat().st_size} bytes"] for path in folder.iterdir() if path.stat().st_size}
    return {"files of a paged queue": {**sizes, "v": [f"version {FORMAT_VERSION}"]}}


def differences(before, after):
    """What only the one has, a line for each kind of value: "set key, bin: kind"."""

    def lines(layouts):
        return {
            f"{name}, {bin}: {kind}"
            for name, layout in layouts.items()
            for bin, found in layout.items()
            for kind in found
        }

    return sorted(lines(before) - lines(after)), sorted(lines(after) - lines(before))


def unreadable(before, after):
    """What an older reader would miss, or take for something else, though the version says that it can read it.

    The version of a layout is its bin `v`; of one without, that of the package.
    """
    changed = before["of"] != after["of"]
    kept = {
        name: layout
        for name, layout in before["layouts"].items()
        if (after["layouts"].get(name, {}).get("v") == layout["v"] if "v" in layout else not changed)
    }
    gone, _ = differences(kept, after["layouts"])
    return gone


def now(folder):
    """The layouts of this version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"of": __version__, "layouts": story(folder)}


def write():
    with TemporaryDirectory() as folder:
        found = now(Path(folder))
    lines = unreadable(json.loads(FILE.read_text()), found) if FILE.exists() else []
    if lines:
        sys.exit("\n".join(["refused: raise the version of these layouts, as older readers miss this:", *lines]))
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write()
