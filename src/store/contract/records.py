"""The contract of single records: presence, operations, values, limits, guards, the server's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import AlreadyExists, BinMismatch, InvalidRequest, LatchworkError, NotFound, RecordTooBig, Refused
from ...seams import SYSTEM
from ..model.expr import (
    SERVER_NOW,
    SINCE_UPDATE,
    Bin,
    Expr,
    If,
    MapKeyAt,
    MapSize,
    Param,
    exists,
    has,
    lacks,
    largest,
    missing,
)
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
    Op,
    Put,
    Read,
    ReadAll,
    Touch,
)
from ..port import NEVER, Exists, Key, RecordStore, Update

SET = "contract"
ANY = Exists.ANY


def new_key(set: str = SET) -> Key:
    """Return a key that nothing has used before."""
    return Key(set, SYSTEM.unique())


def make(store: RecordStore, *ops: Op, ttl: int = NEVER, key: Key | None = None) -> Key:
    """Return a new record."""
    key = key or new_key()
    store.operate(key, *ops, exists=Exists.CREATE, ttl=ttl)
    return key


def raises(kind: type[LatchworkError], call: Callable[..., Any], *args: Any, **options: Any) -> LatchworkError:
    """Return the error of this kind that the call raises; anything else fails the check."""
    try:
        result = call(*args, **options)
    except kind as failure:
        return failure
    raise AssertionError(f"{kind.__name__} expected, got {result!r}")


def bins(store: RecordStore, key: Key) -> dict[str, Any] | None:
    """Return the record's bins, or None where there is none."""
    record = store.get(key)
    return None if record is None else record.bins


def generation_of(store: RecordStore, key: Key) -> int:
    """Return the record's generation; it has to be there."""
    record = store.get(key)
    assert record is not None
    return record.generation


class Contract:
    """The facts that the checks need about the store that they are run over."""

    shared = True
    """Whether other processes see its records; such a store pickles."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass on the store's clock."""
        SYSTEM.sleep(seconds)


