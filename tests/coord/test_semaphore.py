"""The promises of fenced semaphores, over every backend and, where time matters, on a clock that the test moves."""

from __future__ import annotations

import pickle
import uuid
from unittest.mock import patch

import pytest

from latchwork.coord import Semaphore, contender
from latchwork.coord.holders import HOLDERS, RENEWED, WISH
from latchwork.coord.semaphore import MAX_PERMITS, PERMITS, SEMAPHORES, SLOTS, _SlotAcquisition
from latchwork.coord.waits import read
from latchwork.errors import (
    Corrupt,
    FencedOut,
    InvalidRequest,
    LatchworkError,
    LockUnavailable,
    NotFound,
    OutcomeUnknown,
    Refused,
)
from latchwork.retry import RetryPolicy
from latchwork.store import NEVER, Add, Bin, Exists, Key, Put
from latchwork.testing.stores import CountingStore, Fault, FaultyStore


@pytest.fixture
def resource():
    return Key("accounts", uuid.uuid4().hex[:8])


def bins(store, name):
    return store.get(Key(SEMAPHORES, name)).bins


# ---- on every backend


def test_as_many_hold_it_as_there_are_permits_and_no_more(store, name):
    handles = [Semaphore(store, name, permits=3, owner=f"w{number}") for number in range(4)]
    held = [handle.acquire(timeout=5) for handle in handles[:3]]
    assert sorted(permit.slots for permit in held) == [(0,), (1,), (2,)]
    assert handles[3].try_acquire() is None
    with pytest.raises(LockUnavailable, match="'w0' "):
        handles[3].acquire(timeout=0)
    assert held[1].release() is True
    assert held[1].release() is False
    assert handles[3].acquire(timeout=5).slots == held[1].slots


def test_the_record_has_the_bins_of_the_layout_and_never_expires(store, name):
    with Semaphore(store, name, permits=4, owner="me", lease=60).acquire(2, timeout=5) as permits:
        record = store.get(Key("latchwork_semaphores", name))
        assert record.ttl == NEVER
        ((id, entry),) = record.bins[HOLDERS].items()
        assert record.bins[SLOTS] == dict.fromkeys(permits.slots, id)
        assert entry == [permits.fence, 60_000, entry[2], "me", list(permits.slots)]
        assert 0 <= entry[2] - permits.fence // 1000 < 10_000, "a server reads its clock for each of them"
        assert (record.bins[PERMITS], record.bins["fencing-ctr"]) == (4, permits.fence)
        assert 0 <= record.bins[RENEWED].pop(id) - entry[2] < 10_000
        assert record.bins[RENEWED] == {}
        permits.renew()
        assert bins(store, name)[RENEWED][id] > entry[2]
    assert {bin: value for bin, value in bins(store, name).items() if value == {}} == {
        SLOTS: {},
        HOLDERS: {},
        RENEWED: {},
    }
    assert store.get(Key("latchwork_semaphores", name)).ttl == NEVER


def test_several_permits_are_taken_all_or_none_with_one_fence(store, name):
    semaphore, other = (Semaphore(store, name, permits=5) for _ in range(2))
    three = semaphore.acquire(3, timeout=5)
    assert three.n == len(three.slots) == 3
    assert other.try_acquire(3) is None
    assert bins(store, name)[SLOTS].keys() == set(three.slots), "nothing was taken of what was not enough"
    two = other.acquire(2, timeout=5)
    assert two.fence > three.fence
    assert set(two.slots) | set(three.slots) == set(range(5))


def test_fences_strictly_increase_and_survive_release(store, name):
    fences = []
    for turn in range(6):
        permits = Semaphore(store, name, permits=2).acquire(1 + turn % 2, timeout=5)
        fences.append(permits.fence)
        permits.renew()
        assert permits.fence == fences[-1]
        permits.release()
    assert fences == sorted(set(fences))


