"""Ordered consumers: a shard changes hands only where no later message of a key gets before an earlier one."""

from __future__ import annotations

import warnings

import pytest

from latchwork.errors import Corrupt, LatchworkError, OutcomeUnknown
from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry, Sweeper
from latchwork.queue.sharded.consumer.ordering import ASK, LEASE, ShardLocks
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.in_flight import in_flight
from latchwork.queue.sharded.slots import ShardHolder, Slot, WriteResult
from latchwork.queue.sharded.subqueue import GRACE
from latchwork.store import MemoryStore, Put
from latchwork.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.queue.sharded.world import Election, Torn

from .alone import OneThread


@pytest.fixture
def clock():
    return OneThread()


@pytest.fixture
def queues(clock):
    """The same queue in two processes."""
    return made(clock)


def made(clock, kind=MemoryStore, shards=1):
    store = kind(clock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("q", retry=False, shards=shards, sweep_duration=60, unsafe_limits=True)
    return [QueueRegistry(store, "c").create(config) for _ in range(2)]


def arrive(queue, pointer):
    """A slow publisher's message comes, and then the next of its key."""
    queue.pointers.write([Slot(0, pointer)], [Envelope('"first"', "m1")])
    queue.publish("second")


def test_nothing_that_is_behind_a_message_on_its_way_is_given_before_it(queues, clock):
    here, there = queues
    seen = []
    there.pointers.reserve({0: 1})
    there.publish("other")
    clock.at(0.05, lambda: arrive(there, 1))
    Consumer(here, lambda delivery: seen.append(delivery.payload), ordered=True)._turns.take()
    assert seen == ["first", "other", "second"]


def test_what_is_behind_a_message_that_never_comes_is_given_once_that_was_given_up(queues):
    here, there = queues
    seen = []
    there.pointers.reserve({0: 1})
    there.publish("other")
    consumer = Consumer(here, lambda delivery: seen.append(delivery.payload), ordered=True)
    consumer._turns.take()
    assert seen == ["other"]
    assert not here.awaits({0})
    assert consumer._turns.locks._busy == {}


def test_a_message_that_could_not_be_read_is_asked_for_again_though_its_shard_has_nothing_else(clock):
    here, there = made(clock, Torn)
    seen = []
    there.publish("m")
    consumer = Consumer(here, lambda delivery: seen.append(delivery.payload), ordered=True)
    here.store.torn = True
    clock.at(LEASE / 2, lambda: setattr(here.store, "torn", False))
    consumer._turns.take()
    assert seen == ["m"]
    assert consumer.stats["troubles"]


def test_a_worker_ends_its_turn_once_the_consumer_is_saturated(queues):
    here, _ = queues

    def handler(delivery):
        for other in others:
            consumer.runs.abandon(other, "hangs")

    consumer = Consumer(here, handler, ordered=True)
    here.publish_many(["a", "b", "c"])
    others = [consumer.runs.open([]) for _ in range(2 * here.concurrency)]
    consumer._turns.take()
    assert consumer.saturated
    assert here.depth().ready == 2
    assert consumer.stats["acked"] == 1


def one_turn(consumer, clock):
    """Seconds and calls that it takes a worker to find nothing for it."""
    began, store = clock.monotonic(), consumer.queue.store
    store.reset()
    consumer._turns.take()
    return clock.monotonic() - began, store.total


def counted(clock, shards=1):
    return made(clock, lambda seams: CountingStore(MemoryStore(seams)), shards)


def test_a_worker_of_a_paused_queue_waits_and_asks_the_store_for_nothing(clock):
    queue, _ = counted(clock)
    queue.publish_many(["a", "b"])
    with pytest.warns(UserWarning, match="paused"):
        queue.pause()
    queue.used = False
    consumer = Consumer(queue, lambda delivery: None, concurrency=4, ordered=True)
    assert one_turn(consumer, clock) == (ASK, 0)
    assert queue.used, "or its record would expire while it is paused"
    queue.resume()
    consumer._turns.take()
    assert consumer.stats["acked"] == 2


def test_a_message_for_a_free_shard_that_comes_while_the_others_are_asked_for_is_not_waited_for(clock, monkeypatch):
    here, there = counted(clock, shards=2)
    there.publish("a")
    with ShardLocks(there).hold_one(clock.event()) as held:
        consumer = Consumer(here, lambda delivery: None, ordered=True)
        consumer._turns.take()
        take = consumer._turns.locks._take_one
        free = 1 - held.shard
        monkeypatch.setattr(
            consumer._turns.locks, "_take_one", lambda shards: (take(shards), here.active.loaded([free]))[0]
        )
        seconds, _ = one_turn(consumer, clock)
    assert seconds < 0.2


def test_a_worker_whose_shards_are_all_worked_elsewhere_asks_for_them_once_a_second(clock):
    here, there = counted(clock)
    there.publish("a")
    locks = ShardLocks(there)
    with locks.hold_one(clock.event()) as held:
        consumer = Consumer(here, lambda delivery: None, ordered=True)
        consumer._turns.take()
        seconds, calls = one_turn(consumer, clock)
        assert held.mine()
    assert seconds == ASK
    assert calls <= 3, "a look, and an attempt at the lock"
    consumer._turns.take()
    assert consumer.stats["acked"] == 1


# ---- what is claimed, or perhaps


class Losing(FaultyStore):
    """A process's store, whose calls of records with such names all fail for a while."""

    among, kind = None, "dropped"
    damaged = None
    """In the names of records whose rows are always refused."""

    def _operate_many(self, updates):
        return self._but_damaged(super()._operate_many, updates)

    def _delete_many(self, removals):
        return self._but_damaged(super()._delete_many, removals)

    def _but_damaged(self, send, rows):
        is_damaged = [bool(self.damaged) and self.damaged in row.key.name for row in rows]
        whole = [row for row, bad in zip(rows, is_damaged, strict=True) if not bad]
        sent = iter(send(whole) if whole else ())
        return [Corrupt("damaged") if bad else next(sent) for bad in is_damaged]

    def _fault(self, number, verb, request):
        keys = [row.key for row in (request if isinstance(request, list) else [request]) if hasattr(row, "key")]
        return Fault(self.kind) if self.among and any(self.among in key.name for key in keys) else None


CLAIM = "q_SHARD_0_POINTERS"


def processes(clock, n=2, **options):
    """The queue of one shard in so many processes, each of which can lose calls."""
    inner = MemoryStore(clock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig(
            "q", **{"retry": False, "shards": 1, "sweep_duration": 1200, "unsafe_limits": True, **options}
        )
    return [QueueRegistry(Losing(inner, seams=clock), "c").create(config) for _ in range(n)]


def ordered(queue, seen):
    """A consumer that notes what it handles."""
    one = queue.config.batching is None

    def handle(given):
        seen.extend(delivery.payload for delivery in ([given] if one else given))

    return Consumer(queue, handle, ordered=True, upkeep=False)


def turns(consumers, until, clock):
    """Turns of the workers, one after the other, whatever they meet."""
    end = clock.monotonic() + until
    while clock.monotonic() < end:
        for consumer in consumers:
            try:
                consumer._turns.take()
            except LatchworkError:
                clock.advance(0.1)


def killed(queue, at):
    """A worker that is killed while it holds the shard, at this."""
    with pytest.raises(Crash), ShardLocks(queue).hold_one(queue.store.seams.event()) as held:
        crash(at(held))
    return held


def crash(_):
    raise Crash


def dies_with(queue, n):
    """A worker that is killed with the next messages in its hands."""
    killed(queue, lambda held: held.receive(n, more=False, timeout=0))


def test_what_a_dead_consumer_had_is_handed_out_first_once_its_lock_is_broken(clock):
    dead, here = processes(clock)
    here.publish_many([1, 2, 3, 4], key="k")
    dies_with(dead, 2)
    taken = []
    consumer = Consumer(
        here, lambda delivery: taken.append((delivery.payload, delivery.attempts)), ordered=True, upkeep=False
    )
    turns([consumer], 2 * LEASE, clock)
    assert taken == [(1, 2), (2, 2), (3, 1), (4, 1)]
    assert here.depth().sideline == 0


def test_a_claim_of_a_former_holder_that_comes_late_claims_nothing(clock):
    dead, here = processes(clock)
    here.publish_many([1, 2], key="k")
    held = killed(dead, lambda held: None)
    seen = []
    turns([ordered(here, seen)], LEASE + 2, clock)
    assert seen == [1, 2]
    here.publish(3, key="k")
    assert held.receive(1, more=False, timeout=0) == []
    assert here.depth().ready == 1


def test_a_slot_that_a_dead_consumer_waited_for_is_given_up_and_its_publisher_goes_to_another(clock):
    dead, here = processes(clock)
    slot = Slot(0, here.pointers.reserve({0: 1})[0])
    here.publish("second", key="k")
    killed(dead, lambda held: dead.pointers.claim(0, 1, ShardHolder(held.grant.fence, more=False)))
    seen = []
    turns([ordered(here, seen)], LEASE + 2, clock)
    assert seen == ["second"]
    assert here.pointers.write([slot], [Envelope('"first"', "m1")]) == [WriteResult.SPENT]


def test_a_takeover_that_fails_is_made_by_whoever_breaks_the_lock_next(clock):
    dead, here, next_one = processes(clock, 3)
    here.publish_many([1, 2], key="k")
    dies_with(dead, 1)
    seen = []
    turns([ordered(here, seen)], LEASE - 1, clock)
    here.store.among = "q_SHARD"
    turns([ordered(here, seen)], 3, clock)
    assert seen == []
    turns([ordered(next_one, seen)], 2 * LEASE + 5, clock)
    assert seen == [1, 2]


def test_a_consumer_that_stops_while_a_message_is_on_its_way_leaves_it_to_the_next_holder(clock):
    here, there = processes(clock)
    slot = Slot(0, there.pointers.reserve({0: 1})[0])
    there.publish("second", key="k")
    seen = []
    consumer = ordered(here, seen)
    clock.at(GRACE / 2, consumer._stopping.set)
    here._open = lambda: not consumer._stopping.is_set()
    consumer._turns.take()
    assert seen == []
    assert not here.awaits()
    there.pointers.write([slot], [Envelope('"first"', "m1")])
    turns([ordered(there, seen)], LEASE + 2, clock)
    assert seen == ["first", "second"]


def test_a_handler_that_is_given_up_while_the_sideline_is_away_leaves_its_message_to_the_next_holder(clock):
    here, there = processes(clock)
    there.publish_many([1, 2], key="k")
    seen = []

    def hangs(delivery):
        here.store.among = "SIDELINE"
        (run,) = consumer.runs._open_runs()
        consumer.runs.abandon(run, "hangs")

    consumer = Consumer(here, hangs, ordered=True, upkeep=False)
    consumer._turns.take()
    turns([ordered(there, seen)], LEASE + 2, clock)
    assert seen == [1, 2]


def test_a_failed_message_that_could_not_be_stored_for_later_is_left_to_the_next_holder(clock):
    here, there = processes(clock, retry=True)
    there.publish_many([1, 2], key="k")

    def fails(delivery):
        here.store.among = None if here.store.among else "E/q/"  # the first message cannot be stored for later
        raise ValueError(delivery.payload)

    Consumer(here, fails, ordered=True, upkeep=False)._turns.take()
    here.store.among, seen = None, []
    next_one = ordered(there, seen)
    turns([next_one], LEASE / 2, clock)
    assert seen == [], "the lock is left to its lease"
    turns([next_one], LEASE + 2, clock)
    assert seen == [1, 2]


def test_an_unreadable_message_that_could_not_be_stored_for_later_is_left_to_the_next_holder(clock):
    here, there = processes(clock, retry=True)
    there.publish_many([1, 2], key="k")
    there.store.operate(there.pointers.key(Slot(0, 1)), Put("data", "{"))
    here.store.among, seen = "E/q/", []
    consumer = ordered(here, seen)
    consumer._turns.take()
    assert seen == []
    next_one = ordered(there, seen)
    turns([next_one], LEASE / 2, clock)
    assert seen == [], "the lock is left to its lease"
    turns([next_one], LEASE + 2, clock)
    assert (seen, [one.reason for one in there.delayed.search()]) == ([2], ["unreadable"])


@pytest.mark.parametrize("what", ["unreadable", "failed", "done"])
def test_a_message_that_can_never_be_settled_is_left_to_the_sweep_and_its_shard_goes_on(clock, what):
    here, there = processes(clock, retry=True)
    there.publish_many([1, 2], key="k")
    if what == "unreadable":
        there.store.operate(there.pointers.key(Slot(0, 1)), Put("data", "{"))
    here.store.damaged, seen = "E/q/", []

    def handle(delivery):
        seen.append(delivery.payload)
        if delivery.payload == 1:
            here.store.damaged = "E/q/" if what == "failed" else here.pointers.key(Slot(0, 1)).name
            return what == "done"
        here.store.damaged = None
        return True

    turns([Consumer(here, handle, ordered=True, upkeep=False)], 2, clock)
    assert seen == ([2] if what == "unreadable" else [1, 2])
    there.publish(3, key="k")
    turns([ordered(there, seen)], 2, clock)
    assert seen[-1] == 3, "the lock is free"


def owing(queue, there, clock, seconds):
    """A consumer that loses the acknowledgement of its first message for so long, and what it handles; each with how
    many messages are in hand.
    """
    seen = []

    def handle(delivery):
        seen.append((delivery.payload, in_flight(there).messages))
        if len(seen) == 1:
            queue.store.among = queue.pointers.key(Slot(0, 1)).name
            clock.at(seconds, lambda: setattr(queue.store, "among", None))

    return Consumer(queue, handle, ordered=True, upkeep=False), seen


def test_nothing_is_claimed_behind_a_message_whose_acknowledgement_is_not_known_to_be_there(clock):
    queue, there = processes(clock)
    queue.publish_many([1, 2], key="k")
    consumer, seen = owing(queue, there, clock, 2)
    began = clock.monotonic()
    consumer._turns.take()
    assert seen == [(1, 1), (2, 1)]
    assert clock.monotonic() - began < LEASE / 2, "it keeps its shard"
    assert (consumer.stats["acked"], consumer.stats["unsettled"]) == (2, 0)


def test_a_shard_whose_acknowledgement_is_not_there_after_a_lease_is_left_to_the_next_holder(clock):
    here, there = processes(clock)
    there.publish_many([1, 2], key="k")
    consumer, seen = owing(here, there, clock, 60)
    consumer._turns.take()
    assert seen == [(1, 1)]
    later = []
    turns([ordered(there, later)], LEASE + 2, clock)
    assert later == [1, 2]


@pytest.mark.parametrize("answer", [True, False])
def test_a_message_that_expires_in_hand_keeps_nothing_waiting_that_is_behind_it(clock, answer):
    here, there = processes(clock)
    there.publish_many([1, 2], key="k")
    seen = []

    def handle(delivery):
        seen.append(delivery.payload)
        there.store.delete(there.pointers.key(Slot(0, delivery.payload)))
        return answer

    Consumer(here, handle, ordered=True, upkeep=False)._turns.take()
    assert seen == [1, 2]
    there.publish(3, key="k")
    turns([ordered(there, seen)], 2, clock)
    assert seen == [1, 2, 3], "the lock is free"


def test_a_consumer_that_stops_while_it_owes_an_acknowledgement_leaves_its_shard(clock):
    here, there = processes(clock)
    there.publish_many([1, 2], key="k")
    consumer, seen = owing(here, there, clock, 60)
    clock.at(1, consumer._stopping.set)
    began = clock.monotonic()
    consumer._turns.take()
    assert clock.monotonic() - began < LEASE / 2, "it does not wait any longer"
    later = []
    turns([ordered(there, later)], LEASE + 2, clock)
    assert (seen, later) == ([(1, 1)], [1, 2])


def test_each_worker_acknowledges_its_own_messages_in_order(clock):
    """Else one would claim the next message while another one is still sending its acknowledgement."""
    queue, _ = processes(clock)
    queue.publish_many([1, 2], key="k")
    seen = []
    consumer = ordered(queue, seen)
    consumer._settlements.send = lambda age=0.0: None  # another worker has taken what was collected
    consumer._turns.take()
    assert seen == [1, 2]
    assert not in_flight(queue).messages


def test_what_came_just_as_a_consumer_gave_up_its_shard_is_left_to_the_next_holder(clock):
    here, there = processes(clock, batching=BatchingConfig(2, 1))
    there.publish(1, key="k")
    consumer, seen = ordered(here, []), []
    clock.at(0.5, lambda: there.publish(2, key="k"))
    add = consumer.runs.add

    def stopped_just_before(run, more):
        if more:
            consumer.runs.abandon_all("stops")
        add(run, more)

    consumer.runs.add = stopped_just_before
    consumer._turns.take()
    there.publish(3, key="k")
    turns([ordered(there, seen)], LEASE + 2, clock)
    assert seen == [1, 2, 3]


def test_a_worker_does_not_release_what_somebody_else_is_still_giving_up(clock):
    here, there = processes(clock)
    there.publish_many([1, 2], key="k")
    seen = []
    consumer = ordered(here, seen)
    with consumer._turns.locks.hold_one(clock.event()) as held:
        run = consumer._turns._gather(held)
        run.abandoned = True  # as at the end of a stop's grace: its message is about to be put into the sideline
        consumer._turns._handle(run, held)
        assert not held.mine()
    turns([ordered(there, seen)], 2, clock)
    assert seen == []
    held.on_given_up(moved=False)
    turns([ordered(there, seen)], LEASE + 2, clock)
    assert seen == [1, 2]


def test_a_message_costs_no_call_more_than_its_lock_a_claim_a_stamp_an_acknowledgement_and_a_look(clock):
    queue, _ = counted(clock)
    consumer = Consumer(queue, lambda delivery: None, ordered=True, upkeep=False)
    for message in range(3):
        queue.publish(message)
        queue.store.reset()
        consumer._turns.take()
    assert queue.store.calls == {"operate": 4, "delete": 1, "get_many": 1}


@pytest.mark.parametrize("kind", ["request_lost", "reply_lost", "late"])
def test_a_claim_in_doubt_is_gone_on_with_before_any_other(clock, kind):
    queue, _ = processes(clock)
    queue.publish_many([1, 2, 3])
    queue.active.candidates(look=True)
    queue.store.among, queue.store.kind = CLAIM, kind
    with pytest.raises(OutcomeUnknown):
        queue.receive(2, shards={0})
    assert queue.awaits({0})
    assert queue.pending.shards == {0}
    queue.store.among = None
    assert [delivery.payload for delivery in queue.receive(1, shards={0})] == [1]
    queue.store.deliver()
    assert [delivery.payload for delivery in queue.receive(5, shards={0})] == [2, 3]
    assert not queue.awaits()


def test_a_claim_that_stays_in_doubt_is_left_to_the_sweep_after_half_a_sweep_duration(clock):
    queue, _ = processes(clock)
    queue.publish_many([1, 2])
    queue.active.candidates(look=True)
    queue.store.among, queue.store.kind = CLAIM, "reply_lost"
    for seconds in (0, 590, 20):
        clock.advance(seconds)
        with pytest.raises(OutcomeUnknown):
            queue.receive(1, shards={0})
    queue.store.among = None
    assert [delivery.payload for delivery in queue.receive(1, shards={0})] == [2]


def test_who_asks_for_any_shard_leaves_a_claim_in_doubt_to_the_sweep(clock):
    queue, _ = processes(clock)
    queue.publish_many([1, 2])
    queue.active.candidates(look=True)
    queue.store.among, queue.store.kind = CLAIM, "reply_lost"
    with pytest.raises(OutcomeUnknown):
        queue.receive(1)
    queue.store.among = None
    assert [delivery.payload for delivery in queue.receive(1)] == [2]
    sweeper = Sweeper(queue.registry, Election(1), parallelism=1)
    for _ in range(3):
        sweeper.run_once()
        clock.advance(queue.pointers.sweep + 1)
    assert 1 in [message.payload for message in queue.sideline.peek()]
