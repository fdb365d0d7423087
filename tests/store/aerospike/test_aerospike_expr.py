"""The server and the local interpreter give every expression the same value, unknown included."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latchwork.errors import Refused
from latchwork.store import Compute, Exists, Key, Put
from latchwork.store.local.apply import holds
from latchwork.store.local.evaluate import UNKNOWN, Scope, value_of
from latchwork.store.model import expr as e
from tests.support.scale import length

KEY = Key("expressions", "r")
WORDS = st.sampled_from(["", "a", "b", "ab", "é"])
BYTES = st.sampled_from([b"", b"a", b"ab"])
INTS = st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)])
SMALL_MAPS = st.dictionaries(WORDS | st.integers(-2, 2) | BYTES, st.integers(-3, 3) | WORDS, max_size=4)
RECORDS = st.fixed_dictionaries(
    {"always": st.just(1)},
    optional={
        "i": INTS | WORDS,
        "j": INTS,
        "s": WORDS | INTS,
        "b": BYTES,
        "m": SMALL_MAPS | st.integers(0, 1),
        "n": st.dictionaries(WORDS, INTS, max_size=3),
        "l": st.lists(INTS, max_size=2),
    },
)
PARAMS = {"pi": INTS, "ps": WORDS, "pb": BYTES}
MAPS = st.sampled_from(["m", "n", "absent", "i"])


def integers(depth: int):
    leaves = [
        INTS.map(e.Const),
        st.sampled_from(["i", "j", "s", "absent"]).map(e.Bin),
        st.just(e.Param("pi")),
        MAPS.map(e.MapSize),
        st.builds(e.MapValue, MAPS, keys(), st.just(int)),
        st.builds(e.MapKeyAt, MAPS, st.integers(-3, 3), st.just(int)),
        st.just(e.MapSmallestValue("n")),
    ]
    if depth == 0:
        return st.one_of(leaves)
    parts = integers(depth - 1)
    sums = st.builds(e.Arithmetic, st.sampled_from("+-*"), st.tuples(parts, parts))
    extremes = st.builds(e.Arithmetic, st.sampled_from(["max", "min"]), st.tuples(parts, parts))
    return st.one_of([*leaves, sums, extremes, st.builds(e.If, booleans(depth - 1), parts, parts)])


def keys():
    return st.one_of(
        WORDS.map(e.Const), INTS.map(e.Const), st.just(e.Param("ps", str)), st.just(e.Bin("s", str)), BYTES.map(e.Const)
    )


def texts():
    return st.one_of(
        WORDS.map(e.Const),
        st.sampled_from(["s", "i", "absent"]).map(lambda name: e.Bin(name, str)),
        st.just(e.Param("ps", str)),
        st.builds(e.MapValue, MAPS, keys(), st.just(str)),
        st.builds(e.MapKeyAt, MAPS, st.integers(-3, 3), st.just(str)),
    )


def blobs():
    return st.one_of(BYTES.map(e.Const), st.just(e.Bin("b", bytes)), st.just(e.Param("pb", bytes)))


def booleans(depth: int):
    operators = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    leaves = [
        st.sampled_from(["i", "m", "absent"]).map(e.BinExists),
        st.builds(e.MapHas, MAPS, keys()),
        st.builds(e.Compare, operators, integers(0), integers(0)),
        st.builds(e.Compare, operators, texts(), texts()),
        st.builds(e.Compare, operators, blobs(), blobs()),
    ]
    if depth == 0:
        return st.one_of(leaves)
    parts = booleans(depth - 1)
    groups = st.tuples(parts, parts) | st.tuples(parts, parts, parts)
    return st.one_of(
        [
            *leaves,
            parts.map(e.Negate),
            groups.map(e.All),
            groups.map(e.AnyOf),
            st.builds(e.If, parts, parts, parts),
            st.builds(e.Compare, operators, integers(depth - 1), integers(depth - 1)),
        ]
    )


def lists():
    return st.lists(integers(0) | texts(), max_size=3).map(lambda parts: e.ListOf(tuple(parts)))


@settings(
    max_examples=length(150, least=50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    bins=RECORDS,
    params=st.fixed_dictionaries(PARAMS),
    values=st.lists(booleans(2) | integers(2) | texts() | lists(), min_size=8, max_size=8),
    guards=st.lists(booleans(2), min_size=2, max_size=2),
)
def test_the_server_agrees_with_the_interpreter(aerospike_store, bins, params, values, guards):
    aerospike_store.delete(KEY)
    aerospike_store.operate(KEY, *(Put(name, value) for name, value in bins.items()), exists=Exists.ANY)
    stored = aerospike_store.get(KEY).bins
    answers = aerospike_store.operate(KEY, *(Compute(value.bind(**params)) for value in values))
    for expression, answer in zip(values, answers, strict=True):
        expected = value_of(expression.bind(**params), Scope(stored, 0, 0, {}))
        expected = None if expected is UNKNOWN else expected
        assert (answer, type(answer)) == (expected, type(expected)), expression
    for guard in guards:
        assert passes(aerospike_store, guard.bind(**params)) is holds(guard.bind(**params), stored, 0, 0), guard


def passes(store, guard) -> bool:
    try:
        store.operate(KEY, Put("always", 1), when=guard)
    except Refused:
        return False
    return True
