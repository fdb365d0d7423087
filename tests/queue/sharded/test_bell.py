"""How soon messages of other processes are noticed, what that costs, and the bell that says so (P5)."""

from __future__ import annotations

from inspect import signature

import pytest

from latchwork.deadline import Deadline
from latchwork.errors import InvalidRequest, Unavailable
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded import active
from latchwork.queue.sharded.bell import Bell
from latchwork.retry import RetryPolicy
from latchwork.store import Exists, Key, MemoryStore, Put, RecordStore, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore
from tests.support.scale import length


@pytest.fixture
def counted():
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    queue = QueueRegistry(store, "c").create(QueueConfig("q"))
    store.reset()
    return queue, store, clock


def idle(queues, clock, seconds: float, waiters: int = 1) -> None:
    """So many wait for each of the queues, in vain."""
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        for queue in queues:
            for _ in range(waiters):
                queue.receive(timeout=0.05)


LONG = length(300, 20)
"""Seconds of idling: what a queue costs in some seconds it costs in all others."""


def reads(store) -> int:
    """Records that were asked for, those that each queue's own record takes now and then included."""
    return store.rows.total()


@pytest.mark.parametrize("waiters", [1, 100])
@pytest.mark.parametrize("shards", [1, pytest.param(32, marks=pytest.mark.long), 512])
def test_an_idle_queue_costs_a_process_at_most_20_reads_a_second_whatever_waits_for_it(shards, waiters):
    clock = ManualClock(max_sleeps=1_000_000)
    store = CountingStore(MemoryStore(clock))
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=shards))
    idle([queue], clock, 10, waiters)
    store.reset()
    idle([queue], clock, LONG, waiters)
    assert 10 * LONG * 0.9 <= reads(store) <= 20 * LONG


@pytest.mark.parametrize("queues", [2, pytest.param(10, marks=pytest.mark.long), 40])
def test_all_idle_queues_of_a_process_together_cost_it_at_most_20_reads_a_second(queues):
    clock = ManualClock(max_sleeps=1_000_000)
    store = CountingStore(MemoryStore(clock))
    registry = QueueRegistry(store, "c")
    idle_queues = [registry.create(QueueConfig(f"q{number}")) for number in range(queues)]
    idle(idle_queues, clock, 60)
    store.reset()
    idle(idle_queues, clock, LONG)
    assert reads(store) <= 20 * LONG


def test_how_often_the_pointers_of_an_idle_queue_are_read_is_the_registrys_to_say():
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    queue = QueueRegistry(store, "c", idle_look=0.5).create(QueueConfig("q", shards=2))
    queue.receive(timeout=60)
    store.reset()
    queue.receive(timeout=100)
    assert 160 <= store.calls["get_many"] <= 200
    for wrong in (0, 61, float("nan")):
        with pytest.raises(InvalidRequest, match=r"idle_look is .* 0.05 to 60"):
            QueueRegistry(store, "c", idle_look=wrong)


class Elsewhere:
    """Another process that publishes to the queue; `lag` is how long who waits here does not notice it."""

    def __init__(self, store: RecordStore, clock: ManualClock, **options) -> None:
        self.clock, self.store = clock, store
        self.config = QueueConfig("q", **options)
        self.here = QueueRegistry(store, "c").create(self.config)
        self.there = QueueRegistry(store, "c").create(self.config)

    def lag(self, quiet: float, publish=None) -> float:
        assert self.here.receive(timeout=quiet) == []
        began, delay = self.clock.monotonic(), 0.0137
        self.clock.at(delay, publish or (lambda: self.there.publish("x")))
        (delivery,) = self.here.receive(timeout=60)
        delivery.ack()
        return self.clock.monotonic() - began - delay


@pytest.mark.parametrize("quiet", [0.01, 1, 25, 600])
def test_after_a_lull_of_any_length_a_message_of_another_process_is_noticed_within_100_ms(quiet):
    elsewhere = Elsewhere(MemoryStore(clock := ManualClock(max_sleeps=1_000_000)), clock)
    for _ in range(length(20, 4) if quiet < 100 else length(5)):
        assert elsewhere.lag(quiet) <= 0.1


