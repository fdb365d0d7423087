"""One poller a process: what all waits together cost, what each of them sees, and that none is forgotten (P19)."""

from __future__ import annotations

import statistics
from collections import Counter
from functools import partial
from unittest.mock import patch

import pytest

from latchwork.coord import CountDownLatch, CountUpDownLatch, FencedLock, LeaseElection
from latchwork.coord.lease import FENCE, GRANT, LEASE
from latchwork.coord.lock import LOCKS
from latchwork.coord.waits import BATCH, UNREAD, Poller, Watch, part, poller_of
from latchwork.errors import Corrupt, LatchworkError, Unavailable
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.retry import Poll
from latchwork.store import Add, Key, MemoryStore, Put, Record, SQLiteStore
from latchwork.testing import CountingStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore, Outage
from tests.sim.stage import Stage

BEGIN, RELEASE = 0.5, 3.0
"""Seconds of virtual time: when the counting of calls begins, and when everything is released."""


def latch(store, number=0, count=1):
    return CountDownLatch.get_or_create(store, "test", f"latch-{number}", count, farm_id="f")


def together(seams, bodies):
    """Run these in threads of one process, and wait for all of them."""
    for task in [seams.spawn(body, f"t{number}") for number, body in enumerate(bodies)]:
        task.join()


def waits(number, timeout=10.0, release=True):
    """So many threads of one process wait for a latch each; their calls in two seconds, lags, and results."""
    lags, results, calls, done = [], [], Counter(), Counter()

    def waiting(inner):
        store = CountingStore(inner)
        seams = store.seams

        def one(place):
            results.append(latch(store, place).wait(timeout))
            lags.append(inner.world.now - RELEASE)

        def count():
            seams.sleep(BEGIN)
            before = Counter(store.calls)
            seams.sleep(2.0)
            calls.update(store.calls - before)

        together(seams, [count, *(lambda place=place: one(place) for place in range(number))])
        after = store.total
        seams.sleep(10)
        done["idle"] = store.total - after

    def releasing(store):
        for place in range(number if release else 0):
            latch(store, place).count_down()

    stage = Stage()
    stage.act("waiting", waiting)
    stage.act("releasing", releasing, after=RELEASE)
    stage.world.run(100.0, max_steps=5_000_000)
    stage.world.end()
    assert not stage.world.failures
    return calls, lags, results, done["idle"]


def test_a_wait_that_is_alone_reads_its_record_as_it_would_without_a_poller():
    calls, lags, results, _ = waits(1)
    assert set(calls) == {"get"}
    assert calls["get"] <= 80, "at most 40 reads a second"
    assert results == [True]
    assert lags[0] <= 0.04


@pytest.mark.parametrize("number", [2, 100, pytest.param(BATCH, marks=pytest.mark.long)])
def test_many_waits_make_as_many_calls_as_one(number):
    alone = sum(waits(1, release=False)[0].values())
    calls, lags, results, idle = waits(number)
    assert set(calls) == {"get_many"}
    assert calls["get_many"] <= 1.25 * alone
    assert results == [True] * number
    if number == 2:
        assert max(lags) <= 0.05
    assert idle == 0, "who does not wait makes no call"


@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_a_release_is_seen_by_many_waits_as_soon_as_by_one(number):
    _, lags, _, _ = waits(number)
    released_one_after_the_other = sorted(lags)
    took = released_one_after_the_other[-1] - released_one_after_the_other[0]
    assert statistics.median(lags) <= took / 2 + 0.030
    assert released_one_after_the_other[-1] <= took + 0.120


def test_waiting_needs_no_thread_of_its_own():
    def waiting(store):
        begun = []
        spawn, store.seams.spawn = store.seams.spawn, lambda *given: begun.append(given)
        assert latch(store).wait(0.5) is False
        store.seams.spawn = spawn
        return begun

    assert Stage().act("one", waiting).world
    stage = Stage()
    stage.act("one", waiting)
    assert stage.play().said["one"] == []