def test_a_resource_refuses_who_was_succeeded_in_a_slot_and_lets_all_others_go_on(store, name, resource):
    paused, others = Semaphore(store, name, permits=3), Semaphore(store, name, permits=3)
    old, beside = paused.acquire(timeout=5), others.acquire(timeout=5)
    for permits in (old, beside):
        permits.operate(resource, Add("n", 1))
    new = _successor(store, name, old)
    assert new.slots == old.slots
    new.seal(resource)
    with pytest.raises(FencedOut, match=str(new.fence)):
        old.operate(resource, Add("n", 1))
    beside.operate(resource, Add("n", 1))
    new.operate(resource, Add("n", 1))
    assert store.get(resource).bins == {"n": 4, "fences": {new.slots[0]: new.fence, beside.slots[0]: beside.fence}}


def test_a_heavy_holder_is_refused_once_any_of_its_slots_has_another_holder(store, name, resource):
    old = Semaphore(store, name, permits=3).acquire(3, timeout=5)
    old.operate(resource, Put("by", "old"))
    new = _successor(store, name, old)
    new.operate(resource, Put("by", "new"))
    with pytest.raises(FencedOut):
        old.operate(resource, Put("by", "old"))
    assert store.get(resource).bins["by"] == "new"


def _successor(store, name, old):
    """Another holder of one of the slots, as if the old one had been removed after its lease without hearing of it."""
    id = bins(store, name)[SLOTS][old.slots[0]]
    other = Semaphore(store, name, permits=3)
    seen = other._contender.look()
    assert other._contender.remove(seen.entries[id], *_freed(old.slots))
    other._contender.last = old.slots[:1]
    return other.acquire(timeout=5)


def _freed(slots):
    from latchwork.coord.semaphore import free_slots

    return free_slots(slots)


def test_a_guard_and_an_absent_resource_are_as_for_a_lock(store, name, resource):
    permits = Semaphore(store, name, permits=2).acquire(2, timeout=5)
    with pytest.raises(LatchworkError) as absent:
        permits.operate(resource, Put("n", 1), when=Bin("n").eq(0))
    assert absent.value.code == "NOT_FOUND"
    permits.operate(resource, Put("n", 0))
    permits.operate(resource, Put("n", 1), when=Bin("n").eq(0))
    with pytest.raises(LatchworkError) as refused:
        permits.operate(resource, Put("n", 2), when=Bin("n").eq(0))
    assert refused.value.code == "REFUSED"


def test_a_smaller_size_revokes_nobody_and_lets_nobody_in_until_enough_have_gone(store, name):
    semaphore = Semaphore(store, name, permits=3)
    held = [semaphore.acquire(timeout=5) for _ in range(3)]
    semaphore.resize(2)
    assert semaphore.size() == 2
    for permits in held:
        permits.check()
        permits.renew()
    held[0].release()
    assert Semaphore(store, name, permits=3).try_acquire() is None, "the record says how many there are"
    held[1].release()
    assert Semaphore(store, name, permits=3).try_acquire() is not None
    semaphore.resize(4)
    assert Semaphore(store, name, permits=3).try_acquire(2) is not None


def test_a_slot_that_a_reduction_has_removed_is_not_given_out_again_to_a_handle_that_had_it(store, name):
    handles = [Semaphore(store, name, permits=8) for _ in range(8)]
    held = [handle.acquire(timeout=5) for handle in handles]
    Semaphore(store, name, permits=2).resize(2)
    for permits in held:
        permits.release()
    for handle in handles:
        with handle.acquire(timeout=5) as permits:
            assert permits.slots in ((0,), (1,))


@pytest.mark.parametrize("n", [8, 1])
def test_a_handle_that_knows_a_larger_size_takes_no_more_than_there_are_once_the_record_is_lost(store, name, n):
    """The record is then made again, with the number that the handle was given, and nothing guards what makes it."""
    semaphore = Semaphore(store, name, permits=5)
    semaphore.resize(10)
    semaphore.acquire(8, timeout=5).release()
    store.delete(Key(SEMAPHORES, name))
    semaphore._contender.last = tuple(range(2, 10))[-n:]  # the slots that it tries first
    if n > 5:
        with pytest.raises(InvalidRequest, match="the semaphore has 5 permits"):
            semaphore.acquire(n, timeout=5)
        assert store.get(Key(SEMAPHORES, name)) is None
    else:
        assert semaphore.acquire(n, timeout=5).slots[0] < 5


