"""The tools that every other test rests on: each fault does what its name says, and a seed replays."""

from __future__ import annotations

import pytest

from latchwork.errors import LatchworkError, OutcomeUnknown, Refused, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Bin, Exists, Key, MemoryStore, Put, Read, Removal, Update
from latchwork.store.contract.records import raises
from latchwork.testing.clock import START, ManualClock
from latchwork.testing.stores import DOUBTS, KINDS, CountingStore, Crash, Fault, FaultyStore

KEY = Key("s", "k")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def inner(clock):
    store = MemoryStore(clock)
    store.policy = RetryPolicy(attempts=1)
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    return store


def count(store):
    return store.get(KEY).bins["n"]


@pytest.mark.parametrize(
    ("kind", "answer", "at_once", "in_the_end"),
    [
        ("crash_before", Crash, 0, 0),
        ("crash_after", Crash, 1, 1),
        ("dropped", Unavailable, 0, 0),
        ("request_lost", OutcomeUnknown, 0, 0),
        ("reply_lost", OutcomeUnknown, 1, 1),
        ("late", OutcomeUnknown, 0, 1),
        ("slow", (1,), 1, 1),
        ("duplicate", (1,), 2, 2),
    ],
)
def test_each_fault_does_what_its_name_says(inner, kind, answer, at_once, in_the_end):
    store = FaultyStore(inner, {1: kind})
    try:
        found = store.operate(KEY, Add("n", 1), Read("n"))
    except (Crash, LatchworkError) as failure:
        found = type(failure)
    assert (found, count(inner)) == (answer, at_once)
    store.deliver()
    assert count(inner) == in_the_end
    assert store.fired == {kind: 1}
    assert (store.history[0].verb, store.history[0].fault) == ("operate", Fault(kind))


def test_there_is_a_case_for_every_kind():
    (mark,) = test_each_fault_does_what_its_name_says.pytestmark
    assert {case[0] for case in mark.args[1]} == set(KINDS) > set(DOUBTS)


def test_a_crashed_client_does_nothing_more_until_it_is_revived(inner):
    store = FaultyStore(inner, {1: "crash_before"})
    for _ in range(2):
        with pytest.raises(Crash):
            store.operate(KEY, Add("n", 1))
    assert store.history[1:] == []
    store.revive()
    store.operate(KEY, Add("n", 1))
    assert count(inner) == 1


def test_a_late_request_lands_when_it_is_due_and_only_if_its_guard_holds_then(inner):
    store = FaultyStore(inner, {1: Fault("late", after=2), 2: "late"})
    raises(OutcomeUnknown, store.operate, KEY, Add("n", 10), when=Bin("n").eq(0))
    raises(OutcomeUnknown, store.operate, KEY, Add("n", 100), when=Bin("n").eq(0))
    assert (store.pending, count(inner)) == (2, 0)
    store.get(KEY)
    assert (store.pending, count(inner)) == (1, 10)
    (answer,) = store.deliver()
    assert isinstance(answer, Refused)
    assert (store.pending, count(inner)) == (0, 10)


@pytest.mark.parametrize("kind", ["dropped", *DOUBTS])
def test_the_rows_of_a_batch_fail_one_by_one(inner, kind):
    keys = [Key("s", str(n)) for n in range(3)]
    store = FaultyStore(inner, {1: Fault(kind, rows=(0, 2)), 3: Fault(kind, rows=(1,))})
    rows = store.operate_many([Update(key, (Put("n", 1), Read("n")), exists=Exists.CREATE) for key in keys])
    assert [type(row) if isinstance(row, LatchworkError) else row for row in rows] == [
        _failure(kind), (1,), _failure(kind),
    ]  # fmt: skip
    assert [record is not None for record in inner.get_many(keys)] == [kind == "reply_lost", True, kind == "reply_lost"]
    store.deliver()
    assert [record is not None for record in inner.get_many(keys)] == [kind in ("reply_lost", "late"), True] * 1 + [
        kind in ("reply_lost", "late")
    ]
    store.get(KEY)
    found = store.delete_many([Removal(keys[1])])
    assert found == [True], "rows beyond the batch do not fail"


def _failure(kind):
    return OutcomeUnknown if kind in DOUBTS else Unavailable


@pytest.mark.parametrize("kind", ["dropped", *DOUBTS])
def test_reads_have_no_doubt(inner, kind):
    store = FaultyStore(inner, dict.fromkeys(range(1, 5), kind))
    for call in (lambda: store.get(KEY), lambda: store.operate(KEY, Read("n")), lambda: store.get_many([KEY])):
        raises(Unavailable, call)


def test_a_plan_may_do_something_just_before_a_call(inner):
    store = FaultyStore(inner, {2: lambda: inner.operate(KEY, Add("n", 5))})
    assert [store.operate(KEY, Add("n", 1), Read("n"))[0] for _ in range(3)] == [1, 7, 8]
    store.next("dropped")
    raises(Unavailable, store.operate, KEY, Add("n", 1))


def test_a_seed_replays_its_run_and_fires_every_kind(clock):
    def run(seed):
        inner = MemoryStore(ManualClock())
        inner.operate(KEY, Put("n", 0), exists=Exists.CREATE)
        store = FaultyStore(inner, seed=seed, rate=0.5)
        for _ in range(150):
            store.revive()
            try:
                store.operate_many([Update(Key("s", str(n)), (Add("n", 1),), exists=Exists.ANY) for n in range(4)])
                store.operate(KEY, Add("n", 1))
            except (Crash, LatchworkError):
                continue
        return store.fired, [(call.verb, call.fault, repr(call.outcome)) for call in store.history], count(inner)

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert set(run(7)[0]) == set(KINDS)


def test_calls_and_rows_are_counted(inner):
    store = CountingStore(inner)
    store.get(KEY)
    store.get_many([KEY, KEY])
    store.operate_many([Update(Key("s", str(n)), (Put("n", 1),), exists=Exists.ANY) for n in range(5)])
    assert store.calls == {"get": 1, "get_many": 1, "operate_many": 1}
    assert store.rows == {"get": 1, "get_many": 2, "operate_many": 5}
    assert store.total == 3
    store.reset()
    assert store.total == 0


def test_time_passes_only_when_it_is_told_to(clock):
    assert (clock.wall(), clock.monotonic()) == (START, 0)
    seen = []
    clock.at(2, lambda: seen.append(clock.monotonic()))
    clock.at(1, lambda: seen.append(clock.monotonic()))
    clock.sleep(1.5)
    assert seen == [1]
    clock.step(-3600)
    clock.advance(1)
    assert (seen, clock.monotonic(), clock.wall()) == ([1, 2], 2.5, START + 2.5 - 3600)
    assert clock.skewed(5).wall() == clock.wall() + 5
    event = clock.event()
    clock.at(3, event.set)
    assert event.wait(1) is False
    assert event.wait(10) is True
    assert [clock.unique(), clock.unique()] == [f"{n:020x}" for n in (1, 2)]
