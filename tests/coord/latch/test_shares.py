"""The shares of farms in a latch's record: who has to count, who has, and how many there were."""

from __future__ import annotations

import pytest

from latchwork.coord import CountDownLatch, LatchLevel
from latchwork.coord.latch.layout import latch_key
from latchwork.coord.latch.shares import Share, shares_of, total_of
from latchwork.errors import Corrupt
from latchwork.store import MemoryStore, Put

KEY = latch_key("shop", "l", "distributed_latch")


@pytest.fixture
def store():
    return MemoryStore()


def created(store, farm, parties, farms=("east", "west")):
    return CountDownLatch.create(
        store, "shop", "l", parties=range(parties), farms=farms, farm_id=farm, level=LatchLevel.XDC
    )


def test_each_farm_has_what_it_brought_and_what_has_counted(store):
    created(store, "west", 3).count_down(party=1)
    created(store, "east", 2)
    assert shares_of(store.get(KEY)) == [Share("east", 2, frozenset(), 2), Share("west", 2, frozenset({1}), 3)]


def test_a_farm_that_is_expected_has_a_share_before_it_brings_one(store):
    created(store, "west", 3)
    east, west = shares_of(store.get(KEY))
    assert (east.farm, east.remaining, east.total) == ("east", None, 0)
    assert west.total == 3


def test_without_names_the_total_is_the_sum_of_what_remains_and_what_has_counted(store):
    created(store, "west", 3).count_down(party=1)
    store.operate(KEY, Put("names#west", None))
    assert [share.total for share in shares_of(store.get(KEY)) if share.farm == "west"] == [3]
    assert total_of(store, KEY, "west") == 3


def test_the_total_of_a_farm_is_none_without_its_share(store):
    assert total_of(store, KEY, "west") is None
    created(store, "west", 3)
    assert total_of(store, KEY, "east") is None
    assert total_of(store, KEY, "west") == 3


@pytest.mark.parametrize(
    ("bin", "value"),
    [
        ("names", "x"),
        ("count", "x"),
        ("count", 2**40),
        ("done", [1]),
        ("done", {1: "x"}),
        ("farms", "east"),
        ("farms", [5]),
    ],
)
def test_a_damaged_share_is_an_error_that_names_the_bin(store, bin, value):
    """So nobody lists 2**40 partitions that have not counted."""
    created(store, "west", 3)
    store.operate(KEY, Put(f"{bin}#west", value))
    with pytest.raises(Corrupt, match=f"{bin}#"):
        shares_of(store.get(KEY))
