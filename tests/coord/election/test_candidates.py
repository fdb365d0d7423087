"""Who stands for an office, as far as people can see."""

from __future__ import annotations

import pytest

from latchwork.coord.election import LeaseElection
from latchwork.coord.election.candidates import CONTENDERS, Candidates
from latchwork.coord.lease import MARK
from latchwork.coord.lock import LOCKS
from latchwork.errors import Corrupt
from latchwork.observe.snapshot import election_now
from latchwork.store import NEVER, Exists, Key, MemoryStore, Put, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore
from tests.support.sqlite_damage import damage_row


@pytest.fixture
def clock():
    return ManualClock()


def test_candidates_are_named_until_they_leave_or_have_not_reported_for_a_lease(clock):
    store = CountingStore(MemoryStore(clock))
    candidates = Candidates(store, "office")
    assert candidates.names() == []
    candidates.leave("nobody")
    candidates.report("b", 10)
    candidates.report("a", 10)
    assert candidates.names() == ["a", "b"]
    clock.advance(6)
    candidates.report("a", 10)
    clock.advance(6)
    assert candidates.names() == ["a"], "the other has died"
    candidates.leave("a")
    assert candidates.names() == []


def test_who_died_is_struck_off_by_the_next_report_and_the_record_never_expires(clock):
    store = MemoryStore(clock)
    candidates = Candidates(store, "office")
    candidates.report("dead", 1)
    clock.advance(2)
    candidates.report("alive", 1)
    record = store.get(Key(CONTENDERS, "office"))
    assert list(record.bins["seen-until"]) == ["alive"]
    assert record.ttl == NEVER


@pytest.mark.parametrize("doubt", ["reply_lost", "request_lost", "duplicate", "dropped"])
def test_a_report_in_doubt_is_repeated(clock, doubt):
    store = FaultyStore(MemoryStore(clock), {1: doubt})
    Candidates(store, "office").report("a", 10)
    assert Candidates(store, "office").names() == ["a"]


def test_each_election_has_candidates_of_its_own(clock):
    store = MemoryStore(clock)
    Candidates(store, "one").report("a", 10)
    assert Candidates(store, "two").names() == []


@pytest.mark.parametrize("damage", [7, {1: 2}, {"a": "x"}])
def test_a_damaged_list_is_said_to_be_corrupt(clock, damage):
    store = MemoryStore(clock)
    store.operate(Key(CONTENDERS, "office"), Put("seen-until", damage), exists=Exists.CREATE)
    with pytest.raises(Corrupt):
        Candidates(store, "office").names()


@pytest.mark.parametrize("damage", [7, {1: 2}, {"a": "x"}, None])
def test_a_damaged_list_is_begun_again_with_the_next_report(clock, tmp_path, damage):
    store = SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock)
    candidates, record = Candidates(store, "office"), Key(CONTENDERS, "office")
    store.operate(record, Put("seen-until", {} if damage is None else damage), exists=Exists.CREATE)
    if damage is None:
        damage_row(store, record)
    candidates.report("a", 10)
    candidates.report("b", 10)
    assert candidates.names() == ["a", "b"]
    store.close()


def test_a_campaign_that_is_stopped_before_it_begins_leaves_nothing_in_the_list(clock):
    store = MemoryStore(clock)
    election, stop = LeaseElection(store, "boss", lease=5.0), clock.event()
    stop.set()
    election._campaign(stop, None, None)
    assert election.contenders() == []
    assert store.get(Key(CONTENDERS, "boss")) is None, "nothing was written"


def test_a_record_that_names_nobody_has_no_leader():
    store = MemoryStore()
    store.operate(Key(LOCKS, "office"), *MARK, exists=Exists.ANY, ttl=NEVER)
    assert election_now(store, "office") == (None, [])
