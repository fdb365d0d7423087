"""The contract of forms: updates that are made once and filled in for each call."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidRequest, Refused
from ..model.expr import Bin, Compare, Const, ListOf, Param
from ..model.form import Form
from ..model.ops import Add, Compute, ListAppend, ListRange, ListSet, MapAdd, MapGet, MapPut, Op, Put, Read
from ..port import Exists, RecordStore, Update
from .once import ONCE, Unreliable
from .records import Contract, bins, make, new_key, raises

_N, _K, _V = Param("n"), Param("k", str), Param("v", str)
_SUM = Bin("i") + _N


def _operations(n: Any, k: Any, v: Any, total: Any, pair: Any) -> tuple[Op, ...]:
    """Return operations with a parameter in every place where one may stand."""
    return (
        Put("i", n),
        Add("i", n),
        Put("sum", total),
        Put("text", v),
        MapPut("m", k, v),
        MapPut("m", "pair", pair),
        MapPut("named", k, pair),
        MapAdd("count", k, n),
        ListSet("l", n, v),
        ListAppend("l", v),
        Compute(total),
        MapGet("m", k),
        ListRange("l", n, n),
    )


class FormContract(Contract):
    """The contract of forms: a form does what the update with its values does."""

    def test_a_form_does_what_the_update_does(self, store: RecordStore) -> None:
        form = Form(*_operations(_N, _K, _V, _SUM, ListOf((Bin("i"), _N))), exists=Exists.ANY)
        for n, k, v in ((1, "a", "x"), (2, "b", "é"), (1, "c", "")):
            filled, plain = new_key(), new_key()
            total, pair = _SUM.bind(n=n), ListOf((Bin("i"), _N)).bind(n=n)
            expected = store.operate(plain, *_operations(n, k, v, total, pair), exists=Exists.ANY)
            assert store.repeat(form.fill(filled, n=n, k=k, v=v)) == expected
            assert bins(store, filled) == bins(store, plain)

    def test_the_key_of_an_entry_may_be_computed(self, store: RecordStore) -> None:
        at, value = Bin("n") // Param("width"), Bin("n") + _N
        key, form = make(store, Put("n", 70)), Form(MapPut("m", at, value), MapPut("m", at - 1, _N), MapGet("m", 7))
        assert store.repeat(form.fill(key, width=10, n=5)) == (75,)
        plain = MapPut("m", at.bind(width=35), value.bind(n=1))
        store.operate(key, plain, MapPut("m", Bin("n") // -30, Const("x")))
        assert (bins(store, key) or {})["m"] == {-2: "x", 2: 71, 6: 5, 7: 75}
        raises(InvalidRequest, MapPut, "m", at, 1)
        raises(InvalidRequest, MapPut, "m", (at + _N).bind(width=10, n=1), value.bind(n=2))

    def test_what_is_bound_to_one_expression_is_not_for_others(self, store: RecordStore) -> None:
        key, bound = make(store, Put("n", 1), Put("m", {"a": 1})), (Bin("n") + _N).bind(n=5, k="a")
        for op in (Put("b", Bin("n") + _N), Compute(Bin("n") + _N), Add("n", _N), MapGet("m", _K)):
            raises(InvalidRequest, store.operate, key, Put("a", bound), op)
        assert bins(store, key) == {"n": 1, "m": {"a": 1}}

    def test_the_answers_of_a_form_are_told_apart(self, store: RecordStore) -> None:
        key, form = make(store, Put("n", 1)), Form(Read("absent"), Read("n"), Put("text", _V))
        assert store.repeat(form.fill(key, v="x")) == (None, 1)
        assert store.repeat(Form(Compute(_N), Put("n", _N)).fill(key, n=7)) == (7,)

    def test_a_form_is_filled_in_anew_for_each_call(self, store: RecordStore) -> None:
        key, form = make(store, Put("l", [])), Form(Put("l", _V), Read("l"))
        first = form.fill(key, v=[1])
        assert store.repeat(form.fill(key, v=[2, [3]])) == ([2, [3]],)
        assert store.repeat(first) == ([1],)

    def test_a_form_is_guarded(self, store: RecordStore) -> None:
        key, form = make(store, Put("n", 5)), Form(Put("n", _N), when=Bin("n") < _N)
        store.repeat(form.fill(key, n=7))
        raises(Refused, store.repeat, form.fill(key, n=7))
        assert bins(store, key) == {"n": 7}

    def test_forms_may_be_rows_of_a_batch(self, store: RecordStore) -> None:
        one, two, three = (make(store, Put("n", n)) for n in range(3))
        form = Form(Add("n", _N), Read("n"), when=Bin("n") < _N)
        plain = Update(two, (Add("n", 1), Read("n")))
        rows = store.operate_many([form.fill(one, n=1), plain, form.fill(three, n=2), form.fill(new_key())])
        assert rows[:2] == [(1,), (2,)]
        assert [type(row) for row in rows[2:]] == [Refused, InvalidRequest]
        read = Form(ListRange("l", 0, _N), exists=Exists.ANY)
        too_large, fine = store.operate_many([read.fill(one, n=2**63), read.fill(two, n=2**63 - 1)])
        assert (type(too_large), fine) == (InvalidRequest, ([],))

    def test_arithmetic_with_another_value_than_an_integer_fails_its_own_row(self, store: RecordStore) -> None:
        key, other, form = make(store, Put("n", 1)), make(store, Put("n", 1)), Form(Put("n", Bin("n") + _N))
        for wrong in ("x", 1.5, True, None, [1]):
            row, fine = store.operate_many([form.fill(key, n=wrong), form.fill(other, n=1)])
            assert (type(row), fine) == (InvalidRequest, ())
        assert [bins(store, key), bins(store, other)] == [{"n": 1}, {"n": 6}]

    def test_a_form_with_a_token_happens_once(self, store: RecordStore) -> None:
        key, form = make(store, Put("n", 10)), Form(Add("n", _N), when=Bin("n") >= _N, once=ONCE)
        assert Unreliable(store, "lost").once(form.fill(key, n=3)) == (13,)
        slow = Unreliable(store, "late")
        assert slow.once(form.fill(key, n=4)) == (17,)
        slow.land()
        assert (bins(store, key) or {})["n"] == 17
        raises(Refused, store.once, form.fill(key, n=18))
        raises(InvalidRequest, store.once, Form(Add("n", 1)).fill(key))

    def test_a_value_that_is_missing_or_wrong_is_refused(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1), Put("l", [0]))
        form = Form(Put("n", _N), ListSet("l", Param("at"), _V))
        for params in ({"n": 2, "at": 0}, {"n": object(), "at": 0, "v": 1}, {"n": 2, "at": -1, "v": 1}, {"at": 0}):
            raises(InvalidRequest, store.repeat, form.fill(key, **params))
        raises(InvalidRequest, store.repeat, Form(Add("n", _N)).fill(key, n=2**63))
        raises(InvalidRequest, store.repeat, Form(MapPut("m", _K, 1)).fill(key, k=1.5))
        assert bins(store, key) == {"n": 1, "l": [0]}

    def test_nothing_is_equal_to_nothing_in_the_order_of_values(self, store: RecordStore) -> None:
        key, nothing = make(store, Put("n", 1)), Param("none", type(None))
        for op, holds in (("==", True), ("!=", False), ("<", False), ("<=", True), (">", False), (">=", True)):
            guard = Compare(op, nothing, Const(None)).bind(none=None)
            if holds:
                store.operate(key, Put("n", 2), when=guard)
            else:
                raises(Refused, store.operate, key, Put("n", 2), when=guard)