def test_a_message_that_comes_soon_after_another_is_noticed_within_ms():
    elsewhere = Elsewhere(MemoryStore(clock := ManualClock()), clock)
    for _ in range(40):
        assert elsewhere.lag(0.02) <= 0.02


def test_a_lost_ring_costs_a_late_look_and_no_message(monkeypatch):
    elsewhere = Elsewhere(MemoryStore(clock := ManualClock()), clock)
    with monkeypatch.context() as patch:
        patch.setattr(elsewhere.there.pointers.bell, "ring_later", lambda: None)
        assert 0.1 < elsewhere.lag(1) <= 12.1  # of 32 shards; of 24 it is 9
    assert elsewhere.lag(1) <= 0.1


def test_a_ring_that_comes_while_the_pointers_are_read_is_heard():
    class Slow(MemoryStore):
        """Something happens between the look at the pointers and its reply."""

        then = None

        def _get_many(self, keys, bins):
            found = super()._get_many(keys, bins)
            then, self.then = self.then, None
            if then:
                then()
            return found

    elsewhere = Elsewhere(store := Slow(clock := ManualClock()), clock)
    elsewhere.lag(1)

    def publish() -> None:
        store.then = lambda: elsewhere.there.publish("second")
        elsewhere.there.publish("first")

    assert elsewhere.lag(1, publish) <= 0.1
    assert elsewhere.here.receive(timeout=0.2)[0].payload == "second"


def test_what_was_learned_while_a_claim_was_on_its_way_is_not_forgotten():
    class Slow(MemoryStore):
        """Something happens after a claim was applied and before its reply."""

        then = None

        def _operate(self, update):
            values = super()._operate(update)
            if self.then and any(op.bin == "claimed-from" for op in update.ops):
                then, self.then = self.then, None
                then()
            return values

    elsewhere = Elsewhere(store := Slow(clock := ManualClock()), clock, shards=1)

    def another_thread() -> None:
        elsewhere.there.publish("second")
        clock.advance(active.BUSY)
        elsewhere.here.active.candidates()

    store.then = another_thread
    assert elsewhere.here.receive(timeout=1) == []
    elsewhere.there.publish("first")
    assert elsewhere.here.receive(timeout=1)[0].payload == "first"
    began = clock.monotonic()
    assert elsewhere.here.receive(timeout=5)[0].payload == "second"
    assert clock.monotonic() - began <= 0.1
    assert store.then is None


def test_the_bell_is_rung_only_where_a_shard_was_empty_and_in_a_call_that_is_made_anyhow(counted):
    queue, store, _ = counted
    rung = queue.pointers.bell.rings
    queue.publish("x", key="a")
    assert store.total == 2
    assert rung() == 1
    queue.publish("y", key="a")
    queue.publish_many(["z"] * 50, key="a")
    assert rung() == 1
    queue.publish("x", key="b")
    assert rung() == 2
    queue.ack_many(queue.receive(100))
    store.reset()
    queue.publish_many(range(1000), key="a")
    assert store.total == 2
    assert rung() == 3


def test_a_publish_whose_ring_alone_fails_is_done_in_two_calls_and_the_next_one_rings(counted):
    queue, store, clock = counted

    class Overloaded(FaultyStore):
        """The bell has too many who write to it."""

        busy = True

        def _operate_many(self, updates):
            outcomes = super()._operate_many(updates)
            busy = Unavailable("KEY_BUSY")
            return [
                busy if self.busy and row.key.name.endswith("_BELL") else found
                for row, found in zip(updates, outcomes, strict=True)
            ]

    faulty = Overloaded(store)
    queue = QueueRegistry(faulty, "c").create(queue.config)
    began, slept = store.total, len(clock.slept)
    queue.publish("x", key="a")
    assert (store.total - began, len(clock.slept) - slept) == (2, 0)
    faulty.busy, before = False, queue.pointers.bell.rings()
    queue.publish("y", key="a")
    assert queue.pointers.bell.rings() == before + 1


