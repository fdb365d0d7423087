"""The results of a batch on a loop: the same as those of the sync surface, and waiting holds up no other task."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from latchwork import aio
from latchwork.errors import HandlerFailed, InvalidRequest, WaitTimeout
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore


async def asked(store, **options):
    config = QueueConfig("q", **{"shards": 1, "results": timedelta(hours=1), "max_deliveries": 1, **options})
    return await aio.QueueRegistry(store, "shop").create(config)


def test_results_come_in_order_as_they_are_done_while_other_tasks_run(memory, run):
    async def work():
        queue = await asked(memory)
        batch = await queue.batch("b")
        ids = await batch.publish_many([1, 2, 3])
        held = await queue.receive(3)
        found = []

        async def read():
            async for one in batch.results(timeout=20):
                found.append(one)  # noqa: PERF401 - it is looked at meanwhile

        reader = asyncio.ensure_future(read())
        await held[2].ack("third")
        await batch.close()
        await held[0].ack("first")
        while not found:
            await asyncio.sleep(0.01)
        await held[1].nack(error="it broke")
        await reader
        assert [one.message_id for one in found] == ids
        assert [one.value for one in found] == ["first", None, "third"]
        assert type(found[1].error) is HandlerFailed

    run(work())


def test_a_timeout_tells_what_is_not_done_and_a_wrong_one_is_refused_at_once(memory, run):
    async def work():
        queue = await asked(memory)
        async with await queue.batch("b") as batch:
            await batch.publish("m")
        assert [type(one.error) async for one in batch.results(timeout=0.05)] == [WaitTimeout]
        with pytest.raises(InvalidRequest, match="timeout"):
            batch.results(timeout=-1)
        plain = await aio.QueueRegistry(memory, "shop").create(QueueConfig("plain", shards=1))
        with pytest.raises(InvalidRequest, match="keeps no results"):
            (await plain.batch("b")).results()

    run(work())


def test_the_sync_results_name_their_async_twin_where_they_would_wait_on_a_loop(run):
    store = MemoryStore()
    queue = QueueRegistry(store, "shop").create(QueueConfig("q", shards=1, results=timedelta(hours=1)))
    with queue.batch("b") as batch:
        batch.publish("m")

    async def work():
        assert len(list(batch.results(timeout=0))) == 1
        with pytest.raises(InvalidRequest, match=r"await QueueBatch\.results of latchwork\.aio"):
            list(batch.results(timeout=1))

    run(work())
