"""A fork in the middle of a call, or of a block: what was begun is the parent's, whatever the child then does."""

from __future__ import annotations

import os
import sys

import pytest

from latchwork.errors import LatchworkError, Misconfigured
from latchwork.retry import ONE_ATTEMPT
from latchwork.store import NEVER, Add, Exists, Key, Put, Read, SQLiteStore
from latchwork.store.contract.records import raises
from latchwork.store.model.messages import Fresh, ShardAt
from latchwork.store.sqlite import pool as sqlite_pool
from tests.support import matrix
from tests.support.interrupts import Interrupts, points_of

KEY, OTHER = Key("s", "k"), Key("s", "other")
SHARD = ShardAt(0, Key("c_q_meta_set", "q_SHARD_0_POINTERS"), "c_q_data_set", "q_SHARD_0")
LATER = 3
"""Writes of the parent after the one in which it forked."""


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_pool, "FORK_PATIENCE", 0)
    store = SQLiteStore(tmp_path / "store.db", synchronous="off", busy_timeout=0.5)
    store.policy = ONE_ATTEMPT
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    yield store
    store.close()


class Child:
    """A child that goes on where the parent forked, once the parent lets it; what it then says."""

    def __init__(self):
        self.parent, self.go, self.said = os.getpid(), os.pipe(), os.pipe()
        self.number = 0

    def fork(self):
        self.number = os.fork()
        if not self.number:
            os.read(self.go[0], 1)

    def runs(self, work):
        """What the work comes to: its result or its error in the parent; the child says it, and ends."""
        try:
            outcome = work()
        except BaseException as failure:
            outcome = failure
        if os.getpid() == self.parent:
            return outcome
        os.write(self.said[1], repr(outcome).encode() if self.is_answer(outcome) else b"crash: %r" % outcome)
        os._exit(0)

    @staticmethod
    def is_answer(outcome):
        return isinstance(outcome, LatchworkError) or not isinstance(outcome, BaseException)

    def end(self):
        """What it said, after all that the parent has done meanwhile."""
        os.write(self.go[1], b"x")
        os.waitpid(self.number, 0)
        said = os.read(self.said[0], 10_000).decode()
        for end in (*self.go, *self.said):
            os.close(end)
        return said


def add(store, key=KEY):
    return store.operate(key, Add("n", 1), Read("n"), exists=Exists.ANY)[0]


def add_within(store):
    with store.together():
        store.get(KEY)
        add(store, OTHER)
        return add(store)


def publish(store):
    return store.steps.append([(SHARD, [Fresh(b"data", "u", 1)])], lambda _at, _one, pointer: f"id{pointer}", 1, 100)


def load(store):
    return store.get(SHARD.pointers).bins["LOAD_POINTER"]


def read(store):
    return store.get(KEY).bins["n"]


@pytest.mark.skipif(sys.version_info[:2] not in ((3, 11), (3, 12)), reason="other Pythons trace other instructions")
@pytest.mark.parametrize("call", [add, add_within, publish, read])
def test_a_child_of_a_fork_at_any_instruction_of_a_call_undoes_nothing_that_its_parent_has_written(store, call):
    """A handler of a signal may fork anywhere; its child comes back into the middle of the call."""
    store.operate(SHARD.pointers, Put("LOAD_POINTER", 1), Put("FIRE_POINTER", 0), exists=Exists.CREATE, ttl=NEVER)
    store.operate(Key(SHARD.set, "q_SHARD_0_1"), Put("data", b"data"), Put("attempts", 0), exists=Exists.CREATE)
    publish(store)
    call(store)
    assert load(store) == 2 + (call is publish)
    points = points_of(lambda interrupts: interrupts.run(lambda: call(store)))
    for point in matrix.sample(range(points), call.__name__):
        child, published = Child(), load(store)
        interrupts = Interrupts(point, handler=child.fork)
        expected = child.runs(lambda: interrupts.run(lambda: call(store)))  # noqa: B023 - called at once
        assert Child.is_answer(expected), interrupts.struck
        written = [add(store) for _ in range(LATER)]
        said = child.end()
        assert not said.startswith("crash"), (interrupts.struck, said)
        store.close()
        again = SQLiteStore(store.path)
        its_own = said == str(written[-1] + 1)  # where nothing was begun yet, the child's call is one by itself
        assert read(again) == written[-1] + its_own, interrupts.struck
        assert load(again) >= published + (call is publish), interrupts.struck
        assert again.damage() == []
        again.close()


def test_the_end_of_a_block_belongs_to_the_parent(store):
    child, outcomes = Child(), []

    def block():
        with store.together():
            add(store)
            child.fork()
            if not child.number:
                outcomes.append(str(raises(Misconfigured, add, store)))
        return outcomes

    assert child.runs(block) == []
    assert [add(store) for _ in range(LATER)] == [2, 3, 4]
    assert "start processes by spawn" in child.end()
    assert read(SQLiteStore(store.path)) == 4


def test_a_block_that_the_parent_gives_up_is_not_committed_by_the_child(store):
    child = Child()

    def block():
        with store.together():
            add(store)
            child.fork()
            if child.number:
                raise ValueError("the parent gives up")

    assert isinstance(child.runs(block), ValueError)
    assert child.end() == "None"
    assert read(SQLiteStore(store.path)) == 0
    assert add(store) == 1
