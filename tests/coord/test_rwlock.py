"""The promises of read-write locks, over every backend and, where time matters, on a clock that the test moves."""

from __future__ import annotations

import pickle
import uuid

import pytest

from latchwork.coord import ReadWriteLock
from latchwork.coord import rwlock as module
from latchwork.coord.holders import HOLDERS, RENEWED, WISH
from latchwork.coord.rwlock import ABANDONED, RWLOCKS, WRITER
from latchwork.errors import Corrupt, FencedOut, InvalidRequest, LeaseLost, LockUnavailable, OutcomeUnknown
from latchwork.store import NEVER, Add, Exists, Key, Put
from latchwork.testing.stores import Fault, FaultyStore
from tests.sim.stage import Stage


@pytest.fixture
def resource():
    return Key("prices", uuid.uuid4().hex[:8])


def bins(store, name="l"):
    return store.get(Key(RWLOCKS, name)).bins


# ---- on every backend


def test_many_read_at_a_time_and_a_writer_is_alone(store, name):
    locks = [ReadWriteLock(store, name, owner=f"u{number}") for number in range(3)]
    readers = [locks[0].read(5), locks[1].try_read()]
    assert locks[2].try_write() is None
    with pytest.raises(LockUnavailable, match="'u0' had it to read"):
        locks[2].write(0)
    for grant in readers:
        assert grant.release() is True
        assert grant.release() is False
    with locks[2].write(5) as writer:
        assert locks[0].try_read() is None
        assert locks[1].try_write() is None
        assert bins(store, name)[WRITER] == writer._held._id
    assert WRITER not in bins(store, name)
    assert locks[0].try_read() is not None
    assert store.get(Key("latchwork_rwlocks", name)).ttl == NEVER


def test_a_writer_has_a_fence_that_only_grows_and_a_reader_that_of_the_last_writer(store, name):
    lock = ReadWriteLock(store, name)
    fences = []
    for _ in range(3):
        with lock.write(5) as writer:
            fences.append(writer.fence)
        with lock.read(5) as reader, lock.read(5) as another:
            assert reader.generation == another.generation == writer.fence
    assert fences == sorted(set(fences))


def test_a_first_reader_begins_a_generation_above_all_fences_before(store, name):
    with ReadWriteLock(store, name).read(5) as reader:
        generation = reader.generation
    assert generation > 10**15, "the time in microseconds: above every fence of a store that was lost"
    assert ReadWriteLock(store, name).write(5).fence > generation


def test_a_resource_refuses_a_writer_that_was_succeeded_and_what_a_reader_of_an_older_generation_derived(
    store, name, resource
):
    lock = ReadWriteLock(store, name)
    old_writer = lock.write(5)
    old_writer.operate(resource, Put("price", 1))
    old_writer._leased.release(0)  # as if it had been removed without hearing of it
    old_reader = lock.read(5)
    old_reader.operate(resource, Put("mean", 1))
    old_reader._leased.release(0)
    with lock.write(5) as writer:
        writer.operate(resource, Put("price", 2))
    for grant in (old_writer, old_reader):
        with pytest.raises(FencedOut, match=str(writer.fence)):
            grant.operate(resource, Put("mean", 9))
    with lock.read(5) as reader:
        reader.operate(resource, Put("mean", 2))
    assert store.get(resource).bins == {"price": 2, "mean": 2, "fence": writer.fence}


def test_a_wish_to_write_holds_new_readers_off_and_is_over_with_the_writing(store, name):
    first, waiting = ReadWriteLock(store, name), ReadWriteLock(store, name)
    reader = first.read(5)
    attempts = module._RWAcquisition(waiting._contender, module.Mode.WRITE)
    assert attempts.look(waiting=True) is None
    assert first.try_read() is None
    assert first.try_write() is None
    reader.release()
    assert first.try_read() is None
    assert attempts.look(waiting=True) is not None
    waiting._contender.release(attempts.id, Put(WRITER, None))
    assert first.try_read() is not None


def test_kept_alive_grants_are_renewed_until_they_are_released(store, name):
    lock = ReadWriteLock(store, name, lease=5)
    with lock.read(5, keep_alive=True) as grant:
        assert grant.lost.wait(6) is False
        assert lock.try_write() is None
    assert grant.lost.is_set()


# ---- the dead


def test_a_writer_that_died_leaves_a_mark_until_a_writer_clears_it(memory, clock):
    dead = ReadWriteLock(memory, "l", lease=2).write()
    began = clock.monotonic()
    with ReadWriteLock(memory, "l").read(10) as reader:
        assert 2.0 < clock.monotonic() - began < 2.1
        assert reader.abandoned == dead.fence
        assert reader.generation == dead.fence
    with ReadWriteLock(memory, "l").write(10) as writer:
        assert writer.abandoned == dead.fence
    with ReadWriteLock(memory, "l").write(10) as writer:
        assert writer.abandoned == dead.fence, "who does not clear it leaves it"
        writer.clear_abandoned()
        writer.clear_abandoned()
        assert writer.abandoned is None
    assert ReadWriteLock(memory, "l").read().abandoned is None
    with pytest.raises(FencedOut):
        writer.clear_abandoned()


