"""asyncio: 100 publishers in one loop against 8 threads, the loop's own delay, 10,000 waits, and an awaited call.

Run it from the project's root as `python -m benchmarks.aio`. Both sides publish through one `publisher()`, and each
publisher waits until its message is safe. The delay is by how much a callback comes late that asks for the next
millisecond, while the 100 publish. Targets: the loop publishes at least as fast as the threads; its delay stays p99 <=
5 ms; 10,000 tasks that wait for a latch take at most 200 MB, and no
thread. An awaited `get` beside the sync one has no target.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from pathlib import Path

from benchmarks._harness import Case, aerospike_url, arguments, interleaved, table, together
from benchmarks.targets import Verdict, judged
from latchwork import aio
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import Exists, Key, MemoryStore, Put
from latchwork.store.aerospike.store import AerospikeStore

PUBLISHERS, THREADS, EACH = 100, 8, 20
WAITS = 10_000
KEY = Key("bench-aio", "one")
PAYLOAD = b"x" * 100


class Loop:
    """A loop in the main thread, which runs for as long as a case does."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def run(self, work):
        return self.loop.run_until_complete(work)


async def published(publisher, each: int) -> None:
    """100 tasks that publish, each one message after the other."""

    async def one() -> None:
        for _ in range(each):
            await (await publisher.publish(PAYLOAD))

    await asyncio.gather(*(one() for _ in range(PUBLISHERS)))


async def delays(work) -> list[float]:
    """Milliseconds by which the loop was late, each millisecond while `work` runs."""
    found, task = [], asyncio.ensure_future(work)
    while not task.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        found.append((time.perf_counter() - began - 0.001) * 1000)
    await task
    return sorted(found)


def resident() -> float:
    """MB of memory that this process has in use."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096 / 1e6


async def waits(store, number: int) -> tuple[float, int, float, float]:
    """MB that so many waits take, their threads, the p99 of the loop's delay meanwhile, and seconds until all end."""
    latch = await aio.CountDownLatch.create(store, "bench", f"waits-{time.time()}", 1, ttl=600)
    before, threads = resident(), threading.active_count()
    tasks = [asyncio.ensure_future(latch.wait(300)) for _ in range(number)]
    late = await delays(asyncio.sleep(5))
    took, more = resident() - before, threading.active_count() - threads
    began = time.perf_counter()
    await latch.count_down()
    assert all(await asyncio.gather(*tasks))
    return took, more, late[int(len(late) * 0.99)], time.perf_counter() - began


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        ours = Loop()
        sync_store = AerospikeStore.from_url(url)
        store = aio.Store(sync_store)
        registry = QueueRegistry(sync_store, f"aio{sync_store.seams.unique()[:8]}", farm_id="b")
        config = QueueConfig("threads", shards=8, codec="bytes"), QueueConfig("loop", shards=8, codec="bytes")
        threaded = registry.create(config[0]).publisher()
        twin = aio.QueueRegistry(store, registry.client_id, farm_id="b")
        looped = ours.run(twin.create(config[1])).publisher()

        def of_threads() -> None:
            def each() -> None:
                for _ in range(EACH * PUBLISHERS // THREADS):
                    threaded.publish(PAYLOAD).result()

            together([each] * THREADS)

        units = EACH * PUBLISHERS
        rates = interleaved(
            [
                Case("8 threads", of_threads, units),
                Case("100 tasks in one loop", lambda: ours.run(published(looped, EACH)), units),
            ],
            options.seconds,
        )
        late = ours.run(delays(published(looped, 20 * EACH)))
        p99 = late[int(len(late) * 0.99)]
        rows = [(name, rates.rate(name), rates.ratio(name, "8 threads")) for name in rates.slices]
        print(table(("publishers", "messages a second", "/ 8 threads"), rows) + "\n")
        print(f"Delay of the loop meanwhile: p50 {statistics.median(late):.2f} ms, p99 {p99:.2f} ms.\n")

        took, threads, waiting, ended = ours.run(waits(store, WAITS))
        print(
            f"{WAITS:,} waits in one loop: {took:.0f} MB, {threads} threads more; delay of the loop p99 {waiting:.1f} "
            f"ms; all released after {ended:.2f} s.\n"
        )

        sync_store.operate(KEY, Put("n", 1), exists=Exists.ANY)
        memory, awaited = MemoryStore(), aio.Store(MemoryStore())

        def many(call, number=200):
            async def work() -> None:
                for _ in range(number):
                    await call(KEY)

            return lambda: ours.run(work())

        def plainly(call, number=200):
            return lambda: [call(KEY) for _ in range(number)]

        calls = interleaved(
            [
                Case("get, Aerospike", plainly(sync_store.get), 200),
                Case("awaited get, Aerospike", many(store.get), 200),
                Case("get, memory", plainly(memory.get), 200),
                Case("awaited get, memory", many(awaited.get), 200),
            ],
            options.seconds,
        )
        rows = [(name, 1e6 / calls.rate(name)) for name in calls.slices]
        print(table(("one after another", "us a call"), rows) + "\n")
        ours.run(looped.close())
        threaded.close()
        ours.run(store.close())
    print(judged([
        Verdict("aio, 100 publishers in a loop / 8 threads", 1.0, rates.ratio("100 tasks in one loop", "8 threads")),
        Verdict("aio, delay of the loop meanwhile: p99 ms", 5, p99, at_least=False),
        Verdict("aio, 10,000 waits: MB", 200, took, at_least=False),
        Verdict("aio, 10,000 waits: threads more", 16, threads, at_least=False),
    ]))  # fmt: skip


if __name__ == "__main__":
    main()
