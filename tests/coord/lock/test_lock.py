"""The promises of fenced locks, over every backend and, where time matters, on a clock that the test moves."""

from __future__ import annotations

import pickle
import uuid

import pytest

from latchwork.coord import FencedLock, Group, LeaseElection, ReadWriteLock, Semaphore
from latchwork.coord.contender import Acquisition
from latchwork.coord.fencing import Lost
from latchwork.coord.lock import LOCK_POLL, LOCKS
from latchwork.deadline import call_time
from latchwork.errors import (
    FencedOut,
    InvalidRequest,
    LockUnavailable,
    NotFound,
    OutcomeUnknown,
    Refused,
    StorageFailed,
    Unavailable,
)
from latchwork.retry import RetryPolicy
from latchwork.store import KEEP, NEVER, Add, Bin, Exists, Key, MemoryStore, Once, Put, SQLiteStore
from latchwork.testing.clock import START, ManualClock
from latchwork.testing.stores import CountingStore, Crash, Fault, FaultyStore

NAME = "lock"
RESOURCE = Key("accounts", "42")
START_US = int(START * 1_000_000)


@pytest.fixture(autouse=True)
def _records_of_its_own(monkeypatch):
    """The real server is shared, so each test names its own records."""
    monkeypatch.setitem(globals(), "NAME", f"lock-{uuid.uuid4().hex[:8]}")
    monkeypatch.setitem(globals(), "RESOURCE", Key("accounts", uuid.uuid4().hex[:8]))


def bins(store):
    return store.get(Key(LOCKS, NAME)).bins


# ---- on every backend


def test_the_record_has_the_bins_of_the_layout_and_never_expires(store):
    with FencedLock(store, NAME, owner="me", lease=60).acquire(timeout=5) as grant:
        record = store.get(Key("latchwork_locks", NAME))
        assert record.ttl == NEVER
        assert {name: record.bins[name] for name in ("locked", "lock-owner", "lease-ms", "renewals")} == {
            "locked": 1, "lock-owner": "me", "lease-ms": 60_000, "renewals": 0,
        }  # fmt: skip
        assert record.bins["fencing-ctr"] == grant.fence
        # The fence of a first acquisition is the server's time in microseconds; the server reads its clock once more
        # for the other time, which is in milliseconds.
        assert 0 <= record.bins["lock-time-ms"] - grant.fence // 1000 < 10_000
        grant.renew()
        assert bins(store)["renewals"] == 1
        assert store.get(Key("latchwork_locks", NAME)).ttl == NEVER
    assert bins(store)["locked"] == 0
    assert bins(store)["fencing-ctr"] == grant.fence
    assert store.get(Key("latchwork_locks", NAME)).ttl == NEVER


def test_fences_strictly_increase_and_survive_release(store):
    locks = [FencedLock(store, NAME, owner="same") for _ in range(2)]
    fences = []
    for turn in range(6):
        grant = locks[turn % 2].acquire(timeout=5)
        fences.append(grant.fence)
        grant.renew()
        assert grant.fence == fences[-1]
        assert grant.release() is True
    assert fences == sorted(set(fences))


def test_the_fence_goes_on_above_one_that_is_ahead_of_the_clock(store):
    """A record that others have written, bins missing: free, and its fence is a floor."""
    ahead = 2**60
    store.operate(Key(LOCKS, NAME), Put("fencing-ctr", ahead), exists=Exists.CREATE, ttl=NEVER)
    assert FencedLock(store, NAME).acquire(timeout=5).fence == ahead + 1


def test_only_one_holds_it_at_a_time(store):
    first, second = FencedLock(store, NAME, owner="same"), FencedLock(store, NAME, owner="same")
    grant = first.acquire(timeout=5)
    assert second.try_acquire() is None
    assert first.try_acquire() is None, "not re-entrant"
    with pytest.raises(LockUnavailable, match="same"):
        second.acquire(timeout=0)
    assert isinstance(LockUnavailable(), TimeoutError)
    grant.release()
    assert second.try_acquire().fence > grant.fence


