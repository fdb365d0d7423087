"""asyncio: 100 publishers in one loop against 8 threads and other systems, the loop's own delay, and 10,000 waits.

Run it from the project's root as `python -m benchmarks.aio`. Both sides publish through one `publisher()`, and each
publisher waits until its message is safe. Beside it, each in a process of its own: taskiq and arq on a Redis that keeps
nothing, and procrastinate on a PostgreSQL that does not wait for its disk, by what 100 tasks in one loop call there to
publish; each message is a call of its own there. `LATCHWORK_PEERS=path/to/python` names an interpreter that has them.
The delay is by how much a callback comes late that asks for the next millisecond, while the 100 publish. Targets: the
loop publishes at least as fast as the threads; its delay stays p99 <= 5 ms; 10,000 tasks that wait for a latch take at
most 200 MB, and 16 threads more. An awaited `get` beside the sync one has no target.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from benchmarks._aio_roles import PAYLOAD, PUBLISHERS, delays, p99, published
from benchmarks._harness import Case, aerospike_url, arguments, interleaved, table, together
from benchmarks.latency import PEERS, Redis, Role
from benchmarks.targets import Verdict, judged
from latchwork import aio
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import Exists, Key, MemoryStore, Put
from latchwork.store.aerospike.store import AerospikeStore
from tools.servers import Process, free_ports

ROLES = Path(__file__).with_name("_aio_roles.py")
THREADS, EACH, OF_PEERS = 8, 20, 3
"""Threads, and messages of a task in one run: ours, and that of another system."""
WAITS = 10_000
KEY = Key("bench-aio", "one")


class Loop:
    """A loop in the main thread, which runs for as long as a case does."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def run(self, work):
        return self.loop.run_until_complete(work)


async def safely(publisher) -> None:
    """Publish a message, and wait until it is safe."""
    await (await publisher.publish(PAYLOAD))


class Postgres(Process):
    """A PostgreSQL server that does not wait for its disk, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__("postgres")
        (self.port,) = free_ports(1)
        self.url = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        for command in (["chown", "postgres", self.directory], self.of("initdb", "-U", "postgres", "-A", "trust")):
            subprocess.run(command, check=True, capture_output=True, cwd="/")

    def of(self, program: str, *given: str) -> list[str]:
        """One of its programs, which do not run as root."""
        (path,) = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))[-1:]
        return [
            "setpriv",
            "--reuid=postgres",
            "--regid=postgres",
            "--clear-groups",
            str(path),
            "-D",
            f"{self.directory}/data",
            *given,
        ]

    def command(self) -> list[str]:
        settings = ("fsync=off", "synchronous_commit=off", f"unix_socket_directories={self.directory}")
        return self.of("postgres", "-p", str(self.port), *(one for name in settings for one in ("-c", name)))

    def is_ready(self) -> bool:
        return "ready to accept" in (self.directory / "output").read_text()


class Peer:
    """Another system: a process that publishes as it is asked, beside a server of its kind."""

    def __init__(self, title: str, url: str, stack: ExitStack) -> None:
        self.title, self.late = title, []
        self._role = stack.enter_context(closing(Role(PEERS, title, url, program=ROLES)))
        self._role.has_said(1)

    def publish(self) -> None:
        """Let its 100 tasks publish."""
        self.late.append(float(self._role.ask(str(OF_PEERS)).split()[1]))


def peers(stack: ExitStack) -> tuple[list[Peer], list[str]]:
    """The other systems that can be measured here, and a line for each other one."""
    found, missing, servers = [], [], {}
    wanted = {"taskiq": (Redis, "taskiq_redis"), "arq": (Redis, "arq"), "procrastinate": (Postgres, "procrastinate")}
    has = {Redis: shutil.which("redis-server"), Postgres: [*Path("/usr/lib/postgresql").glob("*/bin/initdb")]}
    for title, (kind, module) in wanted.items():
        if not has[kind]:
            missing.append(f"{title}: not measured, as there is no {kind.__name__} server here")
        elif subprocess.run([PEERS, "-c", f"import {module}"], capture_output=True, check=False).returncode:
            missing.append(
                f"{title}: not measured, as it is not installed here: pip install taskiq-redis arq procrastinate"
            )
        else:
            if kind not in servers:
                servers[kind] = stack.enter_context(closing(kind()))
                servers[kind].start()
            found.append(Peer(title, servers[kind].url, stack))
    return found, missing


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
    return took, more, p99(late), time.perf_counter() - began


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url, ExitStack() as stack:
        others, missing = peers(stack)
        ours = Loop()
        sync_store = AerospikeStore.from_url(url)
        store = aio.Store(sync_store)
        registry = QueueRegistry(sync_store, f"aio{sync_store.seams.unique()[:8]}", farm_id="b")
        config = QueueConfig("threads", shards=8, codec="bytes"), QueueConfig("loop", shards=8, codec="bytes")
        threaded = registry.create(config[0]).publisher()
        twin = aio.QueueRegistry(store, registry.client_id, farm_id="b")
        looped = ours.run(twin.create(config[1])).publisher()
        safe = partial(safely, looped)

        def of_threads() -> None:
            def each() -> None:
                for _ in range(EACH * PUBLISHERS // THREADS):
                    threaded.publish(PAYLOAD).result()

            together([each] * THREADS)

        units = EACH * PUBLISHERS
        rates = interleaved(
            [
                Case("8 threads", of_threads, units),
                Case("100 tasks in one loop", lambda: ours.run(published(safe, EACH)), units),
                *(Case(one.title, one.publish, OF_PEERS * PUBLISHERS) for one in others),
            ],
            options.seconds,
        )
        late = ours.run(delays(published(safe, 20 * EACH)))
        rows = [(name, rates.rate(name), rates.ratio(name, "8 threads")) for name in rates.slices]
        print(table(("publishers", "messages a second", "/ 8 threads"), rows) + "\n")
        print(f"Delay of the loop meanwhile: p50 {statistics.median(late):.2f} ms, p99 {p99(late):.2f} ms.\n")
        for one in others:
            print(f"That of {one.title}: p99 {statistics.median(one.late):.2f} ms in the median of its runs.\n")
        print("".join(f"{line}.\n\n" for line in missing), end="")

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
        Verdict("aio, delay of the loop meanwhile: p99 ms", 5, p99(late), at_least=False),
        Verdict("aio, 10,000 waits: MB", 200, took, at_least=False),
        Verdict("aio, 10,000 waits: threads more", 16, threads, at_least=False),
    ]))  # fmt: skip


if __name__ == "__main__":
    main()
