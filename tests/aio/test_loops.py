"""Loops and threads: waiting costs no thread, nothing blocks a loop, loops share a store, and none leaves anything."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path

import pytest

from latchwork import aio, coord
from latchwork.aio import lag
from latchwork.aio.bridge import Gate
from latchwork.aio.pool import Pool
from latchwork.aio.seams import LoopLock, LoopSeams
from latchwork.deadline import call_time, present
from latchwork.errors import InvalidRequest, LockUnavailable
from latchwork.queue import QueueConfig
from latchwork.seams import SYSTEM, Seams
from latchwork.store import Add, Exists, Key, MemoryStore, Put, SQLiteStore
from latchwork.store.port import DelegatingStore
from latchwork.testing import ManualClock
from tests.support.scale import scaled
from tests.support.waiting import until

KEY = Key("things", "one")


class Slow(DelegatingStore):
    """A store whose every call takes a moment, in which the thread sleeps."""

    def __init__(self, inner, seconds=0.05):
        super().__init__(inner)
        self.seconds, self.threads = seconds, set()

    def _operate(self, update):
        self.threads.add(threading.current_thread())
        time.sleep(self.seconds)
        return super()._operate(update)


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


class Gated(DelegatingStore):
    """A store whose calls wait, each in its thread, until the loop lets them go on; a blocked loop never does."""

    def __init__(self, inner, patience=10.0):
        super().__init__(inner)
        self.patience, self.begun, self.gate = patience, 0, threading.Semaphore(0)

    def _operate(self, update):
        self.begun += 1
        assert self.gate.acquire(timeout=self.patience), "the loop is blocked"
        return super()._operate(update)


async def some_rounds():
    """Let the loop do all that is due, and what comes of that."""
    for _ in range(20):
        await asyncio.sleep(0)


async def done_on_a_free_loop(work, gated):
    """Run it. Each call goes on after some rounds of the loop, in which the other tasks get to the mutex."""
    task, let = asyncio.ensure_future(work), 0
    while not task.done():
        if gated.begun > let:
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert gated.begun == let + 1, "only one of them has the mutex"
            let += 1
            gated.gate.release()
        await asyncio.sleep(0.001)
    return await task


def test_a_call_of_the_store_does_not_block_the_loop(run):
    gated = Gated(MemoryStore())
    store = aio.Store(gated)
    store.bridged._is_instant = False

    async def main():
        await done_on_a_free_loop(store.operate(KEY, Put("n", 1), exists=Exists.ANY), gated)
        await store.close()
        assert gated.begun == 1

    run(main())


def test_no_more_threads_than_are_allowed_make_calls(run):
    slow = Slow(MemoryStore(), 0.01)
    store = aio.Store(slow, threads=3)
    store.bridged._is_instant = False

    async def main():
        await asyncio.gather(*(store.operate(Key("s", str(n)), Put("n", n), exists=Exists.ANY) for n in range(40)))
        await store.close()
        with pytest.raises(InvalidRequest, match="was closed"):
            await store.get(KEY)

    run(main())
    assert 1 <= len(slow.threads) <= 3


def test_a_call_for_which_no_thread_can_be_started_is_not_made_later(tmp_path, run, monkeypatch):
    begin, refused = Seams.spawn, []

    def spawn(self, job, name):
        if name == "latchwork-aio" and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        return begin(self, job, name)

    async def main():
        async with aio.Store(SQLiteStore(tmp_path / "store.db", synchronous="off")) as store:
            with pytest.raises(RuntimeError, match="new thread"):
                await store.operate(KEY, Add("n", 1), exists=Exists.ANY)
            await store.operate(KEY, Add("n", 1), exists=Exists.ANY)
            assert (await store.get(KEY)).bins["n"] == 1

    monkeypatch.setattr(Seams, "spawn", spawn)
    run(main())


def test_while_a_loop_does_not_answer_its_lag_is_shown_and_grows(monkeypatch):
    monkeypatch.setattr(lag, "LONG", 0.01)
    lags, enough = [], threading.Event()

    class Notes(Seams):
        def note(self, event, value=1, /, **labels):
            lags.append((event, value))
            if len(lags) == 3:
                enough.set()

    class Blocked:
        def is_closed(self):
            return False

        def call_soon_threadsafe(self, answer):
            """It never comes to that."""

    watch = lag.LoopWatch(Blocked(), Notes(), threading.get_ident())
    watch.join("me")
    shown = enough.wait(10)
    watch.leave("me")
    assert shown, "the gauge says what it said before the loop was blocked"
    (first, second, third), names = [value for _, value in lags[:3]], {event for event, _ in lags}
    assert names == {"loop_lag"}
    assert 0.01 <= first < second < third


class Threads(Seams):
    """Counts the threads that are begun. second: what the second one raises as it is begun."""

    def __init__(self, second=None):
        super().__init__()
        self.begun, self.second = 0, second

    def spawn(self, run, name):
        self.begun += 1
        if self.begun == 2 and self.second is not None:
            raise self.second
        return super().spawn(run, name)


def test_an_interrupt_as_a_thread_is_started_is_raised():
    seams = Threads(KeyboardInterrupt())
    pool, goes_on, ended, done = Pool(seams, 2, "pool"), threading.Event(), threading.Event(), []
    pool.submit(lambda: goes_on.wait(10))
    with pytest.raises(KeyboardInterrupt):
        pool.submit(lambda: done.append(True))
    goes_on.set()
    pool.submit(ended.set)
    assert ended.wait(10)
    assert done == [], "its caller was interrupted"
    pool.close()


def test_a_job_for_which_no_thread_can_be_started_is_done_by_another_that_there_is():
    seams = Threads(RuntimeError("can't start new thread"))
    pool, goes_on, done = Pool(seams, 2, "pool"), threading.Event(), threading.Event()
    pool.submit(lambda: goes_on.wait(10))
    pool.submit(done.set)
    goes_on.set()
    assert done.wait(10)
    pool.close()


def test_jobs_that_come_one_after_another_are_done_by_one_thread():
    seams = Threads()
    pool = Pool(seams, 16, "pool")
    for _ in range(30):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(10)
        until(lambda: pool._idle == pool._threads)
    assert seams.begun == 1
    pool.close()


def test_a_job_waits_for_no_other_while_the_pool_may_have_more_threads():
    pool = Pool(SYSTEM, 2, "pool")
    jobs, taken, goes_on, done = pool._jobs, threading.Event(), threading.Event(), threading.Event()

    class Jobs:
        """As they are; the first thread that takes one is stopped just then."""

        put, empty, qsize = staticmethod(jobs.put), staticmethod(jobs.empty), staticmethod(jobs.qsize)

        def get(self, timeout):
            job = jobs.get(timeout=timeout)
            if not taken.is_set():
                taken.set()
                goes_on.wait()
            return job

    pool._jobs = Jobs()
    pool.submit(lambda: done.wait(10))
    taken.wait()
    pool.submit(done.set)
    goes_on.set()
    assert done.wait(5), "the second job waits for the end of the first one"
    pool.close()


def test_a_thousand_tasks_wait_in_one_loop_without_a_thread(store, run):
    async def main():
        before = threading.active_count()
        latch = await aio.CountDownLatch.create(store, "c", "l", 1)
        waits = [asyncio.ensure_future(latch.wait(25)) for _ in range(1_000)]
        await asyncio.sleep(0.3)
        assert threading.active_count() - before <= 16
        await latch.count_down()
        assert set(await asyncio.gather(*waits)) == {True}

    run(main())


def test_tasks_that_contend_for_one_lock_hold_it_one_after_another(store, run):
    async def main():
        inside = done = 0

        async def work():
            nonlocal inside, done
            async with aio.FencedLock(store, "x"):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.001)
                inside, done = inside - 1, done + 1

        await asyncio.gather(*(work() for _ in range(12)))
        assert done == 12

    run(main())


def test_a_block_belongs_to_its_task_and_a_second_one_of_it_is_refused(memory, run):
    async def main():
        lock = aio.FencedLock(memory, "x")
        async with lock as grant:
            assert lock.grant.fence == grant.fence
            with pytest.raises(InvalidRequest, match="not re-entrant"):
                await lock.__aenter__()

            async def other():
                assert lock.grant is None
                with pytest.raises(LockUnavailable):
                    await lock.acquire(0.05)

            await asyncio.create_task(other())
        assert lock.grant is None

    run(main())


def test_a_task_that_waits_for_the_loss_of_a_grant_is_woken_by_the_thread_that_renews_it(store, run):
    async def main():
        lock = aio.FencedLock(store, "x", lease=6.0)
        grant = await lock.acquire(1, keep_alive=True)
        lost = asyncio.ensure_future(grant.lost.wait(5.5))  # for less than the lease, whose end would wake it too
        await asyncio.sleep(0.05)
        assert not lost.done()
        await store.delete(Key("latchwork_locks", "x"))
        assert await lost is True
        assert await grant.lost.wait(0) is True
        assert grant.lost.is_set()

    run(main())


def test_a_mutex_that_is_held_across_a_call_of_the_store_delays_a_task_and_not_the_loop(run):
    gated = Gated(MemoryStore())
    store = aio.Store(gated)
    store.bridged._is_instant = False
    mutex = store.bridged.seams.lock()
    assert isinstance(mutex, LoopLock)

    async def main():
        def held(n):
            with mutex:
                store.of.operate(Key("s", str(n)), Put("n", n), exists=Exists.ANY)
                return n

        async def work():
            return await asyncio.gather(*(store._run(lambda n=n: held(n)) for n in range(3)))

        assert await done_on_a_free_loop(work(), gated) == [0, 1, 2]
        await store.close()

    run(main())


def test_a_transaction_of_the_store_belongs_to_its_thread_and_a_task_has_none(tmp_path, run):
    store = aio.Store(SQLiteStore(tmp_path / "store.db", synchronous="off"))

    def fails_after_writing(name):
        with suppress(ZeroDivisionError), store.of.together():
            store.of.operate(Key("s", name), Put("n", 1), exists=Exists.ANY)
            raise ZeroDivisionError

    async def main():
        await store._run(lambda: fails_after_writing("task"))
        assert await store.get(Key("s", "thread")) is None
        assert (await store.get(Key("s", "task"))).bins == {"n": 1}
        await store.close()

    fails_after_writing("thread")
    run(main())


def test_a_mutex_is_waited_for_no_longer_than_its_timeout(run):
    seams = LoopSeams(SYSTEM)
    mutex, store = seams.lock(), aio.Store(MemoryStore())

    async def main():
        mutex.acquire()
        assert [mutex.acquire(False), mutex.acquire(timeout=0.01)] == [False, False], "as a thread takes it"
        assert await store._run(lambda: mutex.acquire(False)) is False
        assert await store._run(lambda: mutex.acquire(timeout=0.05)) is False
        asyncio.get_running_loop().call_later(0.05, mutex.release)
        assert await store._run(lambda: mutex.acquire(timeout=5)) is True

    run(main())


def test_a_mutex_goes_to_the_next_task_if_the_one_that_is_woken_is_closed(run):
    mutex, store = LoopSeams(SYSTEM).lock(), aio.Store(MemoryStore())

    def held():
        with mutex:
            return True

    async def main():
        mutex.acquire()
        closed = store._run(held)
        closed.send(None)
        waiting = asyncio.ensure_future(store._run(held))
        await some_rounds()
        mutex.release()  # which wakes the first of them
        closed.close()
        await some_rounds()
        done = waiting.done()
        with mutex:
            pass  # whoever releases it wakes the next: no wait of this test outlives it
        assert (await waiting, done) == (True, True)

    run(main())


async def looks_at_a_held_mutex():
    """How often three tasks have looked at a mutex that was free once, and is held by another one since."""
    made, store = [], aio.Store(MemoryStore())

    class Counted(Gate):
        __slots__ = ()

        def __init__(self, loop):
            super().__init__(loop)
            made.append(self)

    def held():
        with mutex:
            return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("latchwork.aio.seams.Gate", Counted)
        mutex = LoopSeams(SYSTEM).lock()
        mutex.acquire()
        waiting = [asyncio.ensure_future(store._run(held)) for _ in range(3)]
        await asyncio.sleep(0)
        mutex.release()  # one of them is woken
        assert mutex.acquire(False), "and another one is faster"
        for _ in range(50):
            await asyncio.sleep(0)
        looks = len(made)
        mutex.release()
        assert await asyncio.gather(*waiting) == [True] * 3
        return looks


def test_tasks_that_wait_for_a_mutex_do_not_wake_each_other_while_it_is_held(run):
    assert run(looks_at_a_held_mutex()) == 4, "one has looked once more, and waits again"


def test_threads_and_tasks_wait_for_one_event(run):
    store, seams = aio.Store(MemoryStore()), LoopSeams(SYSTEM)

    async def main():
        for set_by_thread in (True, False):
            event, woken = seams.event(), []
            thread = threading.Thread(target=lambda event=event, woken=woken: woken.append(event.wait(10)))
            thread.start()
            tasks = [asyncio.ensure_future(store._run(lambda event=event: event.wait(10))) for _ in range(5)]
            await asyncio.sleep(0.02)
            if set_by_thread:
                await asyncio.to_thread(event.set)
            else:
                event.set()
            assert await asyncio.gather(*tasks) == [True] * 5
            await asyncio.to_thread(thread.join)
            assert woken == [True]
        event = seams.event()
        assert await store._run(lambda: event.wait(0.01)) is False

    run(main())


def test_an_event_that_is_cleared_at_once_has_woken_the_tasks_that_waited(run):
    store, seams = aio.Store(MemoryStore()), LoopSeams(SYSTEM)

    async def main():
        event = seams.event()
        tasks = [asyncio.ensure_future(store._run(lambda: event.wait(10))) for _ in range(2)]
        await some_rounds()
        event.set()
        event.clear()
        assert await asyncio.gather(*tasks) == [True] * 2

    run(main())


def test_an_event_that_is_set_as_a_task_begins_to_wait_is_not_missed(run):
    store, seams = aio.Store(MemoryStore()), LoopSeams(SYSTEM)

    async def main():
        for _ in range(200):
            event = seams.event()
            thread = threading.Thread(target=event.set)
            thread.start()
            assert await store._run(lambda event=event: event.wait(5)) is True
            thread.join()

    run(main())


def test_on_a_clock_that_stands_still_a_wait_lets_other_tasks_go_on_and_moves_the_clock(run):
    clock = ManualClock()
    event, store, others = LoopSeams(clock).event(), aio.Store(MemoryStore(clock)), []
    began = clock.monotonic()

    async def main():
        asyncio.get_running_loop().call_soon(others.append, "went on")
        assert await store._run(lambda: (event.wait(5), others.copy())) == (False, ["went on"])
        assert event.wait(5) is False, "as a thread waits"
        assert clock.monotonic() - began == 10
        event.set()
        assert await store._run(lambda: event.wait(5)) is True

    run(main())


def test_no_wake_up_of_many_threads_is_lost(run):
    store, seams = aio.Store(MemoryStore()), LoopSeams(SYSTEM)

    async def main():
        for _ in range(5):
            events = [seams.event() for _ in range(400)]
            tasks = [asyncio.ensure_future(store._run(lambda event=event: event.wait(20))) for event in events]
            await asyncio.sleep(0)

            def set_some(first, events=events):
                for event in events[first::8]:
                    event.set()

            threads = [threading.Thread(target=set_some, args=(first,)) for first in range(8)]
            for thread in threads:
                thread.start()
            assert await asyncio.wait_for(asyncio.gather(*tasks), 10) == [True] * 400
            for thread in threads:
                thread.join()

    run(main())


def test_the_deadline_of_a_verb_reaches_its_calls_in_the_pool_and_ends_with_it(run):
    seen = []

    class Asks(DelegatingStore):
        def _get(self, key, bins):
            seen.append(call_time())
            return super()._get(key, bins)

    store = aio.Store(Asks(MemoryStore()))
    store.bridged._is_instant = False

    async def main():
        latch = aio.CountDownLatch.get(store, "c", "l")
        assert await latch.wait(0.1, create_timeout=None) is False
        assert present() is None
        await store.get(KEY)
        await store.close()

    run(main())
    assert all(time is not None and time < 1 for time in seen[:-1])
    assert seen[-1] is None


def test_what_is_done_apart_runs_in_another_thread_for_a_task_and_in_the_same_one_for_a_thread(memory, run):
    seams, this = memory.bridged.seams, threading.get_ident()

    async def main():
        assert await memory._run(lambda: seams.apart(threading.get_ident)) != this

    run(main())
    assert seams.apart(threading.get_ident) == this


def test_a_variable_of_the_task_is_seen_by_its_calls(run):
    at, seen = ContextVar("at", default="nowhere"), []

    class Asks(DelegatingStore):
        def _get(self, key, bins):
            seen.append(at.get())
            return super()._get(key, bins)

    store = aio.Store(Asks(MemoryStore()))
    store.bridged._is_instant = False

    async def main():
        async def one(value):
            at.set(value)
            await store.get(KEY)

        await asyncio.gather(one("a"), one("b"))
        await store.close()

    run(main())
    assert sorted(seen) == ["a", "b"]


def test_two_loops_in_two_threads_share_a_store(store):
    count, failures = [], []

    async def work():
        for _ in range(10):
            async with aio.FencedLock(store, "shared"):
                count.append(len(count))
                await asyncio.sleep(0)

    def thread():
        try:
            asyncio.run(asyncio.wait_for(work(), 30))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=thread) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []
    assert count == list(range(20))


def test_a_thousand_loops_leave_no_thread_and_no_connection(tmp_path):
    url = f"sqlite:{tmp_path}/s.db?synchronous=off"

    async def main(number):
        async with aio.connect(url) as store:
            async with aio.FencedLock(store, "x") as grant:
                assert grant.fence
            await store.operate(KEY, Put("n", number), exists=Exists.ANY)

    asyncio.run(main(0))
    threads, files = threading.active_count(), open_files()
    for number in range(scaled(1_000)):
        asyncio.run(main(number))
    end = time.monotonic() + 15
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= threads, threading.enumerate()
    assert open_files() <= files


def test_a_store_that_nobody_closes_ends_its_threads_when_they_are_idle(monkeypatch, run):
    from latchwork.aio import pool

    monkeypatch.setattr(pool, "IDLE", 0.05)
    store = aio.Store(MemoryStore())
    store.bridged._is_instant = False
    run(store.get(KEY))
    end = time.monotonic() + 10
    while store._pool._threads and time.monotonic() < end:
        time.sleep(0.01)
    assert store._pool._threads == 0
    assert run(store.get(KEY)) is None, "they are started again"


def test_uvloop_runs_the_same_verbs(store):
    uvloop = pytest.importorskip("uvloop")

    async def main():
        async with aio.FencedLock(store, "x"):
            with pytest.raises(LockUnavailable):
                await aio.FencedLock(store, "x").acquire(0.1)
        task = asyncio.ensure_future(aio.CountDownLatch.get(store, "c", "none").wait(20, create_timeout=None))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_task_that_is_begun_while_a_latch_reports_its_progress_has_not_the_time_of_that_wait(memory, run):
    async def main():
        latch = await aio.CountDownLatch.create(memory, "c", "l", 2)
        begun, limits = [], []

        async def tell():
            limits.append(present())

        assert not await latch.wait(0.05, progress=lambda _: begun.append(asyncio.create_task(tell())))
        await asyncio.gather(*begun)
        assert limits == [None]

        async def tell_all(_):
            await tell()

        with pytest.raises(InvalidRequest, match="async"):
            await latch.wait(0.05, progress=tell_all)

    run(main())


def test_a_call_of_what_is_awaited_is_refused_as_it_would_do_nothing(memory, run):
    async def main():
        queue = await aio.QueueRegistry(memory, "c").create(QueueConfig("q", shards=1))
        for wrong in (queue.publish, asyncio.sleep, 3):
            with pytest.raises(InvalidRequest):
                await aio.call(wrong, 0)
        assert (await queue.depth()).ready == 0

    run(main())


def test_any_blocking_call_runs_in_a_thread_and_is_finished_though_it_is_cancelled(run, tmp_path):
    from latchwork.queue import LargeQueue

    store = SQLiteStore(tmp_path / "s.db", synchronous="off")

    async def main():
        bus = await aio.call(LargeQueue.create, store, "bus", 100)
        assert await aio.call(bus.enqueue, "a", timeout=5) == 0
        assert await aio.call(lambda: present().left()) is None, "its own timeout is the only one"
        begun, goes_on, done = threading.Event(), threading.Event(), []
        task = asyncio.ensure_future(aio.call(lambda: (begun.set(), goes_on.wait(20), done.append(True))))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await some_rounds()
        assert not task.done(), "its call is not finished"
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [True]

    run(main())
    store.close()


@pytest.mark.parametrize("raised", [TimeoutError, ValueError])
def test_an_async_function_of_a_leader_that_raises_gives_up_its_term_and_leads_again(memory, run, raised):
    async def main():
        epochs = []

        async def lead(leadership):
            epochs.append(leadership.epoch)
            if len(epochs) == 1:
                raise raised("what it waited for did not come")  # `asyncio.timeout` raises `TimeoutError`

        election = aio.LeaseElection(memory, "e", lease=2)
        await election.start(lead)
        while len(epochs) < 2:
            await asyncio.sleep(0.01)
        assert epochs[1] > epochs[0]
        assert await election.stop(10)

    run(main())


def test_the_same_lock_is_taken_by_threads_and_tasks_in_turn(sync_store, run):
    async def main():
        held = coord.FencedLock(sync_store, "x").try_acquire()
        store = aio.Store(sync_store)
        waits = asyncio.ensure_future(aio.FencedLock(store, "x").acquire(10))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(held.release)
        assert (await waits).fence > held.fence
        store._pool.close()

    run(main())
