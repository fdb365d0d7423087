"""Taking a lease when replies are lost or late, and when the record is changed or gone between two calls."""

from __future__ import annotations

import pytest

from latchwork.coord import FencedLock
from latchwork.coord.contender import Contender
from latchwork.coord.lock import LOCKS
from latchwork.errors import OutcomeUnknown, Unavailable
from latchwork.queue import LargeQueue
from latchwork.queue.circular.lock import QueueLock
from latchwork.retry import RetryPolicy
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Fault, FaultyStore

RECORD = Key(LOCKS, "lock")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    made = FaultyStore(MemoryStore(clock))
    made.policy = RetryPolicy(attempts=1)
    return made


def lock(store, **options):
    return FencedLock(store, "lock", lease=10, **options)


def bins(store):
    return store.inner.get(RECORD).bins


def test_a_lock_whose_record_goes_while_it_is_waited_for_is_free(store):
    lock(store.inner, owner="other").acquire()
    store.plan = {2: lambda: store.inner.delete(RECORD)}
    lock(store, owner="me").acquire(timeout=1)
    assert bins(store)["lock-owner"] == "me"


def test_a_wait_that_cannot_look_says_unavailable_not_that_others_hold_it(store):
    lock(store.inner, owner="other").acquire()
    store.plan = dict.fromkeys(range(2, 100), "dropped")
    with pytest.raises(Unavailable):
        lock(store).acquire(timeout=1)


class Forgetting:
    """An attribute that another thread empties as soon as it was read."""

    kept = None

    def __get__(self, owner, kind=None):
        found, self.kept = self.kept, None
        return found

    def __set__(self, owner, value):
        self.kept = value


@pytest.mark.parametrize(("kind", "attribute"), [(Contender, "observed"), (QueueLock, "_observed")])
def test_another_thread_may_see_the_record_gone_while_one_observes_the_lease(store, kind, attribute):
    lock(store.inner).acquire()
    shared = type("Shared", (kind,), {attribute: Forgetting()})
    if kind is Contender:
        party = shared(store, RECORD, "me", 10)
        observe = party.look
    else:
        observe = shared(store, LargeQueue.create(store.inner, "q", 10).layout).observe
    assert observe().since == observe().since


def test_belief_counts_from_the_first_attempt_that_may_have_taken_it(store, clock):
    store.plan = {1: "request_lost", 3: Fault("slow", seconds=3)}
    grant = lock(store).acquire(timeout=5)
    assert clock.monotonic() >= 3
    clock.advance(10 - clock.monotonic())
    assert grant.lost.is_set()


def test_a_lock_that_was_taken_so_slowly_that_its_lease_is_over_is_renewed_before_it_is_given_out(store, clock):
    store.plan = {1: Fault("slow", seconds=11)}
    grant = lock(store).acquire(timeout=60)
    assert bins(store)["renewals"] == 1
    clock.advance(9)
    grant.check()


def test_a_lock_that_was_lost_before_it_could_be_confirmed_is_waited_for_again(store, clock):
    others = lock(store.inner, owner="other")
    taken = []

    def overtake():
        store.inner.operate(RECORD, Put("locked", 0))
        taken.append(others.acquire())
        clock.at(2, taken[0].release)

    store.plan = {1: "reply_lost", 3: overtake}
    grant = lock(store, owner="me").acquire(timeout=5)
    assert clock.monotonic() >= 2
    assert grant.fence > taken[0].fence
    assert (bins(store)["lock-owner"], bins(store)["locked"]) == ("me", 1)
    clock.advance(10.5 - clock.monotonic())
    grant.check()  # belief counts from the attempt that took it, not from the one whose lease was lost


def test_a_lock_that_cannot_be_confirmed_is_unknown(store):
    store.plan = {1: "reply_lost", 3: "dropped"}
    with pytest.raises(OutcomeUnknown, match="ends by itself"):
        lock(store).acquire(timeout=0)
    assert bins(store)["locked"] == 1


@pytest.mark.parametrize("fault", [None, "reply_lost", Fault("late", after=1)], ids=["answered", "found", "late"])
def test_a_grant_says_whether_its_last_holder_may_not_have_released_it(store, clock, fault):
    others, mine = lock(store.inner, owner="other"), lock(store, owner="me")
    for released in (True, False):
        held = others.acquire()
        assert mine.try_acquire() is None
        if released:
            held.release()
        clock.advance(11)
        store.plan = {store._number + (1 if released else 3): fault} if fault else {}
        grant = mine.acquire(timeout=60)
        assert bins(store)["lock-owner"] == "me"
        assert grant.broken is not released
        grant.release()
    assert sum(store.fired.values()) == (2 if fault else 0)


def test_a_grant_does_not_say_so_where_the_holder_has_renewed_just_before_it_was_broken_and_then_released(store, clock):
    held = lock(store.inner, owner="other").acquire()
    mine = lock(store, owner="me")
    assert mine.try_acquire() is None
    clock.advance(11)
    clock.at(1, lambda: held._leased.release(held.fence))
    store.plan = {store._number + 3: lambda: held._leased.renew(held.fence)}
    assert mine.acquire(timeout=60).broken is False
