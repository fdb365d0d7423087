"""The one poller of a process: calls a second of 1, 100 and 1,000 threads that wait, and how soon each is released.

Run it from the project's root as `python -m benchmarks.poller`. Each thread waits for a latch of its own; another
process counts them down, one after the other. Targets: 1,000 waits make no more calls a second than one, and their
release lag stays p50 <= 30 ms and p99 <= 120 ms.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time

from benchmarks._harness import CountingStore, aerospike_url, arguments, table
from benchmarks.targets import Verdict, judged
from latchwork.coord import CountDownLatch
from latchwork.store.aerospike.store import AerospikeStore

SIZES = (1, 100, 1_000)
SETTLED, COUNTED = 1.0, 3.0
RELEASER = """
import sys, time
from latchwork import connect
from latchwork.coord import CountDownLatch
store, size = connect(sys.argv[1]), int(sys.argv[2])
latches = [CountDownLatch.get(store, "bench", f"poller-{size}-{n}", farm_id="dc1") for n in range(size)]
print("ready", flush=True)
sys.stdin.readline()
for latch in latches:
    latch.count_down()
    print(time.monotonic(), flush=True)
    time.sleep(0.005)
"""


class Waiting:
    """So many threads, each of which waits for its latch."""

    def __init__(self, store, size: int) -> None:
        self.released: dict[int, float] = {}
        latches = [
            CountDownLatch.create(store, "bench", f"poller-{size}-{number}", 1, farm_id="dc1", ttl=120)
            for number in range(size)
        ]
        self.threads = [
            threading.Thread(target=self._wait, args=(number, latch)) for number, latch in enumerate(latches)
        ]
        for thread in self.threads:
            thread.start()

    def _wait(self, number: int, latch: CountDownLatch) -> None:
        if latch.wait(60):
            self.released[number] = time.monotonic()


def measured(url: str, size: int) -> tuple[float, list[float]]:
    """Calls a second while so many wait, and the milliseconds from each release to the end of its wait."""
    store = CountingStore(AerospikeStore.from_url(url))
    waiting = Waiting(store, size)
    command = [sys.executable, "-c", RELEASER, url, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as releaser:
        releaser.stdout.readline()
        time.sleep(SETTLED)
        before, began = store.total(), time.monotonic()
        time.sleep(COUNTED)
        calls = (store.total() - before) / (time.monotonic() - began)
        releaser.stdin.close()
        counted = [float(line) for line in releaser.stdout]
    for thread in waiting.threads:
        thread.join()
    return calls, sorted((waiting.released[number] - at) * 1000 for number, at in enumerate(counted))


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    rows = []
    with aerospike_url(options.url) as url:
        for size in SIZES:
            calls, lags = measured(url, size)
            rows.append((size, calls, statistics.median(lags), lags[int(len(lags) * 0.99)], lags[-1]))
    print(table(("threads that wait", "calls a second", "release lag p50 ms", "p99 ms", "longest ms"), rows) + "\n")
    alone, many = rows[0], rows[-1]
    print(judged([
        Verdict("poller, 1,000 waits / 1: calls a second", 1.25, many[1] / alone[1], at_least=False),
        Verdict("poller, 1,000 waits: release lag p50 ms", 30, many[2], at_least=False),
        Verdict("poller, 1,000 waits: release lag p99 ms", 120, many[3], at_least=False),
    ]))  # fmt: skip


if __name__ == "__main__":
    main()
