"""What an operation costs in calls does not grow with what it does not touch; shards lie where the client says."""

from __future__ import annotations

import pytest

from latchwork.seams import Seams
from latchwork.store import MemoryStore
from latchwork.testing import CountingStore
from tools import placement
from tools.growth import slope
from tools.growth_cases import CASES

GROWS = {"queue: drain 1,000 scattered, a message"}
"""A claim for each shard that holds something, which docs/scaling.md says."""


class Still(Seams):
    """The real world without time: on a slow machine a long operation looks at the pointers once more."""

    def monotonic(self):
        return 1.0


def calls(case, size):
    """Calls of each operation in a world of that size, the second time it is done."""
    store = CountingStore(MemoryStore(seams=Still()))
    found = {}
    for step in case.make(store, size):
        for _ in range(2):
            if step.before:
                step.before()
            before = store.total
            step.run()
            found[step.what] = (store.total - before) / step.units
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.of)
def test_ten_times_as_many_cost_no_more_calls(case):
    small, large = calls(case, case.sizes[0]), calls(case, case.sizes[1])
    assert {what for what, n in large.items() if n > small[what] + 0.003} <= GROWS


def test_the_slope_is_that_of_the_line_on_logarithmic_scales():
    assert slope((10, 100, 1000), (5, 5, 5)) == 0
    assert slope((10, 100, 1000), (2, 20, 200)) == pytest.approx(1)
    assert slope((10, 100, 1000), (3, 30 * 10**0.5, 300)) == pytest.approx(1)
    assert slope((1, 4, 16), (1, 2, 4)) == pytest.approx(0.5)


def test_partitions_are_those_of_the_client(aerospike_server):
    assert placement.check(aerospike_server.url, names=5) == 160


def test_every_shard_counts_on_one_node_and_the_loads_add_up():
    partitions = placement.shard_partitions("orders", 512)
    assert len(set(partitions)) > 400
    assert set(placement.imbalances(partitions, placement.masters(1), 1)) == {1}
    assert all(worst >= 1 for worst in placement.imbalances(partitions, placement.masters(8), 8))
