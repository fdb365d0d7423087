"""What every election promises, whichever way the candidate is chosen: one contract, run over each of them."""

from __future__ import annotations

import threading
import uuid
from functools import partial

import pytest

from latchwork.coord import LeaseElection, ZooKeeperElection
from latchwork.errors import FencedOut, InvalidRequest, WaitTimeout
from latchwork.store import Add, Key, MemoryStore, Put, SQLiteStore
from tests.aio.adapter import bare
from tests.support import waiting

until = partial(waiting.until, timeout=15.0)

LEASE = 1.0
LONG = 40.0
"""Longer than any test waits: whoever is elected was not elected because a lease ran out."""
RESOURCE = Key("resources", "r")


class Stand:
    """Makes candidates for one office, and stops them all in the end."""

    def __init__(self, store, make):
        self.store, self._make = store, make
        self.name = f"office-{uuid.uuid4().hex[:8]}"
        self.made = []
        self.closing = []

    def __call__(self, candidate, *, start=False, **rest):
        election = self._make(self, candidate, **rest)
        self.made.append(election)
        if start:
            election.start()
        return election

    def fresh(self):
        """A resource that no other test has seen."""
        return Key("resources", self.name)


def _lease(stand, candidate, *, long=False):
    return LeaseElection(stand.store, stand.name, candidate=candidate, lease=LONG if long else LEASE)


def _client(hosts):
    from kazoo.client import KazooClient

    from tests.coord.election.test_zookeeper import connected

    return connected(KazooClient(hosts, timeout=LONG))  # a short session would not outlast a stall of the machine


@pytest.fixture(params=["lease-memory", "lease-sqlite", "lease-aerospike", "zookeeper"])
def stand(request, tmp_path):
    kind, _, backend = request.param.partition("-")
    if backend == "sqlite":
        store = SQLiteStore(tmp_path / "store.db", synchronous="off")
    elif backend == "aerospike":
        store = request.getfixturevalue("aerospike_store")
    else:
        store = MemoryStore()

    def zookeeper(stand, candidate, *, long=False):
        client = _client(request.getfixturevalue("zookeeper").hosts)
        stand.closing.append(client)
        return ZooKeeperElection(stand.store, stand.name, client, candidate=candidate, lease=None if long else LEASE)

    stand = Stand(store, zookeeper if kind == "zookeeper" else _lease)
    yield stand
    for election in stand.made:
        assert election.stop(timeout=10)
    for client in stand.closing:
        until(lambda: client.connected)  # noqa: B023 - a client that was given is left as it was
        client.stop()
        client.close()
    if backend == "sqlite":
        store.close()


def leader(*elections):
    def probe():
        return next((election for election in elections if election.leadership is not None), None)

    return until(probe)


def patient(election):
    """It pauses after a term as ever, but for longer than another one may stall: that one is elected all the same."""
    pause = election._yield_seconds
    election._yield_seconds = lambda: 50 * pause()
    return election


# ---- the contract


def test_one_candidate_is_elected_and_only_one(stand):
    crowd = [stand(f"c{number}", start=True, long=True) for number in range(3)]
    first = leader(*crowd)
    epoch = first.leadership.epoch
    until(lambda: set(first.contenders()) == {"c0", "c1", "c2"})
    assert [election.leadership is not None for election in crowd].count(True) == 1
    assert first.leadership.candidate == first.candidate
    for _ in range(3):
        first._grant.renew()
    assert first.leadership.epoch == epoch, "a leader that is well stays"
    first.leadership.check()
    assert not first.leadership.lost.is_set()


def test_the_epoch_is_the_fence_of_the_record_of_that_name(stand):
    election = stand("c", start=True, long=True)
    leadership = leader(election).leadership
    record = stand.store.get(Key("latchwork_locks", stand.name))
    assert record.bins["fencing-ctr"] == leadership.epoch
    assert record.bins["lock-owner"] == "c"
    assert record.bins["locked"] == 1
    assert record.ttl == -1


def test_resigning_hands_over_at_once(stand):
    first = patient(leader(stand("a", start=True, long=True)))
    old = first.leadership
    second = stand("b", start=True, long=True)
    until(lambda: len(first.contenders()) == 2)
    assert first.resign() is True
    assert first.leadership is None
    assert old.lost.is_set()
    new = until(lambda: second.leadership)
    assert new.epoch > old.epoch
    assert first.leadership is None
    with pytest.raises(FencedOut):
        old.check()
    assert first.resign() is False


