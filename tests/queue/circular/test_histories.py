"""Every fault at every store call, pauses past the lease at every call, and faults by chance."""

from __future__ import annotations

from collections import Counter

import pytest

from latchwork.testing.stores import KINDS
from tests.queue.circular import histories

SEEDS = 200


def test_every_fault_at_every_call():
    total, ran, died = histories.calls(), 0, 0
    for plan, late in histories.single_faults(total):
        _, _, dead = histories.run(plan, late=late)
        ran, died = ran + 1, died + dead
    assert total >= 20
    assert ran == total * 11
    assert died == total * 2


def test_pause_past_the_lease_at_every_call():
    for call in range(1, histories.calls() + 1):
        histories.run({}, interfere=call)


def test_pause_after_every_fault_at_every_call():
    """The worker is paused just after a write whose outcome it does not know yet, and others go on."""
    for call in range(1, histories.calls() + 1):
        for kind in ("reply_lost", "request_lost", histories.Fault("late", after=3), histories.Fault("late", after=8)):
            histories.run({call: kind}, interfere=call + 1)


def test_two_doubts_in_a_row_at_every_call():
    for plan in histories.double_doubts(histories.calls()):
        histories.run(plan)


@pytest.mark.parametrize("part", range(5))
def test_faults_by_chance(part):
    fired = Counter()
    for seed in range(part, SEEDS, 5):
        try:
            fired += histories.by_chance(seed).fired
        except histories.Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
    assert set(KINDS) - {"slow"} <= set(fired), fired
