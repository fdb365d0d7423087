"""Async handlers: many at a time, given back when they are cancelled, extended while the loop is busy."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from contextvars import ContextVar
from datetime import timedelta

import pytest

from latchwork import aio, background
from latchwork.aio import consumer as aio_consumer
from latchwork.aio.pool import Pool
from latchwork.coord import RateLimiter
from latchwork.errors import Interrupted, InvalidMessageHandler, InvalidRequest, TooManyConsumers
from latchwork.queue import BatchingConfig, QueueConfig
from latchwork.queue.sharded.consumer import runs
from latchwork.store import MemoryStore
from latchwork.testing import CountingStore


def config(name="q", **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueConfig(name, **{"shards": 1, **settings})


async def queue_of(store, **settings):
    return await aio.QueueRegistry(store, "c").create(config(**settings))


async def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not come"
        await asyncio.sleep(0.01)


def test_as_many_handlers_run_at_a_time_as_concurrency_says_and_none_has_a_thread(memory, run):
    async def main():
        queue = await queue_of(memory)
        await queue.publish_many(list(range(400)))
        now = most = done = 0
        threads, full = set(), asyncio.Event()

        async def handle(delivery):
            nonlocal now, most, done
            now += 1
            most = max(most, now)
            threads.add(threading.current_thread())
            if now == 200:
                full.set()
            await full.wait()
            await asyncio.sleep(0.05)  # in which one more than that could begin
            now, done = now - 1, done + 1

        before = threading.active_count()
        async with aio.Consumer(queue, handle, concurrency=200, upkeep=False):
            await until(lambda: done == 400)
            assert threading.active_count() - before < 10
        assert most == 200
        assert threads == {threading.main_thread()}
        assert (await queue.depth()).ready == 0

    run(main())


def test_what_a_handler_returns_or_raises_decides_as_it_does_in_a_thread(store, run):
    async def main():
        queue = await queue_of(store, retry=False)
        await queue.publish_many(["ok", "none", "no", "raises", "ignorable"])
        done = []

        async def handle(delivery):
            await asyncio.sleep(0)
            done.append(delivery.payload)
            if delivery.payload == "raises":
                raise KeyError("x")
            if delivery.payload == "ignorable":
                raise ZeroDivisionError
            return {"ok": True, "none": None, "no": False}[delivery.payload]

        async with aio.Consumer(queue, handle, concurrency=3, ignorable=ZeroDivisionError, upkeep=False):
            await until(lambda: len(done) == 5)
            await until(lambda: True)
        left = await queue.sideline.receive(10)
        assert sorted((one.payload, one.reason) for one in left) == [("no", "rejected"), ("raises", "exception")]
        assert (await queue.depth()).ready == 0

    run(main())


def test_a_batch_goes_to_an_async_handler_as_a_list(memory, run):
    async def main():
        queue = await queue_of(memory, batching=BatchingConfig(10, 1.0))
        await queue.publish_many(list(range(10)))
        got = []

        async def handle(deliveries):
            got.append(sorted(one.payload for one in deliveries))
            return [True] * len(deliveries)

        async with aio.Consumer(queue, handle, concurrency=1, upkeep=False):
            await until(lambda: got)
        assert got == [list(range(10))]

    run(main())


def test_an_ordered_consumer_handles_the_messages_of_a_key_one_after_another(memory, run):
    async def main():
        queue = await queue_of(memory, shards=2)
        got = []

        async def handle(delivery):
            await asyncio.sleep(0.001)
            got.append(delivery.payload)

        await queue.publish_many(list(range(20)), key="one")
        async with aio.Consumer(queue, handle, concurrency=4, ordered=True, upkeep=False):
            await until(lambda: len(got) == 20)
        assert got == list(range(20))

    run(main())


def test_as_many_handlers_begin_as_a_limiter_allows(memory, run, monkeypatch):
    decisions, ask = [], RateLimiter.try_acquire

    def noted(limiter, n=1):
        decisions.append(ask(limiter, n))
        return decisions[-1]

    monkeypatch.setattr(RateLimiter, "try_acquire", noted)

    async def main():
        queue = await queue_of(memory)
        await queue.publish_many(list(range(6)))
        begun = []

        async def handle(delivery):
            begun.append(delivery.payload)

        limiter = aio.RateLimiter(memory, "api", 2, timedelta(hours=1))
        async with aio.Consumer(queue, handle, concurrency=20, rate=limiter, upkeep=False):
            await until(lambda: len(begun) == 2 and any(not decision.allowed for decision in decisions))
        assert (len(begun), sum(decision.allowed for decision in decisions)) == (2, 2)

    run(main())


async def awaits_what_was_cancelled():
    of_another = asyncio.get_running_loop().create_future()
    of_another.cancel()
    await of_another


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("fail", [awaits_what_was_cancelled, cancels_itself])
def test_a_cancel_that_is_the_handlers_own_is_a_failure_as_any_other(store, run, fail, caplog):
    async def main():
        queue = await queue_of(store, backoff=3600, max_deliveries=2)
        await queue.publish("x", message_id="m")
        tries = []

        async def handle(delivery):
            tries.append(delivery.attempts)
            await fail()

        async with aio.Consumer(queue, handle, concurrency=1, upkeep=False) as consumer:
            await until(lambda: consumer.stats["failed"] or consumer.stats["interrupted"])
        status = await queue.status("m")
        assert tries == [1]
        assert (status.state.value, status.attempts, status.reason) == ("retrying", 1, "exception")
        assert status.error.startswith("CancelledError")

    run(main())
    (line,) = [one for one in caplog.records if "raised at" in one.getMessage()]
    assert line.exc_info, "its traceback says where"


def test_a_handler_that_raises_its_own_cancel_as_it_is_given_up_counts_once(memory, run, caplog):
    """The consumer has given the message back by then, and nothing is said of what the handler raised."""

    async def main():
        queue = await queue_of(memory)
        await queue.publish("x")
        begun, ended = asyncio.Event(), []

        async def handle(delivery):
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append(True)
                await awaits_what_was_cancelled()

        consumer = await aio.Consumer(queue, handle, concurrency=1, upkeep=False).start()
        await begun.wait()
        assert await consumer.stop(grace=0) is False
        await until(lambda: ended)
        (again,) = await queue.receive(1, timeout=5)
        assert (again.attempts, again.reason) == (1, "interrupted")
        assert consumer.stats["failed"] == 0

    run(main())
    assert not [one for one in caplog.records if "raised at" in one.getMessage()]


def test_at_the_end_of_the_grace_a_handler_is_cancelled_and_its_message_goes_back(store, run):
    async def main():
        queue = await queue_of(store)
        await queue.publish("x")
        steps = []

        async def handle(delivery):
            steps.append("begun")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                steps.append("cancelled")
                raise

        consumer = await aio.Consumer(queue, handle, concurrency=2, upkeep=False).start()
        await until(lambda: steps)
        assert await consumer.stop(grace=0.1) is False
        await until(lambda: steps == ["begun", "cancelled"])
        (again,) = await queue.receive(1, timeout=5)
        assert (again.payload, again.attempts, again.reason) == ("x", 1, "interrupted")

    run(main())


def test_a_handler_learns_of_the_stop_from_check_and_its_message_goes_back(memory, run):
    async def main():
        queue = await queue_of(memory)
        await queue.publish("x")
        begun, ended = asyncio.Event(), []

        async def handle(delivery):
            begun.set()
            try:
                while True:
                    delivery.check()
                    await asyncio.sleep(0.01)
            except Interrupted:
                ended.append(True)
                raise

        consumer = await aio.Consumer(queue, handle, concurrency=1, upkeep=False).start()
        await begun.wait()
        await consumer.stop(grace=5)
        assert ended == [True]
        assert [one.attempts for one in await queue.receive(1, timeout=5)] == [1]

    run(main())


def test_a_handler_that_runs_too_long_is_cancelled_and_its_message_fails(memory, run):
    async def main():
        queue = await queue_of(
            memory, sweep_duration=timedelta(seconds=2), handler_timeout=timedelta(seconds=0.2), unsafe_limits=True
        )
        await queue.publish("x")
        steps = []

        async def handle(delivery):
            try:
                await asyncio.sleep(60)
            finally:
                steps.append("ended")

        async with aio.Consumer(queue, handle, concurrency=1, upkeep=False) as consumer:
            await until(lambda: steps and consumer.stats["failed"])  # counted once the message waits for its next try
        (waits,) = await queue.delayed.search(within=3600)
        assert consumer.stats["timed_out"] == 1
        assert waits.reason == "timeout"

    run(main())


def test_a_handler_that_keeps_the_loop_busy_keeps_its_lock_permit_membership_and_message(
    store, run, caplog, monkeypatch
):
    """All that is renewed is renewed by threads: the handler keeps the loop busy until each was."""
    lease, records, who = 6.0, caplog.records, "handle, the handler of 'q'"
    monkeypatch.setattr(background, "QUIET", 0.0)  # what was slow before may have had the one line of the minute
    monkeypatch.setattr(runs, "EXTENSIONS", 600)  # after 2 s, as the leases; the handler may take ten minutes

    async def main():
        queue = await queue_of(store)
        await queue.publish("x")
        kept = []

        async def handle(delivery):
            async with (
                await aio.FencedLock(store, "l", lease=lease).acquire(5, keep_alive=True) as grant,
                await aio.Semaphore(store, "s", permits=1, lease=lease).acquire(keep_alive=True) as permits,
                await aio.Group(store, "g").join("m", lease=lease) as membership,
            ):
                leases = [(one.of.lost, one.of.lost._until) for one in (grant, permits, membership)]
                await asyncio.sleep(0)  # the loop answers whoever has asked it before
                # It calls nothing of other files while it waits: the line in the log is to name this one.
                end = time.monotonic() + 15
                while time.monotonic() < end and not (
                    all(lost._until > first for lost, first in leases)
                    and delivery.of.extended
                    and any(who in str(one.args) for one in records)
                ):
                    time.sleep(0.01)
                assert all(lost._until > first and not lost.is_set() for lost, first in leases)
                assert delivery.extended
                delivery.check()
                await delivery.ack()
            kept.append("all of it")

        async with aio.Consumer(queue, handle, concurrency=1, upkeep=False) as consumer:
            await until(lambda: consumer.stats["handled"] and not consumer.running)
        assert kept, "the log has what the handler has raised"
        assert (await queue.depth()).ready == 0
        assert (await queue.receive(1)) == []

    run(main())
    lines = [one.getMessage() for one in records if "keeps it busy" in one.getMessage()]
    assert any(who in line and "test_consumer.py" in line for line in lines), lines


def test_a_handler_that_is_not_async_runs_in_a_thread_with_a_delivery_of_the_sync_surface(memory, run):
    async def main():
        queue = await queue_of(memory)
        await queue.publish_many([1, 2, 3])
        seen = []

        def handle(delivery):
            seen.append((threading.current_thread() is threading.main_thread(), type(delivery).__module__))
            delivery.ack()

        async with aio.Consumer(queue, handle, concurrency=2, upkeep=False):
            await until(lambda: len(seen) == 3)
        assert set(seen) == {(False, "latchwork.queue.sharded.delivery")}

    run(main())


def test_as_many_handlers_that_are_not_async_run_at_a_time_as_concurrency_says(memory, run):
    async def main():
        queue = await queue_of(memory)
        await queue.publish_many(list(range(120)))
        begun, go = [], threading.Event()

        def handle(delivery):
            begun.append(delivery.payload)
            go.wait(60)

        async with aio.Consumer(queue, handle, concurrency=120, upkeep=False):
            try:
                await until(lambda: len(begun) == 120)
            finally:
                go.set()

    run(main())


def test_a_handler_that_waits_for_a_thread_does_not_begin_once_its_message_went_back(memory, run):
    async def main():
        queue = await queue_of(memory)
        await queue.publish_many([1, 2])
        begun, go = [], threading.Event()

        def handle(delivery):
            begun.append(delivery.payload)
            go.wait(60)

        consumer = aio.Consumer(queue, handle, concurrency=2, upkeep=False, prefetch=1)
        consumer.of._pool = Pool(queue.of.store.seams, 1, "one")  # as if no other thread could be started
        await consumer.start()
        await until(lambda: consumer.running == 2 and begun)
        assert await consumer.stop(grace=0) is False
        assert {one.payload for one in await queue.receive(2, timeout=5)} == {1, 2}
        go.set()
        await until(lambda: consumer.stuck == 0)
        assert len(begun) == 1

    run(main())


def test_a_trace_and_the_variables_of_a_handler_are_its_own(memory, run):
    at = ContextVar("at", default="nowhere")

    async def main():
        queue = await queue_of(memory)
        await queue.publish_many(list(range(20)))
        seen = []

        async def handle(delivery):
            seen.append(at.get())
            at.set(delivery.payload)
            await asyncio.sleep(0.01)
            assert at.get() == delivery.payload

        async with aio.Consumer(queue, handle, concurrency=5, upkeep=False) as consumer:
            await until(lambda: len(seen) == 20 and not consumer.running)
        assert consumer.stats["acked"] == 20
        assert set(seen) == {"nowhere"}

    run(main())


def test_a_parameter_of_an_async_task_may_have_any_name(memory, run):
    async def main():
        registry = aio.QueueRegistry(memory, "c")
        await registry.create(config())
        worker, seen = aio.Worker(registry, upkeep=False), []

        async def work(*, self: int, function: int) -> None:
            seen.append((self, function))

        task = worker.task("q")(work)
        assert task.payload(self=1, function=2) == {"self": 1, "function": 2}
        await task.publish(self=1, function=2)
        async with worker:
            await until(lambda: seen)
        assert seen == [(1, 2)]

    run(main())


def test_a_worker_handles_several_queues_by_weights(memory, run):
    async def main():
        registry = aio.QueueRegistry(memory, "c")
        high, low = [await registry.create(config(name)) for name in ("high", "low")]
        worker = aio.Worker(registry, weights={"high": 150, "low": 1}, upkeep=False)
        seen = []

        @worker.handler("high")
        async def urgent(delivery):
            await asyncio.sleep(0)
            seen.append(delivery.payload)

        @worker.handler("low")
        def slowly(delivery):
            seen.append(delivery.payload)

        await high.publish_many(list(range(50)))
        await low.publish_many(list(range(50, 60)))
        async with worker:
            await until(lambda: len(seen) == 60)
        assert sorted(seen) == list(range(60))

    run(main())


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_loop_that_ends_without_a_stop_ends_the_consumer_and_gives_its_messages_back(sync_store, concurrency):
    begun = threading.Event()

    async def handle(delivery):
        begun.set()
        await asyncio.sleep(60)

    async def queue_there():
        return await aio.QueueRegistry(aio.Store(sync_store), "ends").create(config())

    async def main():
        queue = await queue_there()
        await queue.publish("x")
        await aio.Consumer(queue, handle, concurrency=concurrency).start()
        await until(begun.is_set)

    asyncio.run(main())

    async def after():
        return [(one.payload, one.attempts) for one in await (await queue_there()).receive(1, timeout=5)]

    assert asyncio.run(after()) == [("x", 1)]
    _until_threads("ends-reports", "ends-upkeep")


def test_a_loop_that_ends_before_a_worker_has_begun_leaves_no_thread(memory, monkeypatch):
    class Lost(aio_consumer._Worker):
        """Its task was asked for, and the loop has ended before it made it."""

        def __init__(self, consumer, loop, name):
            if not name.endswith("-2"):
                super().__init__(consumer, loop, name)
            else:
                self._loop, self._over = loop, consumer.queue.store.seams.event()

    monkeypatch.setattr(aio_consumer, "_Worker", Lost)
    begun = threading.Event()

    async def handle(delivery):
        begun.set()
        await asyncio.sleep(60)

    async def main():
        queue = await queue_of(memory)
        await queue.publish("x")
        await aio.Consumer(queue, handle, concurrency=3, upkeep=False).start()
        await until(begun.is_set)

    asyncio.run(main())
    _until_threads()


def test_a_loop_that_ends_lets_a_handler_in_a_thread_finish_and_takes_no_more_messages(sync_store):
    begun, ends, handled = threading.Event(), threading.Event(), []

    def handle(delivery):
        begun.set()
        ends.wait(20)
        handled.append(delivery.payload)

    async def once_cancelled():
        try:
            await asyncio.sleep(60)
        finally:
            ends.set()

    async def main():
        queue = await queue_of(aio.Store(sync_store))
        await queue.publish_many(["a", "b", "c"])
        await aio.Consumer(queue, handle, concurrency=1, prefetch=1, upkeep=False).start()
        last = asyncio.create_task(once_cancelled())
        await until(begun.is_set)
        assert not last.done()

    asyncio.run(main())

    async def after():
        queue = await queue_of(aio.Store(sync_store))
        return sorted([one.payload for one in await queue.receive(5, timeout=5)] + handled)

    assert len(handled) == 1
    assert asyncio.run(after()) == ["a", "b", "c"]


def test_a_worker_that_a_base_exception_has_ended_is_replaced_and_asyncio_logs_nothing(run, caplog):
    class Fatal(BaseException):
        """Not an `Exception`, after which a worker tries again."""

    class Breaking(MemoryStore):
        broken = False

        def _operate(self, update):
            if not self.broken and asyncio.current_task().get_name().startswith("q-"):
                self.broken = True
                raise Fatal
            return super()._operate(update)

    async def main():
        store = aio.Store(Breaking())
        store.bridged._is_instant = True  # so that its calls are made in the task
        queue = await queue_of(store)
        await queue.publish("x")
        done = []

        async def handle(delivery):
            done.append(delivery.payload)

        async with aio.Consumer(queue, handle, concurrency=1, upkeep=False):
            await until(lambda: done)
        assert store.of.inner.broken

    run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_nothing_keeps_a_loop_that_has_ended_in_which_a_consumer_has_worked(memory):
    async def main():
        queue = await aio.QueueRegistry(memory, "c").create(config())
        async with aio.Consumer(queue, print, upkeep=False):
            return weakref.ref(asyncio.get_running_loop())

    loop, end = asyncio.run(main()), time.monotonic() + 10
    while loop() is not None and time.monotonic() < end:  # its threads are just ending
        gc.collect()
        time.sleep(0.01)
    assert loop() is None


def _until_threads(*names):
    end, names = time.monotonic() + 60, ("supervisor", "loop-watch", *names)
    while [one for one in threading.enumerate() if any(name in one.name for name in names)]:
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.05)


def test_sigterm_drains_a_worker_of_async_handlers(tmp_path):
    program = textwrap.dedent("""
        import asyncio, sys
        from latchwork import aio
        from latchwork.queue import QueueConfig

        async def main():
            async with aio.connect("sqlite:" + sys.argv[1]) as store:
                registry = aio.QueueRegistry(store, "c")
                queue = await registry.create(QueueConfig("q", shards=1))
                await queue.publish_many([1, 2])
                worker = aio.Worker(registry)

                @worker.handler("q", concurrency=50)
                async def handle(delivery):
                    print("begun", flush=True)
                    await asyncio.sleep(0.5)
                    print("ended", flush=True)

                print(await worker.run(), (await queue.depth()).ready, flush=True)

        asyncio.run(main())
    """)
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "s.db")], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGTERM)
        out = child.stdout.read()  # the line before may have been read with others
        child.wait(30)
    finally:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
    lines = out.split("\n")
    ended = lines.count("ended")
    assert ended == 1 + lines.count("begun"), "each handler that had begun has ended"
    assert f"True {2 - ended}" in lines
    assert child.returncode == 0


@pytest.mark.parametrize("kind", ["consumer", "worker"])
def test_an_async_handler_that_stops_its_own_consumer_is_refused_and_another_task_may(memory, run, kind):
    async def main():
        registry = aio.QueueRegistry(memory, "c")
        queue = await registry.create(config())
        said, stops = [], []

        async def handle(delivery):
            with pytest.raises(InvalidRequest, match=r"stops its own consumer.*create_task\(stop\(\)\)"):
                await runner.stop()
            said.append(delivery.payload)
            if len(said) == 2:
                stops.append(asyncio.create_task(runner.stop()))

        if kind == "consumer":
            runner = aio.Consumer(queue, handle, upkeep=False)
        else:
            runner = aio.Worker(registry, upkeep=False)
            runner.handler("q")(handle)
        await runner.start()
        for payload in (1, 2):
            await queue.publish(payload)
            await until(lambda: payload in said)  # noqa: B023 - called within this turn
        assert await stops[0], "all had finished"
        assert (await queue.depth()).ready == 0

    run(main())


@pytest.mark.parametrize("kind", ["Consumer", "Worker of one queue", "Worker of two"])
def test_a_cancel_of_the_task_that_runs_it_gives_handlers_the_grace(memory, run, kind):
    async def main():
        registry, steps, names = aio.QueueRegistry(memory, "c"), [], ["q", "r"][: 2 if kind.endswith("two") else 1]
        go_on = asyncio.Event()

        async def handle(delivery):
            steps.append("begun")
            await go_on.wait()
            steps.append("ended")

        worker = aio.Worker(registry, grace=20, upkeep=False)
        for name in names:
            await (await registry.create(config(name))).publish(1)
            worker.handler(name)(handle)
        if kind == "Consumer":
            worker = aio.Consumer(await registry.get("q"), handle, grace=20, upkeep=False)
        task = asyncio.ensure_future(worker.run())
        await until(lambda: len(steps) == len(names))
        task.cancel()
        await asyncio.sleep(0.1)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert steps == ["begun"] * len(names) + ["ended"] * len(names)
        assert not worker.running

    run(main())


def test_a_handler_must_be_callable_and_a_consumer_has_a_most(memory, run):
    async def main():
        queue = await queue_of(memory)
        with pytest.raises(InvalidMessageHandler, match="async function"):
            aio.Consumer(queue, 7)
        with pytest.raises(InvalidMessageHandler):
            aio.Worker(aio.QueueRegistry(memory, "c")).handler("q")(7)
        with pytest.raises(TooManyConsumers, match="1000"):
            aio.Consumer(queue, print, concurrency=1001)

    run(main())


def test_a_consumer_whose_second_start_is_refused_watches_no_loop(memory, run):
    async def main():
        queue = await queue_of(memory)

        async def handle(delivery):
            pass

        consumer = aio.Consumer(queue, handle, concurrency=1, upkeep=False)
        async with consumer:
            pass
        with pytest.raises(InvalidRequest, match="was started before"):
            await consumer.start()
        await until(lambda: not [one for one in threading.enumerate() if one.name == "latchwork-aio-loop-watch"])

    run(main())


def test_all_consumers_of_a_loop_have_one_watch_of_it(memory, run):
    def watches():
        return sum(one.name == "latchwork-aio-loop-watch" for one in threading.enumerate())

    async def handle(delivery):
        pass

    async def main():
        queue = await queue_of(memory)
        await until(lambda: not watches())  # those of other tests are just ending
        async with (
            aio.Consumer(queue, handle, concurrency=1, upkeep=False),
            aio.Consumer(queue, handle, concurrency=1, upkeep=False),
        ):
            assert watches() == 1
        await until(lambda: not watches())

    run(main())


def test_an_awaited_publish_makes_the_calls_of_the_sync_one(run):
    counting = CountingStore(MemoryStore())

    async def main():
        queue = await queue_of(aio.Store(counting))
        counting.reset()
        await queue.publish(1)
        assert counting.total == 2

    run(main())


def test_an_async_handler_ends_once_its_message_is_cancelled(memory, run):
    async def main():
        queue = await queue_of(memory)
        of = await queue.publish("m")

        async def handle(delivery):
            delivery.progress(0.5, "half")
            assert (await queue.cancel(of)).value == "asked"
            await delivery.extend()
            assert (await queue.status(of)).note == "half"
            delivery.check()

        async with aio.Consumer(queue, handle, upkeep=False) as consumer:
            await until(lambda: consumer.stats["cancelled"] or consumer.stats["failed"])
        assert consumer.stats["failed"] == 0
        assert (await queue.status(of)).state.value == "gone"

    run(main())