def test_an_outage_is_outlived_by_every_wait_and_ends_no_wait_that_has_time_left():
    said = {}

    def waiting(inner):
        made = latch(inner, count=2)
        store = FaultyStore(inner, Outage(inner.seams, inner.seams.monotonic() + 0.3, inner.seams.monotonic() + 1.5))

        def one(name, timeout):
            try:
                said[name] = latch(store).wait(timeout)
            except LatchworkError as failure:
                said[name] = type(failure)

        def count():
            inner.seams.sleep(2.0)
            made.count_down(2)

        together(inner.seams, [lambda: one("short", 1.0), lambda: one("long", 5.0), lambda: one("longer", 6.0), count])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert said == {"short": Unavailable, "long": True, "longer": True}


def test_a_damaged_record_fails_those_who_wait_for_it_alone():
    said = {}

    def waiting(store):
        for place in range(3):
            FencedLock(store, f"lock-{place}", lease=60).acquire()

        def one(place):
            try:
                FencedLock(store, f"lock-{place}").acquire(timeout=2).release()
                said[place] = "taken"
            except LatchworkError as failure:
                said[place] = type(failure)

        def others():
            store.seams.sleep(0.5)
            store.operate(Key(LOCKS, "lock-1"), Put("locked", "perhaps"))
            for place in (0, 2):
                store.operate(Key(LOCKS, f"lock-{place}"), Put("locked", 0))

        together(store.seams, [others, *(lambda place=place: one(place) for place in range(3))])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert said == {0: "taken", 1: Corrupt, 2: "taken"}


def test_a_record_that_the_store_cannot_decode_fails_those_who_wait_for_it_alone():
    said = {}

    class OneDamaged(CountingStore):
        """A store one of whose records no read can decode, once it is damaged."""

        is_damaged = False

        def _get_many(self, keys, bins):
            if self.is_damaged and any(key.name.endswith("-1") for key in keys):
                raise Corrupt("not decoded")
            return super()._get_many(keys, bins)

        def _operate_many(self, updates):
            rows = super()._operate_many(updates)
            return [Corrupt("not decoded") if row.key.name.endswith("-1") else rows[n] for n, row in enumerate(updates)]

    def waiting(inner):
        store = OneDamaged(inner)

        def one(place):
            try:
                said[place] = latch(store, place).wait(2.0)
            except LatchworkError as failure:
                said[place] = type(failure), str(failure)

        def others():
            inner.seams.sleep(0.5)
            store.is_damaged = True
            inner.seams.sleep(0.5)
            for place in (0, 2):
                latch(inner, place).count_down()

        together(inner.seams, [others, *(partial(one, place) for place in range(3))])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert said == {0: True, 1: (Corrupt, "not decoded"), 2: True}


def test_a_record_that_cannot_be_read_is_asked_for_again_by_those_alone_who_wait_for_it():
    asked = Counter()

    class OneFails(CountingStore):
        """A store one of whose records cannot be read together with others."""

        def _get_many(self, keys, bins):
            if any(key.name.endswith("-1") for key in keys):
                raise Unavailable("it hangs")
            return super()._get_many(keys, bins)

        def _operate_many(self, updates):
            rows = super()._operate_many(updates)
            return [
                Unavailable("it hangs") if row.key.name.endswith("-1") else rows[n] for n, row in enumerate(updates)
            ]

        def _get(self, key, bins):
            asked[key.name[-1]] += 1
            return super()._get(key, bins)

    def waiting(inner):
        store = OneFails(inner)
        together(inner.seams, [lambda place=place: latch(store, place).wait(1.0) for place in range(3)])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert asked["0"] == asked["2"] <= 3, "the first look, the last, and one that was alone"
    assert asked["1"] > 5


class Held(CountingStore):
    """A store one of whose reads is answered late: it was done when it was asked."""

    def __init__(self, inner, number, seconds):
        super().__init__(inner)
        self.number, self.seconds = number, seconds

    def _call(self, verb, request, *rest):
        found = super()._call(verb, request, *rest)
        if self.total == self.number:
            self.seams.sleep(self.seconds)
        return found


