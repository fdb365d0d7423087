"""How a lock ends for its caller where it is not simply had: overtaken, or not given back."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from latchwork.coord import FencedLock, LeaseElection
from latchwork.coord.election.election import Leadership
from latchwork.coord.lock import LOCKS
from latchwork.errors import FencedOut, LeaseLost, LockUnavailable, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore
from tests.sim.stage import Stage


def faulty(clock):
    made = FaultyStore(MemoryStore(clock))
    made.policy = RetryPolicy(attempts=1)
    return made


@pytest.fixture
def store():
    return faulty(ManualClock())


def test_who_was_overtaken_between_two_looks_is_told_so(store):
    others = FencedLock(store.inner, "lock", owner="others")
    held = others.acquire()
    store.plan = {2: held.release, 3: others.acquire}  # it looks free, and is taken again before it can be had
    with pytest.raises(LockUnavailable, match="not acquired in 0 s; others were faster"):
        FencedLock(store, "lock").acquire(timeout=0)


def test_a_release_that_fails_is_told_where_the_block_went_well(store):
    with pytest.raises(Unavailable, match="dropped"), FencedLock(store, "lock").acquire() as grant:
        store.next("dropped")
    assert grant.lost.is_set()
    assert grant.release() is True, "it may be given back once more"


def test_a_release_that_fails_does_not_hide_how_the_block_failed(store):
    store.plan = {2: "dropped"}
    with pytest.raises(ZeroDivisionError), FencedLock(store, "lock").acquire():
        raise ZeroDivisionError
    assert store.fired["dropped"] == 1


class Hand(ManualClock):
    """Renewals run when the test says so; what is counted is kept."""

    def __init__(self):
        super().__init__()
        self.work, self.noted = [], []

    def spawn(self, run, name):
        self.work.append(run)

    def note(self, event, value=1, /, **labels):
        if event == "fences_refused":
            self.noted.append(labels)


@pytest.fixture
def renewing():
    """A store of which the first renewal is its second call."""
    return faulty(Hand())


def test_a_release_while_the_lease_is_renewed_counts_nobody_as_stopped(renewing):
    grant = FencedLock(renewing, "lock").acquire(keep_alive=True)
    renewing.plan = {2: grant.release}
    renewing.seams.work[0]()
    assert grant.lost.is_set()
    assert renewing.seams.noted == []


def test_a_release_before_the_reply_of_a_renewal_counts_nobody_as_stopped(renewing, monkeypatch):
    grant = FencedLock(renewing, "lock").acquire(keep_alive=True)
    renew = grant._leased.renew

    def renewed(fence):
        claim = renew(fence)
        grant.release()
        return claim

    monkeypatch.setattr(grant._leased, "renew", renewed)
    renewing.seams.work[0]()
    assert renewing.seams.noted == []


def test_a_holder_that_was_overtaken_is_counted_by_its_next_renewal(renewing):
    grant = FencedLock(renewing, "lock").acquire(keep_alive=True)
    renewing.plan = {2: lambda: renewing.inner.operate(Key(LOCKS, "lock"), Put("locked", 0))}
    renewing.seams.work[0]()
    assert grant.lost.is_set()
    assert renewing.seams.noted == [{"by": "holder"}]


def test_a_holder_whose_renewal_is_answered_too_late_is_counted(renewing):
    lock = FencedLock(renewing, "lock", lease=9)
    grant = lock.acquire(keep_alive=True)
    renewing.plan = {2: lambda: renewing.seams.advance(10)}
    renewing.seams.work[0]()
    assert grant.lost.is_set()
    assert renewing.seams.noted == [{"by": "holder"}]
    assert lock.try_acquire() is not None, "what was renewed too late was given back"


def test_a_block_whose_lock_was_renewed_too_late_and_so_given_back_ends_with_lease_lost(renewing):
    lock = FencedLock(renewing, "lock", lease=9)
    grant = lock.acquire(keep_alive=True)
    renewing.plan = {2: lambda: renewing.seams.advance(10)}
    renewing.seams.work[0]()
    assert lock.try_acquire() is not None, "two may work at a time"
    with pytest.raises(LeaseLost, match="others may have had it since"):
        grant.__exit__(None, None, None)


def test_a_block_that_ends_before_the_reply_of_a_renewal_says_nothing(renewing, monkeypatch):
    renewed, ends = threading.Event(), threading.Event()
    with FencedLock(renewing, "lock").acquire() as grant:
        renew, release = grant._leased.renew, grant._leased.release

        def slowly_renewed(fence):
            claim = renew(fence)
            renewed.set()
            assert ends.wait(60)
            return claim

        def slowly_released(fence):
            if threading.current_thread() is not renewal:
                ends.set()
                renewal.join(60)
            return release(fence)

        def renew_now():
            with suppress(FencedOut):
                grant.renew()

        renewal = threading.Thread(target=renew_now)
        monkeypatch.setattr(grant._leased, "renew", slowly_renewed)
        monkeypatch.setattr(grant._leased, "release", slowly_released)
        renewal.start()
        assert renewed.wait(60)
    assert not renewal.is_alive()
    assert renewing.get(Key(LOCKS, "lock")).bins["locked"] == 0


def test_a_lease_that_ran_out_before_the_release_counts_though_it_was_released_meanwhile(renewing):
    grant = FencedLock(renewing, "lock", lease=9).acquire(keep_alive=True)

    def ran_out():
        renewing.seams.advance(10)
        assert grant.lost.is_set()
        grant.release()

    renewing.plan = {2: ran_out}
    renewing.seams.work[0]()
    assert renewing.seams.noted == [{"by": "holder"}]


def test_who_waits_for_the_loss_and_releases_does_not_hide_that_the_holder_was_overtaken(renewing, monkeypatch):
    grant = FencedLock(renewing, "lock").acquire(keep_alive=True)
    lose = grant.lost.set
    monkeypatch.setattr(grant.lost, "set", lambda: (lose(), setattr(grant, "_given_back", True)))
    renewing.plan = {2: lambda: renewing.inner.operate(Key(LOCKS, "lock"), Put("locked", 0))}
    renewing.seams.work[0]()
    assert renewing.seams.noted == [{"by": "holder"}]


@pytest.mark.parametrize("end", [LeaseElection.stop, LeaseElection._end_term])
def test_an_election_that_is_stopped_or_resigned_during_a_renewal_counts_nobody_as_stopped(renewing, end, monkeypatch):
    election = LeaseElection(renewing, "office")
    grant = election._grant = election._elect(renewing.seams.event())
    election._leadership = Leadership(grant, renewing, "office")
    renew = grant._leased.renew
    monkeypatch.setattr(grant._leased, "renew", lambda fence: (renew(fence), end(election))[0])
    renewing.seams.work[-1]()
    assert grant.lost.is_set()
    assert renewing.seams.noted == []


class Threadless(ManualClock):
    """No thread can be started."""

    def spawn(self, run, name):
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    "take",
    [
        lambda store: FencedLock(store, "lock").acquire(keep_alive=True),
        lambda store: FencedLock(store, "lock").try_acquire(keep_alive=True),
        lambda store: LeaseElection(store, "lock")._elect(store.seams.event()),
    ],
    ids=["acquire", "try_acquire", "elect"],
)
def test_a_grant_that_cannot_be_kept_alive_is_given_back(take):
    store = MemoryStore(Threadless())
    with pytest.raises(RuntimeError, match="new thread"):
        take(store)
    assert FencedLock(store, "lock").try_acquire() is not None


@pytest.mark.parametrize("gives_back", [True, False])
def test_a_grant_that_is_forgotten_before_its_first_renewal_is_released_unless_its_holder_may_not_be_done(gives_back):
    """An ordered consumer has messages of its shard in hand: whoever breaks the lock finds them."""
    stage = Stage()

    def process(store):
        grant = FencedLock(store, "l", lease=3).acquire()
        grant.gives_back_late = gives_back
        grant.keep_alive()
        del grant
        store.seams.sleep(30)

    stage.act("a", process)
    stage.act("b", lambda store: FencedLock(store, "l").acquire(15).broken, after=0.5)
    assert stage.play().said["b"] is not gives_back
