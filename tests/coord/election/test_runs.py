"""One candidate that is used several times at once: functions that share a term, and campaigns that follow another."""

from __future__ import annotations

import threading

import pytest

from latchwork.coord import LeaseElection, ZooKeeperElection
from latchwork.coord.election import election as module
from latchwork.errors import InvalidRequest, WaitTimeout
from latchwork.retry import Poll
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock, ManualEvent
from tests.support.waiting import until


@pytest.fixture
def election():
    made = LeaseElection(MemoryStore(), "office", lease=60)
    yield made
    made.stop()


def test_a_candidate_stands_again_only_after_the_last_of_several_functions_has_returned(election):
    epochs = []

    def long(leadership):
        assert election.run(lambda shared: shared.epoch) == leadership.epoch
        assert leadership.lost.is_set(), "the first to return gives the term up"
        with pytest.raises(WaitTimeout):
            election.run(lambda other: epochs.append(other.epoch), timeout=0.3)
        return leadership.epoch

    election.start()
    epoch = election.run(long)
    assert epochs == []
    assert until(lambda: election.leadership).epoch > epoch


def test_a_run_that_ends_leaves_the_campaign_to_those_that_still_wait(election):
    """Two threads of one program run on one candidate, and nobody has stopped it."""
    epochs = []

    def first(leadership):
        election.resign()
        thread.start()
        until(lambda: len(election._runs) == 2)
        return leadership.epoch

    def second():
        epochs.append(election.run(lambda leadership: leadership.epoch, timeout=60))

    thread = threading.Thread(target=second)
    epoch = election.run(first)
    thread.join(60)
    assert [later > epoch for later in epochs] == [True]
    assert not election._standing.is_alive(), "it ends with the last one"
    assert (election._runs, election._owner) == (set(), None)


def test_a_run_that_begins_while_another_ends_has_a_campaign_of_its_own(election, monkeypatch):
    """And ends it, although the other one ends later."""
    ended, owner, over, epochs = election._ended, [], threading.Event(), []

    def second(leadership):
        over.wait(60)
        epochs.append(leadership.epoch)

    thread = threading.Thread(target=lambda: election.run(second, timeout=60))

    def meanwhile(*given):
        monkeypatch.setattr(election, "_ended", ended)
        thread.start()
        until(lambda: election._owner is not owner[0])
        return ended(*given)

    monkeypatch.setattr(election, "_ended", meanwhile)
    epoch = election.run(lambda leadership: owner.append(election._owner) or leadership.epoch)
    over.set()
    thread.join(60)
    assert [later > epoch for later in epochs] == [True]
    assert not election._standing.is_alive()
    assert election._owner is None


class Late(Poll):
    """Who waited by this comes back late; something happens before."""

    def until(self, *given, **how):
        found = super().until(*given, **how)
        Late.before()
        return found


def test_a_function_that_is_about_to_be_called_holds_the_next_term_back(election, monkeypatch):
    monkeypatch.setattr(module, "FOLLOW", Late(low=0.01, high=0.05))
    seen = []

    def resigned():
        election.resign()
        seen.append(election._idle.is_set())

    monkeypatch.setattr(Late, "before", resigned, raising=False)
    assert election.run(lambda leadership: leadership.lost.is_set())
    assert seen == [False]
    assert election._idle.is_set()


def test_a_wait_that_is_interrupted_right_after_the_election_lets_the_candidate_stand_again(election, monkeypatch):
    joined = election._joined

    def interrupted(*given):
        if joined(*given):
            raise KeyboardInterrupt

    election.start()
    monkeypatch.setattr(election, "_joined", interrupted)
    with pytest.raises(KeyboardInterrupt):
        election.run(lambda leadership: None)
    monkeypatch.undo()
    assert election._idle.is_set()
    assert election.run(lambda leadership: leadership.epoch)
    assert election.stop() is True