def test_a_publish_that_failed_for_a_while_rings_when_it_succeeds(counted):
    queue, store, _ = counted
    faulty = FaultyStore(store)
    queue = QueueRegistry(faulty, "c").create(queue.config)
    faulty.plan = {faulty._number + call: "dropped" for call in (2, 3)}
    queue.publish("x")
    assert queue.pointers.bell.rings() == 1


@pytest.mark.parametrize(("attempts", "timeout"), [(1, None), (5, 1.0)])
def test_a_message_with_which_the_bell_rings_is_sent_as_often_as_policy_and_time_allow(counted, attempts, timeout):
    _, store, clock = counted

    class Away(FaultyStore):
        """No message is written; each attempt takes two seconds."""

        def _operate_many(self, updates):
            if any(row.key.name.endswith("_BELL") for row in updates):
                clock.advance(2)
                sent.append(updates)
                return [Unavailable("no server answers")] * len(updates)
            return super()._operate_many(updates)

    sent = []
    registry = QueueRegistry(Away(store).with_policy(RetryPolicy(attempts=attempts)), "c")
    with Deadline(clock, timeout), pytest.raises(Unavailable, match="no server answers"):
        registry.create(QueueConfig("q")).publish("x")
    assert len(sent) == 1


def test_an_idle_queue_in_a_file_is_not_read_until_somebody_writes(tmp_path):
    clock = ManualClock()
    store = CountingStore(SQLiteStore(tmp_path / "s.db", seams=clock))
    here = QueueRegistry(store, "c").create(QueueConfig("q"))
    there = QueueRegistry(SQLiteStore(tmp_path / "s.db", seams=clock), "c").create(QueueConfig("q"))
    assert here.receive(timeout=1) == []
    store.reset()
    assert here.receive(timeout=30) == []
    assert store.total == 0
    clock.at(0.5, lambda: there.publish("x"))
    began = clock.monotonic()
    assert here.receive(timeout=30)[0].payload == "x"
    assert clock.monotonic() - began <= 0.51
    assert store.total == 4, "a glance, a look, a claim and a stamp"


def test_nobody_rings_where_the_store_tells_of_writes(tmp_path):
    store = CountingStore(SQLiteStore(tmp_path / "s.db", seams=ManualClock()))
    queue = QueueRegistry(store, "c").create(QueueConfig("q"))
    store.reset()
    queue.publish("x")
    queue.publish_many(["y"] * 3)
    assert store.get(queue.pointers.bell.key) is None
    assert store.rows == {"operate": 3, "operate_many": 3, "get": 1}, "a reservation and the messages, each time"


def test_who_waits_looks_again_when_the_store_tells_of_a_write_that_came_during_the_look(tmp_path):
    class Interrupted(CountingStore):
        meanwhile = None

        def _get_many(self, keys, bins):
            found = super()._get_many(keys, bins)
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None and any(key.name.endswith("_POINTERS") for key in keys):
                meanwhile()
            return found

    clock = ManualClock()
    store = Interrupted(SQLiteStore(tmp_path / "s.db", seams=clock))
    here = QueueRegistry(store, "c").create(QueueConfig("q"))
    other = SQLiteStore(tmp_path / "s.db", seams=clock)
    there = QueueRegistry(other, "c").create(QueueConfig("q"))
    assert here.receive(timeout=1) == []
    clock.at(0.5, lambda: other.operate(Key("s", "k"), Put("n", 1), exists=Exists.ANY))
    store.meanwhile = lambda: there.publish("x")
    began = clock.monotonic()
    assert [delivery.payload for delivery in here.receive(timeout=5)] == ["x"]
    assert clock.monotonic() - began <= 0.6


def test_writes_that_are_not_to_the_queue_cost_who_waits_a_twentieth_of_its_time(tmp_path):
    clock, took = ManualClock(max_sleeps=1_000_000), 0.002

    class Slow(CountingStore):
        def _get_many(self, keys, bins):
            clock.advance(took)
            return super()._get_many(keys, bins)

    store = Slow(SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock))
    other = SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock)
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=8))
    for n in range(1000):
        clock.at(0.5 + n / 100, lambda n=n: other.operate(Key("s", "k"), Put("n", n), exists=Exists.ANY))
    queue.receive(timeout=1)
    store.reset()
    assert queue.receive(timeout=9) == []
    assert 100 <= store.calls["get_many"] <= 9 / (active.LOOKING * took) + active.LOOKING


