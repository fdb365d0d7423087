"""A step that is done once, awaited: what a cancel means for it, and what is no async function."""

from __future__ import annotations

import asyncio

import pytest

from latchwork import aio
from latchwork.errors import InvalidRequest, LockUnavailable
from latchwork.queue import QueueConfig


def test_repeats_get_the_result_and_who_asks_meanwhile_is_told_or_waits(store, run):
    async def main():
        calls, go_on = [], asyncio.Event()

        @aio.once(store, key=lambda order: f"charge {order}", timeout=20)
        async def charge(order):
            calls.append(order)
            await go_on.wait()
            return f"receipt {order}"

        first, second = asyncio.ensure_future(charge(7)), asyncio.ensure_future(charge(7))
        while not calls:
            await asyncio.sleep(0.01)
        step = aio.once(store, key="k", timeout=0)
        async with step:
            with pytest.raises(LockUnavailable):
                await aio.once(store, key="k", timeout=0).run(asyncio.sleep, 0)
        go_on.set()
        assert await asyncio.gather(first, second) == ["receipt 7"] * 2
        assert calls == [7]
        assert charge.step(7).token == charge.step(7).token != charge.step(8).token

    run(main())


def test_a_step_that_is_cancelled_is_free_at_once_and_one_that_has_ended_is_kept(store, run):
    async def main():
        began = asyncio.Event()

        async def waits():
            began.set()
            await asyncio.sleep(60)

        task = asyncio.ensure_future(aio.once(store, key="k").run(waits))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await aio.once(store, key="k", timeout=0).run(_value, 7) == 7
        assert await aio.once(store, key="k", timeout=0).run(_value, 8) == 7

    run(main())


def test_a_step_of_a_message_is_done_once_by_all_its_deliveries(store, run):
    async def main():
        queue = await aio.QueueRegistry(store, "c").create(QueueConfig("q", shards=1, retry=False))
        await queue.publish("mail")
        sent, tokens = [], []

        async def send(mail):
            sent.append(mail)
            return "sent"

        for view in (queue, queue.sideline):
            (delivery,) = await view.receive(timeout=20)
            step = delivery.once("mail")
            tokens.append(step.token)
            assert await step.run(send, delivery.payload) == "sent"
            await delivery.nack("rejected")
        assert sent == ["mail"]
        assert tokens[0] == tokens[1]

    run(main())


def test_an_async_function_may_have_a_parameter_of_any_name(store, run):
    async def main():
        @aio.once(store, key=lambda **given: given["self"])
        async def work(*, self, work):
            return [self, work]

        assert await work(self="a", work="b") == await work(self="a", work="c") == ["a", "b"]
        assert work.step(self="a", work="b").token

    run(main())


def test_a_method_is_done_once_for_each_key_of_its_object_and_its_class_has_the_function(memory, run):
    class Till:
        def __init__(self, number):
            self.number, self.opened = number, 0

        @aio.once(memory, key=lambda till: f"open {till.number}")
        async def open(self):
            self.opened += 1
            return self.number

    async def main():
        first, second = Till(1), Till(2)
        assert [await first.open(), await first.open(), await Till.open(second)] == [1, 1, 2]
        assert (first.opened, second.opened) == (1, 1)
        assert Till.open.step(first).token != Till.open.step(second).token

    run(main())


def test_a_coroutine_as_the_result_leaves_the_step_to_be_done(store, run):
    async def main():
        async def forgets_to_await():
            return _value("charged")

        once = aio.once(store, key="charge")
        with pytest.raises(InvalidRequest, match="is a coroutine, and nothing of it ran"):
            await once.run(forgets_to_await)
        assert await once.run(_value, "charged") == await once.run(_value, "twice") == "charged"

    run(main())


def test_what_is_not_async_is_refused_and_the_sync_decorator_named(memory):
    with pytest.raises(InvalidRequest, match=r"not an async function: decorate it with latchwork\.once"):
        aio.once(memory, key="k")(print)
    with pytest.raises(InvalidRequest, match="not an async function"):
        aio.once(memory, key=lambda: "k")(lambda: 7)
    with pytest.raises(InvalidRequest, match="the key alone names the step"):
        aio.once(memory, key="k", name="n")


async def _value(value):
    return value