def test_a_reader_that_died_leaves_no_mark_and_only_it_is_taken_out(memory, clock):
    ReadWriteLock(memory, "l", lease=2).read()
    alive = ReadWriteLock(memory, "l", lease=2).read()
    for half in range(1, 20):
        clock.at(half * 0.5, lambda: alive.lost.is_set() or alive.renew())
    clock.at(5.0, alive.release)
    with ReadWriteLock(memory, "l").write(10) as writer:
        assert 5.0 <= clock.monotonic() < 5.1
        assert writer.abandoned is None


def test_the_wish_of_a_writer_that_died_ends_for_handles_that_ask_once(memory, clock):
    ReadWriteLock(memory, "l").read(0).release()
    memory.operate(Key(RWLOCKS, "l"), Put(WISH, "of one that died"), Put("wished", 7))
    with pytest.raises(LockUnavailable, match="a party that waits goes first; if that has died"):
        ReadWriteLock(memory, "l").read(0)
    clock.advance(1.1)
    assert ReadWriteLock(memory, "l").try_read() is not None


def test_a_writer_that_was_taken_out_cannot_clear_the_mark_of_itself(memory, clock):
    paused = ReadWriteLock(memory, "l", lease=2).write()
    ReadWriteLock(memory, "l").read(10).release()
    with pytest.raises(FencedOut):
        paused.clear_abandoned()
    paused.lost._event.clear()
    paused.lost._until = 1e9  # as if its clock stood still
    with pytest.raises(FencedOut):
        paused.clear_abandoned()
    assert paused.lost.is_set()
    assert bins(memory)[ABANDONED] == paused.fence


# ---- doubt and cost


def test_taking_and_giving_back_are_one_call_each(memory):
    lock = ReadWriteLock(memory, "l")
    for take in (lock.read, lock.write, lock.try_read, lock.try_write):
        memory.reset()
        take().release()
        assert memory.calls == {"operate": 2}


def test_a_late_attempt_to_read_is_refused_while_its_acquisition_reads(memory):
    from latchwork.retry import RetryPolicy

    faulty = FaultyStore(memory, {1: Fault("late")})
    grant = ReadWriteLock(faulty.with_policy(RetryPolicy(attempts=1)), "l").read(1)
    grant.renew()
    before = bins(memory)
    faulty.deliver()
    assert bins(memory) == before


def test_an_attempt_in_doubt_that_was_taken_out_may_land_again_and_counts_from_then_on(memory, clock):
    """Its caller knew nothing of the first time; the id is that of the attempt, whichever time it landed."""
    other, written = ReadWriteLock(memory, "l", owner="other", lease=10), []

    def dies_unheard():
        other.write(60).release()
        written.append(other.write(60))
        clock.at(1.0, written[0].release)

    faulty = FaultyStore(memory, {1: "reply_lost", 2: dies_unheard})
    reader = ReadWriteLock(faulty, "l", owner="me", lease=1.0).read(60)
    assert reader.generation == written[0].fence
    reader.check()
    reader.renew()
    assert [one.owner for one in other.holders()] == ["me"]
    assert reader.release() is True
    assert reader.release() is False
    assert other.try_write() is not None


def test_where_the_record_cannot_be_asked_after_doubt_the_outcome_is_unknown(memory):
    plan = {1: "request_lost", 2: "request_lost", 3: "request_lost", 4: "dropped", 5: "dropped", 6: "dropped"}
    with pytest.raises(OutcomeUnknown, match="the lease ends by itself"):
        ReadWriteLock(FaultyStore(memory, plan), "l").try_write()


def test_when_the_store_comes_back_empty_holders_hear_of_it_and_fences_go_on_above(memory, clock):
    lock = ReadWriteLock(memory, "l")
    grant = lock.write()
    memory.inner.delete(Key(RWLOCKS, "l"))
    clock.advance(0.01)
    with pytest.raises(FencedOut):
        grant.renew()
    with lock.read() as reader:
        assert reader.generation > grant.fence


def test_there_is_a_largest_number_of_readers(memory, monkeypatch):
    guard = module.all_of(module.missing(WRITER), module._COUNT < 3)
    monkeypatch.setattr(module, "MAX_READERS", 3)
    monkeypatch.setattr(module, "_READ", module._acquisition(module.Mode.READ, module._LAST_FENCE, guard))
    for _ in range(3):
        ReadWriteLock(memory, "l").read()
    before = memory.total
    assert ReadWriteLock(memory, "l").try_read() is None
    assert memory.total - before == 2, "one call tries, one looks: it is not tried again where there is no room"


