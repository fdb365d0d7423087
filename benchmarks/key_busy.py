"""KEY_BUSY: how many writers one record takes, on a real cluster of two nodes with every write replicated.

Run it from the project's root as `python -m benchmarks.key_busy [--seconds 0.5]`. While a write waits for its replica,
others on the same record queue up behind it; beyond `transaction-pending-limit` of them (20 unless set) the server
refuses with KEY_BUSY (14). The first table is the raw client without retries ("one copy": on a node alone, where a
write waits for nobody); the second is what Latchwork makes of it, whose retry policy waits and sends again.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable

import aerospike

from benchmarks._harness import table
from latchwork.coord import CountDownLatch
from latchwork.errors import LatchworkError
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.seams import Seams
from latchwork.store import RecordStore
from latchwork.store.aerospike.store import AerospikeStore
from tools import servers
from tools.cluster import Node, cluster

KEY_BUSY = 14
WRITERS = (1, 8, 16, 24, 32, 64)
RECORDS = 32
CROWD = 64
LIMIT = 20
"""The server's default."""
ROUNDS = 3
NO_RETRY = {"max_retries": 0}


def crowd(writers: int, seconds: float, write: Callable[[int], str]) -> Counter[str]:
    """What came of each write of so many threads, by what `write` says."""
    counts: Counter[str] = Counter()
    end, guard = time.perf_counter() + seconds, threading.Lock()

    def work(number: int) -> None:
        mine: Counter[str] = Counter()
        while time.perf_counter() < end:
            mine[write(number)] += 1
        with guard:
            counts.update(mine)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


class Cell:
    """Writers on records of a server, without retries; what each round came to."""

    def __init__(self, node: servers.Asd, records: int, limit: int) -> None:
        self.client = aerospike.client({"hosts": [(node.host, node.port)], "max_conns_per_node": 100}).connect()
        self.keys = [(node.namespace, "busy", number) for number in range(records)]
        self.limit = f"set-config:context=namespace;id={node.namespace};transaction-pending-limit={limit}"
        self.seen: dict[int, list[tuple[float, float]]] = {writers: [] for writers in WRITERS}

    def round(self, writers: int, seconds: float) -> None:
        """Let so many write for a while."""
        self.client.info_all(self.limit)
        counts = crowd(writers, seconds, self._write)
        self.seen[writers].append((counts["done"] / seconds, counts["busy"] / max(1, counts.total())))

    def _write(self, number: int) -> str:
        try:
            self.client.increment(self.keys[number % len(self.keys)], "n", 1, policy=NO_RETRY)
        except aerospike.exception.AerospikeError as failure:
            return "busy" if failure.args[0] == KEY_BUSY else "failed"
        return "done"

    def told(self, writers: int) -> str:
        """Writes a second, and how many of all attempts were refused: medians of the rounds."""
        done, busy = (statistics.median(values) for values in zip(*self.seen[writers], strict=True))
        return f"{done:,.0f} a s, {busy:.0%} refused" if busy >= 0.005 else f"{done:,.0f} a s"


def raw(alone: servers.Asd, node: Node, seconds: float) -> str:
    """Writes a second, and how many of all attempts were refused, by writers."""
    cells = {
        "one record": Cell(node, 1, LIMIT),
        f"{RECORDS} records": Cell(node, RECORDS, LIMIT),
        "one record, no limit": Cell(node, 1, 0),
        "one record, one copy": Cell(alone, 1, LIMIT),
    }
    for _ in range(ROUNDS):
        for writers in WRITERS:
            for cell in cells.values():
                cell.round(writers, seconds / ROUNDS)
    cells["one record"].client.info_all(cells["one record"].limit)
    return table(("writers", *cells), [(n, *(cell.told(n) for cell in cells.values())) for n in WRITERS])


class Told(Seams):
    """Counts how often a request was sent again; nothing but KEY_BUSY makes it so here."""

    def __init__(self) -> None:
        self.again = 0

    def note(self, event: str, _value: float = 1, /, **_labels: str) -> None:
        self.again += event == "retries"


def product(node: Node, seconds: float) -> str:
    """The same crowd on a latch, and publishing to queues of 1 and of 32 shards."""
    rows = []
    for what, make in (("`count_down()` of one latch", _latch), ("`publish`, 1 shard", _queue(1)),
                       (f"`publish`, {RECORDS} shards", _queue(RECORDS))):  # fmt: skip
        store = AerospikeStore.from_url(node.url)
        store.seams = Told()
        act = make(store)

        def write(_: int, act: Callable[[], object] = act) -> str:
            try:
                act()
            except LatchworkError as failure:
                return failure.code
            return "done"

        counts = crowd(CROWD, seconds, write)
        failed = counts.total() - counts["done"]
        rows.append((what, counts["done"] / seconds, f"{store.seams.again / max(1, counts.total()):.2f}", failed))
    return table((f"{CROWD} threads", "done a second", "sent again, per operation", "gave up"), rows)


def _latch(store: RecordStore) -> Callable[[], object]:
    return CountDownLatch.create(store, "busy", store.seams.unique(), 10**9, farm_id="dc1").count_down


def _queue(shards: int) -> Callable[[RecordStore], Callable[[], object]]:
    def make(store: RecordStore) -> Callable[[], object]:
        queue = QueueRegistry(store, f"busy{shards}").create(QueueConfig("q", shards=shards))
        return lambda: queue.publish("x")

    return make


def markdown(seconds: float) -> tuple[str, str]:
    """Both tables. Raises `servers.Unreachable` without an `asd`."""
    alone = servers.started(servers.Asd())
    try:
        with cluster(2) as (node, _):
            return raw(alone, node, seconds), product(node, 3 * seconds)
    finally:
        alone.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each cell (default %(default)s)")
    print("\n\n".join(markdown(parser.parse_args().seconds)))


if __name__ == "__main__":
    main()
