"""The primitives and queues of Latchwork on an asyncio loop: the same verbs, awaited (docs/guide/asyncio.md).

    from latchwork import aio

    async with aio.connect("aerospike://db/test") as store:
        async with aio.FencedLock(store, "report") as grant:
            await grant.operate(key, Put("status", "done"))

What has no twin here is called in a thread: `await aio.call(large_queue.enqueue, value, timeout=5)`.
"""

from typing import TYPE_CHECKING

from ..lazy import offer

if TYPE_CHECKING:
    from .bridge import Ended, ended
    from .consumer import Consumer, Worker
    from .coord import (
        Barrier,
        CountDownLatch,
        CountUpDownLatch,
        FencedLock,
        Grant,
        Group,
        Leadership,
        LeaseElection,
        Lost,
        Membership,
        Permits,
        RateLimiter,
        ReadGrant,
        ReadWriteLock,
        Semaphore,
        WriteGrant,
        ZooKeeperElection,
    )
    from .queue import (
        DelayedView,
        Delivery,
        Publication,
        Publisher,
        QueueBatch,
        QueueGroup,
        QueueRegistry,
        ShardedQueue,
        SideView,
    )
    from .step import OnceFunction, OnceStep, once
    from .store import Store, call, connect
    from .task import Task

__all__ = [
    "connect", "Store", "call", "ended", "Ended",
    "FencedLock", "Grant", "Lost", "Semaphore", "Permits", "ReadWriteLock", "ReadGrant", "WriteGrant", "RateLimiter",
    "CountDownLatch", "CountUpDownLatch", "Barrier", "Group", "Membership",
    "LeaseElection", "ZooKeeperElection", "Leadership", "once", "OnceStep", "OnceFunction",
    "QueueRegistry", "ShardedQueue", "QueueGroup", "Delivery", "SideView", "DelayedView", "Publisher", "Publication",
    "QueueBatch", "Consumer", "Worker", "Task",
]  # fmt: skip

__getattr__, __dir__ = offer(
    __name__,
    {
        ".bridge": "Ended ended",
        ".consumer": "Consumer Worker",
        ".task": "Task",
        ".coord": "Barrier CountDownLatch CountUpDownLatch FencedLock Grant Group Leadership LeaseElection Lost "
        "Membership Permits RateLimiter ReadGrant ReadWriteLock Semaphore WriteGrant ZooKeeperElection",
        ".step": "OnceFunction OnceStep once",
        ".queue": "DelayedView Delivery Publication Publisher QueueBatch QueueGroup QueueRegistry ShardedQueue "
        "SideView",
        ".store": "Store call connect",
    },
)
