"""A candidate whose store fails, at each step of its campaign: what goes on, what ends, and who is told."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from latchwork.coord import LeaseElection
from latchwork.coord.election.election import RECOVERY, Leadership
from latchwork.coord.lock import LOCKS
from latchwork.errors import InvalidRequest, LatchworkError, Misconfigured, StorageFailed, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.store import Key, MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore


class Hand(ManualClock):
    """The campaign, and its reports to the roster, are kept, and run when the test says so."""

    campaign = reports = None
    joined = ()

    def spawn(self, run, name):
        if name.startswith("latchwork-election"):
            self.campaign = run
        if name.startswith("latchwork-candidates"):
            self.reports = run
        return self

    def join(self, timeout=None):
        self.joined = (*self.joined, timeout)

    def is_alive(self):
        return False


@pytest.fixture
def store():
    made = FaultyStore(MemoryStore(Hand()))
    made.policy = RetryPolicy(attempts=1)
    return made


@pytest.fixture
def election(store):
    return LeaseElection(store, "office", candidate="me")


def stand(election, lead):
    assert election.start(lead)
    election._seams.campaign()


def locked(store):
    return store.inner.get(Key(LOCKS, "office")).bins["locked"]


def test_a_store_that_is_away_delays_the_campaign_and_does_not_end_it(store, election, caplog):
    terms = []

    def lead(leadership):
        terms.append(election.leadership is leadership)
        election.stop()

    store.plan = {1: "dropped", 3: "reply_lost", 4: "dropped"}
    stand(election, lead)
    assert terms == [True]
    assert store.seams.slept.count(RECOVERY) == 2
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum(f"tries again in {RECOVERY} s" in message for message in warnings) == 1, "once a minute"
    assert locked(store) == 0


def disk_fails():
    raise StorageFailed("the disk failed")


def test_a_disk_that_fails_once_delays_the_campaign_and_does_not_end_it(store, election):
    terms = []

    def lead(leadership):
        terms.append(leadership.epoch)
        election.stop()

    store.plan = {1: disk_fails}
    stand(election, lead)
    assert len(terms) == 1
    assert store.seams.slept.count(RECOVERY) == 1


@pytest.mark.parametrize("failure", [asyncio.CancelledError, SystemExit, ZeroDivisionError])
def test_a_leaders_function_that_fails_in_whichever_way_lets_the_candidate_stand_again(election, caplog, failure):
    terms = []

    def lead(leadership):
        terms.append(leadership.epoch)
        if len(terms) == 2:
            election.stop()
        raise failure

    stand(election, lead)
    assert len(set(terms)) == 2
    assert caplog.text.count("the leader's function failed") == 2


def refuse():
    raise Misconfigured("no such namespace")


def test_a_campaign_that_failed_reports_to_the_roster_no_more(store, election):
    store.plan = {1: refuse}
    stand(election, None)
    store.seams.max_sleeps = len(store.seams.slept)
    store.seams.reports()
    assert election.contenders() == []


def test_a_campaign_that_ended_has_waited_for_its_last_report(election):
    """Else a candidate that stands again at once might be struck off by the leave of its earlier campaign."""
    stand(election, lambda leadership: election.stop())
    assert election._seams.joined[-1] == RECOVERY


def test_a_store_that_can_never_work_ends_the_campaign_and_is_told_to_who_waits(store, election, caplog):
    def campaign():
        election._seams.campaign()

    store.plan = {1: refuse}
    election._seams.at(0.01, campaign)
    with pytest.raises(Misconfigured, match="no such namespace"):
        election.run(lambda leadership: None, timeout=5)
    assert "does not take part any more" in caplog.text
    assert store.total == 1


def test_an_end_of_the_campaigns_thread_is_told_to_who_waits(store, election, caplog):
    failure = SystemExit("a fault")

    def campaign():
        election._seams.campaign()

    def fail():
        raise failure

    store.plan = {1: fail}
    election._seams.at(0.01, campaign)
    with pytest.raises(LatchworkError, match=re.escape(f"ended with {failure!r}")):
        election.run(lambda leadership: None, timeout=5)
    assert "does not take part any more" in caplog.text


def test_a_campaign_that_fails_once_it_was_stopped_is_no_failure_of_a_later_one(election):
    of_an_earlier_one = election._seams.event()
    election._fail(of_an_earlier_one, KeyError("too late"))
    assert election._failure is None
    election._fail(election._stop, KeyError("in time"))
    assert "in time" in str(election._failure)


def test_who_is_elected_while_it_is_stopped_never_leads(store, election):
    store.plan = {1: election.stop}
    seen = []
    stand(election, seen.append)
    assert seen == [], "no work begins after the stop"
    assert locked(store) == 0


def test_a_term_that_cannot_be_handed_back_ends_all_the_same_and_says_so(store, election, caplog):
    terms = []

    def lead(leadership):
        terms.append(leadership)
        store.next("dropped")
        election.stop()

    with caplog.at_level(logging.INFO, "latchwork"):
        stand(election, lead)
    assert "its entry among the candidates could not be updated" in caplog.text
    assert "is over" in caplog.text
    assert [type(term.unreleased) for term in terms] == [Unavailable]
    assert election.leadership is None
    assert locked(store) == 1, "until its lease is over"


def test_a_term_is_given_up_once_one_of_those_who_hand_it_back_could(store, election):
    """Its campaign and the functions of `run` do so at one time."""
    grant = election._elect(store.seams.event())
    term = Leadership(grant, store, "office")
    store.next("dropped")
    election._give_back(grant)
    assert isinstance(term.unreleased, Unavailable)

    def overtaken():
        election._give_back(grant)
        raise Unavailable("the answer to an earlier attempt")

    store.next(overtaken)
    election._give_back(grant)
    assert (term.unreleased, locked(store)) == (None, 0)


def test_a_leaders_function_that_is_none_is_refused_before_anything_is_asked(store, election):
    with pytest.raises(InvalidRequest, match="lead is a int"):
        election.start(7)
    assert store.total == 0


def test_a_campaign_whose_report_cannot_begin_goes_on_once_it_can(election, monkeypatch, caplog):
    left = [RuntimeError("can't start new thread")] * 3

    def spawn(run, name):
        if name.startswith("latchwork-candidates") and left:
            raise left.pop()
        return Hand.spawn(election._seams, run, name)

    monkeypatch.setattr(election._seams, "spawn", spawn)
    terms = []
    stand(election, lambda leadership: terms.append(leadership.epoch) or election.stop())
    assert len(terms) == 1
    assert election._seams.slept[:3] == [RECOVERY, 2 * RECOVERY, 4 * RECOVERY]
    assert caplog.text.count("tries again in") == 1