def test_a_write_under_a_fence_is_refused_once_a_higher_one_was_seen(store):
    lock = FencedLock(store, NAME, lease=30)
    old = lock.acquire(timeout=5)
    assert old.operate(RESOURCE, Put("balance", 1)) == ()
    new = _successor(store, old)
    new.seal(RESOURCE)
    with pytest.raises(FencedOut, match=str(new.fence)):
        old.operate(RESOURCE, Put("balance", 2))
    assert store.get(RESOURCE).bins == {"balance": 1, "fence": new.fence}
    new.operate(RESOURCE, Add("balance", 10))
    assert store.get(RESOURCE).bins["balance"] == 11


def _successor(store, grant):
    """A grant with a higher fence, while the old one still believes: as after a pause of the old one's process."""
    store.operate(Key(LOCKS, NAME), Put("locked", 0), ttl=NEVER)
    return FencedLock(store, NAME, lease=30).acquire(timeout=5)


def test_a_resource_that_is_not_there_is_made_and_remembers_the_fence(store):
    grant = FencedLock(store, NAME).acquire(timeout=5)
    grant.operate(RESOURCE, Put("x", 1), bin="epoch")
    assert store.get(RESOURCE).bins == {"x": 1, "epoch": grant.fence}


def test_a_guard_of_ones_own_is_kept_beside_the_fence(store):
    grant = FencedLock(store, NAME).acquire(timeout=5)
    grant.operate(RESOURCE, Put("balance", 5))
    with pytest.raises(InvalidRequest, match="or_absent=True"):
        grant.operate(RESOURCE, Put("balance", 4), when=Bin("balance") >= 10, exists=Exists.ANY)
    with pytest.raises(Refused) as refusal:
        grant.operate(RESOURCE, Put("balance", 4), when=Bin("balance") >= 10)
    assert not isinstance(refusal.value, FencedOut)
    grant.operate(RESOURCE, Put("balance", 4), when=Bin("balance") >= 5)
    assert store.get(RESOURCE).bins["balance"] == 4


def test_with_a_guard_of_ones_own_the_resource_must_be_there_unless_told_otherwise(store):
    grant = FencedLock(store, NAME).acquire(timeout=5)
    with pytest.raises(NotFound):
        grant.operate(RESOURCE, Put("balance", 4), when=Bin("balance") >= 5)
    assert store.get(RESOURCE) is None
    grant.operate(RESOURCE, Put("balance", 4), when=Bin("balance") >= 5, or_absent=True)
    assert store.get(RESOURCE).bins["balance"] == 4


def test_an_exactly_once_update_goes_under_the_fence(store):
    grant = FencedLock(store, NAME).acquire(timeout=5)
    grant.operate(RESOURCE, Put("n", 0))
    assert grant.operate(RESOURCE, Add("n", 1), once=Once(16, result=Bin("n"))) == (1,)


def test_a_released_lock_is_waited_for_and_taken(store):
    import threading

    grant = FencedLock(store, NAME).acquire(timeout=5)
    taken = []
    waiter = threading.Thread(target=lambda: taken.append(FencedLock(store, NAME).acquire(timeout=20)))
    waiter.start()
    while "waiting-ms" not in bins(store):
        assert waiter.is_alive()
    grant.release()
    waiter.join(30)
    assert taken[0].fence > grant.fence


# ---- calls


def test_free_locks_cost_one_call_to_take_one_to_renew_and_one_to_release(memory):
    lock = FencedLock(memory, NAME)
    grant = lock.acquire()
    assert memory.calls == {"operate": 1}
    grant.renew()
    assert memory.calls == {"operate": 2}
    grant.release()
    assert memory.calls == {"operate": 3}
    grant.release()
    assert grant.lost.is_set()
    assert memory.calls == {"operate": 3}
    with lock.acquire() as grant:
        grant.operate(RESOURCE, Put("x", 1))
    assert memory.calls == {"operate": 6}