def test_a_record_that_is_lost_between_the_look_and_the_try_is_not_made_with_more_slots_than_there_are(memory):
    semaphore = Semaphore(memory, "s", permits=5)
    semaphore.resize(10)
    semaphore.holders()
    key, take = Key(SEMAPHORES, "s"), _SlotAcquisition.take

    def after_a_loss(self, way=None):
        memory.inner.delete(key)
        return take(self, way)

    with patch.object(_SlotAcquisition, "take", after_a_loss), pytest.raises(InvalidRequest):
        semaphore.acquire(8, timeout=5)
    assert memory.inner.get(key) is None


def test_a_resized_semaphore_is_taken_by_one_call_though_the_handle_was_given_a_smaller_number(memory):
    semaphore = Semaphore(memory, "s", permits=1)
    semaphore.resize(10)
    semaphore.acquire(8).release()
    memory.reset()
    assert semaphore.acquire(8).n == 8
    assert memory.calls == {"operate": 1}


def test_a_size_may_be_set_before_anybody_has_asked(store, name):
    semaphore = Semaphore(store, name, permits=1)
    with pytest.raises(NotFound):
        semaphore.size()
    semaphore.resize(5)
    assert semaphore.size() == 5
    assert semaphore.acquire(5, timeout=5).n == 5


def test_the_largest_weight_is_taken_and_enforced(store, name, resource):
    permits = Semaphore(store, name, permits=MAX_PERMITS).acquire(MAX_PERMITS, timeout=30)
    permits.seal(resource)
    assert len(store.get(resource).bins["fences"]) == MAX_PERMITS
    assert permits.release() is True


def test_a_wait_in_vain_says_how_many_were_wanted_and_who_had_them(memory):
    held = Semaphore(memory, "s", permits=2, owner="ann").acquire(timeout=5)
    Semaphore(memory, "s", permits=2, owner="bob").acquire(timeout=5)
    with pytest.raises(LockUnavailable) as refused:
        Semaphore(memory, "s", permits=2).acquire(timeout=0)
    said = "1 permit of 's' was not acquired in 0 s; when it last looked, 2 of 2 were held, by 'ann' (1), 'bob' (1)"
    assert said in str(refused.value)
    held.release()
    with pytest.raises(LockUnavailable) as refused:
        Semaphore(memory, "s", permits=2).acquire(2, timeout=0)
    said = "2 permits of 's' were not acquired in 0 s; when it last looked, 1 of 2 was held, by 'bob' (1)"
    assert said in str(refused.value)


def test_holders_are_named_with_what_they_hold(store, name):
    assert Semaphore(store, name, permits=3).holders() == []
    first = Semaphore(store, name, permits=3, owner="a", lease=7).acquire(2, timeout=5)
    second = Semaphore(store, name, permits=3, owner="b").acquire(timeout=5)
    found = {holder.owner: holder for holder in Semaphore(store, name, permits=3).holders()}
    assert (found["a"].slots, found["a"].fence, found["a"].lease) == (first.slots, first.fence, 7.0)
    assert found["b"].slots == second.slots
    assert found["a"].since <= found["b"].since


# ---- bad input, before any I/O


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"permits": 0}, "permits is 0; it must be a whole number from 1 to 1000"),
        ({"permits": 1001}, "permits is 1001"),
        ({"permits": True}, "permits is True"),
        ({"permits": 2.0}, "permits is 2.0"),
        ({"permits": 2, "lease": 0}, "lease is 0"),
        ({"permits": 2, "owner": ""}, "owner is ''"),
        ({"permits": 2, "owner": "x" * 256}, "owner .* 255 bytes"),
        ({"permits": 2, "poll": 5}, "poll is 5"),
    ],
)
def test_bad_settings_are_refused_before_any_call(memory, given, message):
    with pytest.raises(InvalidRequest, match=message):
        Semaphore(memory, "s", **given)
    with pytest.raises(InvalidRequest, match="name is ''"):
        Semaphore(memory, "", permits=1)
    assert memory.total == 0
    assert Semaphore(memory, "s", permits=2, owner="x" * 255).owner == "x" * 255


