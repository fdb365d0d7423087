"""The ways of the public verbs stay short: how many functions, in how many files, a reader has to follow."""

from __future__ import annotations

import pytest

from tools import ways

CEILINGS = {
    "publish": (28, 7),
    "receive": (18, 5),
    "ack": (7, 3),
    "one turn of a consumer": (35, 9),
    "large queue: enqueue": (28, 7),
}
"""Functions above the store, and files that they are in."""


@pytest.fixture(scope="module")
def counted():
    return ways.ways()


@pytest.mark.parametrize("way", CEILINGS)
def test_a_verb_enters_few_functions_in_few_files(counted, way):
    functions = ways.above(counted[way])
    found = len(functions), len(ways.files_of(functions))
    assert all(n <= ceiling for n, ceiling in zip(found, CEILINGS[way], strict=True)), (found, list(functions))
    assert found[0] >= 5, "the way was followed"
