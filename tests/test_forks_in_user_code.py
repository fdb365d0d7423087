"""A child that a function of the user's forks ends with that function, wherever this library calls it in a thread of
its own: it neither takes messages nor leads beside its parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta

import pytest
from kazoo.client import KazooClient

from latchwork import aio
from latchwork.coord import CountDownLatch, GlobalElection, LeaseElection, RateLimiter
from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry
from latchwork.seams import SYSTEM
from latchwork.store import MemoryStore
from tests.support.waiting import until
from tests.support.zoo import Client, Zoo


def raises():
    raise ValueError("in the child")


ENDS = {"returns": (lambda: None, 0), "raises": (raises, 1), "exits": (lambda: sys.exit(7), 7)}
"""How a child leaves the user's function, and the exit code that it is to have then."""


class Forking:
    """A function of the user's that forks where it is first called; the parent waits for the child."""

    def __init__(self, leave):
        self.leave, self.code = leave, None

    def __call__(self, *_):
        if self.code is not None:
            return
        child = os.fork()
        if child == 0:
            os.close(2)  # the traceback is not for this test's output
            self.leave()
            return
        end = time.monotonic() + 5
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            self.code = "it goes on"
        else:
            self.code = os.waitstatus_to_exitcode(ended[1])


def made(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = QueueRegistry(MemoryStore(), "c").create(QueueConfig("q", shards=1, unsafe_limits=True, **options))
    queue.publish({"number": 1})
    return queue


def in_a_handler(forking):
    with Consumer(made(), forking, upkeep=False):
        until(lambda: forking.code is not None)


def in_the_handler_of_a_batch(forking):
    batching = BatchingConfig(2, timedelta(seconds=1))
    with Consumer(made(batching=batching), forking, upkeep=False):
        until(lambda: forking.code is not None)


def in_an_ordered_handler(forking):
    with Consumer(made(), forking, ordered=True, upkeep=False):
        until(lambda: forking.code is not None)


def in_the_key_of_a_rate(forking):
    queue = made()
    rate = RateLimiter(queue.store, "r", 100, 1)
    with Consumer(queue, lambda _: None, rate=rate, per_key=lambda one: forking(one) or "key", upkeep=False):
        until(lambda: forking.code is not None)


def in_a_typed_payload(forking):
    @dataclass
    class Order:
        number: int

        def __post_init__(self):
            forking()

    queue = made()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typed = queue.registry.create(QueueConfig("q", shards=1, unsafe_limits=True, codec=Order))
    with Consumer(typed, lambda _: None, upkeep=False):
        until(lambda: forking.code is not None)


def in_the_leaders_function(forking):
    election = LeaseElection(MemoryStore(), "office")
    election.start(forking)
    until(lambda: forking.code is not None)
    election.stop()


def in_the_job_of_one_farm(forking):
    election = GlobalElection({"iad": MemoryStore()}, "office", zookeeper=KazooClient("h:1"), farm_id="iad")
    election._client = election._line.client = Client(Zoo(), session=1)

    def job(leadership):
        forking(leadership)
        if forking.code is not None:  # the parent, which has nothing more to do
            election._stop.set()
            election._end_term()

    election.run_in_one_farm(job, timeout=20)


def in_the_callback_of_a_publication(forking):
    queue = made()
    with queue.publisher() as publisher:
        with queue.store._lock:  # nothing is stored before the callback is there
            publisher.publish(1).add_done_callback(forking)
        until(lambda: forking.code is not None)


def in_the_report_of_a_wait_in_a_thread_of_ours(forking):
    latch = CountDownLatch.create(MemoryStore(), "c", "l", 1)
    SYSTEM.spawn(lambda: latch.wait(0.1, progress=forking), "waits").join(20)


def on_a_loop(forking, handler, *, codec="json", per_key=None):
    """An async consumer of that handler, until the fork has been and its parent has gone on."""

    async def main():
        store = aio.Store(MemoryStore())
        registry = aio.QueueRegistry(store, "c")
        await (await registry.create(QueueConfig("q", shards=1))).publish({"number": 1})
        queue = await registry.create(QueueConfig("q", shards=1, codec=codec))
        rate = None if per_key is None else aio.RateLimiter(store, "r", 100, 1)
        async with aio.Consumer(queue, handler, upkeep=False, rate=rate, per_key=per_key):
            while forking.code is None:
                await asyncio.sleep(0.01)
        await store.close()

    asyncio.run(main())


def in_an_async_handler(forking):
    async def handler(delivery):
        forking()

    on_a_loop(forking, handler)


def in_a_sync_handler_on_a_loop(forking):
    on_a_loop(forking, forking)


def in_the_key_of_a_rate_on_a_loop(forking):
    async def handler(delivery):
        pass

    on_a_loop(forking, handler, per_key=lambda one: forking(one) or "key")


def in_a_typed_payload_on_a_loop(forking):
    @dataclass
    class Order:
        number: int

        def __post_init__(self):
            forking()

    async def handler(delivery):
        pass

    on_a_loop(forking, handler, codec=Order)


def in_a_function_that_a_loop_calls(forking):
    asyncio.run(aio.call(forking))


def in_an_async_function_of_the_leader(forking):
    async def main():
        async def leads(leadership):
            forking()

        election = aio.LeaseElection(aio.Store(MemoryStore()), "office")
        await election.start(leads)
        while forking.code is None:
            await asyncio.sleep(0.01)
        await election.stop()

    asyncio.run(main())


PLACES = [
    in_a_handler, in_the_handler_of_a_batch, in_an_ordered_handler, in_the_key_of_a_rate, in_a_typed_payload,
    in_the_leaders_function, in_the_job_of_one_farm, in_the_callback_of_a_publication,
    in_the_report_of_a_wait_in_a_thread_of_ours, in_an_async_handler, in_a_sync_handler_on_a_loop,
    in_the_key_of_a_rate_on_a_loop, in_a_typed_payload_on_a_loop, in_a_function_that_a_loop_calls,
    in_an_async_function_of_the_leader,
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "ends"),
    [
        *((place, "returns") for place in PLACES),
        (in_a_handler, "raises"),
        (in_a_handler, "exits"),
        (in_an_async_handler, "raises"),
        (in_a_sync_handler_on_a_loop, "exits"),
        (in_the_callback_of_a_publication, "raises"),  # after a return the thread, and so the child, would end anyhow
    ],
)
def test_a_child_forked_in_user_code_ends_with_it(place, ends):
    leave, code = ENDS[ends]
    forking = Forking(leave)
    place(forking)
    assert forking.code == code


def test_in_a_thread_of_the_users_a_child_goes_on_with_the_users_program():
    election, parent = LeaseElection(MemoryStore(), "office"), os.getpid()

    def work(_):
        return os.fork()

    child = election.run(work)
    if os.getpid() != parent:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
