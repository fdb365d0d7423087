"""100 tasks in one loop that publish by another system; and by how much the loop is late meanwhile.

Run as `python benchmarks/_aio_roles.py SYSTEM URL` by an interpreter that has the clients of other systems, and none of
ours. For each line of its standard input it publishes so many messages in each of the 100 tasks. Then it prints the
seconds, and the p99 of the loop's delay in milliseconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

PUBLISHERS = 100
PAYLOAD = b"x" * 100
Publish = Callable[[], Awaitable[object]]


async def published(publish: Publish, each: int) -> None:
    """100 tasks that publish, each one message after the other."""

    async def one() -> None:
        for _ in range(each):
            await publish()

    await asyncio.gather(*(one() for _ in range(PUBLISHERS)))


async def delays(work: Awaitable[object]) -> list[float]:
    """Milliseconds by which the loop was late, each millisecond while `work` runs; in order."""
    found, task = [], asyncio.ensure_future(work)
    while not task.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        found.append((time.perf_counter() - began - 0.001) * 1000)
    await task
    return sorted(found)


def p99(ordered: list[float]) -> float:
    """What all but a hundredth stay below."""
    return ordered[int(len(ordered) * 0.99)]


async def taskiq(url: str) -> Publish:
    from taskiq_redis import ListQueueBroker  # noqa: PLC0415 - where it is installed

    broker = ListQueueBroker(url)
    await broker.startup()

    @broker.task
    async def handle(payload: str) -> None:
        """Nobody handles it."""

    return lambda: handle.kiq(PAYLOAD.decode())


async def arq(url: str) -> Publish:
    from arq import create_pool  # noqa: PLC0415 - where it is installed
    from arq.connections import RedisSettings  # noqa: PLC0415

    pool = await create_pool(RedisSettings.from_dsn(url))
    return lambda: pool.enqueue_job("handle", PAYLOAD)


async def procrastinate(url: str) -> Publish:
    from procrastinate import App, PsycopgConnector  # noqa: PLC0415 - where it is installed

    app = App(connector=PsycopgConnector(conninfo=url, min_size=8, max_size=16))
    await app.open_async()
    if not await app.check_connection_async():
        await app.schema_manager.apply_schema_async()

    @app.task(name="handle")
    async def handle(payload: str) -> None:
        """Nobody handles it."""

    return lambda: handle.defer_async(payload=PAYLOAD.decode())


SYSTEMS = {"taskiq": taskiq, "arq": arq, "procrastinate": procrastinate}


async def main(system: str, url: str) -> None:
    publish = await SYSTEMS[system](url)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        late = await delays(published(publish, int(line)))
        print(f"{time.perf_counter() - began} {p99(late)}", flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules have the names of others'
    asyncio.run(main(*sys.argv[1:]))