def test_who_waits_looks_at_most_a_hundred_times_a_second(memory):
    held = FencedLock(memory, NAME, lease=60).acquire()
    memory.reset()
    with pytest.raises(LockUnavailable):
        FencedLock(memory, NAME).acquire(timeout=10)
    assert memory.calls["get"] <= 1000
    assert memory.calls["operate"] <= 25, "one try, and a mark each half second"
    assert held.lost.is_set() is False


# ---- belief


def test_belief_ends_before_the_lease_does_even_without_keep_alive(clock, memory):
    grant = FencedLock(memory, NAME, lease=10).acquire()
    clock.advance(9.8)
    grant.check()
    assert not grant.lost.is_set()
    clock.advance(0.15)
    assert grant.lost.is_set()
    with pytest.raises(FencedOut, match="has ended"):
        grant.check()
    with pytest.raises(FencedOut):
        grant.operate(RESOURCE, Put("x", 1))
    assert memory.get(RESOURCE) is None


def test_waiting_for_lost_wakes_up_when_belief_ends(clock, memory):
    grant = FencedLock(memory, NAME, lease=10).acquire()
    assert grant.lost.wait(timeout=4) is False
    assert clock.monotonic() == 4
    assert grant.lost.wait(-0.1) is False, "a moment that has gone by is not waited for"
    assert grant.lost.wait() is True
    assert 9.5 < clock.monotonic() < 10
    assert grant.lost.wait(timeout=100) is True


class Suspended(ManualClock):
    """A machine that was suspended for some seconds, which only one of its clocks counts."""

    suspended = 0.0

    def boottime(self):
        return super().boottime() + self.suspended


@pytest.mark.parametrize("timeout", [None, 9.0])
def test_waiting_for_lost_ends_within_a_second_after_the_machine_was_suspended_for_a_minute(timeout):
    clock = Suspended()
    grant = FencedLock(MemoryStore(clock), NAME, lease=10).acquire()
    clock.at(0.5, lambda: setattr(clock, "suspended", 60.0))
    assert grant.lost.wait(timeout) is True
    assert clock.monotonic() <= 1.5


def test_waiting_for_lost_goes_on_where_the_lease_was_renewed_meanwhile(clock, memory):
    grant = FencedLock(memory, NAME, lease=10).acquire()
    clock.at(5, grant.renew)
    assert grant.lost.wait() is True
    assert 14.5 < clock.monotonic() < 15


def test_what_was_lost_stays_lost(clock, memory):
    grant = FencedLock(memory, NAME, lease=10).acquire()
    clock.advance(10)
    memory.reset()
    with pytest.raises(FencedOut):
        grant.renew()
    assert memory.total == 0, "known without asking"


def test_a_renewal_that_comes_back_too_late_gives_the_lock_back(clock, memory):
    faulty = FaultyStore(memory.inner, seams=clock)
    grant = FencedLock(faulty, NAME, lease=10).acquire()
    clock.advance(9)
    faulty.next(Fault("slow", seconds=5))
    with pytest.raises(FencedOut):
        grant.renew()
    assert bins(memory)["locked"] == 0


def test_a_renewal_that_comes_back_too_late_leaves_the_lock_to_its_lease_where_its_holder_may_not_be_done(
    clock, memory
):
    faulty = FaultyStore(memory.inner, seams=clock)
    grant = FencedLock(faulty, NAME, lease=10).acquire()
    grant.gives_back_late = False
    clock.advance(9)
    faulty.next(Fault("slow", seconds=5))
    with pytest.raises(FencedOut):
        grant.renew()
    assert bins(memory)["locked"] == 1


def test_a_holder_that_was_succeeded_learns_it_when_it_renews(clock, memory):
    grant = FencedLock(memory, NAME, lease=10).acquire()
    _successor(memory, grant)
    assert not grant.lost.is_set()
    with pytest.raises(FencedOut):
        grant.renew()
    assert grant.lost.is_set()