def test_a_read_that_hangs_holds_up_nobody_else():
    """The thread that reads for all hangs for 5 s. Another one looks instead, and no wait exceeds its time."""
    ended = {}

    def waiting(inner):
        store = Held(inner, 0, 5.0)

        def one(place, timeout):
            began = inner.world.now
            found = latch(store, place).wait(timeout)
            ended[place] = (found, inner.world.now - began)

        def others():
            inner.seams.sleep(0.2)
            store.number = store.total + 1
            inner.seams.sleep(0.3)
            latch(inner, 1).count_down()

        for place in range(3):
            latch(inner, place)
        bodies = [others, lambda: one(0, 9.0), lambda: one(1, 9.0), lambda: one(2, 0.6)]
        together(inner.seams, bodies)

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert ended[1][0] is True
    assert ended[1][1] <= 1.3
    assert ended[2][0] is False
    assert 0.6 <= ended[2][1] <= 0.7


def test_answers_count_though_every_read_is_slow():
    """Each common read takes longer than a thread waits for another's: the answers must not be dropped for that."""
    said = {}

    class Slow(CountingStore):
        """A store whose batches take long."""

        def _get_many(self, keys, bins):
            self.seams.sleep(0.7)
            found = super()._get_many(keys, bins)
            self.seams.sleep(0.7)
            return found

    def waiting(inner):
        store = Slow(inner)

        def one(place):
            said[place] = latch(store, place).wait(9.0), inner.world.now

        def others():
            inner.seams.sleep(1.0)
            for place in range(30):
                latch(inner, place).count_down()

        together(inner.seams, [others, *(lambda place=place: one(place) for place in range(30))])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert all(found and at < 6.0 for found, at in said.values())


def test_an_answer_is_for_those_alone_who_waited_before_it_was_asked_for():
    said = {}

    def waiting(inner):
        store = Held(inner, 0, 0.25)
        made = CountUpDownLatch.create(inner, "test", "up", 0, farm_id="f")
        made.count_up()

        def first():
            CountDownLatch.get(store, "test", "other", farm_id="f").wait(2.0, create_timeout=2.0)

        def before():
            said["before"] = CountUpDownLatch.get(store, "test", "up", farm_id="f").wait(2.0)

        def after():
            inner.seams.sleep(0.2)
            made.count_down()
            store.number = store.total + 1  # the next common read is done while the count is 0
            inner.seams.sleep(0.1)
            made.count_up()
            said["after"] = CountUpDownLatch.get(store, "test", "up", farm_id="f").wait(0.3)

        together(inner.seams, [before, first, after])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert said == {"before": True, "after": False}


def test_nobody_reads_while_another_thread_does():
    """Common reads take 0.3 s, in which threads wake that were due before it began: they leave it to that read."""
    at_once, most = Counter(), []

    class Slow(CountingStore):
        """A store whose batches take long, but not so long that another thread takes over."""

        def _get_many(self, keys, bins):
            at_once["reads"] += 1
            most.append(at_once["reads"])
            self.seams.sleep(0.3)
            at_once["reads"] -= 1
            return super()._get_many(keys, bins)

    def waiting(inner):
        store = Slow(inner)
        together(inner.seams, [lambda place=place: latch(store, place).wait(5.0) for place in range(200)])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.world.run(100.0, max_steps=1_000_000)
    stage.world.end()
    assert not stage.world.failures
    assert len(most) > 5
    assert max(most) == 1