def test_one_thread_listens_for_all_that_wait_and_another_takes_over_where_it_was_interrupted(counted):
    queue, _, clock = counted
    queue.receive(timeout=1)
    live = queue.active
    live._listens, live._listens_until = True, clock.monotonic() + 1  # as an interrupt may leave it
    first = live._ear
    queue.receive(timeout=0.5)
    assert live._ear is first
    queue.receive(timeout=2)
    assert live._ear is not first
    assert not live._listens


def test_a_group_hears_the_queues_bell_for_both_and_costs_one_read_a_glance(counted):
    queue, store, clock = counted
    group = queue.group("g", start="oldest")
    assert group.pointers.bell.key == group.pointers.own.bell.key == queue.pointers.bell.key
    idle([group], clock, 10)
    store.reset()
    idle([group], clock, 60)
    assert reads(store) <= 20 * 60 + 2 * 32 * 7


# ---- rules taken out: each is noticed


def _deaf(self, real=active.ActiveShards._glance) -> None:
    """The bell is read after the pointers."""
    real(self)
    self._rings_seen = self._queue.bell.rings()


def _asked_too_late(self, real=active.ActiveShards._glance) -> None:
    """The store is asked for its version after the pointers are read."""
    real(self)
    self._version = self._queue.store.data_version()


def _forgetful(self, shard, claim, news, real=active.ActiveShards.drained) -> None:
    """A claim drops what was learned while it was on its way."""
    real(self, shard, claim, self.news)


_RING_ALWAYS = property(lambda self: True, lambda self, due: None)


def _settled_with_the_others(self, rows):
    """A ring that fails is sent again as any row."""
    owed, self.ring_due = self.ring_due, False
    return self._store.repeat_many([*rows, self._ring])[:-1] if owed else self._store.repeat_many(rows)


MUTANTS = [
    (active.ActiveShards, "_glance", _deaf, test_a_ring_that_comes_while_the_pointers_are_read_is_heard),
    (
        active.ActiveShards, "drained", _forgetful,
        test_what_was_learned_while_a_claim_was_on_its_way_is_not_forgotten,
    ),
    (
        active.ActiveShards, "_glance", _asked_too_late,
        test_who_waits_looks_again_when_the_store_tells_of_a_write_that_came_during_the_look,
    ),
    (
        active.ActiveShards, "_rest", lambda self, began: None,
        test_writes_that_are_not_to_the_queue_cost_who_waits_a_twentieth_of_its_time,
    ),
    (SQLiteStore, "tells_of_writes", False, test_nobody_rings_where_the_store_tells_of_writes),
    (Bell, "ring_later", lambda self: None, test_a_message_that_comes_soon_after_another_is_noticed_within_ms),
    (
        Bell, "ring_due", _RING_ALWAYS,
        test_the_bell_is_rung_only_where_a_shard_was_empty_and_in_a_call_that_is_made_anyhow,
    ),
    (
        Bell, "settle", _settled_with_the_others,
        test_a_publish_whose_ring_alone_fails_is_done_in_two_calls_and_the_next_one_rings,
    ),
    (
        active, "limits", lambda store, queue, shards: (0.0, 1.0),
        lambda: test_all_idle_queues_of_a_process_together_cost_it_at_most_20_reads_a_second(10),
    ),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant[0].__name__}.{mutant[1]}")
def test_a_rule_taken_out_is_noticed(mutant, monkeypatch, counted, tmp_path):
    owner, name, instead, promise = mutant
    monkeypatch.setattr(owner, name, instead)
    fixtures = {"counted": counted, "tmp_path": tmp_path}
    with pytest.raises((AssertionError, IndexError)):
        promise(**{one: fixtures[one] for one in signature(promise).parameters})
