"""A node that is nobody's any more leaves the line: its candidate has stopped, lost its term, or cannot lead."""

from __future__ import annotations

import threading

import pytest
from kazoo.client import KazooClient

from latchwork.coord import ZooKeeperElection
from latchwork.coord.contender import Acquisition
from latchwork.coord.lock import LOCKS
from latchwork.errors import FencedOut, InvalidRequest, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore
from tests.support.waiting import until
from tests.support.zoo import Client, Zoo


@pytest.fixture
def zoo():
    return Zoo()


@pytest.fixture
def candidate(zoo):
    """Makes candidates for one office, each on a client of its own: `one._client`."""
    made = []

    def make(name, store, **rest):
        one = ZooKeeperElection(store, "office", KazooClient("h:1"), candidate=name, **rest)
        one._client = one._line.client = Client(zoo, session=1 + len(made))
        made.append(one)
        return one

    yield make
    for one in made:
        assert one.stop()


# ---- candidates in threads of their own


@pytest.fixture
def returns():
    """When the leader's function does."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def pair(candidate, returns):
    """A leader whose function takes its time, and who waits behind it."""
    store = MemoryStore()
    first, second = candidate("a", store, lease=30), candidate("b", store, lease=30)
    first.start(lambda leadership: returns.wait(30))
    until(lambda: first.leadership)
    second.start()
    until(lambda: len(second.contenders()) == 2)
    yield first, second
    returns.set()


def suspended(election):
    election._client.cut()
    election._client.back()


def stopped(election):
    assert election.stop(timeout=0.01) is False


def overtaken(election):
    election._store.operate(Key(LOCKS, "office"), Add("fencing-ctr", 1), Put("locked", 0), ttl=-1)
    with pytest.raises(FencedOut):
        election._grant.renew()


@pytest.mark.parametrize("end", [suspended, stopped, overtaken, ZooKeeperElection.resign])
def test_a_term_that_is_lost_makes_room_before_its_function_has_returned(pair, returns, end):
    first, second = pair
    epoch = first.leadership.epoch
    end(first)
    assert until(lambda: second.leadership).epoch > epoch
    assert not returns.is_set()
    assert second.contenders() == ["b"], "it does not stand again before its function has returned"


def test_a_function_of_run_that_outlives_its_term_makes_room(candidate, returns):
    store = MemoryStore()
    first, second = candidate("a", store), candidate("b", store)
    first.start()
    runner = threading.Thread(target=first.run, args=[lambda leadership: returns.wait(30)])
    runner.start()
    until(lambda: first._runners)
    second.start()
    until(lambda: len(second.contenders()) == 2)
    suspended(first)
    until(lambda: second.leadership)
    assert runner.is_alive()
    returns.set()
    runner.join()


def test_a_candidate_that_stops_without_a_connection_leaves_the_line_with_the_next_one(candidate, zoo):
    one = candidate("a", MemoryStore())
    one.start()
    until(lambda: one.leadership)
    one._client.cut()
    assert one.stop() is True
    assert len(zoo.nodes) == 1
    one._client.back()
    assert zoo.nodes == {}
    assert one._client.listeners == set()


# ---- step by step


@pytest.fixture
def clock():
    made = ManualClock()
    made.spawn = lambda run, name: None
    return made


def test_a_candidate_that_cannot_reach_the_store_does_not_stay_first_in_the_line(candidate, zoo, clock):
    store = FaultyStore(MemoryStore(clock))
    store.policy = RetryPolicy(attempts=1)
    one = candidate("a", store)
    assert one._line.predecessor() is None
    store.next("dropped")
    with pytest.raises(Unavailable):
        one._elect(clock.event())
    assert zoo.nodes == {}


def test_a_candidate_that_looks_again_and_again_keeps_one_watch(candidate, zoo, clock):
    store = MemoryStore(clock)
    first, second = candidate("a", store), candidate("b", store)
    assert first._line.predecessor() is None
    for _ in range(3):
        assert second._claim(Acquisition(second._contender)) is None
    assert [len(watchers) for watchers in zoo.watchers.values()] == [1]


def test_a_term_that_is_handed_back_late_does_not_end_the_next_one(candidate, clock):
    one = candidate("a", MemoryStore(clock))
    old = one._elect(clock.event())
    one._hand_back(old)
    new = one._elect(clock.event())
    one._hand_back(old)  # as by a resignation in another thread
    new.renew()


def test_a_term_leaves_the_line_before_the_store_is_asked_which_may_hang(candidate, zoo, clock, monkeypatch):
    one = candidate("a", MemoryStore(clock))
    term = one._elect(clock.event())
    release, standing = term._leased.release, []
    monkeypatch.setattr(term._leased, "release", lambda fence: standing.extend(zoo.nodes) or release(fence))
    assert term.release() is True
    assert standing == []


def test_a_term_whose_store_is_away_at_its_end_leaves_the_line_and_says_that_it_is_not_released(candidate, zoo, clock):
    store = FaultyStore(MemoryStore(clock))
    store.policy = RetryPolicy(attempts=1)
    one = candidate("a", store)
    grant = one._elect(clock.event())
    store.next("dropped")
    one._give_back(grant)
    assert (zoo.nodes, type(grant.unreleased)) == ({}, Unavailable)


def test_a_term_that_cannot_be_kept_alive_leaves_the_line(candidate, zoo, clock):
    def no_thread(run, name):
        raise RuntimeError("can't start new thread")

    clock.spawn = no_thread
    store = MemoryStore(clock)
    one = candidate("a", store)
    with pytest.raises(RuntimeError, match="new thread"):
        one._elect(clock.event())
    assert zoo.nodes == {}
    assert store.get(Key(LOCKS, "office")).bins["locked"] == 0


# ---- what is refused before anything is asked


@pytest.mark.parametrize(("name", "path"), [(".", "/x"), ("..", "/x"), ("n", "/a/../b"), ("n", "/./a")])
def test_a_line_is_not_kept_under_a_relative_path(name, path):
    with pytest.raises(InvalidRequest, match=r"'\.' or '\.\.'"):
        ZooKeeperElection(MemoryStore(), name, "h:1", path=path)


@pytest.mark.parametrize("hosts", ["zk:abc", ":2181", "zk:99999", ["a:1", "zk:abc"]])
def test_hosts_that_cannot_be_read_are_refused_by_name(hosts):
    with pytest.raises(InvalidRequest, match="hosts are '"):
        ZooKeeperElection(MemoryStore(), "office", hosts)
