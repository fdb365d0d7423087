"""Rules of docs/protocols P2 beside those in `tests/sim/scripts/lock.py`: what each decides, and mutants without it.

Each scenario states what must hold. Under the protocol it holds; under each of its mutants, which take one rule out, it
must fail, or the scenario would prove nothing.
"""

from __future__ import annotations

from unittest import mock

import pytest

from latchwork.coord import FencedLock, contender, lease
from latchwork.coord.lock import LOCKS
from latchwork.errors import FencedOut, LockUnavailable, OutcomeUnknown
from latchwork.store import Bin, Exists, Key, MemoryStore, Put
from latchwork.store.model.expr import SERVER_NOW, If, exists, largest
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, Fault, FaultyStore

LOCK = Key(LOCKS, "lock")
RESOURCE = Key("resources", "r")
LEASE = 10.0
_LOCKED = Bin(lease.LOCKED).eq(1)


class World:
    """One clock, one store, and holders that each have a handle of their own."""

    def __init__(self):
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)

    def lock(self, store=None, *, owner="same", lease=LEASE):
        return FencedLock(store or self.store, "lock", owner=owner, lease=lease)

    def faulty(self, plan):
        return FaultyStore(self.store, plan)

    @property
    def bins(self):
        return self.store.get(LOCK).bins


class SlowReply(CountingStore):
    """Applies at once; the answers to some calls take their time."""

    def __init__(self, inner, clock, slow):
        super().__init__(inner)
        self.clock, self.slow = clock, dict(slow)

    def _operate(self, update):
        answer = super()._operate(update)
        self.clock.advance(self.slow.pop(self.total, 0))
        return answer


# ---- scenarios


def a_break_is_of_the_acquisition_that_was_seen_to_stand_still(world):
    world.lock().acquire()
    other, store = world.lock(owner="other"), world.faulty({})
    challenger = world.lock(store)
    assert other.try_acquire() is None
    assert challenger.try_acquire() is None
    world.clock.advance(LEASE + 1)
    taken = []
    # The other breaks it, and the server's clock jumps, between the challenger's look and its break.
    store.plan[5] = lambda: (taken.append(other.try_acquire()), world.clock.step(3600))
    assert challenger.try_acquire() is None
    assert world.bins["fencing-ctr"] == taken[0].fence


def a_server_clock_stepped_back_frees_nobodys_lock(world):
    live = world.lock().acquire()
    challenger = world.lock()
    for _ in range(3):
        world.clock.step(-3600)
        with pytest.raises(LockUnavailable):
            challenger.acquire(timeout=LEASE * 0.6)
        live.renew()
    live.check()


def a_renewal_of_a_store_that_came_back_older_is_a_renewal(world):
    """The challenger does not see that the store has lost the second renewal, as there is a second one again."""
    live = world.lock().acquire()
    older = dict(world.store._records)
    world.clock.advance(1)
    live.renew()
    challenger = world.lock()
    assert challenger.try_acquire() is None
    world.store._records.update(older)
    world.clock.advance(LEASE * 0.6)
    live.renew()
    world.clock.advance(LEASE * 0.6)
    assert challenger.try_acquire() is None
    live.check()


def fences_go_on_above_the_last_when_the_servers_clock_goes_back(world):
    first = world.lock().acquire()
    first.release()
    world.clock.step(-3600)
    second = world.lock().acquire(timeout=1)
    assert second.fence == first.fence + 1


def belief_in_an_acquisition_ends_before_a_successor_can_begin(world):
    slow = SlowReply(world.store, world.clock, {1: 8})
    challenger = world.lock()
    taken = []
    world.clock.at(0.01, lambda: taken.append(challenger.try_acquire()))
    grant = world.lock(slow).acquire()
    world.clock.advance(LEASE + 0.02 - world.clock.monotonic())
    successor = challenger.try_acquire()
    assert taken == [None]
    assert successor is not None
    assert grant.lost.is_set()


def belief_in_a_renewal_ends_before_a_successor_can_begin(world):
    slow = SlowReply(world.store, world.clock, {2: 8})
    grant = world.lock(slow).acquire()
    challenger = world.lock()
    world.clock.at(0.01, challenger.try_acquire)
    grant.renew()
    world.clock.advance(LEASE + 0.02 - world.clock.monotonic())
    assert challenger.try_acquire() is not None
    assert grant.lost.is_set()


def a_remembered_grant_counts_only_while_the_record_shows_it(world):
    def succeeded_meanwhile():
        other = world.lock(owner="other")
        other.try_acquire()
        world.clock.advance(LEASE + 1)
        assert other.try_acquire() is not None

    store = world.faulty({1: "reply_lost", 2: succeeded_meanwhile})
    with pytest.raises(LockUnavailable):
        world.lock(store).acquire(timeout=1)
    assert world.bins["lock-owner"] == "other"


