"""A node of a real cluster dies under load: what was acknowledged is there, and counted once."""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter

import pytest

from latchwork import connect
from latchwork.coord import CountDownLatch, FencedLock, LeaseElection
from latchwork.errors import LatchworkError
from latchwork.queue import QueueConfig, QueueRegistry, Sweeper
from latchwork.store import Key
from tests.support.real_servers import or_skip
from tools import cluster

PARTIES = 600
ROUNDS = 100
"""Of every worker before the node dies, and afterwards."""
PATIENCE = 90.0
WORKERS = ("publish", "consume", "count", "hold")


@pytest.fixture(scope="module")
def nodes():
    with or_skip(), cluster.cluster(3) as started:
        yield started


class Load:
    """Everybody at work at once, for as many rounds as a test wants. A call that fails is one that was not answered."""

    def __init__(self, store) -> None:
        warnings.simplefilter("ignore")  # a sweep duration of seconds is for tests, as it says
        config = QueueConfig("q", shards=8, sweep_duration=2, handler_timeout=1, unsafe_limits=True)
        self.queue = QueueRegistry(store, "cluster").create(config)
        self.latch = CountDownLatch.create(store, "cluster", "latch", parties=[f"p{n}" for n in range(PARTIES)])
        self.locks = [FencedLock(store, "cluster", lease=2) for _ in range(2)]
        self.published: set[str] = set()
        self.handled: Counter[str] = Counter()
        self.fences: list[int] = []
        self.rounds: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.over = threading.Event()

    def publish(self) -> None:
        self.published.update(self.queue.publish_many(range(10)))

    def consume(self) -> None:
        deliveries = self.queue.receive(20, timeout=0.1)
        self.handled.update(delivery.message_id for delivery in deliveries)
        self.queue.ack_many(deliveries)

    def count(self) -> None:
        """Each party, again and again: it counts once."""
        self.latch.count_down(party=f"p{self.rounds['count'] % PARTIES}")

    def hold(self) -> None:
        lock = self.locks[self.rounds["hold"] % 2]
        with lock.acquire(timeout=10) as grant:
            self.fences.append(grant.fence)

    def start(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._repeat, args=(name,), daemon=True) for name in WORKERS]
        for thread in threads:
            thread.start()
        return threads

    def _repeat(self, name: str) -> None:
        while not self.over.is_set():
            try:
                getattr(self, name)()
                self.rounds[name] += 1
            except LatchworkError as failure:
                self.failures[f"{name}: {failure.code}"] += 1

    def go_on(self, rounds: int) -> None:
        """Wait until everybody has done so many more."""
        end, goals = time.monotonic() + PATIENCE, {name: self.rounds[name] + rounds for name in WORKERS}
        while any(self.rounds[name] < goal for name, goal in goals.items()):
            assert time.monotonic() < end, f"stuck: {self.rounds}, failures {self.failures}"
            time.sleep(0.02)


@pytest.mark.long
def test_the_records_that_a_node_is_the_master_of_are_counted(nodes):
    keys = [Key("placed", str(number)) for number in range(3000)]
    store = connect(cluster.url(nodes))
    loads = store.mastered(keys)
    assert sorted(loads) == ["A1", "A2", "A3"]
    assert sum(loads.values()) == len(keys)
    assert min(loads.values()) > 700
    assert store.mastered([]) == {"A1": 0, "A2": 0, "A3": 0}


@pytest.mark.long
def test_a_node_that_dies_loses_nothing_that_was_acknowledged(nodes, proved):
    store = connect(cluster.url(nodes))
    load = Load(store)
    threads = load.start()
    load.go_on(ROUNDS)
    nodes[1].kill()
    load.go_on(ROUNDS)
    load.over.set()
    for thread in threads:
        thread.join(PATIENCE)
    for number in range(PARTIES):
        load.latch.count_down(party=f"p{number}")
    drain(store, load)
    print(f"{len(load.published)} published, {load.handled.total() - len(load.handled)} twice, {dict(load.failures)}")
    assert not load.published - set(load.handled)
    assert load.fences == sorted(set(load.fences)), "fences strictly increase"
    assert (load.latch.count(), load.latch.missing()) == (0, set())
    proved("processes", "a cluster of three, one node", killed=1)


def drain(store, load: Load) -> None:
    """Sweep and receive what is left."""
    election = LeaseElection(store, "cluster-sweeper", lease=60)
    sweeper = Sweeper(load.queue.registry, election)

    def sweep_and_receive(_) -> None:
        for _ in range(3):
            assert sweeper.run_once().ok
            for view in (load.queue, load.queue.sideline, load.queue.parked):
                while deliveries := view.receive(500):
                    load.handled.update(delivery.message_id for delivery in deliveries)
                    view.ack_many(deliveries)
            time.sleep(2.1)

    election.run(sweep_and_receive, timeout=PATIENCE)