def test_unavailable_does_not_end_belief_before_its_time(clock, memory):
    faulty = FaultyStore(memory.inner, seams=clock)
    grant = FencedLock(faulty, NAME, lease=10).acquire()
    for number in range(2, 5):
        faulty.plan[number] = "dropped"
    with pytest.raises(Unavailable):
        grant.renew()
    assert not grant.lost.is_set()
    grant.renew()
    clock.advance(9)
    grant.check()


class Hand(ManualClock):
    """Background work is kept, and done when the test says so."""

    def __init__(self):
        super().__init__()
        self.work = []

    def spawn(self, run, name):
        self.work.append(run)


def test_keep_alive_renews_for_as_long_as_it_can_and_then_says_lost():
    clock = Hand()
    store = MemoryStore(clock)
    grant = FencedLock(store, NAME, lease=9).acquire(keep_alive=True)
    clock.at(100, lambda: store.operate(Key(LOCKS, NAME), Put("locked", 0)))
    (keep_alive,) = clock.work
    keep_alive()
    assert grant.lost.is_set()
    assert 100 <= clock.monotonic() <= 103
    assert bins(store)["renewals"] == 33


def test_keep_alive_rides_out_a_store_that_is_away_for_less_than_the_lease():
    clock = Hand()
    store = FaultyStore(MemoryStore(clock))
    grant = FencedLock(store, NAME, lease=9).acquire(keep_alive=True)
    store.plan.update(dict.fromkeys(range(2, 14), "dropped"))
    clock.at(60, grant.release)
    clock.work[0]()
    assert clock.monotonic() == pytest.approx(60, abs=3)
    assert store.fired["dropped"] == 12
    assert bins(store)["locked"] == 0


def disk_fails():
    raise StorageFailed("the disk failed")


def test_keep_alive_rides_out_a_disk_that_fails_once():
    clock = Hand()
    store = FaultyStore(MemoryStore(clock), {3: disk_fails})
    grant = FencedLock(store, NAME, lease=9).acquire(keep_alive=True)
    clock.at(60, grant.release)
    clock.work[0]()
    assert clock.monotonic() == pytest.approx(60, abs=3)
    assert bins(store)["locked"] == 0


def test_keep_alive_ends_when_the_store_is_away_for_longer():
    clock = Hand()
    store = FaultyStore(MemoryStore(clock))
    grant = FencedLock(store, NAME, lease=9).acquire(keep_alive=True)
    store.plan.update(dict.fromkeys(range(2, 500), "dropped"))
    clock.work[0]()
    assert grant.lost.is_set()
    assert clock.monotonic() == pytest.approx(8.9, abs=1), "on time, give or take the pauses of one retry"


SOCKET_TIMEOUT = 3.0
"""Seconds for which the Aerospike client waits for a reply by itself."""


class Silent(CountingStore):
    """A store of which the replies to some updates, by their number, never come: these are applied all the same."""

    silent = ()

    def _operate(self, update):
        values = super()._operate(update)
        if self.calls["operate"] in self.silent:
            self.seams.sleep(min(SOCKET_TIMEOUT, call_time() or SOCKET_TIMEOUT))
            raise OutcomeUnknown("no reply came")
        return values


KEPT_ALIVE = {
    "lock": lambda store, lease: FencedLock(store, NAME, lease=lease).acquire(keep_alive=True),
    "permits": lambda store, lease: Semaphore(store, NAME, permits=1, lease=lease).acquire(keep_alive=True),
    "writer": lambda store, lease: ReadWriteLock(store, NAME, lease=lease).write(keep_alive=True),
    "membership": lambda store, lease: Group(store, NAME).join("p", lease=lease),
}