@pytest.mark.parametrize("n", [0, -1, 1001, 1.5, True, None])
def test_a_bad_weight_or_time_is_refused_before_any_call(memory, n):
    semaphore = Semaphore(memory, "s", permits=3)
    for call in (semaphore.acquire, semaphore.try_acquire, semaphore.resize):
        with pytest.raises(InvalidRequest):
            call(n)
    with pytest.raises(InvalidRequest, match="timeout"):
        semaphore.acquire(timeout=-1)
    assert memory.total == 0


def test_more_than_there_are_is_refused_with_the_number_that_there_are(memory):
    semaphore = Semaphore(memory, "s", permits=3)
    for call in (semaphore.acquire, semaphore.try_acquire):
        with pytest.raises(InvalidRequest, match="n is 4; the semaphore has 3 permits"):
            call(4)
    semaphore.resize(5)
    assert semaphore.acquire(4).n == 4, "how many there are is asked of the record"


def test_threads_may_share_a_handle_while_one_of_them_sees_that_a_holder_is_gone(memory, name, clock):
    Semaphore(memory, name, permits=1).acquire()
    contender = Semaphore(memory, name, permits=1)._contender
    seen = contender.look()
    contender._watched.holders.see({}, clock.monotonic())  # in another thread, which has yet to say what it has seen
    assert contender.due(wishes=False) == float("inf")
    assert contender.dead(seen) == []


def test_a_holder_that_renews_is_not_taken_for_dead_as_a_thread_of_the_same_handle_was_paused(memory, name, clock):
    held = Semaphore(memory, name, permits=1, lease=1.0).acquire()
    shared = Semaphore(memory, name, permits=1)._contender
    before_the_pause = read(memory, shared.key, ())
    clock.advance(0.9)
    held.renew()
    clock.advance(0.6)
    seen = shared.look()
    with patch.object(shared, "_read", lambda watch, *, waiting: before_the_pause):
        shared.look()  # the other thread goes on, and says what it had read 1.5 s ago
    assert shared.dead(seen) == []
    assert shared.passes(seen) == {"passed": "", "beat": 0}


def test_a_thread_goes_by_the_size_that_it_has_read_while_another_of_the_same_handle_reads_another(memory, name):
    shared = Semaphore(memory, name, permits=4)
    shared.resize(2)
    two = read(memory, shared._contender.key, ())
    shared.resize(4)
    acquisition, seen, held_off = shared._acquisition(3), shared._contender.look(), shared._contender.held_off

    def smaller():
        with patch.object(shared._contender, "_read", lambda watch, *, waiting: two):
            shared._contender.look()

    def and_held_off(seen, me):
        smaller()
        return held_off(seen, me)

    smaller()
    with patch.object(shared._contender, "held_off", and_held_off):
        assert acquisition._try(seen, waiting=False) is not None
    assert len(acquisition.slots) == 3


def test_a_waiting_heavy_one_is_told_when_the_size_shrinks_below_it(memory, clock):
    semaphore = Semaphore(memory, "s", permits=3)
    semaphore.acquire(timeout=0)
    clock.at(1.0, lambda: Semaphore(memory, "s", permits=3).resize(2))
    with pytest.raises(InvalidRequest, match="the semaphore has 2 permits"):
        Semaphore(memory, "s", permits=3).acquire(3, timeout=5)
    assert WISH not in bins(memory, "s"), "and holds nobody off any more"


# ---- what it costs


