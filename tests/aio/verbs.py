"""The verbs of the asyncio surface that take, hand over or wait for something, as cases: what is there before each, and
what must hold after it was cancelled at any await point, whatever the store did meanwhile.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

import latchwork
from latchwork import aio, coord
from latchwork.errors import LatchworkError
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import Add, Exists, Key, MemoryStore, Once, Put
from latchwork.testing import FaultyStore, ManualClock

from .striking import Struck, store_of

LEASE = 10.0
KEY = Key("things", "one")
Work = Callable[[], Awaitable[object]]


class World:
    """One store on a clock of the test's, as the struck client sees it (`store`) and as others do (`base`)."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.base = MemoryStore(self.clock)
        self.faulty = FaultyStore(self.base, {})
        self.store = store_of(self.faulty)
        self.troubles: list[str] = []

    def fails(self, plan) -> None:
        """Let the calls from now on fail so, counted from 1."""
        made = self.faulty._number
        self.faulty.plan = {made + number: fault for number, fault in plan.items()}

    def must(self, holds, what: str) -> None:
        if not holds:
            self.troubles.append(what)


CASES: dict[str, Callable[[World], Awaitable[tuple[Work, Callable[[Struck], object]]]]] = {}


def case(prepare):
    """Add a case, under its name."""
    CASES[prepare.__name__.replace("__", ".")] = prepare
    return prepare


def is_open(ended) -> bool:
    """Whether the verb says that it is not known how it ended, or that it could not clear up."""
    return ended is not None and ended.error is not None and ended.error.code in ("OUTCOME_UNKNOWN", "UNAVAILABLE")


def acquisition(world, struck, others_try):
    """After a cancel nothing is held: at once, or after one lease where the store was away or in doubt."""
    if struck.cancelled is None:
        return
    if not is_open(struck.ended):
        world.must(others_try() is not None, "a lease was left behind")
        return
    deadline = world.clock.monotonic() + 3 * LEASE
    while others_try() is None and world.clock.monotonic() < deadline:
        world.clock.advance(LEASE / 4)
    world.must(world.clock.monotonic() < deadline, "a lease outlives its length")


def lock_case(work_of):
    async def prepare(world):
        lock = aio.FencedLock(world.store, "report", lease=LEASE)
        other = coord.FencedLock(world.base, "report", lease=LEASE)
        return await work_of(world, lock, other), lambda struck: acquisition(world, struck, other.try_acquire)

    prepare.__name__ = work_of.__name__
    return case(prepare)


@lock_case
async def FencedLock__acquire(world, lock, other):
    return lambda: lock.acquire(5)


@lock_case
async def FencedLock__acquire_that_waits(world, lock, other):
    held = other.acquire(timeout=0)
    world.clock.at(0.3, held.release)

    async def work():
        try:
            return await lock.acquire(5)
        finally:
            held.release()

    return work


@lock_case
async def FencedLock__try_acquire(world, lock, other):
    return lock.try_acquire


@lock_case
async def FencedLock__block(world, lock, other):
    """Its grant is not kept alive here: a thread that renews would move the clock."""

    async def work():
        async with await lock.acquire(5):
            await world.store.get(KEY)
            await world.store.get(KEY)

    return work


@lock_case
async def Grant__release(world, lock, other):
    grant = await lock.acquire(5)

    async def work():
        await grant.release()

    return work


@case
async def Grant__operate(world):
    grant = await aio.FencedLock(world.store, "report", lease=LEASE).acquire(5)

    def check(struck):
        record = world.base.get(KEY)
        told(world, struck, record is not None and record.bins["n"] == 1)

    return lambda: grant.operate(KEY, Add("n", 1)), check


@case
async def Grant__renew(world):
    grant = await aio.FencedLock(world.store, "report", lease=LEASE).acquire(5)
    return grant.renew, lambda struck: world.must(not grant.lost.is_set(), "a grant was lost by a cancelled renewal")


