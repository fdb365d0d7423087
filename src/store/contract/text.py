"""The contract of text, depth and arguments: every store refuses a value that one of them could not keep or send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import InvalidRequest
from ..model.expr import Bin, Expr, ListOf, MapHas, MapSize, Param, exists, has
from ..model.form import Form
from ..model.ops import (
    Add,
    Compute,
    ListAppend,
    ListRange,
    ListSet,
    MapAdd,
    MapGet,
    MapPut,
    MapRemove,
    MapTrim,
    Put,
    Read,
)
from ..model.values import MAX_DEPTH
from ..port import Key, Once, RecordStore, Removal, Update
from .records import ANY, SET, Contract, bins, make, new_key, raises

BAD_TEXTS = ("a\0b", "\ud800")
"""The Aerospike client cuts the first where its NUL is, so that two names become one; the second ends the process."""

SEPARATORS = "\n\r\t\x7f\x9f;:=,"
"""The characters that no name of a set or bin has: the server's info protocol, in which such names stand, cannot quote
them.
"""


class TextContract(Contract):
    """Text that cannot be kept whole, and arguments of another kind, are refused before any I/O."""

    def test_names_that_a_store_would_cut_or_cannot_send_are_refused(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        for text in BAD_TEXTS:
            for bad in (Key(SET, text), Key(text, "k")):
                raises(InvalidRequest, store.get, bad)
                raises(InvalidRequest, store.get_many, [bad])
                raises(InvalidRequest, store.operate, bad, Put("n", 1), exists=ANY)
                raises(InvalidRequest, store.delete, bad)
            raises(InvalidRequest, store.operate, key, Put(text, 1))
            raises(InvalidRequest, store.get, key, text)
            raises(InvalidRequest, store.get_many, [key], "n", text)
            raises(InvalidRequest, store.query, SET, text, 1)
            raises(InvalidRequest, store.query, text, "n", 1)
            raises(InvalidRequest, store.query, SET, "n", text)
            raises(InvalidRequest, store.ensure_index, SET, text)
        assert bins(store, key) == {"n": 1}

    def test_names_that_would_end_a_command_of_a_server_are_refused(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        for text in (f"a{separator}b" for separator in SEPARATORS):
            bad = Key(text, "k")
            raises(InvalidRequest, store.get, bad)
            raises(InvalidRequest, store.get_many, [key, bad])
            raises(InvalidRequest, store.operate, bad, Put("n", 1), exists=ANY)
            raises(InvalidRequest, store.operate_many, [Update(bad, (Put("n", 1),), exists=ANY)])
            raises(InvalidRequest, store.delete, bad)
            raises(InvalidRequest, store.operate, key, Put(text, 1))
            raises(InvalidRequest, store.get, key, text)
            raises(InvalidRequest, store.query, text, "n", 1)
            raises(InvalidRequest, store.query, SET, text, 1)
            raises(InvalidRequest, store.ensure_index, text, "n")
            raises(InvalidRequest, store.ensure_index, SET, text)
            raises(InvalidRequest, Bin, text)
        plain = make(
            store, Put("n", "a\nb;c:d=e,f"), MapPut("m", "a\n;:=,", 1), key=Key(SET, f"{new_key().name}\n;:=,")
        )
        assert bins(store, plain) == {"n": "a\nb;c:d=e,f", "m": {"a\n;:=,": 1}}
        assert bins(store, key) == {"n": 1}

    def test_text_that_a_store_would_cut_or_cannot_send_is_refused(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1), MapPut("m", "k", 1), Put("l", [1]))
        form = Form(Put("v", Param("v", str)))
        for text in BAD_TEXTS:
            for op in (
                Put("v", text), Put("v", ["x", {"k": text}]), Put("v", {text: 1}), MapPut("m", text, 1),
                MapPut("m", "k", text), MapAdd("m", text, 1), MapGet("m", text), MapRemove("m", (text,)),
                ListAppend("l", text), ListSet("l", 0, [text]),
            ):  # fmt: skip
                raises(InvalidRequest, store.operate, key, op)
            raises(InvalidRequest, store.repeat, form.fill(key, v=text))
        assert bins(store, key) == {"n": 1, "m": {"k": 1}, "l": [1]}
        failure = raises(InvalidRequest, store.operate, key, Put("v", "a\0b"))
        assert "cannot be stored; give bytes" in str(failure)

    def test_an_expression_holds_only_text_that_can_be_sent(self, store: RecordStore) -> None:
        key = make(store, Put("s", "a"), MapPut("m", "k", 1))
        same, there = Bin("s", str).eq(Param("p", str)), MapHas("m", Param("p", str))
        for text in BAD_TEXTS:
            for guard in (same.bind(p=text), there.bind(p=text)):
                raises(InvalidRequest, store.operate, key, Put("n", 1), when=guard)
                raises(InvalidRequest, store.operate, key, Compute(guard))
            raises(InvalidRequest, Bin("s", str).eq, text)
            raises(InvalidRequest, has, "m", text)
            for name in (Bin, exists, MapSize):
                raises(InvalidRequest, name, text)

    def test_a_value_comes_back_however_deep_it_is_or_is_refused(self, store: RecordStore) -> None:
        deep, deeper = nested(MAX_DEPTH), nested(MAX_DEPTH + 1)
        key, form = make(store, Put("n", 1), Put("m", {}), Put("l", [])), Form(Put("v", Param("v", list)))
        changes: tuple[Callable[[Any], object], ...] = (
            lambda value: store.operate(key, Put("v", value)),
            lambda value: store.operate(key, MapPut("m", "k", value)),
            lambda value: store.operate(key, ListAppend("l", value)),
            lambda value: store.operate(key, ListSet("l", 0, value)),
            lambda value: store.operate(key, Put("v", Param("v", list).bind(v=value))),
            lambda value: store.repeat(form.fill(key, v=value)),
        )
        for change in changes:
            change(deep)
            expected = bins(store, key)
            raises(InvalidRequest, change, deeper)
            assert bins(store, key) == expected
        assert store.operate(key, Read("v"), MapGet("m", "k"), ListRange("l", 0, 1)) == (deep, deep, [deep])
        once = Once(3, result=ListOf((Bin("v", list),)))
        assert store.operate(key, Put("n", 2), once=once) == ([deep],)
        assert [record and record.bins["v"] for record in store.get_many([key])] == [deep]
        (row,) = store.operate_many([Update(key, (Put("n", 3), Put("v", deeper)))])
        assert isinstance(row, InvalidRequest)
        assert "levels" in str(row)
        assert (bins(store, key) or {})["n"] == 2

    def test_bins_are_named_by_text(self, store: RecordStore) -> None:
        key, named = make(store, Put("n", 1)), new_key()
        kinds: Any = (None, b"n", 5, ["n"], {})
        for bad in kinds:
            raises(InvalidRequest, store.operate, key, Put(bad, 1))
            raises(InvalidRequest, store.operate, key, Read(bad))
            raises(InvalidRequest, store.get, key, bad)
            raises(InvalidRequest, store.get_many, [key], bad)
            raises(InvalidRequest, store.get, Key(bad, named.name))
            raises(InvalidRequest, store.get, Key(SET, bad))
        assert bins(store, key) == {"n": 1}

    def test_arguments_of_another_kind_are_refused(self, store: RecordStore) -> None:
        key, odd = make(store, Put("n", 1)), object()
        kinds: Any = (odd, 5, "x")
        for bad in kinds:
            raises(InvalidRequest, store.operate, key, Put("n", 2), when=bad)
            raises(InvalidRequest, store.operate, key, Put("n", 2), once=bad)
            raises(InvalidRequest, store.operate, key, bad)
            raises(InvalidRequest, store.operate_many, [bad])
            raises(InvalidRequest, store.delete, key, when=bad)
            raises(InvalidRequest, store.delete_many, [bad])
            raises(InvalidRequest, store.delete_many, [Removal(key, bad)])
            raises(InvalidRequest, store.operate_many, [Update(key, (Put("n", 2),), bad)])
            raises(InvalidRequest, store.repeat, bad)
            raises(InvalidRequest, Compute, bad)
            raises(InvalidRequest, Expr.__and__, exists("n"), bad)
            raises(InvalidRequest, Expr.__or__, exists("n"), bad)
        place: Any = "1"
        for op, rest in ((MapTrim, ("m", place)), (ListSet, ("l", place, 1)), (ListRange, ("l", 0, place))):
            raises(InvalidRequest, op, *rest)
        for places in (-1, 2**31, 2**63 - 1):  # more would be cut to 32 bits on the way to a server
            raises(InvalidRequest, MapTrim, "m", places)
        for change in (Add("n", True), MapAdd("m", "k", True)):
            raises(InvalidRequest, store.operate, key, change)
        raises(InvalidRequest, store.query, SET, "n", True)
        assert bins(store, key) == {"n": 1}

    def test_lists_are_compared_with_the_kinds_of_what_is_in_them(self, store: RecordStore) -> None:
        key = make(store, Put("l", [1, [2]]))
        here = Bin("l", list)
        assert store.operate(key, Compute(here.eq([1, [2]])), Compute(here.ne([1, [2]]))) == (True, False)
        for other, less in (
            ([True, [2]], False), ([1.0, [2]], True), ([1, [2.0]], True), ([1], False), ([1, [3]], True),
            (["a"], True), ([1, "a"], False), ([1, b"a"], True), ([None], False), ([1, [2], 3], True),
        ):  # fmt: skip
            expected = False, True, less, not less
            guards = (here.eq(other), here.ne(other), here < other, here > other)
            assert store.operate(key, *map(Compute, guards)) == expected, other

    def test_a_memory_of_tokens_is_one_that_every_store_takes(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        bad_ones: Any = (
            {"capacity": 0}, {"capacity": "3"}, {"bin": b"ops"}, {"bin": "x" * 16}, {"bin": None}, {"bin": "a\0b"},
            {"answer": "\ud800"}, {"answer": 5}, {"token": "t"}, {"token": b""},
        )  # fmt: skip
        for bad in bad_ones:
            raises(InvalidRequest, lambda bad=bad: store.operate(key, Add("n", 1), once=Once(**{"capacity": 3, **bad})))
        assert bins(store, key) == {"n": 1}


def nested(levels: int) -> list[Any]:
    """Return a list of so many levels, every other one a map."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 == (levels - 1) % 2 else {"k": value}
    found: list[Any] = value
    return found