def test_taking_and_giving_back_are_one_call_each(memory):
    semaphore = Semaphore(memory, "s", permits=8)
    for n in (1, 8, 1):
        memory.reset()
        semaphore.acquire(n).release()
        assert memory.calls == {"operate": 2}


def test_a_handle_keeps_to_the_slots_that_it_had_and_a_miss_costs_a_look_and_another_try(memory):
    first, second = (Semaphore(memory, "s", permits=2) for _ in range(2))
    slots = first.acquire().slots
    second._contender.last = slots
    memory.reset()
    other = second.acquire()
    assert memory.calls == {"operate": 2, "get": 1}
    other.release()
    memory.reset()
    assert second.acquire().slots == other.slots
    assert memory.calls == {"operate": 1}


# ---- the dead, and the paused


def test_permits_of_a_dead_holder_are_free_one_lease_after_somebody_began_to_watch(memory, clock):
    dead = Semaphore(memory, "s", permits=1, lease=2).acquire()
    began = clock.monotonic()
    with Semaphore(memory, "s", permits=1).acquire(timeout=10) as permits:
        assert 2.0 < clock.monotonic() - began < 2.1
        assert permits.fence > dead.fence
    assert dead.lost.is_set()
    assert dead.release() is False


def test_a_holder_that_renews_in_time_is_never_removed(memory, clock):
    alive = Semaphore(memory, "s", permits=1, lease=2).acquire()
    for second in range(1, 20):
        clock.at(second * 1.0, alive.renew)
    with pytest.raises(LockUnavailable):
        Semaphore(memory, "s", permits=1).acquire(timeout=18)
    alive.check()


def test_one_dead_holder_among_the_living_is_replaced_and_try_acquire_remembers_what_it_saw(memory, clock):
    dead, alive = (Semaphore(memory, "s", permits=2, lease=2).acquire() for _ in range(2))
    other = Semaphore(memory, "s", permits=2)
    assert other.try_acquire() is None
    clock.advance(1.5)
    alive.renew()
    assert other.try_acquire() is None
    clock.advance(1.0)
    assert other.try_acquire().slots == dead.slots
    alive.check()


def test_a_paused_holder_finds_its_lease_lost_and_frees_nobody(memory, clock):
    paused = Semaphore(memory, "s", permits=1, lease=2).acquire()
    new = Semaphore(memory, "s", permits=1, lease=60).acquire(timeout=10)
    with pytest.raises(FencedOut):
        paused.check()
    with pytest.raises(FencedOut):
        paused.renew()
    assert paused.release() is False
    assert bins(memory, "s")[SLOTS].keys() == set(new.slots)


def test_kept_alive_permits_are_renewed_until_they_are_released(store, name):
    with Semaphore(store, name, permits=1, lease=5).acquire(timeout=5, keep_alive=True) as permits:
        assert permits.lost.wait(6) is False
        assert Semaphore(store, name, permits=1).try_acquire() is None
    assert permits.lost.is_set()


# ---- wishes: a heavy one is not passed over for ever


def test_who_gives_up_or_dies_wishing_holds_nobody_off_for_long(memory, clock):
    holder = Semaphore(memory, "s", permits=2).acquire()
    with pytest.raises(LockUnavailable):
        Semaphore(memory, "s", permits=2).acquire(2, timeout=0.5)
    assert WISH not in bins(memory, "s")
    memory.operate(Key(SEMAPHORES, "s"), Put(WISH, "of one that died"), Put("wished", 7))
    began = clock.monotonic()
    with Semaphore(memory, "s", permits=2).acquire(timeout=5):
        assert 1.0 < clock.monotonic() - began < 1.2
    assert WISH not in bins(memory, "s")
    holder.check()


def test_the_wish_of_a_dead_party_ends_for_handles_that_ask_once(memory, clock):
    Semaphore(memory, "s", permits=2).resize(2)
    memory.operate(Key(SEMAPHORES, "s"), Put(WISH, "of one that died"), Put("wished", 7))
    with pytest.raises(LockUnavailable, match="a party that waits goes first; if that has died"):
        Semaphore(memory, "s", permits=2).acquire(timeout=0)
    clock.advance(1.1)
    assert Semaphore(memory, "s", permits=2).try_acquire() is not None
    assert WISH not in bins(memory, "s")


