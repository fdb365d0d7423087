"""Who stands for an office, as far as people can see."""

from __future__ import annotations

import pytest

from latchwork.coord.election.candidates import CONTENDERS, Roster
from latchwork.store import NEVER, Key, MemoryStore
from tests.support.clock import ManualClock
from tests.support.faulty import CountingStore, FaultyStore


@pytest.fixture
def clock():
    return ManualClock()


def test_candidates_are_named_until_they_leave_or_have_not_reported_for_a_lease(clock):
    store = CountingStore(MemoryStore(clock))
    roster = Roster(store, "office")
    assert roster.names() == []
    roster.leave("nobody")
    roster.report("b", 10)
    roster.report("a", 10)
    assert roster.names() == ["a", "b"]
    clock.advance(6)
    roster.report("a", 10)
    clock.advance(6)
    assert roster.names() == ["a"], "the other has died"
    roster.leave("a")
    assert roster.names() == []


def test_who_died_is_struck_off_by_the_next_report_and_the_record_never_expires(clock):
    store = MemoryStore(clock)
    roster = Roster(store, "office")
    roster.report("dead", 1)
    clock.advance(2)
    roster.report("alive", 1)
    record = store.get(Key(CONTENDERS, "office"))
    assert list(record.bins["seen-until"]) == ["alive"]
    assert record.ttl == NEVER


@pytest.mark.parametrize("doubt", ["reply_lost", "request_lost", "duplicate", "dropped"])
def test_a_report_in_doubt_is_repeated(clock, doubt):
    store = FaultyStore(MemoryStore(clock), {1: doubt})
    Roster(store, "office").report("a", 10)
    assert Roster(store, "office").names() == ["a"]


def test_one_roster_is_not_the_others(clock):
    store = MemoryStore(clock)
    Roster(store, "one").report("a", 10)
    assert Roster(store, "two").names() == []
