"""Messages that a task takes one after another, without a consumer."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from latchwork import aio
from latchwork.errors import InvalidRequest
from latchwork.queue import QueueConfig


async def queue_of(store, messages):
    queue = await aio.QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    await queue.publish_many(list(range(messages)))
    return queue


@pytest.mark.parametrize("prefetch", [1, 2, 10])
def test_messages_are_yielded_as_they_come_until_none_has_come_for_the_timeout(memory, run, prefetch):
    async def main():
        queue, taken = await queue_of(memory, 5), []
        async for delivery in queue.consume(timeout=0, prefetch=prefetch):
            taken.append(delivery.payload)
            await delivery.ack()
        assert taken == list(range(5))
        assert (await queue.depth()).ready == 0

    run(main())


@pytest.mark.parametrize("limit", [2, 3])
def test_no_more_messages_are_taken_than_the_limit(memory, run, limit):
    async def main():
        queue, taken = await queue_of(memory, 5), []
        async for delivery in queue.consume(limit=limit, prefetch=2):
            taken.append(delivery.payload)
            await delivery.ack()
        assert taken == list(range(limit))
        assert [one.payload for one in await queue.receive(10, timeout=0)] == list(range(limit, 5))

    run(main())


def test_messages_that_were_not_yielded_go_back_uncounted_as_the_loop_is_left(memory, run):
    async def main():
        queue = await queue_of(memory, 4)
        async with aclosing(queue.consume(prefetch=3)) as deliveries:
            async for delivery in deliveries:
                await delivery.ack()
                break
        back = await queue.receive(10, timeout=0)
        assert sorted((one.payload, one.attempts) for one in back) == [(1, 1), (2, 1), (3, 1)]

    run(main())


def test_settings_that_cannot_be_are_refused_before_the_first_message(memory, run):
    async def main():
        queue = await queue_of(memory, 1)
        for wrong in (
            {"prefetch": 0},
            {"prefetch": 1001},
            {"limit": 0},
            {"limit": 0.5},
            {"limit": 2**63 + 1},
            {"timeout": -1},
        ):
            with pytest.raises(InvalidRequest, match=f"^{next(iter(wrong))} is "):
                queue.consume(**wrong)

    run(main())
