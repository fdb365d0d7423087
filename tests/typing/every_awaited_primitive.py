"""A user's program that awaits every primitive once, as the guide writes them. Checked by mypy, and run."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta

from latchwork import aio
from latchwork.coord import Change, Decision
from latchwork.queue import Message, Outcome, Publish, QueueConfig, QueueDepth, Status
from latchwork.store import Add, Exists, Key, Put, Record


async def coordination(store: aio.Store) -> list[str]:
    latch: aio.CountDownLatch = await aio.CountDownLatch.create(store, "shop", "night", parties=["orders", "stock"])
    left: int = await latch.count_down(party="orders")
    waiting: set[str] = await latch.missing(["orders", "stock"])
    released: bool = await latch.wait(0.01)
    async with aio.FencedLock(store, "report") as grant:
        fence: int = grant.fence
        await grant.operate(Key("reports", "7"), Put("state", "done"))
        lost: bool = grant.lost.is_set() or await grant.lost.wait(0)
    none: aio.Grant | None = await aio.FencedLock(store, "report").try_acquire()

    async def lead(leadership: aio.Leadership) -> int:
        return leadership.epoch

    epoch: int = await aio.LeaseElection(store, "leader").run(lead, timeout=5)
    async with await aio.Semaphore(store, "database", permits=2).acquire(timeout=1) as permits:
        slots: tuple[int, ...] = permits.slots
    async with await aio.ReadWriteLock(store, "page").read(1) as reading:
        generation: int = reading.generation
    decision: Decision = await aio.RateLimiter(store, "api", limit=10, per=timedelta(seconds=1)).acquire(1)
    group = aio.Group(store, "workers")
    async with await group.join("w-1") as membership:
        changes: list[Change] = [change async for change in group.watch(0.05)]
        member: str = repr(membership)
    met: dict[str, object] = await aio.Barrier(store, "shop", "start", parties=["one"]).wait("one", {"n": 1}, 1)
    record: Record | None = await store.get(Key("reports", "7"), "state")
    await store.operate(Key("reports", "7"), Add("views", 1), exists=Exists.ANY)
    async with aio.once(store, key="invoice 7", keep=timedelta(days=1)) as step:
        if not step.done:
            step.result = step.token

    def key_of(amount: int, **_: object) -> str:
        return f"charge {amount}"

    @aio.once(store, key=key_of)
    async def charge(amount: int) -> str:
        return f"charged {amount}"

    receipt: str = await charge(7)
    facts = (
        receipt,
        fence > 0,
        epoch > 0,
        len(slots),
        decision.allowed,
        released,
        lost,
        none is None,
        left,
        generation > 0,
        len(met),
    )
    return [*waiting, member, str(facts), str(record and record.bins), str(len(changes))]


async def mailed(order: int) -> str:
    return f"mail {order}"


async def queues(store: aio.Store) -> list[str]:
    registry = aio.QueueRegistry(store, "shop")
    queue: aio.ShardedQueue = await registry.create(QueueConfig("orders", shards=1))
    message_id: str = await queue.publish({"sku": 7}, key="7", delay=None)
    async with queue.publisher(linger=0) as publisher:
        publication: aio.Publication = await publisher.publish({"sku": 8}, key="8")
        published: str = await publication
    taken: list[aio.Delivery] = await queue.receive(1)
    for delivery in taken:
        await delivery.ack()
    async with aclosing(queue.consume(limit=1, timeout=5)) as messages:
        async for one in messages:
            sent: str = await one.once("mail").run(mailed, 7)
            await one.ack()
            assert sent == "mail 7"
    async with await queue.batch("load", then=Publish({"done": "load"}, key="7")) as batch:
        await batch.publish_many([{"sku": 1}, {"sku": 2}])
    seen: list[Message] = await queue.peek(1)
    worker = aio.Worker(registry)
    handled: list[object] = []

    @worker.handler("orders", concurrency=200)
    async def handle(delivery: aio.Delivery) -> bool:
        handled.append(delivery.payload)
        return True

    async with worker:
        while len(handled) < 3:
            await asyncio.sleep(0.01)
    depth: QueueDepth = await queue.depth()
    length: int = await aio.call(len, "abc")
    return [str(len(message_id) * len(published) > 0), str(len(seen)), str(depth.ready), str(length)]


async def one_message(store: aio.Store) -> list[str]:
    registry = aio.QueueRegistry(store, "shop")
    jobs = await registry.create(QueueConfig("jobs", shards=1, results=timedelta(hours=1)))
    first: str = await jobs.publish({"doc": 7}, unique="doc-7")
    same: str = await jobs.publish({"doc": 8}, unique="doc-7", on_duplicate="replace")
    (delivery,) = await jobs.receive()
    delivery.progress(0.4, "chunk 12")
    await delivery.extend()
    status: Status = await jobs.status(first)
    asked: Outcome = await jobs.cancel(first)
    await delivery.ack({"pages": 3})
    result: object = await jobs.result(first, timeout=0)
    async with await jobs.batch("noon") as noon:
        await noon.publish({"doc": 11})
    await (await jobs.receive())[0].ack(1)
    lengths: list[object] = [one.result() async for one in noon.results(timeout=5)]
    batch: aio.QueueBatch = await jobs.batch("night", on_parked=Publish({"failed": "night"}))
    await batch.publish({"doc": 1})
    stopped: Outcome = await batch.cancel()
    return [str((first == same, status.progress, status.note, asked.value, result, lengths, stopped.value))]


async def main() -> list[str]:
    async with aio.connect("memory:") as store:
        return [*await coordination(store), *await queues(store), *await one_message(store)]


if __name__ == "__main__":
    print(asyncio.run(main()))