def test_epochs_increase_over_many_terms(stand):
    crowd = [stand(name, start=True, long=True) for name in "ab"]
    epochs = []
    for _ in range(4):
        present = leader(*crowd)
        epochs.append(present.leadership.epoch)
        present.resign()
    assert epochs == sorted(set(epochs))


def test_a_leaders_write_is_refused_once_a_later_epoch_was_seen(stand):
    resource = stand.fresh()
    first = leader(stand("a", start=True, long=True))
    old = first.leadership
    old.operate(resource, Put("by", "a"))
    second = stand("b", start=True, long=True)
    first.stop()
    new = until(lambda: second.leadership)
    new.seal(resource)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bare(old.lost), "is_set", lambda: False)  # as if paused between the check and the write
        with pytest.raises(FencedOut, match=str(new.epoch)):
            old.operate(resource, Put("by", "a"))
    assert stand.store.get(resource).bins["by"] == "a"
    new.operate(resource, Put("by", "b"))


def test_run_calls_the_function_once_elected_and_gives_the_term_up(stand):
    election, other = stand("a", long=True), stand("b", long=True)
    seen = election.run(lambda leadership: (leadership.check(), leadership.epoch, leadership), timeout=15)
    assert seen[2].lost.is_set()
    assert election.leadership is None
    assert other.run(lambda leadership: leadership.epoch, timeout=15) > seen[1]
    until(lambda: election.contenders() == [])


def test_run_of_a_function_that_raises_gives_the_term_up_and_raises(stand):
    election, other = stand("a", long=True), stand("b", long=True)

    def fails(leadership):
        raise KeyError(leadership.epoch)

    with pytest.raises(KeyError):
        election.run(fails, timeout=15)
    assert election.leadership is None
    other.run(lambda leadership: leadership.check(), timeout=15)


def test_run_says_so_when_it_is_not_elected_in_time(stand):
    leader(stand("a", start=True, long=True))
    other = stand("b", start=True, long=True)
    until(lambda: other._contender.observed)  # else it may not know yet who leads
    with pytest.raises(WaitTimeout, match=r"not elected: not within 0\.3 s; 'a' holds it with fence"):
        other.run(lambda _: pytest.fail("was not elected"), timeout=0.3)


def test_run_is_ended_by_stop_while_it_waits(stand):
    leader(stand("a", start=True, long=True))
    waiting = stand("b", long=True)

    def stop():
        until(lambda: waiting._standing and waiting._contender.observed)  # `run` has begun, and b has looked
        waiting.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(WaitTimeout, match="stopped"):
        waiting.run(lambda _: pytest.fail("was not elected"), timeout=60)
    stopping.join(60)


def test_run_while_standing_uses_the_term_and_goes_on_standing(stand):
    election = stand("a", start=True, long=True)
    first = election.run(lambda leadership: leadership.epoch, timeout=15)
    assert leader(election).leadership.epoch > first


def test_stopping_ends_the_term_at_once_and_another_is_elected(stand):
    first = leader(stand("a", start=True, long=True))
    old = first.leadership
    second = stand("b", start=True, long=True)
    until(lambda: len(first.contenders()) == 2)
    assert first.stop() is True
    assert old.lost.is_set()
    assert first.leadership is None
    assert until(lambda: second.leadership).epoch > old.epoch
    until(lambda: second.contenders() == ["b"])


def test_a_candidate_that_stopped_may_stand_again(stand):
    election = stand("a", start=True, long=True)
    first = leader(election).leadership.epoch
    assert election.stop() is True
    assert election.start() is True
    assert election.start() is False
    assert leader(election).leadership.epoch > first


def test_the_leaders_function_is_told_and_joined(stand):
    """Losing the term tells it; only when it has returned does the candidate stand again."""
    told, may_return, terms = threading.Event(), threading.Event(), []

    def lead(leadership):
        terms.append(leadership.epoch)
        leadership.lost.wait()
        told.set()
        may_return.wait(60)

    election = stand("a", long=True)
    election.start(lead)
    leader(election)
    election.resign()
    assert told.wait(15)
    leader(stand("b", start=True, long=True))
    assert len(terms) == 1
    assert election.leadership is None
    assert election.stop(timeout=0.05) is False, "it has not returned"
    may_return.set()
    assert election.stop() is True


