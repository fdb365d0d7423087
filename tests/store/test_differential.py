"""SQLite against memory: the same calls, at the same moments, get the same answers and leave the same records."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from latchwork.errors import LatchworkError
from latchwork.retry import RetryPolicy
from latchwork.store import (
    KEEP,
    NEVER,
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
    Once,
    Put,
    Read,
    ReadAll,
    Removal,
    SQLiteStore,
    Touch,
    Update,
    exists,
    has,
    lacks,
    missing,
)
from latchwork.store.model.expr import SERVER_NOW, SINCE_UPDATE, If, MapKeyAt, MapSize, MapSmallestValue, largest
from latchwork.testing.clock import ManualClock
from tests.support.message_keys import empty
from tests.support.scale import FIRST, scaled

NAMES = ("data", "delivery", "attempts")
"""Of bins: those of messages, which SQLite keeps in columns where they have such values."""
SETS, KEYS = ("s", "c_data_set"), ("1", "q_SHARD_0_7", "ü_SHARD_1_2")
"""The last two keys, in the last set, are of messages, which have a table of their own in SQLite."""
ran: Counter[str] = Counter()
keys = st.builds(Key, st.sampled_from(SETS), st.sampled_from(KEYS))
bins = st.sampled_from(NAMES)
ints = st.integers(-3, 3) | st.sampled_from((2**63 - 1, -(2**63), 2**63))
sent = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=1)
"""Text that an expression can hold."""
scalars = st.none() | ints | st.text(max_size=3) | st.binary(max_size=3) | st.floats() | st.booleans()
map_keys = st.integers(-3, 12) | st.sampled_from(("x", "y", "10", "9")) | st.binary(max_size=1)
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(map_keys, inner, max_size=3), max_leaves=6
)
_numbers = st.builds(Bin, bins) | st.just(SERVER_NOW) | st.just(SINCE_UPDATE) | st.builds(MapSize, bins)
_numbers |= st.builds(MapSmallestValue, bins) | st.builds(MapKeyAt, bins, st.integers(-2, 2), st.just(int))
numbers = st.builds(lambda node, n: node + n, _numbers, st.integers(-3, 3)) | st.builds(largest, _numbers, _numbers)
tests = (
    st.builds(lambda node, n: node <= n, _numbers, st.integers(-3, 3))
    | st.builds(lambda name, text: Bin(name, str).eq(text), bins, sent)
    | st.builds(exists, bins)
    | st.builds(missing, bins)
    | st.builds(has, bins, st.sampled_from(("x", "y")))
    | st.builds(lacks, bins, st.sampled_from(("x", "y")))
)
guards = st.recursive(
    tests,
    lambda inner: (
        st.builds(lambda a, b: a & b, inner, inner)
        | st.builds(lambda a, b: a | b, inner, inner)
        | st.builds(lambda a: ~a, inner)
    ),
    max_leaves=4,
)
values = plain | numbers | st.builds(If, guards, numbers, numbers)
ops = st.one_of(
    st.builds(Put, bins, values),
    st.builds(Add, bins, ints),
    st.builds(Read, bins),
    st.builds(Compute, numbers | guards),
    st.builds(MapPut, bins, map_keys, values, st.booleans()),
    st.builds(MapAdd, bins, map_keys, ints),
    st.builds(MapRemove, bins, st.tuples(map_keys)),
    st.builds(MapTrim, bins, st.integers(0, 4)),
    st.builds(MapGet, bins, map_keys),
    st.builds(ListAppend, bins, plain),
    st.builds(ListSet, bins, st.integers(-1, 4), plain),
    st.builds(ListRange, bins, st.integers(-1, 4), st.integers(-1, 4)),
    st.just(Touch()),
    st.just(ReadAll()),
)
updates = st.tuples(
    keys,
    st.lists(ops, min_size=1, max_size=4).map(tuple),
    st.none() | guards,
    st.sampled_from(Exists),
    st.booleans(),
    st.sampled_from((KEEP, NEVER, 1, 5, 60)),
).map(lambda parts: Update(*parts))
ONCE = Once(3, bin="c", result=largest(Bin("attempts"), 0))


def answer(call):
    """What a call came to, in a form that can be compared; not-a-number equals itself here."""
    try:
        return _plain(call())
    except LatchworkError as failure:
        return type(failure)


def _plain(value):
    if isinstance(value, LatchworkError):
        return type(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        entries = [(key, _plain(item)) for key, item in value.items()]
        return sorted(entries) if value.keys() <= {*NAMES, "c"} else entries  # the bins of a record have no order
    if hasattr(value, "bins"):
        return (value.key, sorted(_plain(value.bins)), value.generation, value.ttl)
    return (type(value), value)


class TwoStores(RuleBasedStateMachine):
    """Every rule asks both stores the same."""

    folder = tempfile.TemporaryDirectory()  # one file for all runs, emptied before each

    @initialize(seconds=st.floats(0, 2))
    def start(self, seconds):
        self.clock = ManualClock()
        self.clock.advance(seconds)
        self.sqlite = SQLiteStore(Path(self.folder.name) / "store.db", synchronous="off", seams=self.clock)
        empty(self.sqlite)
        self.memory = MemoryStore(self.clock)
        self.memory.policy = self.sqlite.policy = RetryPolicy(attempts=1)

    def both(self, call):
        ids = self.clock._ids
        expected = answer(lambda: call(self.memory))
        self.clock._ids = ids  # so that both mint the same tokens
        assert answer(lambda: call(self.sqlite)) == expected

    @rule(update=updates)
    def operate(self, update):
        named = {name: getattr(update, name) for name in ("when", "exists", "or_absent", "ttl")}
        self.both(lambda store: store.operate(update.key, *update.ops, **named))

    @rule(rows=st.lists(updates, max_size=4, unique_by=lambda update: update.key))
    def operate_many(self, rows):
        self.both(lambda store: store.operate_many(rows))

    @rule(key=keys, kind=st.sampled_from(Exists))
    def operate_once(self, key, kind):
        self.clock.advance(0.001)
        self.both(lambda store: store.operate(key, Add("attempts", 1), exists=kind, once=ONCE))

    @rule(rows=st.lists(st.builds(Removal, keys, st.none() | guards), max_size=3, unique_by=lambda row: row.key))
    def delete(self, rows):
        self.both(lambda store: store.delete_many(rows))
        if rows:
            self.both(lambda store: store.delete(rows[0].key, when=rows[0].when))

    @rule(set_name=st.sampled_from(SETS), bin=bins, value=st.integers(-3, 3) | sent)
    def query(self, set_name, bin, value):
        self.both(lambda store: store.ensure_index(set_name, bin))
        self.both(lambda store: sorted(_plain(record) for record in store.query(set_name, bin, value)))

    @rule(seconds=st.sampled_from((0.001, 0.999, 1.0, 4.0, 100.0)))
    def pass_time(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def reopen(self):
        self.sqlite.close()

    def teardown(self):
        ran["machines"] += 1

    @invariant()
    def the_records_are_the_same(self):
        if hasattr(self, "memory"):
            wanted = [Key(set_name, name) for set_name in SETS for name in KEYS]
            for names in ((), ("data",)):
                found = [_plain(store.get_many(wanted, *names)) for store in (self.memory, self.sqlite)]
                assert found[0] == found[1]


MACHINES = scaled(165)
TwoStores.TestCase.settings = settings(
    max_examples=MACHINES,
    stateful_step_count=12,
    deadline=None,
    derandomize=FIRST == 0,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestSQLiteAgainstMemory = TwoStores.TestCase


def test_enough_machines_have_run(proved):
    if not ran:
        pytest.skip("counts what the test before it did in the same run")
    proved("state machines", "SQLite and memory", machines=sum(ran.values()))
    assert sum(ran.values()) >= MACHINES
