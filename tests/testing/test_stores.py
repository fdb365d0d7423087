"""Stores that count and fail: every call is one of theirs."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest, OutcomeUnknown, Unavailable
from latchwork.retry import ONE_ATTEMPT
from latchwork.store import Exists, Key, MemoryStore, Put, Update
from latchwork.testing import Crash, Fault, FaultyStore, ManualClock, Outage

KEY = Key("s", "k")


@pytest.fixture
def faulty():
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    store.operate(KEY, Put("n", 1), exists=Exists.ANY)
    return store


def test_a_scan_is_counted_fails_in_an_outage_and_is_not_made_by_a_process_that_is_dead(faulty):
    assert len(faulty.scan("s")) == 1
    assert faulty.calls["scan"] == 1
    faulty.plan = Outage(faulty.seams, 0, 1e9)
    with pytest.raises(Unavailable):
        faulty.scan("s")
    faulty.plan = {}
    faulty.next("crash_before")
    with pytest.raises(Crash):
        faulty.get(KEY)
    with pytest.raises(Crash):
        faulty.scan("s")


def test_of_a_batch_the_rows_of_a_fault_fail_alone(faulty):
    keys = [Key("s", str(n)) for n in range(3)]
    faulty.next(Fault("reply_lost", rows=(1,)))
    rows = faulty.operate_many([Update(key, (Put("n", 1),), exists=Exists.ANY) for key in keys])
    assert [type(row) for row in rows if isinstance(row, Exception)] == [OutcomeUnknown]
    assert isinstance(rows[1], OutcomeUnknown)
    assert [record.bins for record in faulty.get_many(keys)] == [{"n": 1}] * 3, "only the reply was lost"


def test_the_next_call_fails_as_was_said_also_where_an_outage_is_planned(faulty):
    faulty.plan = Outage(faulty.seams, 1e6, 1e9)
    faulty.next("dropped")
    with pytest.raises(Unavailable):
        faulty.with_policy(ONE_ATTEMPT).get(KEY)
    assert faulty.get(KEY).bins == {"n": 1}


@pytest.mark.parametrize("number", ["2", 0, -1, 1.5, True])
def test_a_fault_that_no_call_can_have_is_refused(number):
    with pytest.raises(InvalidRequest, match="the number of a call"):
        FaultyStore(MemoryStore(ManualClock()), {number: "dropped"})


@pytest.mark.parametrize("settings", [{"rows": 1}, {"rows": ("1",)}, {"rows": (-1,)}, {"after": "1"}, {"after": -1}])
def test_a_fault_with_rows_or_calls_that_cannot_be_is_refused(settings):
    with pytest.raises(InvalidRequest):
        Fault("late", **settings)


def test_an_outage_of_an_unknown_kind_is_refused():
    with pytest.raises(InvalidRequest, match="droped"):
        Outage(ManualClock(), 0, 1, "droped")


@pytest.mark.parametrize(("begin", "end"), [(100, 60), ("1", 2), (0, float("nan"))])
def test_an_outage_in_which_no_call_could_fail_is_refused(begin, end):
    with pytest.raises(InvalidRequest):
        Outage(ManualClock(), begin, end)


def test_an_outage_may_last_for_ever():
    faulty = FaultyStore(MemoryStore(ManualClock()))
    faulty.plan = Outage(faulty.seams, 0, float("inf"))
    with pytest.raises(Unavailable):
        faulty.with_policy(ONE_ATTEMPT).get(KEY)


def test_chance_without_a_kind_of_fault_is_refused():
    with pytest.raises(InvalidRequest, match="kinds"):
        FaultyStore(MemoryStore(ManualClock()), seed=1, kinds=[])
