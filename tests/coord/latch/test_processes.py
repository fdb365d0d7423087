"""Parties of several processes, each counted several times."""

from __future__ import annotations

import subprocess
import sys

from latchwork.coord import CountDownLatch
from tests.support.scale import length

PARTIES = length(1_000, least=120)
PROCESSES = length(8, least=4)

WORKER = """
import pickle, sys
from latchwork.coord import CountDownLatch
latch = pickle.loads(bytes.fromhex(sys.argv[1]))
for party in range(*map(int, sys.argv[2:])):
    latch.count_down(party=party)
    latch.count_down(party=party)
"""


def test_each_party_counts_once_though_several_processes_count_it(shared_store):
    import pickle

    latch = CountDownLatch.create(shared_store, "shop", "crowd", PARTIES, farm_id="dc1", ttl=600)
    packed = pickle.dumps(latch).hex()
    # Two processes for each party: every one is counted four times in all.
    places = [[str(place % (PROCESSES // 2)), str(PARTIES), str(PROCESSES // 2)] for place in range(PROCESSES)]
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, packed, *place]) for place in places]
    assert latch.wait(timeout=120)
    assert [worker.wait(timeout=60) for worker in workers] == [0] * PROCESSES
    assert latch.count() == 0
    assert latch.missing(range(PARTIES)) == set()
    assert len(latch.parties()) == PARTIES
