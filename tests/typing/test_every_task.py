"""The program with tasks that mypy checks, run; and the same with mistakes, each of which mypy finds."""

from __future__ import annotations

import asyncio

from tests.support.waiting import until

from . import every_task as program


def test_the_program_runs():
    assert program.ask() == ("3 lines", "ada@example.com")
    assert asyncio.run(asyncio.wait_for(program.ask_awaited(), 20)) == 49
    assert len(program.publish()) == 4
    with program.worker:
        until(lambda: len(program.DONE) == 5)

    async def awaited():
        assert len(await program.publish_awaited()) == 2
        async with program.awaited_worker:
            while len(program.DONE) < 8:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(awaited(), 20))
    assert sorted(program.DONE) == sorted([
        "Ada: here and now", "Ada: hi", "Ada: bye!", "Ada: many", "3 at 2026", "page 0 None", "page 3 three",
        "width 100, attempt 1",
    ])  # fmt: skip
