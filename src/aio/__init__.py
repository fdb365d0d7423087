"""The primitives and queues of Latchwork on an asyncio loop: the same verbs, awaited (docs/guide/asyncio.md).

    from latchwork import aio

    async with aio.connect("aerospike://db/test") as store:
        async with aio.FencedLock(store, "report") as grant:
            await grant.operate(key, Put("status", "done"))
"""