def test_a_leaders_function_that_fails_costs_the_term_only(stand, caplog):
    terms = []

    def lead(leadership):
        terms.append(leadership.epoch)
        if len(terms) < 3:
            raise ValueError("some bug")
        leadership.lost.wait()

    election = stand("a")
    election.start(lead)
    until(lambda: len(terms) == 3)
    assert terms == sorted(set(terms))
    assert "some bug" in caplog.text


def test_a_term_that_was_taken_over_in_the_store_is_lost(stand):
    """Whatever the reason: a higher epoch ends a lower one, by the next renewal."""
    election = stand("a", start=True)
    leadership = until(lambda: election.leadership)
    stand.store.operate(Key("latchwork_locks", stand.name), Add("fencing-ctr", 1), Put("locked", 0), ttl=-1)
    assert leadership.lost.wait(15) is True
    assert until(lambda: election.leadership).epoch > leadership.epoch + 1


def test_bad_input_is_refused_before_anything_is_asked(stand):
    election = stand("a", long=True)
    with pytest.raises(InvalidRequest, match="fn is a int"):
        election.run(3)
    with pytest.raises(InvalidRequest, match="timeout"):
        election.run(print, timeout=-1)
    with pytest.raises(InvalidRequest, match="owner"):
        stand("")
    assert election.contenders() == []


@pytest.mark.parametrize("lease", [0, -1, "10", 1e9])
def test_a_lease_out_of_bounds_is_refused(lease):
    with pytest.raises(InvalidRequest, match="lease"):
        LeaseElection(MemoryStore(), "office", lease=lease)


@pytest.mark.parametrize(("who", "path"), [("", "/x"), (None, "/x"), (7, "/x"), ("h:1", "x"), ("h:1", "/x/")])
def test_a_zookeeper_election_needs_a_client_or_hosts_and_an_absolute_path(who, path):
    with pytest.raises(InvalidRequest):
        ZooKeeperElection(MemoryStore(), "office", who, path=path)


def deposed(election, operator):
    """A term whose leader the operator made step down. One that a stall has ended before is followed by another."""
    return until(lambda: (term := election.leadership) and operator.step_down(term.epoch) and term, timeout=60)


def test_a_leader_steps_down_for_an_operator_and_another_candidate_is_elected(stand):
    first, second, operator = patient(stand("first")), stand("second", long=True), stand("operator")
    first.start()
    term = deposed(first, operator)
    second.start()
    assert not operator.step_down(term.epoch), "nobody leads in it any more"
    assert term.lost.wait(15), "it learns of it at its next renewal"
    assert until(lambda: second.leadership).epoch > term.epoch
    assert not operator.step_down(term.epoch), "a later leader is not touched"
    assert second.leadership is not None
    with pytest.raises(FencedOut):
        term.check()


def test_a_leader_that_stepped_down_is_refused_by_a_resource_from_the_next_epoch_on(stand):
    """What it does not do: until a later leader has written there, the former one still may."""
    first, second, resource = patient(stand("first")), stand("second", long=True), stand.fresh()
    first.start()
    term = deposed(first, stand("operator"))
    second.start()
    later = until(lambda: second.leadership)
    assert term.lost.wait(15)
    term.lost.is_set = lambda: False  # it believes still, as if paused between the check and the write
    term.operate(resource, Put("n", 1))
    term.operate(resource, Put("n", 2))
    later.operate(resource, Put("n", 3))
    with pytest.raises(FencedOut):
        term.operate(resource, Put("n", 4))


def test_the_only_candidate_is_elected_again_with_a_later_epoch(stand):
    only = stand("only", start=True)
    epoch = deposed(only, stand("operator")).epoch
    assert until(lambda: (later := only.leadership) and later.epoch > epoch)


@pytest.mark.parametrize("epoch", [0, -1, 1.5, "1", True, None])
def test_an_epoch_that_cannot_be_is_refused(epoch):
    with pytest.raises(InvalidRequest, match="epoch"):
        LeaseElection(MemoryStore(), "office").step_down(epoch)