def test_handles_that_ask_once_take_out_who_died(memory, clock):
    Semaphore(memory, "s", permits=1, lease=3).acquire()
    assert Semaphore(memory, "s", permits=1).try_acquire() is None
    clock.advance(3.1)
    assert Semaphore(memory, "s", permits=1).try_acquire() is not None


def test_a_holder_that_renews_lives_for_handles_that_ask_once(memory, clock):
    held = Semaphore(memory, "s", permits=1, lease=3).acquire()
    for _ in range(4):
        assert Semaphore(memory, "s", permits=1).try_acquire() is None
        clock.advance(2)
        held.renew()


def test_another_process_has_seen_nothing(memory, clock):
    Semaphore(memory, "s", permits=1, lease=3).acquire()
    assert Semaphore(memory, "s", permits=1).try_acquire() is None
    clock.advance(3.1)
    assert Semaphore(CountingStore(memory.inner), "s", permits=1).try_acquire() is None


def test_of_more_records_than_are_remembered_the_oldest_is_watched_again(memory, clock, monkeypatch):
    monkeypatch.setattr(contender, "MAX_OBSERVED", 1)
    for name in "ab":
        Semaphore(memory, name, permits=1, lease=3).acquire()
        assert Semaphore(memory, name, permits=1).try_acquire() is None
    clock.advance(3.1)
    assert Semaphore(memory, "b", permits=1).try_acquire() is not None
    assert Semaphore(memory, "a", permits=1).try_acquire() is None


# ---- doubt


def test_a_late_attempt_with_other_slots_is_refused_while_its_acquisition_holds(memory):
    faulty = FaultyStore(memory, {1: Fault("late")})
    semaphore = Semaphore(faulty.with_policy(RetryPolicy(attempts=1)), "s", permits=4)
    permits = semaphore.acquire(timeout=1)
    assert faulty.pending == 1
    faulty.deliver()
    assert bins(memory, "s")[SLOTS].keys() == set(permits.slots)
    permits.release()
    assert bins(memory, "s")[SLOTS] == {}


def test_an_id_goes_with_its_slots_so_a_release_after_a_rebuild_leaves_none_behind(memory, clock):
    """The first attempt is late; its slot goes to another, so the second names another slot; the store is emptied."""
    faulty = FaultyStore(memory, {1: Fault("late")})
    semaphore = Semaphore(faulty.with_policy(RetryPolicy(attempts=1)), "s", permits=2)
    semaphore._contender.last = (0,)
    other = Semaphore(memory, "s", permits=2)
    other._contender.last = (0,)
    faulty.plan[2] = other.acquire
    permits = semaphore.acquire(timeout=1)
    assert permits.slots == (1,)
    memory.inner.delete(Key(SEMAPHORES, "s"))
    faulty.deliver()
    assert permits.release() is False
    clock.advance(0.1)
    ghost = Semaphore(memory, "s", permits=2, lease=0.5)
    assert ghost.acquire(2, timeout=12).n == 2, "what landed late is removed after its lease, with its slot"


def test_where_the_record_cannot_be_asked_after_doubt_the_outcome_is_unknown(memory):
    faulty = FaultyStore(memory, {1: "request_lost", 2: "request_lost", 3: "request_lost", 4: "dropped", 5: "dropped",
                                  6: "dropped"})  # fmt: skip
    with pytest.raises(OutcomeUnknown, match="the lease ends by itself"):
        Semaphore(faulty, "s", permits=4).acquire(timeout=0)


@pytest.mark.parametrize("kind", ["reply_lost", "request_lost"])
def test_a_size_is_set_exactly_once_though_a_reply_is_lost(memory, kind):
    faulty = FaultyStore(memory, {1: kind})
    Semaphore(faulty, "s", permits=4).resize(7)
    assert bins(memory, "s")[PERMITS] == 7


