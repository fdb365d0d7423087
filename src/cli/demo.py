"""`latchwork demo`: every primitive in a few seconds, on a store that is deleted afterwards."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import typer

from ..coord import Barrier, CountDownLatch, FencedLock, Group, LeaseElection, RateLimiter, ReadWriteLock, Semaphore
from ..errors import FencedOut
from ..queue import Consumer, LargeQueue, Outbox, PagedQueue, QueueConfig, QueueRegistry, Sweeper
from ..store import Key, Put, RecordStore, SQLiteStore

ENOUGH = 20.0
NEXT = """
Next, on a store that stays (a file in your data folder, or $LATCHWORK_STORE):

  export LATCHWORK_CLIENT=demo
  latchwork queue create mails                    # a queue
  latchwork queue publish mails '{"to": "you"}'   # a message
  latchwork queue consume mails                   # take it
  latchwork doctor                                # what would cause trouble
  latchwork --help                                # all commands, each with an example

docs/getting-started.md goes on from here."""


def demo(context: typer.Context) -> None:
    """Show every primitive, in this process, on a temporary store; nothing is left behind.

    Example: latchwork demo
    """
    with tempfile.TemporaryDirectory(prefix="latchwork-demo-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = SQLiteStore(Path(folder) / "demo.db", synchronous="normal")
        results = {}
        for tour in (
            _latch, _barrier, _lock, _rwlock, _semaphore, _limiter, _presence, _election, _large_queue, _sharded_queue,
            _group, _batch,
        ):  # fmt: skip
            results[tour.__name__[1:]] = tour(store)
            if not context.obj.json:
                typer.echo(results[tour.__name__[1:]])
        results["paged_queue"], results["outbox"] = _paged_queue(folder), _outbox(store, folder)
        store.close()
    context.obj.say(results["paged_queue"], results["outbox"], *NEXT.splitlines(), **results)


def _latch(store: RecordStore) -> str:
    latch = CountDownLatch.create(store, "demo", "start", parties=["orders", "stock", "mail"])
    for party in ("orders", "orders", "stock"):
        latch.count_down(party=party)
    missing = latch.missing()
    latch.count_down(party="mail")
    released = latch.wait(ENOUGH)
    return f"latch          three parties, one counted twice: waited for {sorted(missing)}, then released={released}"


def _barrier(store: RecordStore) -> str:
    brought = Barrier(store, "demo", "meeting", parties=["orders"]).wait("orders", payload={"rows": 7}, timeout=ENOUGH)
    return f"barrier        all parties arrived, and read what each brought: {brought}"


def _lock(store: RecordStore) -> str:
    account = Key("accounts", "42")
    first = FencedLock(store, "account-42").acquire(ENOUGH)
    first.release()
    with FencedLock(store, "account-42").acquire(ENOUGH) as second:
        second.operate(account, Put("balance", 100))
        try:
            first.operate(account, Put("balance", 0))
            late = "written"
        except FencedOut:
            late = "refused"
        return f"fenced lock    fence {first.fence} then {second.fence}: the first holder's late write was {late}"


def _rwlock(store: RecordStore) -> str:
    lock = ReadWriteLock(store, "prices")
    with lock.read(ENOUGH), lock.read(ENOUGH):
        beside_readers = lock.try_write() is not None
    with lock.write(ENOUGH):
        beside_writer = lock.try_read() is not None
    return f"rw lock        two read; a writer beside them: {beside_readers}; a reader beside a writer: {beside_writer}"


def _semaphore(store: RecordStore) -> str:
    semaphore = Semaphore(store, "reports", permits=2)
    with semaphore.acquire(2, timeout=ENOUGH):
        third = semaphore.try_acquire() is not None
    return f"semaphore      2 of 2 permits taken; a third one: {third}"


def _limiter(store: RecordStore) -> str:
    limiter = RateLimiter(store, "mails", limit=3, per=60)
    allowed = sum(limiter.try_acquire().allowed for _ in range(5))
    return f"rate limiter   3 a minute, asked 5 times: {allowed} allowed"


def _presence(store: RecordStore) -> str:
    group = Group(store, "workers")
    with group.join("web-1"), group.join("web-2"):
        there = sorted(member.member for member in group.members())
    return f"presence       members {there}, after they left {[one.member for one in group.members()]}"


def _election(store: RecordStore) -> str:
    epochs = [LeaseElection(store, "demo", lease=1).run(lambda led: led.epoch, timeout=ENOUGH) for _ in range(2)]
    return f"election       two terms, epochs {epochs[0]} < {epochs[1]}: {epochs[0] < epochs[1]}"


def _large_queue(store: RecordStore) -> str:
    queue = LargeQueue.create(store, "demo-bus", 1_000)
    queue.enqueue_many([{"event": n} for n in range(300)])
    got = [entry.value["event"] for entry in queue.dequeue_many(250)]
    info = queue.info()
    return (
        f"circular queue 300 in, {len(got)} out in order={got == list(range(250))}, {info.size} left of {info.capacity}"
    )


def _sharded_queue(store: RecordStore) -> str:
    registry = QueueRegistry(store, "demo")
    queue = registry.create(QueueConfig("orders", shards=4, concurrency=2, backoff=0.5, unsafe_limits=True))
    handled: list[int] = []

    def handler(delivery: Any) -> bool:
        handled.append(delivery.payload)
        return bool(delivery.payload != 13 or delivery.attempts > 1)

    queue.publish_many(list(range(100)))
    consumer = Consumer(queue, handler).start()
    _until(store, lambda: consumer.stats["acked"] == 100)
    consumer.stop()
    election = LeaseElection(store, "demo-sweeper", lease=1)
    report = election.run(lambda _: Sweeper(registry, election).run_once(), timeout=ENOUGH)
    return (
        f"sharded queue  100 published, {len(set(handled))} handled, 1 failed and was tried again; "
        f"swept as epoch {report.epoch}"
    )


def _group(store: RecordStore) -> str:
    queue = QueueRegistry(store, "demo").create(QueueConfig("events", shards=1))
    groups = [queue.group("audit"), queue.group("search")]
    queue.publish({"event": 1})
    got = {group.group_name: [delivery.payload["event"] for delivery in group.receive(5)] for group in groups}
    return f"groups         one message published, read by each group: {got}"


def _batch(store: RecordStore) -> str:
    queue = QueueRegistry(store, "demo").create(QueueConfig("files", shards=1))
    with queue.batch("load") as batch:
        batch.publish_many(list(range(50)))
    with Consumer(queue, lambda _: True, upkeep=False):
        done = batch.wait(ENOUGH)
    return f"batch          50 published, closed; all done: {done}"


def _paged_queue(folder: str) -> str:
    with PagedQueue.open(Path(folder) / "local", "outbox") as paged:
        paged.append_many([b"message %d" % n for n in range(1_000)])
    with PagedQueue.open(Path(folder) / "local", "outbox") as paged:
        found = sum(1 for _ in paged.read())
    return f"paged queue    1,000 appended to local files, closed, opened again: {found:,} read"


def _outbox(store: RecordStore, folder: str) -> str:
    queue = QueueRegistry(store, "demo").create(QueueConfig("mail", shards=1))
    with PagedQueue.open(Path(folder) / "local", "mail") as paged:
        outbox = Outbox(paged, queue)
        outbox.put_many(list(range(100)))
        waiting = outbox.lag().messages
        sent = outbox.forward() + outbox.forward()
    return f"outbox         {waiting} put on the disk, {sent} forwarded, {queue.depth().ready} in the queue"


def _until(store: RecordStore, condition: Any) -> None:
    end = store.seams.monotonic() + ENOUGH
    while not condition() and store.seams.monotonic() < end:
        store.seams.sleep(0.02)
