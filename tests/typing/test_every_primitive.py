"""The program whose types `make lint` checks runs, and does what its types say."""

from __future__ import annotations

from tests.typing import every_primitive


def test_the_program_that_touches_every_primitive_runs():
    waiting, member, facts, receipt, daily, token, entry, published, depth, left, state, one, batch, clock = (
        every_primitive.main()
    )
    assert (waiting, facts, entry) == ("stock", "(True, True, 1, True)", "Entry(offset=0, value='hello')")
    assert (receipt, daily, token) == ("7 EUR", "8 EUR", "32")
    assert (published, depth, left, clock) == ("True", "0", "2", "0.0")
    assert state == "running"
    assert one == "(True, (0.4, 'chunk 12'), 'asked', True, {'pages': 3}, 'done')"
    assert batch == "([1, 1], (<State.DONE: 'done'>, None))"
    assert member.startswith("Membership('workers/w-1'")