# ---- bad input, before any I/O; handles that travel


def test_bad_input_is_refused_before_any_call(memory):
    for given in ({"lease": 0}, {"owner": ""}, {"owner": "x" * 256}, {"poll": 5}):
        with pytest.raises(InvalidRequest):
            ReadWriteLock(memory, "l", **given)
    with pytest.raises(InvalidRequest, match="name is ''"):
        ReadWriteLock(memory, "")
    for verb in ("read", "write"):
        with pytest.raises(InvalidRequest, match="timeout"):
            getattr(ReadWriteLock(memory, "l"), verb)(-1)
    assert memory.total == 0


def test_a_handle_travels_without_what_it_has_seen(shared_store, name):
    lock = ReadWriteLock(shared_store, name, owner="me", lease=3)
    lock.try_write().release()
    twin = pickle.loads(pickle.dumps(lock))
    assert repr(twin) == repr(lock) == f"ReadWriteLock({name!r}, owner='me', lease=3.0)"
    assert twin._contender.observed is None
    with twin.write(5) as grant:
        grant.operate(Key("prices", name), Add("n", 1))
        assert repr(grant).startswith(f"WriteGrant({name!r}, fence=")


@pytest.mark.parametrize("held", [7, "browse", ["read"]])
def test_a_holder_that_neither_reads_nor_writes_is_said_to_be_corrupt(memory, held):
    entry = {"a": [1, 1000, 3, "o", held]}
    memory.operate(Key(RWLOCKS, "l"), Put(HOLDERS, entry), Put(RENEWED, {"a": 3}), exists=Exists.CREATE)
    with pytest.raises(Corrupt, match="neither reads nor writes"):
        ReadWriteLock(memory, "l").holders()


def test_a_damaged_holder_controls_no_terminal_from_the_error_that_names_it(memory):
    entry = {"a": [1, 1000, 3, "o", "\x1b[2J\n"]}
    memory.operate(Key(RWLOCKS, "l"), Put(HOLDERS, entry), Put(RENEWED, {"a": 3}), exists=Exists.CREATE)
    with pytest.raises(LockUnavailable) as refused:
        ReadWriteLock(memory, "l").write(0)
    assert str(refused.value).isprintable()


def test_a_write_grant_that_nobody_has_any_more_counts_as_abandoned():
    stage = Stage()

    def process(store):
        ReadWriteLock(store, "l", lease=3).write(5, keep_alive=True)  # in a closure that an exception has ended
        store.seams.sleep(30)

    stage.act("a", process)
    stage.act("b", lambda store: ReadWriteLock(store, "l").write(15).abandoned is not None, after=1)
    assert stage.play().said["b"] is True


def test_a_write_grant_that_is_renewed_too_late_counts_as_abandoned(memory, clock):
    paused = ReadWriteLock(memory, "l", lease=3).write(5)
    with pytest.raises(FencedOut):
        late(paused, clock)
    assert ReadWriteLock(memory, "l").write(15).abandoned == paused.fence


@pytest.mark.parametrize("fails", [True, False])
def test_a_writer_whose_lease_ran_out_in_its_block_leaves_a_mark_though_nobody_has_waited(memory, clock, fails):
    grant = ReadWriteLock(memory, "l", lease=3).write(0)

    def writes():
        with grant:
            clock.advance(4)
            if fails:
                grant.check()

    with pytest.raises(FencedOut if fails else LeaseLost):
        writes()
    assert ReadWriteLock(memory, "l").write(0).abandoned == grant.fence


def test_a_writer_without_a_block_that_is_released_after_its_lease_leaves_a_mark(memory, clock):
    """As with `try: ... finally: grant.release()`, where the work stopped half-way as it found its lease over."""
    grant = ReadWriteLock(memory, "l", lease=3).try_write()
    clock.advance(4)
    with pytest.raises(FencedOut):
        grant.check()
    assert (grant.release(), grant.release()) == (True, False)
    assert ReadWriteLock(memory, "l").write(0).abandoned == grant.fence


def test_a_writer_that_is_released_in_its_block_leaves_no_mark(memory, clock):
    with ReadWriteLock(memory, "l", lease=3).write(0) as grant:
        grant.release()
        clock.advance(4)
    assert ReadWriteLock(memory, "l").write(0).abandoned is None


def late(grant, clock):
    """Renew it, and have the answer only when its lease is over."""
    extend = grant.lost.extend
    grant.lost.extend = lambda until: clock.advance(grant._leased.lease) or extend(until)
    grant.renew()
