"""The primitives on the embedded store, against plain `sqlite3` doing as many transactions.

Run it from the project's root as `python -m benchmarks.sqlite`. A storage call is one transaction here, so the anchor
of work that takes three calls is three transactions with one guarded UPDATE each; for a batch there is one more, which
inserts its rows. Both write to the same file system with `synchronous=normal`, which leaves the disk's own speed out.
Targets: the counts of calls that hold for every store; and 0.3 of the plain transactions for a count, a lock and a
queue in hundreds, which says what the package's own work costs where a call costs no network.

The second table holds the queue against other embedded ones at equal durability: huey and persist-queue force every
commit (`full`), litequeue does not (`normal`). Targets: as quick as huey and persist-queue, 0.8 of litequeue's put. One
that is not installed is left out, with a line that says how to install it.

The third holds eight processes that publish and handle on one file beside one that does, and says what a process with a
consumer writes while there is nothing to do. Targets: at least as many messages a second as one; no writes.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from itertools import count
from multiprocessing import get_context
from pathlib import Path

from benchmarks._harness import INSTALL, Case, CountingStore, arguments, interleaved, table
from benchmarks.targets import Verdict, judged
from latchwork.coord import CountDownLatch, FencedLock
from latchwork.queue import Consumer, LargeQueue, QueueConfig, QueueRegistry
from latchwork.store import SQLiteStore

PAYLOAD = b"x" * 256
HUNDRED = 100
RUNS = 50
OF_RAW = {"count_down": 0.3, "count_down(party=)": 0.3, "lock: acquire, release": 0.3,
          "queue: the same in hundreds": 0.3}  # fmt: skip
"""The ratios that these have to reach."""
PROCESSES, TURNS, SOON = 8, 3, 0.5
"""On one file at once; turns of one process and of all; seconds until all begin."""
IDLE_AFTER, IDLE = 5.0, 60.0
"""Seconds after which a consumer without messages is idle, and for which its writes are counted."""


class Raw:
    """Plain sqlite3: a counter, and a table for the rows of batches."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=NORMAL",
            "CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER)",
            "CREATE TABLE messages (id INTEGER PRIMARY KEY, data BLOB)",
            "INSERT INTO counters VALUES ('one', 0)",
        ):
            self.connection.execute(statement)
        self.numbers = count()

    def transactions(self, n: int, rows: int) -> Callable[[], None]:
        """So many transactions of one guarded UPDATE; where rows are given, one more that inserts them."""

        def run() -> None:
            for _ in range(n):
                self._execute("UPDATE counters SET n = n + 1 WHERE name = 'one' AND n >= 0", [()])
            if rows:
                self._execute(
                    "INSERT INTO messages VALUES (?, ?)", [(next(self.numbers), PAYLOAD) for _ in range(rows)]
                )

        return run

    def _execute(self, statement: str, rows: list[tuple[object, ...]]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany(statement, rows)
        self.connection.execute("COMMIT")


class Ours:
    """The package's work; each leaves things as it found them."""

    def __init__(self, store) -> None:
        self.latch = CountDownLatch.create(store, "bench", "plain", 10**9)
        self.store, self.parties = store, CountDownLatch.create(store, "bench", "parties", 10**9)
        self.lock = FencedLock(store, "bench", lease=60)
        self.bus = LargeQueue.create(store, "bench", 1_000)
        self.queue = QueueRegistry(store, "bench").create(QueueConfig("q", shards=4, codec="bytes"))
        self.numbers = count()

    def count_party(self) -> None:
        """A latch that 1,000 parties have counted is made anew."""
        number = next(self.numbers)
        if number % 1000 == 999:
            self.parties.delete()
            self.parties = CountDownLatch.create(self.store, "bench", "parties", 10**9)
        self.parties.count_down(party=f"p{number}")

    def hold(self) -> None:
        self.lock.acquire().release()

    def through_bus(self) -> None:
        self.bus.enqueue(PAYLOAD)
        self.bus.dequeue()

    def through_bus_in_hundreds(self) -> None:
        self.bus.enqueue_many([PAYLOAD] * HUNDRED)
        self.bus.dequeue_many(HUNDRED)

    def through_queue(self) -> None:
        self.queue.publish(PAYLOAD)
        self.queue.receive()[0].ack()

    def through_queue_in_hundreds(self) -> None:
        self.queue.publish_many([PAYLOAD] * HUNDRED)
        taken = 0
        while taken < HUNDRED:
            deliveries = self.queue.receive(HUNDRED)
            taken += len(deliveries)
            self.queue.ack_many(deliveries)

    def work(self) -> list[tuple[Case, int, float]]:
        """Each case, the calls a message that it is allowed, and how many its anchor makes for one run."""
        return [
            (Case("count_down", self.latch.count_down), 1, 1),
            (Case("count_down(party=)", self.count_party), 1, 1.1),
            (Case("lock: acquire, release", self.hold), 2, 2),
            (Case("large queue: enqueue, dequeue", self.through_bus), 6, 6),
            (Case("large queue: 100 in, 100 out", self.through_bus_in_hundreds, HUNDRED), 6, 0.06),
            (Case("queue: publish, receive, ack", self.through_queue), 5, 5.1),
            (Case("queue: the same in hundreds", self.through_queue_in_hundreds, HUNDRED), 5, 0.08),
        ]


# ---- other embedded queues


def huey_cases(directory: Path) -> list[Case]:
    from huey import SqliteHuey  # noqa: PLC0415 - where it is installed

    huey = SqliteHuey(filename=str(directory / "huey.db"), fsync=True, results=False)
    work = huey.task()(lambda _payload: None)
    publish, handle = (lambda: work(PAYLOAD)), (lambda: huey.execute(huey.dequeue()))
    return [Case("huey: publish", publish), Case("huey: through a handler", lambda: (publish(), handle()))]


def persist_cases(directory: Path) -> list[Case]:
    from persistqueue import SQLiteAckQueue  # noqa: PLC0415 - where it is installed

    queue, through = (SQLiteAckQueue(str(directory / f"persist{n}"), auto_commit=True) for n in range(2))

    def handled() -> None:
        through.put(PAYLOAD)
        through.ack(through.get())

    return [
        Case("persist-queue: publish", lambda: queue.put(PAYLOAD)),
        Case("persist-queue: through a handler", handled),
    ]


def lite_cases(directory: Path) -> list[Case]:
    from litequeue import LiteQueue  # noqa: PLC0415 - where it is installed

    queue = LiteQueue(str(directory / "lite.db"))
    return [Case("litequeue: publish", lambda: queue.put(PAYLOAD.decode()))]


PEERS = {"huey": (huey_cases, "full", 1.0), "persist-queue": (persist_cases, "full", 1.0),
         "litequeue": (lite_cases, "normal", 0.8)}  # fmt: skip
"""For each its cases, how surely it keeps what it has acknowledged, and the ratio to reach."""


def beside_others(directory: Path, seconds: float) -> tuple[str, list[Verdict]]:
    """The queue and each other one, in turns."""
    rows, verdicts = [], []
    for name, (cases_of, synchronous, target) in PEERS.items():
        try:
            others = cases_of(directory)
        except ImportError:
            print(f"{name} is not installed: left out. {INSTALL}")
            continue
        store = SQLiteStore(directory / f"beside-{name}.db", synchronous=synchronous)
        queue, through = (
            QueueRegistry(store, "bench").create(QueueConfig(one, shards=4, codec="bytes")) for one in ("q", "through")
        )

        def handled(queue=through) -> None:
            queue.publish(PAYLOAD)
            queue.receive()[0].ack()

        ours = [Case("publish", lambda queue=queue: queue.publish(PAYLOAD)), Case("through a handler", handled)]
        for mine, other in zip(ours, others, strict=False):
            rates = interleaved([mine, other], seconds / 2)
            ratio = rates.ratio(mine.name, other.name)
            rows.append((mine.name, synchronous, rates.rate(mine.name), name, rates.rate(other.name), ratio))
            verdicts.append(Verdict(f"SQLite, {mine.name} / {name}", target, ratio))
        store.close()
    return table(("case", "durability", "a second", "beside", "a second", "ratio"), rows), verdicts


# ---- many processes, and one that is idle


def published_and_handled(path: str, begin: float, seconds: float) -> int:
    """How many messages one process handles meanwhile."""
    with closing(SQLiteStore(path, synchronous="normal")) as store:
        queue = QueueRegistry(store, "bench").get("many")
        queue.depth()
        time.sleep(max(0.0, begin - time.monotonic()))
        handled = 0
        while time.monotonic() < begin + seconds:
            queue.publish(PAYLOAD)
            for delivery in queue.receive():
                delivery.ack()
                handled += 1
        return handled


def processes(path: Path, seconds: float) -> tuple[str, list[Verdict]]:
    """One process, then all at once, in turns."""
    with closing(SQLiteStore(path, synchronous="normal")) as store:
        QueueRegistry(store, "bench").create(QueueConfig("many", shards=4, codec="bytes"))
    rates: dict[int, list[float]] = {1: [], PROCESSES: []}
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        list(pool.map(time.sleep, [SOON] * PROCESSES))  # all have started
        for _ in range(TURNS):
            for crowd, found in rates.items():
                begin = time.monotonic() + SOON
                done = pool.map(published_and_handled, [str(path)] * crowd, [begin] * crowd, [seconds] * crowd)
                found.append(sum(done) / seconds)
    one, many = rates.values()
    ratio = statistics.median(more / alone for more, alone in zip(many, one, strict=True))
    rows = [("1", statistics.median(one), 1.0), (str(PROCESSES), statistics.median(many), ratio)]
    verdict = Verdict(f"SQLite, {PROCESSES} processes on one file / 1", 1.0, ratio)
    return table(("processes", "messages a second", "x one"), rows), [verdict]


def idle(path: Path) -> tuple[str, list[Verdict]]:
    """The calls that write of a process whose consumer has nothing to do."""
    writes = ("operate", "operate_many", "delete", "delete_many")
    with closing(SQLiteStore(path)) as inner:
        store = CountingStore(inner)
        queue = QueueRegistry(store, "bench").create(QueueConfig("idle"))
        with Consumer(queue, lambda _: None):
            time.sleep(IDLE_AFTER)
            before = sum(store.calls[verb] for verb in writes)
            time.sleep(IDLE)
            minute = (sum(store.calls[verb] for verb in writes) - before) * 60 / IDLE
    line = f"A process whose consumer has had nothing to do for {IDLE_AFTER:g} s makes {minute:.0f} writes a minute."
    return line, [Verdict("SQLite, idle process: writes a minute", 0, minute, at_least=False)]


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        bare = SQLiteStore(path / "store.db", synchronous="normal")
        store = CountingStore(SQLiteStore(path / "counted.db", synchronous="normal"))
        raw, ours, counted = Raw(path / "raw.db"), Ours(bare).work(), Ours(store).work()
        rows, verdicts = [], []
        for (case, transactions, allowed), (as_calls, _, _) in zip(ours, counted, strict=True):
            anchor = Case("raw", raw.transactions(transactions, case.units if case.units > 1 else 0), case.units)
            rates = interleaved([case, anchor], options.seconds / 2)
            calls = calls_of(as_calls, store)  # a store that counts has no transactions: each call is by itself
            rows.append((case.name, rates.rate(case.name), rates.rate("raw"), rates.ratio(case.name, "raw"), calls))
            verdicts.append(Verdict(f"SQLite, {case.name}: calls a message", allowed, calls, at_least=False))
            if case.name in OF_RAW:
                verdicts.append(Verdict(f"SQLite, {case.name} / raw", OF_RAW[case.name], rates.ratio(case.name, "raw")))
        print(table(("case", "a second", "as many raw transactions", "x raw", "calls a message"), rows), end="\n\n")
        for text, judgements in (
            beside_others(path, options.seconds),
            processes(path / "many.db", options.seconds),
            idle(path / "idle.db"),
        ):
            verdicts += judgements
            print(text, end="\n\n")
        print(judged(verdicts))


def calls_of(case: Case, store) -> float:
    """Storage calls a message."""
    before = store.total()
    for _ in range(RUNS):
        case.run()
    return (store.total() - before) / RUNS / case.units


if __name__ == "__main__":
    main()