def an_attempt_that_lands_again_after_the_release_takes_nothing(world):
    store = world.faulty({1: "late"})
    world.lock(store).acquire(timeout=5).release()
    store.deliver()
    assert world.bins["locked"] == 0


def no_token_of_an_abandoned_attempt_is_left_on_the_record(world):
    holder = world.lock().acquire()
    store = world.faulty({1: "request_lost", 2: "request_lost", 3: "request_lost"})
    assert world.lock(store).try_acquire() is None
    assert set(world.bins) <= {*lease.BINS, lease.WAITING}
    assert world.bins["grant-id"]
    holder.check()


# ---- mutants: one rule less


def swap(owner, name, value):
    return lambda world: mock.patch.object(owner, name, value)


def _belief_from_the_reply(world):
    return mock.patch.object(lease, "believed_until", lambda began, seconds: world.clock.boottime() + seconds)


def _remembers_for_ever(world):
    return mock.patch.object(contender.Acquisition, "_is_mine", return_value=True)


_BELIEFS = {"belief from the last moment": _belief_from_the_reply}
_NOW_US = SERVER_NOW * 1000
_EXPIRED = SERVER_NOW - Bin(lease.TIME) > Bin(lease.LEASE)

CASES = [
    (a_break_is_of_the_acquisition_that_was_seen_to_stand_still, {
        "any expired lock is broken": swap(lease, "_BROKEN", _LOCKED & lease._NOT_MINE),
        "any lease that expired by the server's clock": swap(lease, "_BROKEN", _LOCKED & _EXPIRED & lease._NOT_MINE),
    }),
    (a_server_clock_stepped_back_frees_nobodys_lock, {
        "a renewal is another time": swap(
            lease.LeaseView, "is_unchanged", lambda self, since: (self.fence, self.time) == (since.fence, since.time)),
        "an observation that a renewal does not end": swap(
            lease.Observation, "then", lambda self, view, now: lease.Observation(view, self.since)),
    }),
    (a_renewal_of_a_store_that_came_back_older_is_a_renewal, {
        "a renewal is another number": swap(
            lease.LeaseView, "is_unchanged",
            lambda self, since: (self.fence, self.renewals) == (since.fence, since.renewals)),
    }),
    (fences_go_on_above_the_last_when_the_servers_clock_goes_back, {
        "the next fence is the time": swap(lease, "NEXT_FENCE", _NOW_US),
        "the next fence is the larger of the two, without the step": swap(
            lease, "NEXT_FENCE", If(exists(lease.FENCE), largest(Bin(lease.FENCE), _NOW_US), _NOW_US)),
    }),
    (belief_in_an_acquisition_ends_before_a_successor_can_begin, _BELIEFS),
    (belief_in_a_renewal_ends_before_a_successor_can_begin, _BELIEFS),
    (a_remembered_grant_counts_only_while_the_record_shows_it, {"a grant once remembered counts": _remembers_for_ever}),
    (an_attempt_that_lands_again_after_the_release_takes_nothing, {
        "no id of the acquisition": swap(lease, "_FREE", Bin(lease.LOCKED).eq(0) | ~exists(lease.LOCKED)),
    }),
    (no_token_of_an_abandoned_attempt_is_left_on_the_record, {}),
]  # fmt: skip
MUTANTS = [
    pytest.param(scenario, mutate, id=f"{scenario.__name__}-{name}")
    for scenario, mutants in CASES
    for name, mutate in mutants.items()
]


@pytest.mark.parametrize("scenario", [case[0] for case in CASES], ids=lambda scenario: scenario.__name__)
def test_rule(scenario, proved):
    scenario(World())
    proved("rules, by script", "P2", held=1)


@pytest.mark.parametrize(("scenario", "mutate"), MUTANTS)
def test_without_the_rule_it_would_not_hold(scenario, mutate, proved):
    world = World()
    with mutate(world), pytest.raises((AssertionError, LockUnavailable, pytest.fail.Exception)):
        scenario(world)
    proved("rules, by script", "P2", {"broken without": 1})


def test_without_a_seal_a_late_write_of_the_old_holder_goes_through():
    """Not promised, and why a new holder seals before its first read."""
    world = World()
    store = FaultyStore(world.store, {2: Fault("late")})
    old = world.lock(store).acquire()
    with pytest.raises(OutcomeUnknown):
        old.operate(RESOURCE, Put("x", 1), exists=Exists.ANY)
    world.store.operate(LOCK, Put("locked", 0))
    new = world.lock().acquire(timeout=0)
    assert world.store.get(RESOURCE) is None
    store.deliver()
    assert world.store.get(RESOURCE).bins["x"] == 1
    new.seal(RESOURCE)
    with pytest.raises(FencedOut):
        old.operate(RESOURCE, Put("x", 2))