class RecordContract(Contract):
    """One record at a time: presence, operations, values, limits."""

    def test_an_absent_record_reads_as_none(self, store: RecordStore) -> None:
        assert store.get(new_key()) is None
        raises(NotFound, store.operate, new_key(), Read("n"))

    def test_an_update_of_an_absent_record_writes_nothing(self, store: RecordStore) -> None:
        key = new_key()
        raises(NotFound, store.operate, key, Put("n", 1))
        raises(NotFound, store.operate, key, Put("n", 1), when=Bin("n").eq(1))
        assert store.get(key) is None

    def test_a_create_leaves_a_record_that_is_there_alone(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        raises(AlreadyExists, store.operate, key, Put("n", 2), exists=Exists.CREATE)
        assert bins(store, key) == {"n": 1}

    def test_a_write_of_any_kind_creates_or_updates(self, store: RecordStore) -> None:
        key = new_key()
        for _ in range(2):
            store.operate(key, Add("n", 1), exists=Exists.ANY)
        assert bins(store, key) == {"n": 2}

    def test_only_the_bins_asked_for_are_read(self, store: RecordStore) -> None:
        key = make(store, Put("a", 1), Put("b", 2))
        record = store.get(key, "a", "none")
        assert record is not None
        assert (record.key, record.bins) == (key, {"a": 1})

    def test_many_records_are_read_in_order_with_gaps(self, store: RecordStore) -> None:
        first, second = make(store, Put("n", 1)), make(store, Put("n", 2))
        found = store.get_many([second, new_key(), first])
        assert [record and record.bins["n"] for record in found] == [2, None, 1]
        assert store.get_many([]) == []

    def test_operations_run_in_order_and_reads_answer_in_order(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        answer = store.operate(key, Read("n"), Add("n", 2), Compute(Bin("n") + 10), Put("m", Bin("n")), Read("m"))
        assert answer == (1, 13, 3)

    def test_an_update_that_fails_changes_nothing(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1), Put("text", "x"))
        raises(BinMismatch, store.operate, key, Add("n", 1), Add("text", 1))
        raises(BinMismatch, store.operate, key, Add("n", 1), MapPut("text", "k", 1))
        raises(BinMismatch, store.operate, key, Add("n", 1), ListAppend("text", 1))
        raises(BinMismatch, store.operate, key, Add("n", 1), Put("m", Bin("text") + 1))
        raises(BinMismatch, store.operate, key, Add("n", 1), Put("m", Bin("none") + 1))
        raises(BinMismatch, store.operate, key, MapGet("text", "k"))
        assert bins(store, key) == {"n": 1, "text": "x"}

    def test_a_bin_put_to_none_goes_and_with_the_last_one_the_record(self, store: RecordStore) -> None:
        key = make(store, Put("a", 1), Put("b", 2))
        store.operate(key, Put("a", None))
        assert bins(store, key) == {"b": 2}
        store.operate(key, Put("b", None))
        assert store.get(key) is None

    def test_values_come_back_as_they_went_in(self, store: RecordStore) -> None:
        for value in (
            0, 2**63 - 1, -(2**63), 1.5, "", "naïve ☃ 🎈", b"", b"\x00\xff", [], {},
            [1, "a", b"b", None, [2.5, {"k": None}]], {"a": {"b": [1, {"c": None}]}, "": -1}, {1: "x", -5: [0]},
        ):  # fmt: skip
            key = make(store, Put("v", value), Put("other", 1))
            found = bins(store, key)
            assert found == {"v": value, "other": 1}, value
            assert type(found["v"]) is type(value)

    def test_all_bins_are_read_as_the_operations_before_left_them(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1), Put("s", "é"), Put("l", [1, [2]]), Put("m", {"b": 1, "a": {}}), Put("gone", 1))
        expected = {"n": 3, "s": "é", "l": [1, [2]], "m": {"a": {}, "b": 1}, "new": b"x"}
        assert store.operate(key, Add("n", 2), Put("gone", None), Put("new", b"x"), ReadAll()) == (expected,)
        assert store.operate(key, ReadAll()) == (expected,)
        assert store.operate(key, Touch(), ReadAll()) == (expected,)
        raises(NotFound, store.operate, new_key(), ReadAll())

    def test_all_bins_are_read_last_and_beside_no_other_answer(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        for ops in (
            (ReadAll(), Put("n", 2)),
            (Read("n"), ReadAll()),
            (MapPut("m", "k", 1), ReadAll()),
            (ReadAll(),) * 2,
        ):
            raises(InvalidRequest, store.operate, key, *ops)
            made = Update(new_key(), (Put("n", 1), ReadAll()), exists=ANY)
            row, *rest = store.operate_many([Update(key, ops), made, Update(key, (ReadAll(),))])
            assert isinstance(row, InvalidRequest)
            assert rest == [({"n": 1},), ({"n": 1},)]
        assert bins(store, key) == {"n": 1}

    def test_what_was_read_is_the_callers_own(self, store: RecordStore) -> None:
        given: list[Any] = [1, {"k": [2]}]
        key = make(store, Put("v", given), MapPut("m", "k", [1]))
        given[1]["k"].append(9)
        for found in (bins(store, key), {"v": store.operate(key, Read("v"))[0], "m": {}}):
            assert found is not None
            assert found["v"] == [1, {"k": [2]}]
            found["v"][1]["k"].append(3)
        store.operate(key, MapGet("m", "k"))[0].append(2)
        assert bins(store, key) == {"v": [1, {"k": [2]}], "m": {"k": [1]}}

    def test_maps_are_ordered_by_key(self, store: RecordStore) -> None:
        key = make(store, *(MapPut("m", n, str(n)) for n in (10, 9, -1, 200)), MapAdd("sums", "a", 2))
        ends = Compute(MapKeyAt("m", 0, int)), Compute(MapKeyAt("m", -1, int)), Compute(MapSize("m"))
        assert store.operate(key, *ends) == (-1, 200, 4)
        assert store.operate(key, MapTrim("m", 3), *ends, MapGet("m", 9), MapGet("m", -1)) == (9, 200, 3, "9", None)
        store.operate(key, MapRemove("m", (9, 77)), MapTrim("m", 5), MapRemove("none", ("x",)), MapAdd("sums", "a", -3))
        assert bins(store, key) == {"m": {10: "10", 200: "200"}, "sums": {"a": -1}}
        assert store.operate(key, MapGet("none", 1), Compute(MapKeyAt("none", 0))) == (None, None)

    def test_lists_grow_and_are_read_in_pieces(self, store: RecordStore) -> None:
        key = make(store, ListAppend("l", "a"), ListSet("l", 3, "d"), ListAppend("l", "e"), Put("n", 1))
        assert bins(store, key) == {"l": ["a", None, None, "d", "e"], "n": 1}
        assert store.operate(key, ListSet("l", 1, [0]), ListRange("l", 0, 2)) == (["a", [0]],)
        assert store.operate(key, ListRange("l", 4, 9)) == (["e"],)
        assert store.operate(key, ListRange("l", 5, 1)) == ([],)
        assert store.operate(key, ListRange("none", 0, 5)) == ([],)

    def test_names_up_to_their_limits_are_taken_and_longer_ones_refused(self, store: RecordStore) -> None:
        name = "b" * 15
        key = make(store, Put(name, 1), key=Key("s" * 63, SYSTEM.unique() + "k" * 200))
        assert bins(store, key) == {name: 1}
        store.delete(key)
        for bad in (Key("s" * 64, "k"), Key("", "k"), Key(SET, "")):
            raises(InvalidRequest, store.operate, bad, Put("n", 1), exists=Exists.ANY)
            raises(InvalidRequest, store.get, bad)
            raises(InvalidRequest, store.delete, bad)
            raises(InvalidRequest, store.operate_many, [Update(bad, (Put("n", 1),), exists=Exists.ANY)])
        for update in ((Put("b" * 16, 1),), (Put("é" * 8, 1),), (Put("", 1),), ()):
            raises(InvalidRequest, store.operate, new_key(), *update, exists=Exists.ANY)
        raises(InvalidRequest, store.operate, new_key(), Put("n", 1), exists=Exists.ANY, ttl=0)

    def test_a_value_that_no_bin_can_hold_is_refused(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        for bad in (2**63, -(2**63) - 1, {1, 2}, object(), [2**63], {"k": {"k": 2**64}}, "\ud800", [(1, 2)], {(1,): 2}):
            raises(InvalidRequest, store.operate, key, Put("v", bad))
        assert bins(store, key) == {"n": 1}

    def test_a_record_that_would_be_too_big_is_left_as_it_was(self, store: RecordStore) -> None:
        limit = store.describe().record_size_limit
        key, absent = make(store, Put("n", 1)), new_key()
        for size in (limit + 1, 2 * limit):
            raises(RecordTooBig, store.operate, key, Add("n", 1), Put("v", b"x" * size))
            raises(RecordTooBig, make, store, Put("v", b"x" * size), key=absent)
        assert (bins(store, key), store.get(absent)) == ({"n": 1}, None)
        store.operate(key, Put("v", b"x" * (limit - 4096)))
        raises(RecordTooBig, store.operate, key, Put("w", "x" * 8192))
        store.delete(key)

    def test_a_delete_says_whether_it_was_there(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        raises(Refused, store.delete, key, when=Bin("n").eq(2))
        assert bins(store, key) == {"n": 1}
        assert store.delete(key, when=Bin("n").eq(1)) is True
        assert store.delete(key) is False
        assert store.delete(key, when=Bin("n").eq(1)) is False
        assert store.get(key) is None


class GuardContract(Contract):
    """Guards, expressions and the server's time (docs/protocols P0)."""

    def test_a_guard_decides_whether_anything_is_written(self, store: RecordStore) -> None:
        key = make(store, Put("n", 5), Put("s", "abc"), Put("b", b"x"), MapPut("m", "k", 1))
        limit = Bin("n") >= Param("limit")
        for holds in (
            Bin("n").eq(5), Bin("n").ne(4), Bin("n") < 6, (Bin("n") <= 5) & (Bin("n") > 4), ~(Bin("n") > 5),
            Bin("s", str).eq("abc"), Bin("s", str) < "abd", Bin("b", bytes).eq(b"x"), limit.bind(limit=5), exists("n"),
            missing("x"), has("m", "k"), lacks("m", "x"), lacks("x", "x"), Bin("n").eq(1) | exists("s"),
            MapSize("m").eq(1),
        ):  # fmt: skip
            assert store.operate(key, Touch(), Read("n"), when=holds) == (5,)
        generation = generation_of(store, key)
        for refuses in (
            Bin("n").eq(4), Bin("n") > 5, Bin("s", str).eq("ab"), limit.bind(limit=6), missing("n"), exists("x"),
            has("m", "x"), has("x", "x"), lacks("m", "k"), exists("x") & exists("n"), Bin("n").eq(1) | Bin("n").eq(2),
        ):  # fmt: skip
            raises(Refused, store.operate, key, Put("n", 0), when=refuses)
        assert generation_of(store, key) == generation
        assert (bins(store, key) or {})["n"] == 5

    def test_a_missing_bin_refuses_a_comparison_and_its_negation(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        for unknown in (Bin("x").eq(1), Bin("n", str).eq("a"), Bin("x") > 0, MapSize("x").eq(0), MapSize("n").eq(0)):
            for guard in (unknown, ~unknown, ~~unknown, unknown & exists("n"), unknown | missing("n")):
                raises(Refused, store.operate, key, Put("n", 2), when=guard)
            store.operate(key, Touch(), when=unknown | exists("n"))
            raises(Refused, store.operate, key, Put("n", 2), when=unknown & missing("n"))

    def test_a_guard_on_an_absent_record_has_to_be_meant(self, store: RecordStore) -> None:
        for kind in (Exists.ANY, Exists.CREATE):
            raises(
                InvalidRequest, lambda kind=kind: store.operate(new_key(), Put("n", 1), when=exists("x"), exists=kind)
            )
            key = new_key()
            store.operate(key, Put("n", 1), when=exists("x"), exists=kind, or_absent=True)
            assert bins(store, key) == {"n": 1}
        raises(Refused, store.operate, key, Put("n", 2), when=exists("x"), exists=Exists.ANY, or_absent=True)

    def test_expressions_are_computed_and_written(self, store: RecordStore) -> None:
        key = make(store, Put("n", 5), MapPut("m", "k", 7))
        chosen = If(Bin("n") > 3, largest(Bin("n") + 1, 2), Bin("n"))
        assert store.operate(key, Put("top", chosen), Compute(chosen - 10), Read("top")) == (-4, 6)
        assert store.operate(key, MapPut("m", "sum", Bin("n") + Bin("top")), MapGet("m", "sum")) == (11,)
        bound = (Bin("n") + Param("x")).bind(x=100)
        assert store.operate(key, Compute(bound), Put("n", bound), Read("n"), Compute(Bin("none"))) == (105, 105, None)

    def test_the_servers_time_is_known_even_to_a_new_record(self, store: RecordStore) -> None:
        key = make(store, Put("at", SERVER_NOW))
        first, since = store.operate(key, Read("at"), Compute(SINCE_UPDATE))
        now = store.operate(key, Compute(SERVER_NOW))[0]
        assert first > 1_600_000_000_000
        assert 0 <= now - first < 600_000
        assert 0 <= since < 600_000

    def test_only_a_write_that_happens_moves_the_last_update(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        self.pass_time(0.3)
        store.operate(key, Read("n"))
        raises(Refused, store.operate, key, Put("n", 2), when=Bin("n").eq(9))
        generation = generation_of(store, key)
        (now,) = store.operate(key, Compute(SERVER_NOW))
        updated: Expr = SERVER_NOW - SINCE_UPDATE
        old = updated < now - 200  # however late this is asked
        store.operate(key, Touch(), when=old)
        raises(Refused, store.operate, key, Touch(), when=old)
        assert generation_of(store, key) == generation + 1
