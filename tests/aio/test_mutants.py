"""The bridge with one fault each, as peers have had them: a test of a promise notices it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import textwrap
import threading
import time

import pytest

from latchwork import aio
from latchwork.aio import bridge, consumer
from latchwork.aio.bridge import Ended, Gate, Verb
from latchwork.aio.seams import LoopFlag, LoopLock, LoopSeams
from latchwork.queue import QueueConfig
from latchwork.seams import SYSTEM
from latchwork.store import Exists, Key, MemoryStore, Put

from .table import row_of
from .test_loops import Gated, done_on_a_free_loop, looks_at_a_held_mutex, some_rounds

# ---- what is checked


def table(name, plan="well"):
    """Nothing is left behind, wherever it is cancelled."""

    def check():
        row = row_of(name, plans=(plan,))
        assert row.troubles == []

    return check


def ways_out_are_completed():
    for name in ("Grant.release", "Membership.leave", "Delivery.ack"):
        assert set(row_of(name, plans=("reply lost", "request lost")).ends) == {"done"}, name


def a_loop_goes_on_while_a_mutex_is_held():
    gated = Gated(MemoryStore(), patience=4.0)
    store = aio.Store(gated)
    store.bridged._is_instant = False
    mutex = store.bridged.seams.lock()

    def held(n):
        with mutex:
            store.of.operate(Key("s", str(n)), Put("n", n), exists=Exists.ANY)

    async def work():
        await asyncio.gather(*(store._run(lambda n=n: held(n)) for n in range(2)))

    async def main():
        try:
            await done_on_a_free_loop(work(), gated)
        finally:
            gated.gate.release(2)  # after a failure nobody waits for the calls
        await store.close()

    asyncio.run(main())


def those_who_wait_for_a_mutex_do_not_wake_each_other():
    assert asyncio.run(looks_at_a_held_mutex()) == 4


def an_event_set_in_between_is_noticed():
    store, event, made = aio.Store(MemoryStore()), LoopSeams(SYSTEM).event(), Gate.__init__

    def sets_it(gate, loop):
        made(gate, loop)
        event._set = True  # another thread sets it here, and has seen no gate

    async def main():
        Gate.__init__ = sets_it
        try:
            task = asyncio.ensure_future(store._run(lambda: event.wait(30.0)))
            await some_rounds()
        finally:
            Gate.__init__ = made
        assert task.done()

    asyncio.run(main())


def a_thread_wakes_a_task(times=1):
    store = aio.Store(MemoryStore())

    async def main():
        for _ in range(times):
            event = LoopSeams(SYSTEM).event()
            task = asyncio.ensure_future(store._run(lambda event=event: event.wait(30.0)))
            await some_rounds()  # it waits
            thread = threading.Thread(target=event.set)
            thread.start()
            thread.join()  # by now the loop was told
            await some_rounds()
            assert task.done()

    asyncio.run(main())


def a_thread_wakes_tasks_one_after_another():
    a_thread_wakes_a_task(times=2)


def a_busy_loop_keeps_its_lock():
    """It is renewed after a third of its lease; the rest is for a machine that is slow."""
    memory = MemoryStore()

    async def main():
        renewals = 0
        grant = await aio.FencedLock(aio.Store(memory), "x", lease=3.5).acquire(1, keep_alive=True)
        await some_rounds()
        while not (renewals or grant.lost.is_set()):
            time.sleep(0.01)
            renewals = memory.get(Key("latchwork_locks", "x")).bins["renewals"]
        assert not grant.lost.is_set()
        await grant.release()

    asyncio.run(main())


def a_handler_that_ends_with_its_loop_costs_no_attempt():
    memory = MemoryStore()

    async def queue_of():
        return await aio.QueueRegistry(aio.Store(memory), "c").create(QueueConfig("q", shards=1))

    async def main():
        queue, begun = await queue_of(), asyncio.Event()
        await queue.publish(1)

        async def handle(delivery):
            begun.set()
            await asyncio.sleep(60)

        await aio.Consumer(queue, handle, concurrency=1, upkeep=False).start()
        await begun.wait()

    async def after():
        return [one.attempts for one in await (await queue_of()).receive(1, timeout=5)]

    asyncio.run(main())
    assert asyncio.run(after()) == [1]


# ---- the faults


def _but(function, right, wrong):
    """The function with one piece of its code as it must not be."""
    source, made = textwrap.dedent(inspect.getsource(function)), {}
    assert source.count(right) == 1
    exec(source.replace(right, wrong), function.__globals__, made)
    return made[function.__name__]


async def _token_dropped(undo, result, *_):
    return Ended(returned=True, result=result, undone=True)


async def _torn(verb):
    gate = verb.switch()
    while not verb.dead:
        await gate.passed()
        gate = verb.switch()
    return gate


def _blocks(mutex, blocking=True, timeout=-1):
    """For longer than the call that is made under it has patience; else as it is."""
    return mutex._lock.acquire(timeout=4.5) or mutex._parked(bridge.verb_of(), timeout)


def _looks_once(flag, timeout=None):
    verb = bridge.verb_of()
    if flag._set:
        return True
    gate = Gate(verb.loop)
    flag._waiting.append(gate)
    verb.event(gate, timeout)
    return flag._set


def _tells_no_loop(gate):
    gate.is_open = True
    if asyncio._get_running_loop() is gate._loop:
        gate.wake()


def _on_the_loop(seams, run, name):
    loop = asyncio.get_running_loop()

    async def as_task():
        store = aio.Store(MemoryStore())
        store.bridged.seams = seams
        await store._run(run)

    return loop.create_task(as_task())


def _called_plainly(made, given):
    verb = bridge.verb_of()
    return verb.awaits(made._user(given))


def _tells_once_too_few(wakeups, loop):
    while wakeups._opened:
        wakeups._opened.popleft().wake()


MUTANTS = {
    "a token dropped before the release": (bridge, "_undone", _token_dropped, table("FencedLock.acquire")),
    "messages dropped by a cancelled receive": (bridge, "_undone", _token_dropped, table("ShardedQueue.receive")),
    "a swallowed cancel": (Verb, "_cancel", lambda verb, cancelled: None, table("FencedLock.acquire")),
    "a cancel that tears a call": (Verb, "live", _torn, table("FencedLock.acquire")),
    "a cancel that tears a publish": (Verb, "live", _torn, table("ShardedQueue.publish")),
    "a way out that is cut": (
        Verb, "way_out", property(lambda verb: False, lambda verb, value: None),
        ways_out_are_completed,
    ),
    "a mutex that blocks the loop": (LoopLock, "acquire", _blocks, a_loop_goes_on_while_a_mutex_is_held),
    "a verb that wakes the next one, and has not left": (
        LoopLock, "_parked", _but(LoopLock._parked, "stays = True", "stays = False"),
        those_who_wait_for_a_mutex_do_not_wake_each_other,
    ),
    "a lost wake-up": (LoopFlag, "wait", _looks_once, an_event_set_in_between_is_noticed),
    "a wake-up that the loop is not told of": (Gate, "release", _tells_no_loop, a_thread_wakes_a_task),
    "a loop that is told of nothing more": (
        bridge.Wakeups, "_look", _tells_once_too_few, a_thread_wakes_tasks_one_after_another,
    ),
    "renewal on the loop": (LoopSeams, "spawn", _on_the_loop, a_busy_loop_keeps_its_lock),
    "`except Exception`, which a cancel passes": (
        consumer._Consumer, "_call", _called_plainly, a_handler_that_ends_with_its_loop_costs_no_attempt,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_of_the_bridge_is_noticed(name, monkeypatch):
    where, what, fault, check = MUTANTS[name]
    check()  # it holds without the fault
    monkeypatch.setattr(where, what, fault, raising=False)
    with pytest.raises(Exception):  # noqa: B017 - a promise that fails, or what breaks before it
        check()
