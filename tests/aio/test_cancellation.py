"""Cancelled anywhere: at every await point of every verb, also in its ways out, several times, and with a store that
fails meanwhile. The world is checked after each (`verbs.py`); `python -m tests.aio.table` prints all of it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

import pytest

from latchwork import aio, coord
from latchwork.deadline import call_time
from latchwork.errors import OutcomeUnknown, Unavailable
from latchwork.queue import QueueConfig
from latchwork.retry import RetryPolicy
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing import FaultyStore, ManualClock
from tests.support import matrix

from .striking import Striker, store_of
from .table import plans_of, row_of
from .test_loops import some_rounds
from .verbs import CASES

KEY = Key("things", "one")
needs_groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="task groups and asyncio.timeout came with 3.11")


def lasting(name):
    """The marker of cases whose consumers stop in real time."""
    return pytest.mark.long if name.startswith(("Consumer", "Worker")) else ()


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


@pytest.fixture(autouse=True)
def short_past(monkeypatch):
    """As if nothing could be late by a day: a search for delayed messages looks at fewer buckets."""
    monkeypatch.setattr("latchwork.queue.sharded.delayed.view.MOST_AHEAD", 7_200.0)


@pytest.mark.parametrize("name", [pytest.param(name, marks=lasting(name)) for name in CASES])
def test_a_verb_that_is_cancelled_at_any_await_point_leaves_nothing_behind_and_says_how_it_ended(name):
    row = row_of(name, plans=("well",), some=lambda points: matrix.sample(points, name, least=12))
    assert row.runs > 0, "it has await points"
    assert row.troubles == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "plan"),
    [pytest.param(name, plan, marks=lasting(name)) for name in CASES for plan in plans_of(name) if plan != "well"],
)
def test_a_cancel_while_the_store_fails_leaves_nothing_behind_and_keeps_what_is_unknown(name, plan):
    def some(points):
        return matrix.sample(points, f"{name}, {plan}", least=5)

    assert row_of(name, plans=(plan,), some=some).troubles == []


@pytest.mark.parametrize("name", ["Grant.release", "Membership.leave", "Delivery.ack", "QueueBatch.close"])
def test_a_way_out_that_is_cancelled_is_sent_again_until_it_is_answered(name):
    assert set(row_of(name, plans=("well", "reply lost", "request lost")).ends) == {"done"}


def test_a_cancel_after_doubt_has_the_unknown_outcome():
    base = MemoryStore(ManualClock())
    faulty = FaultyStore(base, {1: "reply_lost"} | dict.fromkeys(range(2, 60), "dropped"))

    async def main():
        return await Striker({2}).run(lambda: aio.FencedLock(store_of(faulty), "x").acquire(60))

    struck = asyncio.run(main())
    assert isinstance(struck.ended.error, OutcomeUnknown)


def test_a_call_that_is_under_way_is_finished_and_its_reply_is_of_no_other_call(run, memory):
    """What some clients of other stores get wrong: the next call on the connection gets the reply of the cancelled."""

    faulty = FaultyStore(MemoryStore())
    store = aio.Store(faulty)
    store.bridged._is_instant = False

    async def cancelled_under_way():
        begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
        faulty.next(lambda: (begun.set(), goes_on.wait(20)))
        task = asyncio.ensure_future(store.get(Key("s", "a")))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        faulty.next(lambda: (goes_on.set(), ended.wait(20)))  # it has begun when the other one gets its reply
        found = asyncio.ensure_future(store.get(Key("s", "b")))
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        ended.set()
        assert aio.ended(cancelled.value).result.bins == {"n": 1}
        assert (await found).bins == {"n": 2}

    async def main():
        await store.operate(Key("s", "a"), Put("n", 1), exists=_any())
        await store.operate(Key("s", "b"), Put("n", 2), exists=_any())
        for _ in range(5):
            await cancelled_under_way()
        await store.close()

    run(main())


@needs_groups
def test_a_timeout_around_a_verb_is_no_cancel_of_its_task(store, run):
    async def main():
        other = await aio.FencedLock(store, "busy").acquire(1)
        lock = aio.FencedLock(store, "busy")

        async def waits():
            async with asyncio.timeout(0.1):
                await lock.acquire()

        with pytest.raises(TimeoutError):
            await waits()
        assert asyncio.current_task().cancelling() == 0
        await other.release()

        async def block():
            async with asyncio.timeout(0.1), lock:
                await asyncio.sleep(60)

        with pytest.raises(TimeoutError):
            await block()
        assert asyncio.current_task().cancelling() == 0
        async with asyncio.timeout(20):  # nested: the inner one ends first, and the outer one goes on
            with pytest.raises(TimeoutError):
                await block()
            assert await aio.FencedLock(store, "busy").try_acquire() is not None, "each block gave the lock back"

    run(main())


def test_a_block_that_is_cancelled_says_that_its_release_has_failed(run):
    faulty = FaultyStore(MemoryStore())
    faulty.policy = RetryPolicy(attempts=1)
    store, held = aio.Store(faulty), asyncio.Event()

    async def holds():
        async with aio.FencedLock(store, "x", lease=600):
            faulty.next("dropped")
            held.set()
            await asyncio.sleep(60)

    async def main():
        task = asyncio.ensure_future(holds())
        await held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        return aio.ended(cancelled.value)

    assert isinstance(run(main()).error, Unavailable)


@needs_groups
def test_a_sibling_that_fails_in_a_task_group_leaves_no_lock_of_the_others(store, run):
    async def main():
        started = asyncio.Event()

        async def holds():
            async with aio.FencedLock(store, "g"):
                started.set()
                await asyncio.sleep(60)

        async def waits():
            await started.wait()
            await aio.FencedLock(store, "g").acquire(30)

        async def fails():
            await started.wait()
            await asyncio.sleep(0.05)
            raise KeyError("sibling")

        async def all_three():
            async with asyncio.TaskGroup() as group:
                for work in (holds, waits, fails):
                    group.create_task(work())

        with pytest.raises(Exception, match="unhandled errors in a TaskGroup") as failed:
            await all_three()
        assert failed.value.subgroup(KeyError) is not None
        assert await aio.FencedLock(store, "g").try_acquire() is not None

    run(main())


def test_an_election_that_is_cancelled_while_it_leads_gives_its_term_up_once_the_function_has_ended(store, run):
    async def main():
        steps = []

        async def lead(leadership):
            steps.append("leads")
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                steps.append("cleared up" if not leadership.lost.is_set() else "lost before it had cleared up")

        task = asyncio.ensure_future(aio.LeaseElection(store, "e").run(lead))
        while not steps:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert steps == ["leads", "cleared up"]
        assert await aio.LeaseElection(store, "e").run(_epoch, timeout=5) > 0

    run(main())


def test_what_a_leaders_function_raises_when_it_is_cancelled_is_the_cause(store, run):
    async def main():
        begun = asyncio.Event()

        async def lead(leadership):
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                raise ValueError("of the user's")

        async def runs():
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await aio.LeaseElection(store, "e").run(lead)
            return aio.ended(cancelled.value), type(cancelled.value.__cause__)

        task = asyncio.ensure_future(runs())
        await begun.wait()
        task.cancel()
        assert await task == (aio.Ended(), ValueError)

    run(main())


class _Hesitant(MemoryStore):
    """A store that answers only those writes that have more than a second to wait for it, once `hesitates` is set."""

    hesitates = False

    def _operate(self, update):
        time_left = call_time()
        if self.hesitates and time_left is not None and time_left < 1:
            raise Unavailable("it was not waited for")
        return super()._operate(update)


@pytest.mark.parametrize("kind", ["a leader", "a handler", "a handler in a thread"])
def test_a_users_function_has_its_own_time_to_clean_up_when_the_verb_that_awaits_it_is_cancelled(kind):
    base = _Hesitant()
    begun, cancelled, cleaned = threading.Event(), threading.Event(), threading.Event()

    async def main():
        store, task = aio.Store(base), None

        async def work(_):
            try:
                async with aio.FencedLock(store, "x"):
                    begun.set()
                    await asyncio.sleep(60)
            finally:
                cleaned.set()

        def in_a_thread(_):
            with coord.FencedLock(base, "x").acquire(timeout=1):
                begun.set()
                cancelled.wait(20)
            cleaned.set()

        if kind == "a leader":
            task = asyncio.create_task(aio.LeaseElection(store, "e").run(work))
        else:
            queue = await aio.QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
            await queue.publish(1)
            handler = work if kind == "a handler" else in_a_thread
            await aio.Consumer(queue, handler, concurrency=1, upkeep=False).start()
        while not begun.is_set():
            await asyncio.sleep(0.01)
        base.hesitates = True
        if task is None:  # its worker, which the end of a loop cancels
            (task,) = (one for one in asyncio.all_tasks() if one.get_name().startswith("q-worker"))
        task.cancel()
        await some_rounds()
        cancelled.set()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert cleaned.wait(20)
    base.hesitates = False
    assert coord.FencedLock(base, "x").try_acquire(), "it was released"


def test_a_cancel_is_raised_though_the_users_function_fails_meanwhile(run):
    async def main():
        begun, cancelled, ends = threading.Event(), threading.Event(), []

        def fails():
            begun.set()
            cancelled.wait(20)
            raise ValueError("of the user's")

        async def work():
            for _ in range(3):
                try:
                    await aio.call(fails)
                except Exception:  # as a program does that goes on after a failure
                    pass
                except asyncio.CancelledError as failure:
                    ends.append((aio.ended(failure), type(failure.__cause__)))
                    raise

        task = asyncio.ensure_future(work())
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await some_rounds()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ends == [(aio.Ended(), ValueError)]

    run(main())


def test_a_message_given_to_a_publisher_is_published_though_its_wait_is_cancelled(sync_store, run):
    faulty, cancelled = FaultyStore(sync_store), threading.Event()

    async def main():
        store = aio.Store(faulty)
        queue = await aio.QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
        faulty.next(lambda: cancelled.wait(20))  # the publisher's first call
        async with queue.publisher() as publisher:
            publication = await publisher.publish(1)
            task = asyncio.ensure_future(publication.result())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            cancelled.set()
            assert await publication == publication.message_id
        assert [one.payload for one in await queue.receive(5)] == [1]
        store._pool.close()

    run(main())


def test_a_coroutine_that_is_closed_ends_its_verb_and_what_it_clears_up_blocks(memory, run):
    ended = []

    async def main():
        semaphore = aio.Semaphore(memory, "s", permits=1)
        held = await semaphore.acquire()

        async def waits():
            try:
                await aio.Semaphore(memory, "s", permits=1).acquire(1, timeout=20)
            finally:
                ended.append(True)

        waiting = waits()
        future = waiting.send(None)  # it has begun, and waits
        future.cancel()
        waiting.close()
        await held.release()

    run(main())
    assert ended
    assert coord.Semaphore(memory.bridged.inner, "s", permits=1).try_acquire() is not None


def test_on_the_real_server_a_cancelled_acquire_leaves_no_lease(aerospike_store, run):
    """Cancelled after a time that grows by a fraction of a call, so at any moment of it."""

    async def main():
        async with aio.Store(aerospike_store) as store:
            for step in range(60):
                task = asyncio.ensure_future(aio.FencedLock(store, "real").acquire(5, keep_alive=True))
                await asyncio.sleep(step * 0.0001)
                task.cancel()
                try:
                    await (await task).release()  # it was faster
                except asyncio.CancelledError as cancelled:
                    ended = aio.ended(cancelled)
                    assert ended is None or ended.undone or not ended.returned
                free = await aio.FencedLock(store, "real").try_acquire()
                assert free is not None, f"held after a cancel {step}"
                await free.release()

    run(main())


def test_on_the_real_server_a_cancelled_queue_loses_no_message_and_counts_no_attempt(aerospike_store, run):
    """Publish, receive and ack, each cancelled after a time that grows by a fraction of a call."""

    async def cut(work, after):
        """What the verb has done, also where it was cancelled: its result, or None."""
        task = asyncio.ensure_future(work)
        await asyncio.sleep(after)
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError as cancelled:
            ended = aio.ended(cancelled)
            return ended.result if ended is not None and ended.returned and not ended.undone else None

    async def main():
        async with aio.Store(aerospike_store) as store:
            registry = aio.QueueRegistry(store, f"cut{aerospike_store.seams.unique()[:8]}")
            queue = await registry.create(QueueConfig("q", shards=1))
            published, done = set(), set()
            for step in range(40):
                message_id = await cut(queue.publish(step), step * 0.0001)
                published |= {message_id} if message_id else set()
            for step in range(40):
                for delivery in await cut(queue.receive(2), step * 0.0001) or ():
                    assert delivery.attempts == 1, "an earlier receive that was cut counts no attempt"
                    if await cut(_settled(delivery), step * 0.0001) or delivery.settled:
                        done.add(delivery.message_id)
            while found := await queue.receive(100, timeout=0.5):
                assert {one.attempts for one in found} == {1}
                done |= {one.message_id for one in found}
                await queue.ack_many(found)
            assert done == published, "what was published is handled, and nothing else"

    run(main())


async def _settled(delivery):
    await delivery.ack()
    return True


async def _epoch(leadership):
    return leadership.epoch


def _any():
    from latchwork.store import Exists

    return Exists.ANY
