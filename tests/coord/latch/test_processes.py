"""A thousand parties from eight processes, each counted twice, and lost replies on the way."""

from __future__ import annotations

import subprocess
import sys

from latchwork.coord import CountDownLatch

WORKER = """
import pickle, sys
from latchwork.coord import CountDownLatch
latch = pickle.loads(bytes.fromhex(sys.argv[1]))
for party in range(int(sys.argv[2]), 1000, 4):
    latch.count_down(party=party)
    latch.count_down(party=party)
"""


def test_a_thousand_parties_from_eight_processes_count_a_thousand(shared_store):
    import pickle

    latch = CountDownLatch.create(shared_store, "shop", "crowd", 1000, farm_id="dc1", ttl=600)
    packed = pickle.dumps(latch).hex()
    # Two processes for each party: every one is counted four times in all.
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, packed, str(place % 4)]) for place in range(8)]
    assert latch.wait(timeout=120)
    assert [worker.wait(timeout=60) for worker in workers] == [0] * 8
    assert latch.count() == 0
    assert latch.missing(range(1000)) == set()
    assert len(latch.parties()) == 1000