def test_who_reads_for_all_may_be_interrupted():
    said = {}

    class Interrupted(CountingStore):
        """A store whose next common read is interrupted."""

        now = False

        def _call(self, verb, request, *rest):
            if self.now and verb == "get_many":
                self.now = False
                raise KeyboardInterrupt
            return super()._call(verb, request, *rest)

    def waiting(inner):
        store = Interrupted(inner)

        def one(place):
            try:
                said[place] = latch(store, place).wait(5.0)
            except KeyboardInterrupt:
                said[place] = "interrupted"

        def others():
            inner.seams.sleep(0.3)
            store.now = True
            inner.seams.sleep(0.3)
            for place in range(3):
                latch(inner, place).count_down()
            said["lag"] = inner.world.now

        together(inner.seams, [others, *(lambda place=place: one(place) for place in range(3))])
        said["lag"] = inner.world.now - said["lag"]

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert sorted(str(said[place]) for place in range(3)) == ["True", "True", "interrupted"]
    assert said["lag"] <= 0.1, "the turn was passed on at once"


@pytest.mark.parametrize("place", ["_enter", "_leave"])
def test_a_wait_that_was_interrupted_as_it_began_or_ended_makes_no_other_wait_look_more_often(monkeypatch, place):
    store = CountingStore(MemoryStore(ManualClock()))
    first, other = latch(store, 0), latch(store, 1)
    undisturbed = getattr(Poller, place)

    def interrupted(poller, watch, *rest):
        monkeypatch.undo()
        if place == "_enter":
            undisturbed(poller, watch, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(Poller, place, interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:  # with its traceback, and so with its wait
        first.wait(0.3)
    first.count_down()
    before = store.total
    assert other.wait(2.0) is False
    assert store.total - before <= 2 * 40 + 2, "40 a second, the first and the last"
    assert kept.traceback


def test_who_has_the_turn_sleeps_on_where_the_wait_that_was_due_next_has_ended():
    slept = []

    def waiting(inner):
        seams, begun = inner.seams, [(2.0, 0.0, 2.5), (0.3, 0.05, 0.15), (0.5, 0.07, 0.4)]  # pause, beginning, timeout

        def one(place):
            pause, after, timeout = begun[place]
            seams.sleep(after)
            watch = Watch(inner, Key("locks", str(place)), ("x",), Poll(pause, pause, factor=1, jitter=0))
            watch.until(lambda: watch.read() and None, timeout=timeout)

        together(seams, [partial(one, place) for place in range(3)])

    plan = Poller._plan
    with patch.object(Poller, "_plan", lambda *given: slept.append(given[1]) or plan(*given)):
        stage = Stage()
        stage.act("waiting", waiting)
        stage.play()
    assert not stage.world.failures
    assert len(slept) < 20


def test_a_dead_holders_lock_is_broken_in_time_though_its_waits_slept_for_a_longer_lease():
    lags = []

    def waiting(store):
        for place in range(100):
            FencedLock(store, f"lock-{place}", lease=60).acquire()

        def one(place):
            FencedLock(store, f"lock-{place}", poll=Poll(low=0.05, high=0.1)).acquire(timeout=20)
            lags.append(store.world.now - taken[0])

        def others():
            store.seams.sleep(1.0)
            for place in range(100):
                handed_over = Add(FENCE, 1), Put(GRANT, "another"), Put(LEASE, 500)
                store.operate(Key(LOCKS, f"lock-{place}"), *handed_over)
            taken.append(store.world.now)

        taken = []
        together(store.seams, [others, *(lambda place=place: one(place) for place in range(100))])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert len(lags) == 100
    assert max(lags) <= 0.5 + 0.2


def test_a_process_leaves_one_mark_for_all_its_threads_that_wait_for_a_lock():
    def waiting(inner):
        FencedLock(inner, "lock", lease=60).acquire()
        store = CountingStore(inner)

        def one():
            assert not took(FencedLock(store, "lock"), 4.0)

        together(inner.seams, [one] * 20)
        return store.calls["operate"]

    stage = Stage()
    stage.act("waiting", waiting)
    assert stage.play().said["waiting"] <= 20 + 9, "each tries once; then two marks a second"


def took(lock, timeout):
    try:
        return lock.acquire(timeout=timeout)
    except LatchworkError:
        return None


def test_a_released_lock_goes_to_a_thread_of_this_process_without_a_look():
    said = {}

    def waiting(inner):
        store = CountingStore(inner)
        grant = FencedLock(store, "lock", lease=60).acquire()

        def one():
            FencedLock(store, "lock").acquire(timeout=5.0)
            said["calls"] = store.calls - said["before"]

        def others():
            inner.seams.sleep(1.0)
            said["before"] = Counter(store.calls)
            grant.release()

        together(inner.seams, [one, others])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert said["calls"]["get"] <= 1, "one that was under way"
    assert said["calls"]["operate"] == 2, "the release and the acquisition"


def test_nothing_is_kept_of_a_lock_that_was_released_while_nobody_waited_for_it():
    def waiting(store):
        def one():
            FencedLock(store, "lock").acquire(timeout=5.0).release()

        def others():
            store.seams.sleep(1.0)
            grant.release()

        grant = FencedLock(store, "lock", lease=60).acquire()
        together(store.seams, [one, others])
        return dict(poller_of(store)._released_in_row)

    stage = Stage()
    stage.act("waiting", waiting)
    assert stage.play().said["waiting"] == {}


def test_what_is_kept_of_releases_has_a_bound():
    poller = poller_of(store := MemoryStore(ManualClock()))
    for place in range(BATCH + 1):
        watch = poller._waits[1] = Watch(store, Key(LOCKS, f"lock-{place}"), (), Poll(), alone=True)
        poller.released(watch.key)
    assert len(poller._released_in_row) <= BATCH


def test_threads_of_one_process_and_of_another_have_their_turns():
    """Four threads of one process and one of another take a lock again and again."""
    turns = Counter()

    def taking(store):
        def one():
            lock, end = FencedLock(store, "lock", lease=60), store.world.now + 4
            while store.world.now < end:
                with lock.acquire(timeout=10):
                    turns[store.process.name] += 1

        together(store.seams, [one] * (4 if store.process.name == "many" else 1))

    stage = Stage()
    stage.act("many", taking)
    stage.act("one", taking)
    stage.play()
    assert turns["one"] >= turns["many"] / 20
    assert turns["many"] >= turns["one"]


def test_an_election_stops_at_once_though_another_thread_looks_for_it():
    def standing(store):
        FencedLock(store, "office", lease=60).acquire()
        election = LeaseElection(store, "office", lease=60)

        def one():
            latch(store).wait(5.0)

        task = store.seams.spawn(one, "waits")
        election.start()
        store.seams.sleep(2.0)
        began = store.world.now
        assert election.stop(5.0)
        stopped = store.world.now - began
        task.join()
        return stopped

    stage = Stage()
    stage.act("standing", standing)
    assert stage.play().said["standing"] <= 0.05


def test_waits_and_queues_of_an_idle_process_look_in_one_batch():
    """A thread waits for a latch, and two for a message of each of two queues: no call reads a bell alone."""
    calls, rows = Counter(), Counter()

    def waiting(inner):
        store = CountingStore(inner)
        queues = [QueueRegistry(store, "c").create(QueueConfig(f"q{number}", shards=4)) for number in range(2)]

        def count():
            inner.seams.sleep(1.0)
            store.reset()
            inner.seams.sleep(6.0)
            calls.update(store.calls)
            rows.update(store.rows)

        receivers = [lambda queue=queue: queue.receive(timeout=9) for queue in queues for _ in range(2)]
        together(inner.seams, [count, lambda: latch(store).wait(9), *receivers])

    stage = Stage()
    stage.act("waiting", waiting)
    stage.play()
    assert not stage.world.failures
    assert set(calls) <= {"get", "get_many"}
    assert calls.total() <= 45 * 6, "a tick of the latch's, and few more"
    assert 2 * 6 * 6 <= rows["get_many"] - calls["get_many"] <= 2 * 14 * 6, "the bells ride along"


def test_where_the_store_tells_of_writes_nothing_is_read_until_there_is_one(tmp_path):
    clock = ManualClock()
    store = CountingStore(SQLiteStore(tmp_path / "s.db", seams=clock))
    made = latch(store)
    store.reset()
    assert made.wait(30) is False
    assert store.rows["get"] <= 2 + 30 / UNREAD, "the first, the last, and now and then, as it may expire"
    clock.at(3.0, lambda: latch(SQLiteStore(tmp_path / "s.db", seams=clock)).count_down())
    began = clock.monotonic()
    assert made.wait(30) is True
    assert clock.monotonic() - began <= 3.04


class Unwritten(CountingStore):
    """A store that says, rightly here, that nobody has written."""

    def data_version(self):
        return "unwritten"


def test_a_wait_whose_record_is_known_loses_nothing_to_a_read_of_other_bins_of_it():
    ends = []

    def process(inner):
        store = Unwritten(inner)
        mine, other = (CountDownLatch.create(store, "test", "both", 1, farm_id=farm) for farm in "ab")

        def others():
            while inner.world.now < 2.0:
                other.wait(0.05)

        together(store.seams, [lambda: ends.append(mine.wait(2.0)), others])

    stage = Stage()
    stage.act("process", process)
    stage.world.run(100.0, max_steps=5_000_000)
    stage.world.end()
    assert not stage.world.failures
    assert ends == [False]


def test_a_wait_knows_how_long_its_record_lives_though_another_wait_reads_more_of_it():
    read = Record(Key("s", "k"), {"mine": 1, "theirs": 2}, ttl=7)
    assert part(read, ("mine",)) == Record(Key("s", "k"), {"mine": 1}, ttl=7)


def test_a_record_that_expires_without_a_write_is_noticed(tmp_path):
    clock = ManualClock()
    store = SQLiteStore(tmp_path / "s.db", seams=clock)
    made = CountDownLatch.create(store, "test", "brief", 1, farm_id="f", ttl=2)
    began = clock.monotonic()
    with pytest.raises(LatchworkError):
        made.wait(30)
    assert clock.monotonic() - began <= 2 + 2 * UNREAD + 1


def test_a_forked_child_waits_for_itself():
    poller = poller_of(MemoryStore())
    poller._lock.acquire()
    poller._marks[Key("any", "any")] = 1.0
    poller.reset_after_fork()
    assert poller._lock.acquire(timeout=0)
    assert not poller._marks


def test_on_a_real_server_latches_locks_and_a_queue_are_waited_for_in_one_batch(aerospike_store):
    """Sixty threads wait, and while nothing happens they read together; then all that they wait for comes."""
    store, seams = CountingStore(aerospike_store), aerospike_store.seams
    ended, alone = [], []
    latches = [latch(aerospike_store, place) for place in range(40)]
    grants = [FencedLock(aerospike_store, f"lock-{place}", lease=60).acquire() for place in range(19)]
    there = QueueRegistry(aerospike_store, "poller").create(QueueConfig("q", shards=4))
    here = QueueRegistry(store, "poller").get("q")

    def await_latch(place):
        ended.append(("latch", latch(store, place).wait(60)))

    def await_lock(place):
        FencedLock(store, f"lock-{place}", lease=60).acquire(60).release()
        ended.append(("lock", True))

    def await_message():
        ended.append(("message", len(here.receive(timeout=60)) == 1))

    def release():
        while len(poller_of(store)._waits) < 60:
            seams.sleep(0.01)
        before = Counter(store.calls)
        while store.calls["get_many"] < before["get_many"] + 20:
            seams.sleep(0.01)
        alone.append(store.calls["get"] - before["get"])
        for one in latches:
            one.count_down()
        for grant in grants:
            grant.release()
        there.publish("x")

    bodies = [partial(await_latch, place) for place in range(40)] + [partial(await_lock, place) for place in range(19)]
    together(seams, [release, await_message, *bodies])
    assert Counter(ended) == {("latch", True): 40, ("lock", True): 19, ("message", True): 1}
    assert alone[0] <= 20, "of 1,200 looks: on a busy machine one may be due by itself"
