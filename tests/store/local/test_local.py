"""What the local stores make of updates: pure, exact, and quick without being wrong."""

from __future__ import annotations

import enum
import gc
import math
import pickle
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import latchwork
from latchwork.errors import BinMismatch, InvalidRequest, LatchworkError, RecordTooBig, Refused
from latchwork.store import (
    NEVER,
    Add,
    Bin,
    Compute,
    Exists,
    Key,
    ListAppend,
    ListSet,
    MapAdd,
    MapPut,
    MapRemove,
    MapTrim,
    MemoryStore,
    Param,
    Put,
    Read,
    Touch,
    Update,
)
from latchwork.store.contract.records import raises
from latchwork.store.local import apply as local
from latchwork.store.local import evaluate, operations
from latchwork.store.local.apply import Stored, apply
from latchwork.store.local.operations import RECORD_SIZE_LIMIT
from latchwork.store.model import values
from latchwork.store.model.expr import Const, MapHas, MapKeyAt, MapSmallestValue
from latchwork.store.model.form import Form
from latchwork.testing.stores import CountingStore
from tests.store.test_differential import map_keys, ops, plain
from tests.support.scale import scaled

KEY = Key("s", "k")
quick = settings(
    max_examples=scaled(300, least=100),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def applied(record, *operations, now=1000, **options):
    return apply(record, Update(KEY, operations, exists=options.pop("exists", Exists.ANY), **options), now)


@pytest.mark.long
@given(st.lists(ops, min_size=1, max_size=6), st.lists(ops, min_size=1, max_size=6))
@quick
def test_an_update_changes_no_record_but_its_own_result(before, after):
    record, kept = _try(Stored(), before)[0], None
    record = record or Stored()
    kept = values.encode(record.bins)
    _try(record, after)
    assert values.encode(record.bins) == kept


@given(st.lists(ops, min_size=1, max_size=8))
@quick
def test_the_bound_of_a_record_is_never_below_its_size(operations):
    record = Stored()
    for operation in operations:
        record = _try(record, [operation])[0] or Stored()
        assert record.bound >= (len(values.encode(record.bins)) if record.bins else 0)


def _try(record, operations):
    try:
        return applied(record, *operations)
    except LatchworkError:
        return record, ()


@given(st.dictionaries(map_keys, st.integers(-9, 9), max_size=8), map_keys, st.integers(0, 4))
@quick
def test_a_map_stays_in_the_order_of_its_keys_however_it_is_made(entries, key, keep):
    (record, _) = applied(None, Put("m", entries), Put("n", 1))
    for change in (MapPut("m", key, 1), MapAdd("m", "zz", 1), MapTrim("m", keep), MapRemove("m", (key,))):
        record, _ = applied(record, change)
        found = list(record.bins["m"])
        assert found == sorted(found, key=values.rank)
    assert list(values.decode(values.encode(record.bins))["m"]) == list(record.bins["m"])


@given(plain)
@quick
def test_what_is_stored_equals_what_comes_back_from_bytes(value):
    try:
        kept = values.taken(value)
    except InvalidRequest:
        return
    assert repr(values.decode(values.encode({"v": kept}))["v"]) == repr(kept)
    assert len(values.encode({"v": kept})) <= values.bound(kept) + values.bound("v") + values.HEADER
    assert repr(values.given(kept)) == repr(kept)


def test_floats_that_are_no_numbers_are_kept():
    record, found = applied(None, Put("v", [math.nan, math.inf, -math.inf, -0.0]), Read("v"))
    assert [repr(value) for value in found[0]] == ["nan", "inf", "-inf", "-0.0"]
    assert repr(values.decode(values.encode(record.bins))["v"]) == repr(found[0])


def test_arithmetic_with_a_bin_that_is_not_there_is_unknown_and_no_error():
    assert applied(None, Put("n", 2), Compute(Bin("n") + Bin("absent")))[1] == (None,)


def test_integers_wrap_at_64_bits():
    record, found = applied(None, Put("n", 2**63 - 1), Add("n", 2), Read("n"), Compute(Bin("n") - 3))
    assert found == (-(2**63) + 1, 2**63 - 2)
    assert applied(record, MapAdd("m", "k", -(2**63)), MapAdd("m", "k", -1))[0].bins["m"] == {"k": 2**63 - 1}


def test_a_kind_of_a_plain_value_is_stored_as_the_plain_value():
    class Level(enum.IntEnum):
        HIGH = 3

    class Name(str, enum.Enum):
        A = "a"

    _, found = applied(None, Put("n", Level.HIGH), Put("s", Name.A), Read("n"), Read("s"))
    assert [(type(value), value) for value in found] == [(int, 3), (str, "a")]


def test_a_kind_of_a_plain_value_is_compared_as_the_plain_value():
    class Level(enum.IntEnum):
        HIGH = 3

    class Name(str, enum.Enum):
        A = "a"

    _, found = applied(
        None, Put("n", 3), Put("s", "a"), Put("l", [3]),
        Compute(Bin("n").eq(Level.HIGH)), Compute(Bin("s", str).eq(Name.A)), Compute(Bin("l", list).eq([Level.HIGH])),
        Compute(Bin("n") + Level.HIGH),
    )  # fmt: skip
    assert found == (True, True, True, 6)


def test_a_value_nested_without_end_is_refused():
    endless: list = []
    endless.append(endless)
    raises(InvalidRequest, applied, None, Put("v", endless))


@pytest.mark.parametrize(
    "bad",
    [
        Add("n", 2**63), Add("n", 1.5), MapPut("m", 1.5, 1), MapPut("m", (1,), 1), MapPut("m", True, 1),
        ListSet("l", -1, 0), ListSet("l", 10**9, 0), MapAdd("m", "text", 1), Compute(Bin("n") > Param("unbound")),
        Put("v", Bin("none")), "not an operation",
    ],
)  # fmt: skip
def test_a_bad_operation_is_a_typed_error_and_changes_nothing(bad):
    record, _ = applied(None, Put("n", 1), Put("m", {"text": "x"}), Put("l", []))
    raises(InvalidRequest, applied, record, Put("n", 2), bad)
    assert record.bins["n"] == 1


def test_an_expression_and_a_form_are_made_into_closures_once(monkeypatch):
    made = []
    makes = {kind: lambda one, make=make: made.append(one) or make(one) for kind, make in evaluate._MAKE.items()}
    monkeypatch.setattr(evaluate, "_MAKE", makes)
    monkeypatch.setattr(operations, "_MAKE", {Put: lambda op, put=operations._put: made.append(op) or put(op)})
    form = Form(Put("n", Param("n")), when=Bin("n") < Param("n"))
    record = Stored({"n": 0})
    for n in range(1, 4):
        record, _ = apply(record, form.fill(KEY, n=n), 0)
    assert (record.bins, len(made)) == ({"n": 3}, 4)  # a comparison, its two sides, and a put


def test_an_expression_that_was_evaluated_can_go_to_another_process():
    guard = (Bin("n") > Param("least")) | MapHas("m", Const("k"))
    record = Stored({"n": 1, "m": {}})
    apply(record, Update(KEY, (Read("n"),), when=guard.bind(least=0)), 0)
    copied = pickle.loads(pickle.dumps(guard))
    apply(record, Update(KEY, (Read("n"),), when=copied.bind(least=0)), 0)
    raises(Refused, apply, record, Update(KEY, (Read("n"),), when=copied.bind(least=1)), 0)


def test_a_record_is_measured_only_when_its_bound_says_so(monkeypatch):
    measured = []
    monkeypatch.setattr(local, "encode", lambda bins: measured.append(1) or values.encode(bins))
    record = None
    for _ in range(200):
        record, _ = applied(record, Put("v", "x" * 100_000))
    assert 10 <= len(measured) <= 25
    raises(RecordTooBig, applied, record, Put("w", "é" * 500_000))
    raises(RecordTooBig, applied, record, *[ListAppend("l", b"x" * 100_000) for _ in range(11)])
    assert applied(record, Put("v", None), Put("w", b"x" * (RECORD_SIZE_LIMIT - 20)))[0].bound <= RECORD_SIZE_LIMIT


def test_a_generation_wraps_past_zero():
    record = Stored({"n": 1}, generation=65_534)
    seen = []
    for _ in range(3):
        record, _ = applied(record, Touch())
        seen.append(record.generation)
    assert seen == [65_535, 1, 2]


def test_the_smallest_value_of_a_map_is_an_integer_or_unknown():
    smallest, last = Compute(MapSmallestValue("m")), Compute(MapKeyAt("m", -1))
    for entries, expected in (
        ({"a": 3, "b": -2}, -2),
        ({"a": 3, "b": "x"}, 3),
        ({"a": 3, "b": None}, None),
        ({}, None),
    ):
        assert applied(None, Put("m", entries), smallest)[1] == (expected,)
    assert applied(None, Put("m", {1: 0, "b": 0, b"c": 0}), last)[1] == (None,)


def test_the_key_at_an_index_counts_in_key_order_from_either_end():
    entries = {"b": 0, "a": 0, "c": 0}
    for index, expected in ((0, "a"), (1, "b"), (2, "c"), (3, None), (-1, "c"), (-2, "b"), (-3, "a"), (-4, None)):
        assert applied(None, Put("m", entries), Compute(MapKeyAt("m", index, str)))[1] == (expected,)
    assert applied(None, Put("m", entries), Compute(MapKeyAt("m", 1, int)))[1] == (None,)


def test_the_servers_clock_may_differ_from_the_clients():
    from latchwork.testing.clock import ManualClock

    server, client = ManualClock(), ManualClock()
    store = MemoryStore(client, server=server)
    store.operate(KEY, Put("n", 1), exists=Exists.CREATE, ttl=5)
    client.step(1000)
    assert store.get(KEY).ttl == 5
    server.advance(5)
    assert store.get(KEY) is None
    assert "0 records" in repr(store)


def test_lifetimes_are_reported_in_whole_seconds_and_never_as_zero():
    record = Stored({"n": 1}, 1, 0, expires=2500)
    assert [record.ttl(now) for now in (0, 600, 2000, 2499)] == [2, 1, 1, 1]
    assert [record.expired(now) for now in (2499, 2500, 9999)] == [False, True, True]
    assert Stored({"n": 1}).ttl(10**15) == NEVER


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda store: store.get("a key"), "Key"),
        (lambda store: store.get(("set", "a", "b")), "Key"),
        (lambda store: store.operate(None, Put("n", 1)), "Key"),
        (lambda store: store.get_many([7]), "Key"),
        (lambda store: store.delete("a key"), "Key"),
        (lambda store: store.operate(Key("s", "k"), 5), "operation"),
        (lambda store: store.operate(Key("s", "k"), Put(5, 1)), "text"),
        (lambda store: store.operate(Key("s", "k"), Put("n", 1), ttl="1"), "ttl"),
        (lambda store: store.operate(Key("s", "k"), Put("n", 1), ttl=1.5), "ttl"),
        (lambda store: store.operate(Key("s", "k"), Put("n", 1), exists="any"), "Exists"),
        (lambda store: store.operate(Key("s", "k"), Put("n", 1), when=True), "expression"),
        (lambda _: latchwork.connect(5), "URL"),
    ],
)
def test_something_of_another_kind_is_refused_before_any_call(ask, named):
    store = CountingStore(MemoryStore())
    with pytest.raises(InvalidRequest, match=named):
        ask(store)
    assert store.total == 0


def test_a_division_by_zero_has_no_value_and_nothing_is_written():
    store, key = MemoryStore(), Key("s", "zero")
    store.operate(key, Put("n", 7), Put("zero", 0), exists=Exists.CREATE)
    with pytest.raises(BinMismatch):
        store.operate(key, Put("n", Bin("n") // Bin("zero")))
    assert store.get(key).bins == {"n": 7, "zero": 0}


@pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)
def test_a_row_that_failed_is_gone_with_its_answer_and_leaves_the_garbage_collector_nothing(store):
    gc.disable()
    try:
        rows = store.operate_many([Update(Key("s", "absent"), (Read("n"),))])
        failed = weakref.ref(rows[0])
        del rows
        assert failed() is None
    finally:
        gc.enable()