class Interrupting:
    """An event at whose first setting an interrupt comes."""

    def __init__(self, event) -> None:
        self.event, self.wait, self.is_set, self._interrupts = event, event.wait, event.is_set, [KeyboardInterrupt]

    def set(self):
        if self._interrupts:
            raise self._interrupts.pop()
        self.event.set()


def test_a_function_whose_end_is_interrupted_gives_its_term_up_and_lets_the_candidate_stand_again(election):
    election.start()

    def work(leadership):
        election._grant.lost = Interrupting(leadership.lost)
        return leadership

    with pytest.raises(KeyboardInterrupt):
        election.run(work)
    assert election._idle.is_set()
    assert election.run(lambda leadership: leadership.epoch)
    assert election.stop() is True


def test_a_function_that_fails_lets_the_candidate_stand_again(election):
    election.start()
    with pytest.raises(ZeroDivisionError):
        election.run(lambda leadership: 1 / 0)
    assert election.run(lambda leadership: leadership.epoch)


class Patient(ManualEvent):
    """An event that is not asked without end."""

    asked = 0

    def wait(self, timeout=None):
        self.asked += 1
        assert self.asked < 1000, "asked without a pause"
        return super().wait(timeout)


class Standing:
    def join(self, timeout=None): ...

    def is_alive(self):
        return True


class Hand(ManualClock):
    """The campaign is run when the test says so; what runs beside it does not run at all."""

    def spawn(self, run, name):
        if name.startswith("latchwork-election"):
            self.campaign = run
        return Standing()

    def event(self):
        return Patient(self)


def test_who_waits_while_the_leaders_function_outlives_its_term_pauses_between_two_looks():
    election = LeaseElection(MemoryStore(Hand()), "office")
    waited = []

    def lead(leadership):
        election.resign()
        began = election._seams.monotonic()
        try:
            election.run(print, timeout=2)
        except WaitTimeout:
            waited.append(election._seams.monotonic() - began)
        election.stop()

    election.start(lead)
    election._seams.campaign()
    assert waited == [pytest.approx(2)]


def leading(election, finish):
    election.start(lambda leadership: finish.wait(20))
    return until(lambda: election.leadership).epoch


def test_a_candidate_that_starts_again_stands_once_what_was_stopped_has_ended(election):
    finish = threading.Event()
    epoch = leading(election, finish)
    assert election.stop(0.01) is False
    assert election.start() is True
    assert election.start() is False, "standing already"
    assert election.leadership is None
    finish.set()
    assert until(lambda: election.leadership).epoch > epoch
    assert election.stop() is True


def test_a_candidate_that_is_stopped_before_it_stands_again_does_not_stand(election):
    finish, led = threading.Event(), []
    leading(election, finish)
    assert election.stop(0.01) is False
    assert election.start(led.append) is True
    assert election.stop(0.01) is False
    finish.set()
    assert election.stop() is True
    assert led == []


@pytest.mark.parametrize("path", [None, 7, "", "/a\0b", "/a\udcff"])
def test_a_line_of_zookeeper_has_a_path_that_it_can_keep(path):
    with pytest.raises(InvalidRequest, match="path is"):
        ZooKeeperElection(MemoryStore(), "office", "h:1", path=path)


@pytest.mark.parametrize("timeout", [-1, "soon"])
def test_a_wrong_timeout_ends_no_candidacy_by_zookeeper(timeout):
    election = ZooKeeperElection(MemoryStore(), "office", "h:1")
    with pytest.raises(InvalidRequest, match="timeout is"):
        election.stop(timeout)
    assert not election._stop.is_set()


def test_a_wrong_timeout_is_refused_before_the_stop_takes_effect(election):
    election.start()
    leadership = until(lambda: election.leadership)
    for timeout in (-1, "soon", float("nan")):
        with pytest.raises(InvalidRequest, match="timeout is"):
            election.stop(timeout)
    assert not leadership.lost.is_set()