@pytest.mark.parametrize("kind", KEPT_ALIVE)
@pytest.mark.parametrize(("lease", "lost_replies"), [(1.5, 1), (2.4, 2), (4.0, 1), (4.0, 2), (10.0, 2)])
def test_keep_alive_rides_out_replies_that_never_come(kind, lease, lost_replies):
    clock, still_held = Hand(), []
    store = Silent(MemoryStore(clock))
    grant = KEPT_ALIVE[kind](store, lease)
    first = store.calls["operate"] + 1
    store.silent = range(first, first + lost_replies)
    clock.at(1.5 * lease, lambda: still_held.append(not grant.lost.is_set()))
    clock.at(2 * lease, grant.release)
    clock.work[0]()
    assert still_held == [True]


# ---- lost replies


def test_an_acquisition_in_doubt_is_recognised_though_every_reply_was_lost(clock):
    store = FaultyStore(MemoryStore(clock), {1: "reply_lost", 2: "request_lost", 3: "request_lost"})
    grant = FencedLock(store, NAME, lease=10).try_acquire()
    assert grant.fence == START_US
    assert bins(store)["renewals"] == 1, "renewed at once"


def test_an_acquisition_in_doubt_that_a_failing_disk_cannot_confirm_is_unknown(clock):
    store = FaultyStore(MemoryStore(clock), {1: "reply_lost", 3: disk_fails})
    store.policy = RetryPolicy(attempts=1)
    with pytest.raises(OutcomeUnknown, match="ends by itself"):
        FencedLock(store, NAME, lease=10).acquire(timeout=0)
    assert bins(store.inner)["locked"] == 1


def test_an_acquisition_in_doubt_goes_on_after_a_disk_failed(clock):
    store = FaultyStore(MemoryStore(clock), {1: "request_lost", 4: disk_fails})
    store.policy = RetryPolicy(attempts=1)
    assert FencedLock(store, NAME, lease=10).acquire(timeout=5).fence == bins(store)["fencing-ctr"]
    assert store.calls["operate"] == 5, "tried, marked, tried, marked, tried"


def test_an_acquisition_in_doubt_that_cannot_be_asked_about_is_unknown(clock):
    store = FaultyStore(MemoryStore(clock), {1: "reply_lost", **dict.fromkeys(range(2, 100), "dropped")})
    with pytest.raises(OutcomeUnknown, match="ends by itself"):
        FencedLock(store, NAME, lease=10).acquire(timeout=5)
    assert bins(store.inner)["locked"] == 1


def test_an_acquisition_that_never_left_is_unavailable(clock):
    store = FaultyStore(MemoryStore(clock), dict.fromkeys(range(1, 100), "dropped"))
    with pytest.raises(Unavailable):
        FencedLock(store, NAME).acquire(timeout=5)


def test_handles_that_ask_once_take_the_lock_of_a_dead_holder_after_its_lease(clock, memory):
    FencedLock(memory, NAME, lease=10).acquire()
    for _ in range(4):
        assert FencedLock(memory, NAME, lease=2).try_acquire() is None
        clock.advance(3)
    assert FencedLock(CountingStore(memory.inner), NAME).try_acquire() is None, "another process has seen nothing"
    assert FencedLock(memory, NAME).acquire(timeout=1).broken


def test_handles_that_ask_once_do_not_take_the_lock_of_a_holder_that_renews(clock, memory):
    held = FencedLock(memory, NAME, lease=10).acquire()
    for _ in range(8):
        assert FencedLock(memory, NAME).try_acquire() is None
        clock.advance(6)
        held.renew()
    assert held.release() is True


def test_a_grant_whose_holder_died_in_doubt_is_reclaimed_within_one_lease_of_observation(clock):
    inner = MemoryStore(clock)
    with pytest.raises(Crash):
        FencedLock(FaultyStore(inner, {1: "crash_after"}), NAME, lease=3).acquire()
    grant = FencedLock(inner, NAME, lease=10).acquire(timeout=3.1)
    assert clock.monotonic() == pytest.approx(3, abs=0.05)
    assert grant.fence > START_US


