"""A user's program that touches every primitive once, as the guide writes them. Checked by mypy, and run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import latchwork
from latchwork.coord import CountDownLatch, FencedLock, Group, LeaseElection, RateLimiter, Semaphore
from latchwork.errors import AlreadyExists, Cancelled, LatchworkError
from latchwork.queue import (
    BatchResult,
    Consumer,
    Delivery,
    LargeQueue,
    Outbox,
    Outcome,
    PagedQueue,
    Publication,
    Publish,
    QueueBatch,
    QueueConfig,
    QueueRegistry,
    Schedule,
    ShovelConfig,
    State,
    Status,
    Worker,
)  # fmt: skip
from latchwork.store import Add, Bin, Key, RecordStore
from latchwork.testing import ManualClock


def coordination(store: RecordStore) -> list[str]:
    latch = CountDownLatch.create(store, "shop", "night", parties=["orders", "stock"])
    latch.count_down(party="orders")
    waiting: set[str] = latch.missing(["orders", "stock"])
    with FencedLock(store, "report") as grant:
        fence: int = grant.fence
    election = LeaseElection(store, "leader")
    result: int | None = election.run(lambda leadership: leadership.epoch, timeout=5)
    with Semaphore(store, "database", permits=2).acquire(timeout=1) as permits:
        slots = permits.slots
    decision = RateLimiter(store, "api", limit=10, per=timedelta(seconds=1)).try_acquire()
    with Group(store, "workers").join("w-1") as membership:
        member: str = repr(membership)
    return [*waiting, member, str((fence > 0, (result or 0) > 0, len(slots), decision.allowed))]


def charge(amount: int, *, currency: str) -> str:
    return f"{amount} {currency}"


def amount_of(amount: int, **_: object) -> int:
    return amount


def once_each(store: RecordStore) -> list[str]:
    charge_once = latchwork.once(store, key=amount_of)(charge)
    receipt: str = charge_once(7, currency="EUR")
    token: str = charge_once.step(7, currency="EUR").token
    daily: str = latchwork.once(store, key="2030-01-31", timeout=0).run(charge, 8, currency="EUR")
    return [receipt, daily, str(len(token))]


def queues(store: RecordStore, folder: Path) -> list[str]:
    bus = LargeQueue.create(store, "bus", 100)
    bus.enqueue("hello")
    entry = bus.dequeue()
    registry = QueueRegistry(store, "shop")
    queue = registry.create(QueueConfig("orders", shards=1, shovel=ShovelConfig(60)))
    registry.schedule(Schedule("nightly", "orders", {"report": 1}, cron="0 3 * * *"))
    message_id: str = queue.publish({"sku": 7}, key="7", delay=None)
    with queue.publisher(linger=0) as publisher:
        publication: Publication = publisher.publish({"sku": 8}, key="8")
        published: str = publication.result(timeout=5)
    taken: list[Delivery] = queue.receive(10)
    for delivery in taken:
        balance: object = delivery.operate(Key("accounts", "7"), Add("balance", -1), result=Bin("balance"))
        receipt: str = delivery.once("charge").run(charge, 7, currency="EUR")
        with delivery.once("mail", keep=timedelta(days=7)) as step:
            if not step.done:
                step.result = [step.token, receipt, str(balance)]
        delivery.ack()
    worker = Worker(registry)

    @worker.handler("orders")
    def handle(delivery: Delivery) -> bool:
        return bool(delivery.payload)

    with Consumer(queue, handle, concurrency=1, upkeep=False):
        depth: int = queue.depth().ready
    with queue.batch("load", then=Publish({"done": "load"}, key="7")) as batch:
        batch.publish_many([{"sku": 1}, {"sku": 2}])
    same: QueueBatch = queue.batch("load", create=False)
    left: int = same.progress().waiting
    with PagedQueue.open(folder, "local", codec=bytes) as local:
        outbox = Outbox(local, queue, name="web-1")
        outbox.put({"sku": 8})
        outbox.forward()
    return [str(entry), str(len(message_id) * len(published) > 0), str(depth), str(left)]


def one_message(store: RecordStore) -> list[str]:
    registry = QueueRegistry(store, "shop")
    jobs = registry.create(QueueConfig("jobs", shards=1, results=timedelta(hours=1)))
    first: str = jobs.publish({"doc": 7}, unique="doc-7")
    same: str = jobs.publish({"doc": 8}, unique="doc-7", on_duplicate="replace")
    known: object = None
    try:
        jobs.publish({"doc": 9}, unique="doc-7", on_duplicate="raise")
    except AlreadyExists as duplicate:
        known = duplicate.details["message_id"]
    (delivery,) = jobs.receive()
    delivery.progress(0.4, "chunk 12")
    delivery.extend()
    status: Status = jobs.status(first)
    told: tuple[State, float | None, str | None] = (status.state, status.progress, status.note)
    asked: Outcome = jobs.cancel(first)
    delivery.extend()
    try:
        delivery.check()
    except Cancelled:
        jobs.drop_cancelled([delivery])
    second = jobs.publish({"doc": 10}, unique="doc-7")
    jobs.receive()[0].ack({"pages": 3})
    result: object = jobs.result(second, timeout=0)
    with jobs.batch("noon") as noon:
        noon.publish_many([{"doc": 11}, {"doc": 12}])
    for one in jobs.receive(2):
        one.ack(len(one.payload))
    lengths: list[object] = [found.result() for found in noon.results(timeout=5)]
    found: BatchResult = next(noon.results(timeout=0))
    ended: tuple[str | None, State, LatchworkError | None] = (found.message_id, found.state, found.error)
    batch: QueueBatch = jobs.batch("night", on_parked=Publish({"failed": "night"}))
    batch.publish({"doc": 1})
    stopped: Outcome = batch.cancel()
    facts = (first == same == known, told[1:], asked.value, jobs.status(first).cancelled, result, stopped.value)
    return [told[0].value, str(facts), str((lengths, ended[1:]))]


def main() -> list[str]:
    with TemporaryDirectory() as folder:
        store = latchwork.connect("memory:")
        try:
            return [
                *coordination(store),
                *once_each(store),
                *queues(store, Path(folder)),
                *one_message(store),
                str(ManualClock().monotonic()),
            ]
        except LatchworkError as failure:
            return [failure.code]


if __name__ == "__main__":
    print(main())
