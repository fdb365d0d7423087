"""What an expression is made of is checked as it is made, before any store sees it."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest
from latchwork.store import Bin, Exists, Key, MemoryStore, Put
from latchwork.store.model import expr as e

MORE = Bin("n") > 1


@pytest.mark.parametrize("name", ["", "b" * 16, None, 5, "a:b"], ids=str)
@pytest.mark.parametrize(
    "made", [Bin, e.exists, e.missing, lambda name: e.has(name, "k"), lambda name: e.lacks(name, 1)]
)
def test_a_name_that_no_bin_can_have_is_refused(made, name):
    with pytest.raises(InvalidRequest, match="bin name"):
        made(name)


@pytest.mark.parametrize("part", [True, None, "n > 1", [MORE]], ids=str)
@pytest.mark.parametrize("made", [e.all_of, e.any_of, lambda *parts: e.ListOf(parts)])
def test_a_part_that_is_no_expression_is_refused_and_shown(made, part):
    with pytest.raises(InvalidRequest, match="is not a part of an expression"):
        made(MORE, part)


@pytest.mark.parametrize("other", [Bin("n"), Bin("absent")], ids=["bin", "absent bin"])
def test_text_is_refused_in_arithmetic_also_beside_a_bin_that_is_missing(other):
    store, key = MemoryStore(), Key("s", "k")
    store.operate(key, Put("n", 1), Put("text", "7"), exists=Exists.CREATE)
    for computed in (Bin("text", str) + other, other + Bin("text", str)):
        with pytest.raises(InvalidRequest, match="'7' in arithmetic: use integers"):
            store.operate(key, Put("m", computed))
    assert store.get(key).bins == {"n": 1, "text": "7"}