@case
async def Semaphore__acquire(world):
    semaphore = aio.Semaphore(world.store, "db", permits=2, lease=LEASE)
    other = coord.Semaphore(world.base, "db", permits=2, lease=LEASE)

    def check(struck):
        acquisition(world, struck, lambda: other.try_acquire(2))
        record = world.base.get(Key("latchwork_semaphores", "db"))
        world.must(record is None or not record.bins.get("wish"), "a wish stays")

    return lambda: semaphore.acquire(2, timeout=5), check


@case
async def Semaphore__acquire_that_waits(world):
    semaphore = aio.Semaphore(world.store, "db", permits=2, lease=LEASE)
    other = coord.Semaphore(world.base, "db", permits=2, lease=LEASE)
    held = other.acquire(timeout=0)
    world.clock.at(0.3, held.release)

    async def work():
        try:
            return await semaphore.acquire(2, timeout=5)
        finally:
            held.release()

    return work, lambda struck: acquisition(world, struck, lambda: other.try_acquire(2))


@case
async def Semaphore__try_acquire(world):
    semaphore, other = (kind(at, "db", permits=1, lease=LEASE) for kind, at in both(world, "Semaphore"))
    return semaphore.try_acquire, lambda struck: acquisition(world, struck, other.try_acquire)


@case
async def ReadWriteLock__try_write(world):
    lock, other = (kind(at, "x", lease=LEASE) for kind, at in both(world, "ReadWriteLock"))
    return lock.try_write, lambda struck: acquisition(world, struck, other.try_read)


@case
async def ReadWriteLock__read(world):
    lock, other = (kind(at, "x", lease=LEASE) for kind, at in both(world, "ReadWriteLock"))
    return lambda: lock.read(5), lambda struck: acquisition(world, struck, other.try_write)


@case
async def ReadWriteLock__write(world):
    lock, other = (kind(at, "x", lease=LEASE) for kind, at in both(world, "ReadWriteLock"))
    return lambda: lock.write(5), lambda struck: acquisition(world, struck, other.try_read)


@case
async def ReadWriteLock__write_that_waits(world):
    lock, other = (kind(at, "x", lease=LEASE) for kind, at in both(world, "ReadWriteLock"))
    held = other.read(0)
    world.clock.at(0.3, held.release)

    async def work():
        try:
            return await lock.write(5)
        finally:
            held.release()

    return work, lambda struck: acquisition(world, struck, other.try_read)


@case
async def Group__join(world):
    group, other = (kind(at, "g") for kind, at in both(world, "Group"))

    def check(struck):
        if struck.cancelled is not None and not is_open(struck.ended):
            world.must(other.members() == [], "a member was left behind")

    return lambda: group.join("w", keep_alive=False), check


@case
async def Membership__leave(world):
    group, other = (kind(at, "g") for kind, at in both(world, "Group"))
    membership = await group.join("w", keep_alive=False)

    def check(struck):
        if not is_open(struck.ended) and struck.error is None:
            world.must(other.members() == [], "a membership that was left is still there")

    return membership.leave, check


@case
async def CountDownLatch__wait(world):
    await aio.CountDownLatch.create(world.store, "c", "l", 1)
    other = coord.CountDownLatch.get(world.base, "c", "l")
    latch = aio.CountDownLatch.get(world.store, "c", "l")
    world.clock.at(0.3, other.count_down)
    return lambda: latch.wait(5), lambda struck: world.must(other.count() in (0, 1), "the count has changed")


@case
async def CountDownLatch__count_down(world):
    latch = await aio.CountDownLatch.create(world.store, "c", "l", 3)
    other = coord.CountDownLatch.get(world.base, "c", "l")
    return latch.count_down, lambda struck: told(world, struck, other.count() == 2)


@case
async def CountDownLatch__create(world):
    def check(struck):
        told(world, struck, world.base.scan("D_LTCH#distributed_latch") != [])

    return lambda: aio.CountDownLatch.create(world.store, "c", "l", 3), check


@case
async def Barrier__wait(world):
    parties = ["a", "b"]
    barrier = aio.Barrier(world.store, "c", "b", parties=parties)
    other = coord.Barrier(world.base, "c", "b", parties=parties)

    def check(struck):
        """The party may have arrived: then its next wait continues, and the other party meets it."""
        if struck.cancelled is None:
            return
        with suppress(LatchworkError):
            progress = other.progress()
            world.must(progress.arrived <= {"a"}, "somebody else has arrived")

    return lambda: barrier.wait("a", {"n": 1}, 0.5), check


