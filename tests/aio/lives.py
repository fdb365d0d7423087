"""Cases of verbs that have threads and tasks of their own: elections, publishers, consumers and workers.

Those run in real time, so the cases have a store on the real clock, short leases, and no outage without end.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from contextlib import suppress
from datetime import timedelta

from latchwork import aio, coord
from latchwork.errors import LatchworkError
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing import FaultyStore

from .striking import store_of
from .verbs import KEY, World, case, is_open, told

LEASE = 1.0
LIVES: set[str] = set()


class LivingWorld(World):
    """One store on the real clock, as the struck client sees it and as others do."""

    def __init__(self) -> None:
        self.base = MemoryStore()
        self.faulty = FaultyStore(self.base, {})
        self.store = store_of(self.faulty)
        self.troubles: list[str] = []


def life(prepare):
    """Add a case, under its name."""
    case(prepare)
    LIVES.add(prepare.__name__.replace("__", "."))
    return prepare


def until(holds, seconds=20.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def threads_of(name) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(name)]


# ---- elections


def succeeded(world, struck, name) -> None:
    """Another candidate is elected: at once, or after one lease where the store was in doubt."""
    if struck.cancelled is None:
        return
    with suppress(LatchworkError):
        coord.LeaseElection(world.base, name, candidate="other").run(lambda term: term.check(), 20)
        world.must(until(lambda: not threads_of(f"latchwork-election-{name}")), "a campaign was left behind")
        return
    world.must(False, "nobody else was elected")


@life
async def LeaseElection__run(world):
    election = aio.LeaseElection(world.store, "office", lease=LEASE)

    async def lead(leadership):
        await asyncio.sleep(0.01)

    return lambda: election.run(lead, 5), lambda struck: succeeded(world, struck, "office")


@life
async def LeaseElection__run_that_waits(world):
    election = aio.LeaseElection(world.store, "office", lease=LEASE)
    held = coord.FencedLock(world.base, "office", lease=LEASE).acquire(timeout=0)

    async def work():
        asyncio.get_running_loop().call_later(0.05, held.release)
        return await election.run(_nothing, 5)

    def check(struck):
        held.release()
        succeeded(world, struck, "office")

    return work, check


async def led(world):
    """An election that has a leader: this process."""
    election = aio.LeaseElection(world.store, "office", lease=LEASE)
    await election.start()
    until(lambda: election.leadership is not None)
    return election


@life
async def LeaseElection__stop(world):
    election = await led(world)
    return election.stop, lambda struck: succeeded(world, struck, "office")


@life
async def LeaseElection__resign(world):
    election = await led(world)

    def check(struck):
        election.of.stop(5)
        succeeded(world, struck, "office")

    return election.resign, check


@life
async def LeaseElection__step_down(world):
    election = await led(world)

    def check(struck):
        election.of.stop(5)
        succeeded(world, struck, "office")

    epoch = election.leadership.epoch
    return lambda: election.step_down(epoch), check


# ---- publishers


async def queue_in(world, **settings):
    """A queue, as the struck client has it and as another process has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("q", shards=1, **settings)
    other = QueueRegistry(world.base, "c").create(config)
    return await aio.QueueRegistry(world.store, "c").create(config), other


def there(queue) -> list:
    """What another process gets of messages whose attempts were not counted."""
    return sorted(one.payload for one in queue.receive(100) if one.attempts == 1)


@life
async def Publisher__publish(world):
    """Where its window is full, it waits for room."""
    queue, other = await queue_in(world)
    publisher = queue.publisher(linger=0.05, waiting=1)

    async def work():
        return [await publisher.publish(n) for n in range(3)]

    def check(struck):
        publisher.of.close()
        if not is_open(struck.ended):
            found = there(other)
            world.must(found == list(range(len(found))), f"{found} of 0, 1 and 2 were published")

    return work, check


@life
async def Publisher__flush(world):
    queue, other = await queue_in(world)
    publisher = queue.publisher(linger=0.05)
    publication = await publisher.publish(7)

    def check(struck):
        publisher.of.close()
        with suppress(LatchworkError):
            publication.of.result(0)
            world.must(there(other) == [7], "what is said to be published is not there")

    return publisher.flush, check


@life
async def Publisher__close(world):
    queue, other = await queue_in(world)
    publisher = queue.publisher(linger=0.05)
    publication = await publisher.publish(7)

    def check(struck):
        world.must(publication.done() or is_open(struck.ended), "it is closed, and an outcome is not known")
        with suppress(LatchworkError):
            publication.of.result(0)
            told(world, struck, there(other) == [7])

    return publisher.close, check


# ---- consumers and workers


def handling(name, make, live):
    """Add a case of a program that handles three messages; wherever it is struck, none is lost, and none is counted."""

    async def prepare(world):
        queue, other = await queue_in(world, sweep_duration=timedelta(minutes=20))
        other.publish_many([1, 2, 3])
        handled, all_of_them = [], asyncio.Event()

        async def handle(delivery):
            await asyncio.sleep(0)
            handled.append(delivery.payload)
            if len(handled) == 3:
                all_of_them.set()

        of = make(world, queue, handle)

        def check(struck):
            if struck.cancelled is None or is_open(struck.ended):
                return
            found = []
            all_there = until(lambda: found.extend(there(other)) or {*found, *handled} == {1, 2, 3})
            world.must(all_there, f"of 1, 2 and 3: {handled} handled, {found} came back")

        return lambda: live(world, of, all_of_them), check

    prepare.__name__ = name
    return life(prepare)


def consumer(world, queue, handle):
    return aio.Consumer(queue, handle, concurrency=2, upkeep=False, grace=0.2)


def worker(world, queue, handle):
    made = aio.Worker(aio.QueueRegistry(world.store, "c"), upkeep=False, grace=0.2)
    made.handler("q", concurrency=2)(handle)
    return made


async def block(world, of, all_of_them):
    async with of:
        await asyncio.wait_for(all_of_them.wait(), 5)
        await world.store.get(KEY)


async def runs(world, of, all_of_them):
    async def stops():
        await all_of_them.wait()
        await of.stop()

    stopping = asyncio.ensure_future(stops())
    try:
        return await of.run()
    finally:
        stopping.cancel()


for name, make in (("Consumer", consumer), ("Worker", worker)):
    handling(f"{name}__block", make, block)
    handling(f"{name}__run", make, runs)


async def _nothing(leadership):
    return None
