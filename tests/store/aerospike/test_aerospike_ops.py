"""The server and the local stores do the same to a record, operation by operation, and fail alike."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latchwork.errors import InvalidRequest, LatchworkError
from latchwork.store import (
    Add,
    Bin,
    Compute,
    Exists,
    Key,
    ListAppend,
    ListRange,
    ListSet,
    MapAdd,
    MapGet,
    MapPut,
    MapRemove,
    MapTrim,
    MemoryStore,
    Put,
    Read,
    Touch,
    Update,
    exists,
)  # fmt: skip
from latchwork.store.aerospike.ops import check_row, is_matched_by_name
from tests.support.scale import length

NUMBERS = itertools.count()
BINS = st.sampled_from(["i", "m", "l", "x"])
INTS = st.integers(-3, 3) | st.just(2**63 - 1)
KEYS = st.sampled_from(["a", "b", "c"]) | st.integers(0, 2) | st.just(b"k")
SCALARS = st.none() | INTS | st.sampled_from(["", "é"]) | st.binary(max_size=2) | st.booleans() | st.just(1.5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=5
)
EXPRESSIONS = st.sampled_from([Bin("i"), Bin("i") + 1, Bin("x", str), exists("m"), Bin("m", dict), Bin("l", list)])
OPS = st.one_of(
    st.builds(Put, BINS, VALUES | EXPRESSIONS),
    st.builds(Add, BINS, INTS),
    st.builds(Read, BINS),
    st.builds(Compute, EXPRESSIONS),
    st.builds(MapPut, BINS, KEYS, VALUES | EXPRESSIONS),
    st.builds(MapPut, BINS, KEYS, SCALARS, st.just(True)),
    st.builds(MapAdd, BINS, KEYS, INTS),
    st.builds(MapRemove, BINS, st.lists(KEYS, min_size=1, max_size=2).map(tuple)),
    st.builds(MapTrim, BINS, st.integers(0, 2)),
    st.builds(MapGet, BINS, KEYS),
    st.builds(ListAppend, BINS, VALUES),
    st.builds(ListSet, BINS, st.integers(0, 3), VALUES),
    st.builds(ListRange, BINS, st.integers(0, 3), st.integers(0, 3)),
    st.just(Touch()),
)
UPDATES = st.lists(st.tuples(st.lists(OPS, min_size=1, max_size=4), st.sampled_from(Exists)), min_size=1, max_size=6)
START = (Put("i", 1), Put("m", {"b": 1, "a": 2}), Put("l", [1]))
DIFFERENTIAL = settings(
    max_examples=length(120, least=40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def outcome(store, key, ops, there):
    try:
        return store.operate(key, *ops, exists=there)
    except LatchworkError as failure:
        return type(failure)


def same(real, local):
    if isinstance(real, LatchworkError):
        real = type(real)
    if isinstance(local, LatchworkError):
        local = type(local)
    return real == local and repr(real) == repr(local)


@DIFFERENTIAL
@given(updates=UPDATES, absent=st.booleans())
def test_updates_of_one_record_agree_with_the_local_store(aerospike_store, updates, absent):
    local, key = MemoryStore(), Key("operations", f"one{next(NUMBERS)}")
    for store in (aerospike_store, local):
        if not absent:
            store.operate(key, *START, exists=Exists.CREATE)
    for ops, there in updates:
        real = outcome(aerospike_store, key, ops, there)
        assert same(real, outcome(local, key, ops, there)), (ops, there)
        found, expected = aerospike_store.get(key), local.get(key)
        assert (found and found.bins) == (expected and expected.bins), (ops, there)


def is_clear(ops):
    try:
        check_row(Key("operations", "row"), ops)
    except InvalidRequest:
        return False
    return True


@DIFFERENTIAL
@given(rows=UPDATES)
def test_rows_of_a_batch_agree_with_the_local_store(aerospike_store, rows):
    rows = [row for row in rows if is_clear(row[0])]
    local, keys = MemoryStore(), [Key("operations", f"row{next(NUMBERS)}") for _ in rows]
    for store in (aerospike_store, local):
        for key in keys[::2]:
            store.operate(key, *START, exists=Exists.CREATE)
    updates = [Update(key, tuple(ops), None, there) for key, (ops, there) in zip(keys, rows, strict=True)]
    real = aerospike_store.operate_many(updates)
    assert all(same(one, other) for one, other in zip(real, local.operate_many(updates), strict=True)), updates
    found = [record and record.bins for record in aerospike_store.get_many(keys)]
    assert found == [record and record.bins for record in local.get_many(keys)], updates


@pytest.mark.parametrize("again", [Read("i"), Add("i", 1), Put("i", 2), MapPut("i", "a", 1)])
def test_a_batch_refuses_only_the_row_that_it_could_not_tell_apart(aerospike_store, again):
    key, other = Key("operations", "ambiguous"), Key("operations", "clear")
    for name in (key, other):
        aerospike_store.operate(name, Put("i", 1), exists=Exists.ANY)
    refused, done = aerospike_store.operate_many([Update(key, (Read("i"), again)), Update(other, (Read("i"),))])
    assert isinstance(refused, InvalidRequest)
    assert "'i'" in str(refused)
    assert done == (1,)


@pytest.mark.parametrize(
    "ops",
    [
        (Read("x"), Read("i")),
        (Read("i"), Read("x")),
        (ListRange("x", 0, 1), Read("i")),
        (ListAppend("l", 2), Read("l")),
        (Read("x"), ListAppend("l", 2)),
        (Read("x"), ListSet("l", 3, 2), Read("l")),
        (Put("i", 5), Read("x")),
        (Put("x", Bin("i")), Read("x")),
        (Touch(), Read("i")),
        (Touch(), Compute(Bin("i")), Read("m")),
        (MapPut("m", "c", 3), Touch(), Read("i")),
        (Touch(), Put("x", Bin("i")), Touch(), Read("x"), Read("i")),
        (MapGet("m", "none"), MapTrim("m", 1), MapGet("m", "b"), Read("m")),
    ],
    ids=lambda ops: " ".join(type(op).__name__ for op in ops),
)
def test_each_read_gets_its_own_answer(aerospike_store, ops):
    local, key = MemoryStore(), Key("operations", f"answers{next(NUMBERS)}")
    for store in (aerospike_store, local):
        store.operate(key, *START, exists=Exists.CREATE)
    assert aerospike_store.operate(key, *ops) == local.operate(key, *ops)


def test_results_are_matched_by_name_unless_a_bin_is_touched_after_it_was_read():
    assert is_matched_by_name((Add("i", 1), Read("i"), Read("m")))
    assert not is_matched_by_name((Read("i"), Add("i", 1)))