def test_a_removal_or_release_in_doubt_is_repeated(memory, clock):
    Semaphore(memory, "s", permits=1, lease=1).acquire()
    faulty = FaultyStore(memory, {})
    other = Semaphore(faulty, "s", permits=1)
    assert other.try_acquire() is None
    clock.advance(1.1)
    faulty.plan.update({faulty.total + 1: "dropped", faulty.total + 2: "dropped", faulty.total + 4: "reply_lost"})
    permits = other.acquire(timeout=1)
    faulty.next("reply_lost")
    assert permits.release() is True
    assert bins(memory, "s")[SLOTS] == {}


# ---- a store that forgets, a handle that travels, a record that is damaged


def test_when_the_store_comes_back_empty_holders_hear_of_it_and_fences_go_on_above(memory, clock):
    permits = Semaphore(memory, "s", permits=2).acquire(2)
    memory.inner.delete(Key(SEMAPHORES, "s"))
    clock.advance(0.01)
    with pytest.raises(FencedOut):
        permits.renew()
    assert permits.release() is False
    assert Semaphore(memory, "s", permits=2).acquire().fence > permits.fence


def test_a_handle_travels_without_what_it_has_seen(shared_store, name):
    semaphore = Semaphore(shared_store, name, permits=2, owner="me", lease=3)
    semaphore.try_acquire().release()
    twin = pickle.loads(pickle.dumps(semaphore))
    assert repr(twin) == repr(semaphore) == f"Semaphore({name!r}, permits=2, owner='me', lease=3.0)"
    assert twin._contender.observed is None
    with twin.acquire(timeout=5) as permits:
        assert repr(permits).startswith(f"Permits({name!r}, slots=[")


def holder(*about, id="a", stamp=1):
    return {HOLDERS: {id: list(about)}, RENEWED: {id: stamp}}


@pytest.mark.parametrize("damage", [
    {HOLDERS: "x"}, {HOLDERS: {"a": [1]}}, {HOLDERS: {"a": [1, "x", 3, 4, 5]}}, holder("x", 1000, 3, "o", [0]),
    holder(1, 1000, "x", "o", [0]), holder(1, 1000, 3, 4, [0]), holder(1, 1000, 3, "o", [0], stamp="x"),
    holder(1, 1000, 3, "o", [0], id=1), holder(1, 1000, 3, "o", 7), holder(1, 1000, 3, "o", ["x"]),
    holder(1, -1000, 3, "o", [0]), holder(1, 0, 3, "o", [0]), holder(1, 2**40, 3, "o", [0]),
])  # fmt: skip
def test_a_damaged_record_is_said_to_be_corrupt(memory, damage):
    puts = [Put(bin, value) for bin, value in damage.items()]
    memory.operate(Key(SEMAPHORES, "s"), *puts, Put(PERMITS, 2), exists=Exists.CREATE)
    with pytest.raises(Corrupt, match=r"latchwork_semaphores[/'].*s") as told:
        Semaphore(memory, "s", permits=2).holders()
    assert told.value.details["key"] == Key(SEMAPHORES, "s")


@pytest.mark.parametrize("size", [{"n": 2}, 0, -1, 1_001, 2**40])
def test_a_size_that_is_none_is_said_to_be_corrupt(memory, size):
    memory.operate(Key(SEMAPHORES, "s"), Put(PERMITS, size), exists=Exists.CREATE)
    with pytest.raises(Corrupt, match="is not a number"):
        Semaphore(memory, "s", permits=2).size()


def test_a_resource_with_damaged_fences_refuses_and_says_no_more(memory):
    permits, resource = Semaphore(memory, "s", permits=2).acquire(2), Key("resources", "r")
    memory.operate(resource, Put("fences", {permits.slots[0]: permits.fence, permits.slots[1]: {}}), exists=Exists.ANY)
    with pytest.raises(Refused) as refused:
        permits.operate(resource, Add("n", 1))
    assert type(refused.value) is Refused