def test_an_attempt_that_lands_after_all_blocks_for_one_lease_and_no_longer(clock):
    inner = MemoryStore(clock)
    late = FaultyStore(inner, dict.fromkeys((1, 2, 3), "late"))
    FencedLock(inner, NAME, lease=1).acquire()
    assert FencedLock(late, NAME, lease=3).try_acquire() is None
    clock.advance(2)
    FencedLock(inner, NAME).acquire(timeout=2).release()
    late.deliver()
    assert bins(inner)["locked"] == 1, "nobody believes in this one"
    began = clock.monotonic()
    FencedLock(inner, NAME).acquire(timeout=10)
    assert clock.monotonic() - began == pytest.approx(3, abs=0.05)


def test_a_lock_that_was_freed_by_force_while_in_doubt_is_taken_again(clock):
    inner = MemoryStore(clock)
    store = FaultyStore(inner, {1: "reply_lost", 2: lambda: inner.operate(Key(LOCKS, NAME), Put("locked", 0))})
    grant = FencedLock(store, NAME).acquire(timeout=5)
    assert bins(inner)["fencing-ctr"] == grant.fence
    assert bins(inner)["locked"] == 1


def test_a_release_that_cannot_be_said_may_be_repeated_and_does_not_hide_the_bodys_error(clock):
    inner = MemoryStore(clock)
    store = FaultyStore(inner, dict.fromkeys((2, 3, 4), "request_lost"))
    grant = FencedLock(store, NAME).acquire()
    with pytest.raises(OutcomeUnknown):
        grant.release()
    assert grant.lost.is_set()
    assert grant.release() is True
    assert bins(inner)["locked"] == 0
    store.plan.update(dict.fromkeys((7, 8, 9), "request_lost"))
    with pytest.raises(ZeroDivisionError), FencedLock(store, NAME).acquire(timeout=0):
        raise ZeroDivisionError


def test_a_mark_in_doubt_costs_nothing(clock):
    inner = MemoryStore(clock)
    FencedLock(inner, NAME, lease=60).acquire()
    store = FaultyStore(inner, dict.fromkeys((2, 3, 4), "reply_lost"))
    with pytest.raises(LockUnavailable):
        FencedLock(store, NAME).acquire(timeout=1)


# ---- waiting


def test_who_releases_while_others_wait_lets_them_go_first(clock, memory):
    lock, other = FencedLock(memory, NAME, lease=60), FencedLock(memory, NAME)
    grant = lock.acquire()
    assert other.try_acquire() is None
    with pytest.raises(LockUnavailable):
        other.acquire(timeout=0.001)
    grant.release()
    began = clock.monotonic()
    lock.acquire(timeout=5).release()
    assert clock.monotonic() - began >= LOCK_POLL.low / 2
    clock.advance(2)
    began = clock.monotonic()
    lock.acquire(timeout=5).release()
    assert clock.monotonic() == began, "nobody has waited lately"


def test_nobody_is_polite_for_long_to_who_waited_before_the_servers_clock_was_set_back(clock, memory):
    lock = FencedLock(memory, NAME, lease=60)
    grant = lock.acquire()
    with pytest.raises(LockUnavailable):
        FencedLock(memory, NAME).acquire(timeout=0.001)
    clock.step(-3600)
    grant.release()
    lock.acquire(timeout=5).release()
    clock.advance(2)
    lock.acquire(timeout=5).release()
    began = clock.monotonic()
    lock.acquire(timeout=5).release()
    assert clock.monotonic() == began


def test_who_waits_is_let_go_first_though_the_servers_clock_stands_still(clock, memory):
    lock, other = FencedLock(memory, NAME, lease=60), FencedLock(memory, NAME)
    grant = lock.acquire()
    clock.step(-3600)
    for _ in range(3):
        with pytest.raises(LockUnavailable):
            other.acquire(timeout=0.001)
        grant.release()
        began = clock.monotonic()
        grant = lock.acquire(timeout=5)
        assert clock.monotonic() - began >= LOCK_POLL.low / 2
        clock.advance(2)


