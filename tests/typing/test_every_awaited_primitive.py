"""The awaited program whose types `make lint` checks runs, and does what its types say."""

from __future__ import annotations

import asyncio

from tests.typing import every_awaited_primitive


def test_the_program_that_awaits_every_primitive_runs():
    waiting, member, facts, record, changes, *queues, one = asyncio.run(every_awaited_primitive.main())
    assert waiting == "stock"
    assert member.startswith("aio.Membership('workers/w-1'")
    assert facts == "('charged 7', True, True, 1, True, False, False, False, 1, True, 1)"
    assert (record, changes) == ("{'state': 'done'}", "1")
    assert queues == ["True", "1", "0", "3"]
    assert one == "(True, 0.4, 'chunk 12', 'asked', {'pages': 3}, [1], 'done')"
