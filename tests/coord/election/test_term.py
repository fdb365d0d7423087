"""A term as another process checks it: only while the election's record shows it in office."""

from __future__ import annotations

import pickle
import uuid

import pytest

from latchwork.coord import FencedLock, LeaseElection
from latchwork.coord.contender import Contender
from latchwork.coord.election.term import Term
from latchwork.errors import FencedOut
from latchwork.retry import Poll
from latchwork.store import Key, MemoryStore, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore

OFFICE = Key("latchwork_locks", "office")


@pytest.fixture(autouse=True)
def _a_record_of_its_own(monkeypatch):
    """The real server is shared, and a term of an earlier test may last."""
    monkeypatch.setitem(globals(), "OFFICE", Key("latchwork_locks", f"office-{uuid.uuid4().hex[:8]}"))


@pytest.fixture
def elected(store):
    election = LeaseElection(store, OFFICE.name, lease=60)
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
    grant = FencedLock(store, OFFICE.name, lease=60).acquire(timeout=30)
    assert grant.fence > term.epoch
    refused(term)
    Term(store, OFFICE.name, grant.fence).check()


def test_a_term_whose_record_is_gone_is_refused(elected, store):
    term = Term.of(elected[1])
    store.delete(OFFICE)
    refused(term)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def office(clock):
    """An office that somebody holds for 10 s, and its term."""
    store = CountingStore(MemoryStore(clock))
    grant = FencedLock(store, OFFICE.name, lease=10).acquire()
    return store, grant, Term(store, OFFICE.name, grant.fence)


def test_a_check_costs_one_call(office):
    store, _, term = office
    store.reset()
    term.check()
    assert store.total == 1


def test_a_term_is_refused_once_it_was_seen_to_stand_still_for_its_lease(office, clock):
    term = office[2]
    term.check()
    clock.advance(10)
    term.check()
    clock.advance(0.1)
    refused(term)


def test_a_term_that_is_read_slowly_is_not_taken_for_one_that_stands_still(office, clock):
    """Its lease was read before its next renewal, and the answer took longer than the lease."""

    class Slow(CountingStore):
        def _get(self, key, bins):
            found = super()._get(key, bins)
            clock.advance(10.1)
            return found

    store, grant, term = office
    term.check()
    term.store = Slow(store)
    clock.at(5, grant.renew)
    term.check()


def test_a_term_is_not_refused_as_a_thread_with_the_same_object_was_paused_for_its_lease(office, clock):
    store, grant, _ = office

    class Shared(Term):
        """Another thread, which has read the lease at the beginning, notes that right after this one has."""

        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "_observed" and value is not None and clock.monotonic() > begin:
                super().__setattr__(name, paused)

    begin, paused = clock.monotonic(), Contender(store, OFFICE, "another", 10).look()
    term = Shared(store, OFFICE.name, grant.fence)
    for _ in range(3):
        clock.advance(6)
        grant.renew()
        term.check()


def test_a_term_that_is_renewed_in_time_stays_in_office_whatever_the_servers_clock_says(office, clock):
    _, grant, term = office
    for step in (3600, -7200, 3600):
        term.check()
        clock.step(step)
        clock.advance(6)
        grant.renew()
        term.check()


def test_a_server_clock_set_back_does_not_keep_a_dead_leaders_term_in_office(office, clock):
    term = office[2]
    term.check()
    clock.step(-3600)
    clock.advance(10.1)
    refused(term)


def test_a_term_ships_with_its_store(tmp_path):
    store = SQLiteStore(tmp_path / "store.db", synchronous="off")
    grant = FencedLock(store, OFFICE.name, lease=60).acquire()
    pickle.loads(pickle.dumps(Term(store, OFFICE.name, grant.fence))).check()
    grant.release()
    refused(pickle.loads(pickle.dumps(Term(store, OFFICE.name, grant.fence))))
