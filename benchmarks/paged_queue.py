"""The local paged queue against persist-queue, litequeue, plain write() and write() + fsync(), with 256-byte payloads.

Run it from the project's root as `python -m benchmarks.paged_queue`. Targets: append >= 150,000 a second unforced and
at least 5 x litequeue; forced with every message >= 0.8 x write() + fsync(); read >= 300,000 a second. The second table
shows how cost stays flat as the queue grows; `--large` takes it to 10,000,000 messages (3 GB of disk).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from benchmarks._harness import INSTALL, Case, Rates, interleaved, table
from benchmarks.targets import Verdict, judged
from latchwork.queue.paged.queue import PagedQueue

try:
    import litequeue
    import persistqueue
except ImportError as missing:
    raise SystemExit(f"{missing}. {INSTALL}") from None

PAYLOAD = os.urandom(256)
MANY = 1000
READ = 100_000


def ours(directory: Path) -> list[Case]:
    """Our own queue in each of its modes."""
    unforced = PagedQueue.open(directory, "unforced", lifetime=1)
    batches = PagedQueue.open(directory, "batches", lifetime=1)
    forced = PagedQueue.open(directory, "forced", force_every=1)
    forced_batches = PagedQueue.open(directory, "forced-batches", force_every=1)
    full = PagedQueue.open(directory, "full")
    full.append_many([PAYLOAD] * READ)
    return [
        Case("append", repeated(unforced.append), MANY),
        Case("append_many(100)", lambda: batches.append_many([PAYLOAD] * 100), 100),
        Case("append, forced", lambda: forced.append(PAYLOAD)),
        Case("append_many(100), forced", lambda: forced_batches.append_many([PAYLOAD] * 100), 100),
        Case("read", lambda: exhausted(full), READ),
        Case("cursor read(100) + commit", consumer(full), 100),
    ]


def repeated(put: Callable[[bytes], object], times: int = MANY) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            put(PAYLOAD)

    return run


def exhausted(queue: PagedQueue) -> None:
    for _ in queue.read():
        pass


def consumer(queue: PagedQueue) -> Callable[[], None]:
    names = iter(range(10**9))
    cursor = queue.cursor("0")

    def run() -> None:
        nonlocal cursor
        if not cursor.read(100):
            cursor.drop()
            cursor = queue.cursor(str(next(names)))
            cursor.read(100)
        cursor.commit()

    return run


def plain(directory: Path) -> list[Case]:
    """What the operating system alone can do."""
    unsynced = os.open(directory / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    synced = os.open(directory / "synced", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write_and_sync() -> None:
        os.write(synced, PAYLOAD)
        os.fsync(synced)

    return [
        Case("write()", repeated(lambda data: os.write(unsynced, data)), MANY),
        Case("write() + fsync()", write_and_sync),
    ]


def others(directory: Path) -> list[Case]:
    """The other local queues."""
    lite = litequeue.LiteQueue(str(directory / "lite.db"))
    persistent = persistqueue.Queue(str(directory / "persist"), autosave=True)

    def through() -> None:
        lite.put(PAYLOAD)
        lite.done(lite.pop().message_id)

    return [
        Case("litequeue put", repeated(lite.put, 100), 100),
        Case("litequeue put + pop + done", through),
        Case("persist-queue put", repeated(persistent.put, 10), 10),
    ]


def side_by_side(seconds: float, place: str | None) -> tuple[Rates, str]:
    with tempfile.TemporaryDirectory(dir=place) as directory:
        cases = [*ours(Path(directory)), *plain(Path(directory)), *others(Path(directory))]
        rates = interleaved(cases, seconds)
    names = [case.name for case in cases]
    anchors = ("write()", "write() + fsync()", "litequeue put", "persist-queue put")
    rows = [(name, rates.rate(name), *(rates.ratio(name, anchor) for anchor in anchors)) for name in names]
    return rates, table(("case", "a second", *(f"x {anchor}" for anchor in anchors)), rows)


def verdicts(rates: Rates) -> list[Verdict]:
    return [
        Verdict("paged queue, append: a second", 150_000, rates.rate("append")),
        Verdict("paged queue, append / litequeue put", 5, rates.ratio("append", "litequeue put")),
        Verdict(
            "paged queue, append forced / write() + fsync()", 0.8, rates.ratio("append, forced", "write() + fsync()")
        ),
        Verdict("paged queue, read: a second", 300_000, rates.rate("read")),
    ]


def growth(sizes: list[int], place: str | None) -> str:
    """The cost of each operation when the queue already holds so many messages."""
    rows = []
    with tempfile.TemporaryDirectory(dir=place) as directory:
        queue, held, began = PagedQueue.open(directory, "q"), 0, time.time()
        for size in sizes:
            while held < size - 10_000:
                held += 10_000
                queue.append_many([PAYLOAD] * 10_000)
            appended = timed(repeated(queue.append, 10_000))
            held += 10_000
            middle = (began + time.time()) / 2
            sought = timed(lambda: [next(queue.read(middle)) for _ in range(20)])  # noqa: B023 - called at once
            read = timed(lambda: sum(1 for _ in islice(queue.read(middle), 5_000)))  # noqa: B023
            queue.close()
            opened = time.perf_counter()
            queue = PagedQueue.open(directory, "q")
            opened = time.perf_counter() - opened
            rows.append((f"{held:,}", 10_000 / appended, 5_000 / read, sought / 20 * 1000, opened * 1000))
        queue.close()
    head = ("messages held", "append a second", "read a second", "search by time, ms", "open, ms")
    return table(head, rows)


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each case runs (default %(default)s)")
    parser.add_argument("--large", action="store_true", help="grow the queue to 10,000,000 messages")
    parser.add_argument("--directory", help="where to make the queues; default: the system's temporary directory")
    options = parser.parse_args()
    rates, compared = side_by_side(options.seconds, options.directory)
    print(compared)
    print("\n" + growth([10_000, 100_000, 1_000_000] + ([10_000_000] if options.large else []), options.directory))
    print("\n" + judged(verdicts(rates)))


if __name__ == "__main__":
    main()
