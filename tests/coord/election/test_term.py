"""A term as another process checks it: only while the election's record shows it in office."""

from __future__ import annotations

import pickle

import pytest

from latchwork.coord import FencedLock, LeaseElection
from latchwork.coord.election.term import Term
from latchwork.errors import FencedOut
from latchwork.retry import Poll
from latchwork.store import Key, MemoryStore, SQLiteStore
from tests.support.clock import ManualClock
from tests.support.faulty import CountingStore

OFFICE = Key("latchwork_locks", "office")


@pytest.fixture
def elected(store):
    election = LeaseElection(store, "office", lease=60)
    election.start()
    yield election, Poll(low=0.005, high=0.05).until(store.seams, lambda: election.leadership, timeout=30)
    election.stop()


def refused(term):
    with pytest.raises(FencedOut, match=r"epoch \d+ has ended"):
        term.check()


def test_a_term_in_office_passes(elected, store):
    term = Term.of(elected[1])
    assert term.epoch == elected[1].epoch
    term.check()
    term.check()


def test_a_check_leaves_the_record_as_it_is(elected, store):
    before = store.get(OFFICE)
    Term.of(elected[1]).check()
    after = store.get(OFFICE)
    assert (after.bins, after.generation) == (before.bins, before.generation)


def test_a_term_that_was_given_back_is_refused(elected):
    election, leadership = elected
    term = Term.of(leadership)
    election.stop()
    refused(term)


def test_a_term_with_a_successor_is_refused(elected, store):
    election, leadership = elected
    term = Term.of(leadership)
    election.stop()
    grant = FencedLock(store, "office", lease=60).acquire(timeout=30)
    assert grant.fence > term.epoch
    refused(term)
    Term(store, "office", grant.fence).check()


def test_a_term_whose_record_is_gone_is_refused(elected, store):
    term = Term.of(elected[1])
    store.delete(OFFICE)
    refused(term)


def test_a_term_is_refused_once_its_lease_is_over_by_the_servers_clock_and_costs_one_call():
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    grant = FencedLock(store, "office", lease=10).acquire()
    term = Term(store, "office", grant.fence)
    clock.advance(9.9)
    store.reset()
    term.check()
    assert store.total == 1
    clock.advance(0.2)
    refused(term)


def test_a_term_ships_with_its_store(tmp_path):
    store = SQLiteStore(tmp_path / "store.db", synchronous="off")
    grant = FencedLock(store, "office", lease=60).acquire()
    pickle.loads(pickle.dumps(Term(store, "office", grant.fence))).check()
    grant.release()
    refused(pickle.loads(pickle.dumps(Term(store, "office", grant.fence))))
