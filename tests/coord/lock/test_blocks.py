"""What `with` does: a lock that was lost in its block is said as the block ends, and a lock is a block of its own."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from latchwork.coord import FencedLock, Semaphore
from latchwork.coord.lock import LOCKS
from latchwork.errors import InvalidRequest, LeaseLost, OutcomeUnknown
from latchwork.retry import RetryPolicy
from latchwork.store import Key, MemoryStore, Put, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore

RECORD = Key(LOCKS, "lock")


class Still(ManualClock):
    """Nothing runs in the background, where it would move this clock."""

    def spawn(self, run, name):
        return None


@pytest.fixture
def clock():
    return Still()


@pytest.fixture
def store(clock):
    made = FaultyStore(MemoryStore(clock))
    made.policy = RetryPolicy(attempts=1)
    return made


def overtake(store, clock):
    """Another one takes the lock, whose lease has run out."""
    other = FencedLock(store.inner, "lock", owner="other")
    other.try_acquire()
    clock.advance(11)
    return other.acquire(timeout=0)


# ---- a lock that was lost in its block


def test_a_block_whose_lock_others_have_taken_ends_with_lease_lost(store, clock):
    with pytest.raises(LeaseLost, match="others have had it since") as caught, FencedLock(store, "lock").acquire():
        other = overtake(store, clock)
    assert caught.value.code == "LEASE_LOST"
    other.check()
    assert store.get(RECORD).bins["locked"] == 1, "the other one's is not released"


def test_a_block_that_outlives_its_lease_ends_with_lease_lost_though_nobody_took_the_lock(store, clock):
    """The same each time, not only on the day on which somebody else wants it."""
    with pytest.raises(LeaseLost, match="nobody has had it since"), FencedLock(store, "lock").acquire():
        clock.advance(11)
    assert store.get(RECORD).bins["locked"] == 0


@pytest.mark.parametrize("keep_alive", [True, False])
def test_what_to_do_about_a_lost_lock_is_said_and_not_what_was_done_already(store, clock, keep_alive):
    lock = FencedLock(store, "lock", lease=10)
    with pytest.raises(LeaseLost) as caught, lock.acquire(keep_alive=keep_alive):
        clock.advance(11)
    assert ("use keep_alive=True" in str(caught.value)) is not keep_alive
    assert "a lease longer than 10.0 s, and fence what the block writes to" in str(caught.value)


def test_a_block_whose_lock_was_taken_by_force_ends_with_lease_lost(store):
    with pytest.raises(LeaseLost, match="others have had it since"), FencedLock(store, "lock").acquire():
        store.operate(RECORD, Put("locked", 0))


def test_a_block_whose_lock_was_lost_says_so_though_it_cannot_be_given_back_and_why_it_cannot(store, clock):
    def outlived():
        with FencedLock(store, "lock").acquire():
            clock.advance(11)
            store.next("dropped")

    with pytest.raises(LeaseLost, match=r"others may have had it since \(the store does not answer: .+\); use"):
        outlived()


@pytest.mark.parametrize("takes", ["break_lease", "delete"])
def test_a_block_whose_lock_an_operator_took_does_not_blame_its_renewals(store, takes):
    """Where nobody waited, a longer lease is no remedy, and nobody else had it."""
    lock = FencedLock(store, "lock")

    def works():
        with lock.acquire(keep_alive=True) as grant:
            lock.break_lease(grant.fence) if takes == "break_lease" else store.delete(RECORD)

    with pytest.raises(LeaseLost, match="or it was broken or deleted by somebody; if its renewals"):
        works()


def test_a_block_that_keeps_its_lock_to_the_end_says_nothing(store, clock):
    with FencedLock(store, "lock").acquire() as grant:
        clock.advance(9)
        grant.renew()
        clock.advance(9)
    assert store.get(RECORD).bins["locked"] == 0


def test_a_block_that_failed_ends_with_its_own_error(store, clock):
    def failed():
        with FencedLock(store, "lock").acquire():
            overtake(store, clock)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failed()


@pytest.mark.parametrize("late", [False, True])
def test_a_block_that_has_released_its_lock_says_nothing(store, clock, late):
    with FencedLock(store, "lock").acquire() as grant:
        if late:
            overtake(store, clock)
        assert grant.release() is not late
        clock.advance(11)


def test_a_block_whose_release_failed_within_it_tries_again_and_says_nothing(store):
    with FencedLock(store, "lock").acquire() as grant:
        store.next("reply_lost")
        with pytest.raises(OutcomeUnknown):
            grant.release()


def test_a_block_of_permits_that_were_lost_ends_with_lease_lost(store, clock):
    with pytest.raises(LeaseLost), Semaphore(store, "some", permits=2).acquire(2):
        clock.advance(11)


# ---- a lock as a block


@pytest.fixture(params=["memory", "sqlite"])
def local(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
        return
    made = SQLiteStore(tmp_path / "store.db", synchronous="off")
    yield made
    made.close()


def test_a_lock_is_held_and_kept_alive_in_its_block(local):
    lock = FencedLock(local, "lock", lease=5)
    assert lock.grant is None
    with lock as grant:
        assert lock.grant is grant
        grant.lost.wait(6)
        grant.check()
        assert FencedLock(local, "lock").try_acquire() is None
    assert lock.grant is None
    assert FencedLock(local, "lock").try_acquire() is not None


def test_a_lock_can_be_entered_again_and_again(local):
    lock, fences = FencedLock(local, "lock"), []
    for _ in range(3):
        with lock as grant:
            fences.append(grant.fence)
    assert fences == sorted(set(fences))


def test_a_block_within_a_block_of_the_same_lock_is_refused_before_any_call(store):
    lock = FencedLock(store, "lock")
    with lock as grant:
        calls = store._number
        with pytest.raises(InvalidRequest, match="not re-entrant"), lock:
            pass
        assert store._number == calls
        assert lock.grant is grant
        grant.check()
    assert store.get(RECORD).bins["locked"] == 0


def test_the_threads_of_a_process_take_turns_with_one_handle(local):
    lock, inside, most, done = FencedLock(local, "lock"), [], [], []

    def work():
        for _ in range(5):
            with lock as grant:
                inside.append(grant.fence)
                most.append(len(inside))
                assert lock.grant is grant
                inside.remove(grant.fence)
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(done), max(most)) == (4, 1)


def test_a_block_of_a_lock_that_was_lost_ends_with_lease_lost_and_the_next_one_is_another(store):
    lock = FencedLock(store, "lock")
    with pytest.raises(LeaseLost), lock:
        store.inner.operate(RECORD, Put("locked", 0))
    with lock as grant:
        grant.check()


def test_a_block_that_was_released_does_not_stand_in_the_way_of_the_next_one(store):
    lock = FencedLock(store, "lock")
    grant = lock.__enter__()  # its end was interrupted: nobody leaves it any more
    lock.grant.release()
    with lock as other:
        assert other.fence > grant.fence


@pytest.mark.parametrize("released", [True, False])
def test_a_block_around_another_of_the_same_lock_ends_as_if_it_were_alone(store, released):
    """The inner one is let in, as the lock was released or lost before."""
    lock = FencedLock(store, "lock")
    with pytest.raises(LeaseLost) if not released else nullcontext(), lock as outer:
        outer.release() if released else store.inner.operate(RECORD, Put("locked", 0))
        outer.lost.set()
        with lock as inner:
            assert inner.fence > outer.fence
            assert lock.grant is inner
            inner.check()
        assert lock.grant is outer
    assert lock.grant is None
    assert store.get(RECORD).bins["locked"] == 0


def in_another_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(60)


def test_a_block_that_ends_in_another_thread_releases_its_lock(store):
    """As that of a generator which a web framework begins in one thread of its pool and closes in another."""
    lock = FencedLock(store, "lock")
    grant = in_another_thread(lock.__enter__)
    lock.__exit__(None, None, None)
    assert grant.lost.is_set()
    assert store.get(RECORD).bins["locked"] == 0
    with lock:
        pass


def test_a_block_that_ends_in_another_thread_is_refused_where_it_may_be_one_of_several(store, clock):
    lock = FencedLock(store, "lock")
    first = in_another_thread(lock.__enter__)
    in_another_thread(lambda: (first.release(), lock.__enter__()))
    with pytest.raises(InvalidRequest, match="did not begin it"):
        lock.__exit__(None, None, None)
    assert store.get(RECORD).bins["locked"] == 1


def test_a_handle_ships_without_its_block(tmp_path):
    lock = FencedLock(SQLiteStore(tmp_path / "store.db", synchronous="off"), "lock", owner="me", lease=3)
    with lock:
        shipped = pickle.loads(pickle.dumps(lock))
        assert (shipped.name, shipped.owner, shipped.lease, shipped.grant) == ("lock", "me", 3, None)
        assert shipped.try_acquire() is None
