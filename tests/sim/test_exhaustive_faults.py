"""Every call site of every primitive, struck by every single fault."""

from __future__ import annotations

import pytest

from .campaign import every_single_fault
from .workload import SCENARIOS

MOST = {"sharded": 1, "consumer": 1, "ledger": 1, "limiter": 40, "across": 8, "publisher": 40, "batches": 1}
"""Calls of one site that are struck here, where it is not 6; the long campaign strikes them all."""
FEWEST = {"publisher": 100}
"""Runs that a primitive must come to, where it is not 150: a publisher makes few calls, and all of them are struck."""


@pytest.mark.parametrize("primitive", SCENARIOS)
def test_no_promise_is_broken_by_any_single_fault_at_any_call(primitive, proved):
    tally = every_single_fault(primitive, most=MOST.get(primitive, 6))
    proved(tally.layer, primitive, tally.figures)
    assert not tally.violated, "\n".join(tally.violations)
    assert not tally.undecided
    assert tally.runs >= FEWEST.get(primitive, 150)