@case
async def RateLimiter__acquire(world):
    limiter, other = (kind(at, "api", 2, 1.0) for kind, at in both(world, "RateLimiter"))
    other.try_acquire(2)
    return lambda: limiter.acquire(5), lambda struck: None


@case
async def Store__operate(world):
    def check(struck):
        record = world.base.get(KEY)
        told(world, struck, record is not None and record.bins["n"] == 1)

    return lambda: world.store.operate(KEY, Add("n", 1), exists=Exists.ANY, once=Once(8)), check


@case
async def Store__delete(world):
    world.base.operate(KEY, Put("n", 1), exists=Exists.ANY)
    return lambda: world.store.delete(KEY), lambda struck: told(world, struck, world.base.get(KEY) is None)


# ---- queues


async def queue_in(world, **options):
    """A queue, as the struck client has it and as another process has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("q", shards=1, **options)
    other = QueueRegistry(world.base, "c").create(config)
    return await aio.QueueRegistry(world.store, "c").create(config), other


async def queue_with_failed(world):
    """A queue that has one message, in its sideline."""
    queue, other = await queue_in(world, retry=False)
    other.publish(1)
    other.receive()[0].nack()
    return queue, other


def one_place(world, struck, other, *, gone) -> None:
    """The message is where it was, or gone, or ready; in one place, and where the verb says."""
    waits = len(other.sideline.search()) + len(other.delayed.search(within=100))
    ready = len(other.receive(9))
    world.must(waits + ready <= 1, "there are two of one message")
    if not gone:
        world.must(waits + ready == 1 or is_open(struck.ended) or struck.error, "a message was lost")
    ended = struck.ended
    if ended is not None and ended.returned and not ended.error:
        (outcome,) = ended.result.values() if isinstance(ended.result, dict) else (ended.result,)
        moved = not waits and (gone or ready == 1)
        world.must((outcome.name == "DONE") <= moved, f"it says {outcome}, and {waits} wait, {ready} are ready")


def payloads(world, queue) -> list:
    """What another process gets, and that no attempt was counted."""
    found = []
    for _ in range(3):  # a slot that was reserved and never written is given up after a moment
        found += queue.receive(100)
        world.clock.advance(0.3)
    world.must(all(one.attempts == 1 for one in found), "an attempt was counted")
    return sorted(one.payload for one in found)


@case
async def ShardedQueue__publish(world):
    queue, other = await queue_in(world)
    return lambda: queue.publish(7), lambda struck: told(world, struck, payloads(world, other) == [7])


@case
async def ShardedQueue__publish_many(world):
    queue, other = await queue_in(world)
    return lambda: queue.publish_many([1, 2]), lambda struck: told(world, struck, payloads(world, other) == [1, 2])


@case
async def ShardedQueue__publish_delayed(world):
    queue, other = await queue_in(world)
    return lambda: queue.publish(7, delay=60), lambda struck: told(
        world, struck, bool(other.delayed.search(within=7200))
    )


@case
async def ShardedQueue__publish_with_dedup(world):
    queue, other = await queue_in(world)

    def check(struck):
        there = payloads(world, other)
        told(world, struck, there == [7])
        world.must(len(there) < 2, "a message was published twice")

    return lambda: queue.publish(7, dedup="order-7"), check


@case
async def ShardedQueue__publish_unique(world):
    queue, other = await queue_in(world)

    def check(struck):
        there = payloads(world, other)
        told(world, struck, there == [7])
        world.must(len(there) < 2, "a message was published twice")

    return lambda: queue.publish(7, unique="order-7"), check


@case
async def ShardedQueue__receive(world):
    queue, other = await queue_in(world)
    other.publish_many([1, 2, 3])
    return lambda: queue.receive(2), lambda struck: came_back(world, struck, queue, other, [1, 2, 3])


@case
async def ShardedQueue__receive_that_waits(world):
    queue, other = await queue_in(world)
    world.clock.at(0.3, lambda: other.publish(1))

    def check(struck):
        world.clock.advance(1.0)
        came_back(world, struck, queue, other, [1])

    return lambda: queue.receive(1, timeout=20), check


@case
async def ShardedQueue__consume(world):
    queue, other = await queue_in(world)
    other.publish_many([1, 2, 3])
    acked = []

    async def work():
        async with aclosing(queue.consume(limit=3, prefetch=2)) as deliveries:
            async for delivery in deliveries:
                await delivery.ack()
                acked.append(delivery.payload)

    def check(struck):
        if struck.cancelled is None or is_open(struck.ended):
            return
        again = payloads(world, other) + _in_hand(queue)
        world.must(len(again) + len(acked) >= 2, f"messages are lost or held: {again}, {acked}")

    return work, check


@case
async def Delivery__ack(world):
    queue, other = await queue_in(world)
    other.publish(1)
    (delivery,) = await queue.receive()
    return delivery.ack, lambda struck: told(world, struck, delivery.settled)


@case
async def Delivery__nack(world):
    queue, other = await queue_in(world)
    other.publish(1)
    (delivery,) = await queue.receive()
    return lambda: delivery.nack("rejected"), lambda struck: told(
        world, struck, bool(other.delayed.search(within=7200))
    )


@case
async def Delivery__extend(world):
    queue, other = await queue_in(world)
    other.publish(1)
    (delivery,) = await queue.receive()
    return delivery.extend, lambda struck: world.must(not delivery.settled, "a message was given up")


@case
async def Delivery__operate(world):
    queue, other = await queue_in(world)
    other.publish(1)
    (delivery,) = await queue.receive()
    world.base.operate(KEY, Put("n", 0), exists=Exists.ANY)
    return lambda: delivery.operate(KEY, Add("n", 1)), lambda struck: told(
        world, struck, world.base.get(KEY).bins["n"] == 1
    )


@case
async def ShardedQueue__ack_many(world):
    queue, other = await queue_in(world)
    other.publish_many([1, 2])
    taken = await queue.receive(2)
    return lambda: queue.ack_many(taken), lambda struck: told(world, struck, all(one.settled for one in taken))


@case
async def ShardedQueue__cancel(world):
    queue, other = await queue_in(world)
    sent = other.publish(1, delay=60)
    return lambda: queue.cancel(sent), lambda struck: one_place(world, struck, other, gone=True)


@case
async def SideView__receive(world):
    queue, other = await queue_with_failed(world)

    def check(struck):
        if struck.cancelled is not None and not is_open(struck.ended):
            there = [one.payload for one in other.sideline.receive(9)]
            world.must(there == [1], f"only {there} came back to the sideline")

    return queue.sideline.receive, check


@case
async def SideView__redrive(world):
    queue, other = await queue_with_failed(world)
    (failed,) = other.sideline.search()
    return lambda: queue.sideline.redrive([failed]), lambda struck: one_place(world, struck, other, gone=False)


@case
async def SideView__discard(world):
    queue, other = await queue_with_failed(world)
    (failed,) = other.sideline.search()
    return lambda: queue.sideline.discard([failed]), lambda struck: one_place(world, struck, other, gone=True)


@case
async def QueueGroup__drop(world):
    queue, other = await queue_in(world)
    group = await queue.group("g")

    def check(struck):
        if struck.ended and struck.ended.returned:
            world.must(other.groups() == [], "it says that the group is dropped, and it is there")

    return group.drop, check


@case
async def QueueBatch__publish(world):
    queue, other = await queue_in(world)
    batch = await queue.batch("night")

    def check(struck):
        with suppress(LatchworkError):
            if struck.ended and struck.ended.returned:
                world.must(other.batch("night", create=False).progress().published == 1, "it does not count")

    return lambda: batch.publish(1), check


@case
async def QueueBatch__close(world):
    queue, other = await queue_in(world)
    batch = await queue.batch("night")
    await batch.publish(1)
    there = other.batch("night", create=False)
    return batch.close, lambda struck: told(world, struck, there.progress().closed)


@case
async def QueueBatch__wait(world):
    queue, _other = await queue_in(world)
    batch = await queue.batch("night")
    await batch.publish(1)
    await batch.close()
    return lambda: batch.wait(3), lambda struck: None


@case
async def QueueBatch__results(world):
    queue, other = await queue_in(world, results=60)
    async with await queue.batch("night") as batch:
        await batch.publish(1)
        await batch.publish(2)
    there = other.batch("night", create=False)

    async def read():
        return [one.message_id async for one in batch.results(3)]

    return read, lambda struck: world.must(len(list(there.results(0))) == 2, "another reader has them all")


@case
async def QueueRegistry__create(world):
    registry = aio.QueueRegistry(world.store, "c")
    other = QueueRegistry(world.base, "c")

    def check(struck):
        world.must(other.create(QueueConfig("new")).name == "new", "a queue that was half made cannot be completed")

    return lambda: registry.create(QueueConfig("new")), check


@case
async def ShardedQueue__group(world):
    queue, other = await queue_in(world)

    def check(struck):
        world.must(other.group("g").group_name == "g", "a group that was half made cannot be completed")

    return lambda: queue.group("g"), check


def done_or_free(world, struck) -> bool:
    """Whether the step is done; if it is not, somebody else may do it: at once, or after one lease where in doubt."""
    in_doubt = struck.error is not None or is_open(struck.ended)
    deadline = world.clock.monotonic() + (3 * LEASE if in_doubt else 0)
    while True:
        try:
            with latchwork.once(world.base, key="mail", timeout=0, lease=LEASE) as step:
                world.must(not step.done or step.result == 7, "another result was kept")
                return step.done
        except LatchworkError as failure:
            if world.clock.monotonic() >= deadline:
                world.must(False, f"nobody else can do the step: {failure}")
                return False
        world.clock.advance(LEASE / 4)


@case
async def OnceStep__block(world):
    step = aio.once(world.store, key="mail", timeout=5, lease=LEASE)

    async def work():
        async with step as found:
            found.result = 7
            await world.store.get(KEY)

    def check(struck):
        done = done_or_free(world, struck)
        world.must(done or struck.cancelled or struck.error, "a step that was done is not remembered")

    return work, check


@case
async def OnceStep__enter(world):
    step = aio.once(world.store, key="mail", timeout=5, lease=LEASE)
    return (
        step.__aenter__,
        lambda struck: (
            struck.cancelled and world.must(not done_or_free(world, struck), "a step that was not begun is done")
        ),
    )


@case
async def OnceStep__exit(world):
    step = aio.once(world.store, key="mail", timeout=5, lease=LEASE)
    (await step.__aenter__()).result = 7
    return lambda: step.__aexit__(None, None, None), lambda struck: told(world, struck, done_or_free(world, struck))


# ---- what holds


def both(world, name):
    """The twin on the struck client's store, and the sync class on the store of the others."""
    return (getattr(aio, name), world.store), (getattr(coord, name), world.base)


def _in_hand(queue) -> list:
    """Messages whose claimed slots this process tries again by itself."""
    return [None] * len(queue.of.pending.slots(None)) if queue.of.pending.entries else []


def told(world, struck, happened) -> None:
    """What a verb says of itself is true: done, or not done, or not known."""
    ended, error = struck.ended, struck.error
    if struck.cancelled is not None:
        if ended is None or is_open(ended):
            return  # the table has that it must say it
        says, error = ended.returned, ended.error
    else:
        says = error is None
    if error is not None and (error.code in ("OUTCOME_UNKNOWN", "UNAVAILABLE") or error.details.get("doubt")):
        return
    world.must(bool(happened) == says, f"{'it' if happened else 'nothing'} happened, and it says {ended or error!r}")


def came_back(world, struck, queue, other, wanted) -> None:
    """Messages that a cancelled receive had claimed are ready again, or this process tries their slots again."""
    if struck.cancelled is None or is_open(struck.ended):
        return
    there = payloads(world, other)
    world.must(
        there == wanted or len(there) + len(_in_hand(queue)) >= len(wanted), f"only {there} came back of {wanted}"
    )
