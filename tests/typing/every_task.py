"""A user's program with functions as tasks, sync and async. Checked by mypy and pyright, and run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

import msgspec

from latchwork import aio
from latchwork.queue import Delivery, QueueConfig, QueueRegistry, ShardedQueue, Worker
from latchwork.store import MemoryStore


@dataclass
class Address:
    name: str
    mail: str


class Line(msgspec.Struct):
    sku: int
    n: int = 1


DONE: list[str] = []
STORE = MemoryStore()
registry = QueueRegistry(STORE, "shop")
worker = Worker(registry)


@worker.task("mails", concurrency=2)
def send(to: Address, subject: str, *, urgent: bool = False) -> None:
    DONE.append(f"{to.name}: {subject}{'!' if urgent else ''}")


@worker.task("orders")
def order(delivery: Delivery, lines: list[Line], at: datetime) -> bool:
    delivery.check()
    DONE.append(f"{sum(line.n for line in lines)} at {at:%Y}")
    return True


adder = Worker(registry)


@adder.task("sums")
def add(lines: list[Line]) -> Address:
    return Address(f"{sum(line.n for line in lines)} lines", "ada@example.com")


bridged = aio.Store(STORE)
awaited_registry = aio.QueueRegistry(bridged, "shop")
awaited_worker = aio.Worker(awaited_registry)


@awaited_worker.task("pages")
async def render(page: int, name: str | None = None) -> None:
    DONE.append(f"page {page} {name}")


@awaited_worker.task("images")
async def scale(delivery: aio.Delivery, width: int) -> bool | None:
    DONE.append(f"width {width}, attempt {delivery.attempts}")
    return None


counter = aio.Worker(awaited_registry)


@counter.task("pixels")
async def count(width: int) -> int:
    return width * width


def publish() -> list[str]:
    queues: list[ShardedQueue] = [registry.create(QueueConfig(name, shards=1)) for name in ("mails", "orders")]
    ada = Address("Ada", "ada@example.com")
    first: str = send.publish(ada, subject="hi")
    second: str = send.options(key="ada", delay=None).publish(ada, "bye", urgent=True)
    third: str = order.publish([Line(7), Line(8, n=2)], at=datetime(2026, 1, 1, tzinfo=timezone.utc))
    more: list[str] = queues[0].publish_many([send.payload(ada, "many")])
    send.function(ada, "here and now")
    return [first, second, third, *more]


def ask() -> tuple[str, str]:
    registry.create(QueueConfig("sums", shards=1, results=60))
    id: str = add.publish([Line(7), Line(8, n=2)])
    with adder:
        address: Address = add.result(id, timeout=20)
    return address.name, address.mail


async def ask_awaited() -> int:
    await awaited_registry.create(QueueConfig("pixels", shards=1, results=60))
    id: str = await count.publish(width=7)
    async with counter:
        pixels: int = await count.result(id, timeout=20)
    return pixels


async def publish_awaited() -> list[str]:
    for name in ("pages", "images"):
        await awaited_registry.create(QueueConfig(name, shards=1))
    first: str = await render.publish(3, name="three")
    second: str = await scale.options(delay=0).publish(width=100)
    await render.function(0)
    return [first, second]