def test_who_takes_a_lock_in_a_loop_lets_other_threads_run_once_a_millisecond(clock, memory, monkeypatch):
    slept, lock = [], FencedLock(memory, NAME)
    monkeypatch.setattr(clock, "sleep", slept.append)
    for _ in range(10):
        lock.acquire(timeout=5).release()
        clock.advance(0.0004)
    assert slept == [0] * 4


def test_politeness_does_not_outlast_the_timeout(clock, memory):
    lock = FencedLock(memory, NAME, lease=60)
    grant = lock.acquire()
    with pytest.raises(LockUnavailable):
        FencedLock(memory, NAME).acquire(timeout=0.001)
    grant.release()
    began = clock.monotonic()
    lock.acquire(timeout=0.002)
    assert clock.monotonic() - began <= 0.0021


def test_a_timeout_is_kept(clock, memory):
    FencedLock(memory, NAME, lease=60).acquire()
    began = clock.monotonic()
    with pytest.raises(LockUnavailable, match=r"not acquired in 2.5 s"):
        FencedLock(memory, NAME).acquire(timeout=2.5)
    assert clock.monotonic() - began == pytest.approx(2.5)


# ---- handles and bad input


def test_a_handle_pickles_with_its_store(tmp_path):
    lock = FencedLock(SQLiteStore(tmp_path / "store.db"), NAME, owner="me", lease=2)
    again = pickle.loads(pickle.dumps(lock))
    assert (again.name, again.owner, again.lease) == (NAME, "me", 2)
    assert again.acquire(timeout=1).owner == "me"
    assert lock.try_acquire() is None


def test_owners_are_told_apart_without_being_named(memory):
    assert FencedLock(memory, NAME).owner != FencedLock(memory, NAME).owner


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda store: FencedLock("sqlite:x", "a"), "connect"),
        (lambda store: FencedLock(store, ""), "name"),
        (lambda store: FencedLock(store, 7), "name"),
        (lambda store: FencedLock(store, "a", owner=""), "owner"),
        (lambda store: FencedLock(store, "a", owner=3), "owner"),
        (lambda store: FencedLock(store, "a\0b"), "name is .* no NUL"),
        (lambda store: FencedLock(store, "a\udcff"), "name is .* valid Unicode"),
        (lambda store: FencedLock(store, "a", owner="a\0b"), "owner is .* no NUL"),
        (lambda store: FencedLock(store, "a", owner="a\udcff"), "owner is .* valid Unicode"),
        (lambda store: LeaseElection(store, "a", candidate="a\udcff"), "owner is .* valid Unicode"),
        (lambda store: FencedLock(store, "a", poll=None), "poll is None"),
        (lambda store: Lost(store.seams, 1.0).wait(""), "timeout is ''"),
        (lambda store: FencedLock(store, "a", lease=0), "0.05 to 86400"),
        (lambda store: FencedLock(store, "a", lease=1e9), "0.05 to 86400"),
        (lambda store: FencedLock(store, "a", lease="10"), "'10'"),
        (lambda store: FencedLock(store, "a", lease=float("nan")), "nan"),
        (lambda store: FencedLock(store, "a").acquire(timeout=-1), "timeout is -1"),
        (lambda store: FencedLock(store, "a").acquire(timeout="1"), "timeout is '1'"),
        (lambda store: FencedLock(store, "a").acquire(timeout=float("nan")), "timeout is nan"),
    ],
)
def test_bad_input_is_refused_before_any_call(memory, make, says):
    with pytest.raises(InvalidRequest, match=says) as refusal:
        make(memory)
    assert isinstance(refusal.value, ValueError)
    assert memory.total == 0


def test_constructors_ask_nothing(memory):
    FencedLock(memory, NAME)
    Acquisition(FencedLock(memory, NAME)._contender)
    assert memory.total == 0
    assert KEEP != NEVER
