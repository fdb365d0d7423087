"""Prefetch: what a consumer claims ahead is handled once or goes back uncounted, and is acknowledged together."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from latchwork.errors import InvalidRequest, OutcomeUnknown, Unavailable
from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry, Shovel, Worker
from latchwork.queue.sharded.active import ActiveShards
from latchwork.queue.sharded.consumer.consumer import SUPERVISE_SOON
from latchwork.queue.sharded.consumer.prefetch import PREFETCH, SPAN, WAIT, Pace
from latchwork.queue.sharded.in_flight import in_flight
from latchwork.queue.sharded.slots import Slot
from latchwork.store import MemoryStore
from latchwork.store.rows import Rows
from latchwork.testing.stores import CountingStore
from tests.sim.stage import Stage

from .alone import OneThread, made

SWEEP = 60


@pytest.fixture
def clock():
    return OneThread()


@pytest.fixture
def store(clock):
    return CountingStore(MemoryStore(clock))


@pytest.fixture
def queue(store):
    return made(store)


def at_full_pace(queue, handler, **options):
    """A consumer that has handled enough quick messages to claim as many as it may at once."""
    warming = []
    consumer = Consumer(
        queue, lambda delivery: warming.append(delivery) if delivery.payload is None else None, **options
    )
    queue.publish_many([None] * 31)
    while len(warming) < 31:
        consumer._turns.take()
    consumer._turns.handler = handler
    consumer.stats.clear()
    return consumer


def waiting(queue):
    """What waits in the queue, each with the attempt at which it comes next."""
    found = []
    while deliveries := queue.receive(1000):
        found += deliveries
    return sorted((delivery.payload, delivery.attempts) for delivery in found)


# ---- how many are claimed


def test_claims_double_while_they_come_back_full_and_handlers_are_quick(queue):
    asked, receive = [], queue.await_messages
    queue.await_messages = lambda most, *rest, **options: asked.append(most) or receive(most, *rest, **options)
    queue.publish_many(range(47 + 5))
    consumer = Consumer(queue, lambda delivery: None)
    for _ in range(52):
        consumer._turns.take()
    assert asked == [1, 2, 4, 8, 16, 16, 16]
    queue.publish("shallow")
    consumer._turns.take()
    assert asked[-1] == 5, "the last claim came back with as many"
    queue.publish("shallow")
    consumer._turns.take()
    assert asked[-1] == 1


def test_no_more_is_claimed_than_is_handled_within_the_span(queue, clock):
    pace = Pace(16)
    pace.claimed(8, 8)
    assert pace.size == 1, "nobody knows yet how long a handler takes"
    pace.handled(SPAN / 4)
    assert pace.size == 4
    pace.handled(10.0)
    assert pace.size == 1
    for _ in range(200):
        pace.handled(0.0)
    assert pace.size == 16


def test_a_slow_handler_has_one_message_at_a_time(queue, clock):
    queue.publish_many(range(6))
    consumer = Consumer(queue, lambda delivery: clock.advance(SPAN))
    for done in range(1, 7):
        consumer._turns.take()
        assert queue.depth().ready == 6 - done


def test_a_message_of_a_deep_queue_costs_three_calls_for_sixteen(queue, store):
    consumer = at_full_pace(queue, lambda delivery: None)
    queue.publish_many(range(160))
    store.reset()
    for _ in range(160):
        consumer._turns.take()
    assert consumer.stats["acked"] == 160
    assert store.total == 3 * 160 / PREFETCH


@pytest.mark.parametrize(("options", "calls"), [({"prefetch": 1}, 9), ({"prefetch": 2}, 6)])
def test_prefetch_says_how_many_are_claimed_at_once(queue, store, options, calls):
    consumer = at_full_pace(queue, lambda delivery: None, **options)
    queue.publish_many(range(3))
    store.reset()
    for _ in range(3):
        consumer._turns.take()
    assert (consumer.stats["acked"], store.total) == (3, calls)


def test_one_claim_takes_from_one_shard(store):
    queue = made(store, shards=4)
    consumer = at_full_pace(queue, lambda delivery: None)
    for key in "abcdefgh":
        queue.publish(key, key=key)
    store.reset()
    consumer._turns.take()
    assert store.total == 2 + (not consumer._prefetched.waiting)


@pytest.mark.parametrize("prefetch", [0, -1, 1001, 2.0, True, "16", float("inf")])
def test_a_prefetch_that_is_no_number_of_messages_is_refused(queue, store, prefetch):
    store.reset()
    with pytest.raises(InvalidRequest, match=r"prefetch is .* from 1 \(no prefetch\) to 1000"):
        Consumer(queue, lambda delivery: None, prefetch=prefetch)
    with pytest.raises(InvalidRequest, match="prefetch"):
        Worker(queue.registry).handler("q", prefetch=prefetch)
    assert store.total == 0


def test_prefetch_is_refused_where_it_would_mean_nothing(queue, store):
    with pytest.raises(InvalidRequest, match="one message at a time"):
        Consumer(queue, lambda delivery: None, ordered=True, prefetch=2)
    assert Consumer(queue, lambda delivery: None, ordered=True, prefetch=1)
    store_of_batches = MemoryStore(OneThread())
    with pytest.raises(InvalidRequest, match="max_size"):
        Consumer(made(store_of_batches, batching=BatchingConfig(10, 1)), lambda deliveries: None, prefetch=4)


def test_an_ordered_consumer_takes_one_at_a_time(queue, clock):
    held = []
    queue.publish_many(range(5), key="k")
    Consumer(queue, lambda delivery: held.append(queue.depth().ready), ordered=True)._turns.take()
    assert held == [4, 3, 2, 1, 0]


# ---- acknowledged together


def test_nothing_is_acknowledged_before_its_handler_has_ended(queue):
    running, acked, remove = [], [], queue.pointers.remove

    def removes(held):
        ids = [h.envelope.msg_id for h in held]
        assert not set(ids) & set(running)
        acked.extend(ids)
        return remove(held)

    def handler(delivery):
        running.append(delivery.message_id)
        consumer._settlements.send()  # as the keeper may at any time
        running.remove(delivery.message_id)

    queue.pointers.remove = removes
    consumer = at_full_pace(queue, handler)
    acked.clear()
    published = queue.publish_many(range(32))
    for _ in range(32):
        consumer._turns.take()
    assert sorted(acked) == sorted(published)


def test_an_acknowledgement_waits_for_others_no_longer_than_the_span(queue, clock):
    consumer = at_full_pace(queue, lambda delivery: clock.advance(SPAN / 3))
    queue.publish_many(range(16))
    acked = []
    for _ in range(5):
        consumer._turns.take()
        acked.append(consumer.stats["acked"])
    assert acked == [0, 0, 0, 4, 4]


def test_the_keeper_acknowledges_while_a_handler_takes_long(queue, clock):
    acked = []

    def handler(delivery):
        if delivery.payload == 3:
            clock.advance(SPAN)
            consumer._move_on()
            acked.append(consumer.stats["acked"])

    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    for _ in range(4):
        consumer._turns.take()
    assert acked == [3]


def test_acknowledgements_are_sent_before_more_is_claimed(queue, store):
    consumer = at_full_pace(queue, lambda delivery: None)
    queue.publish_many(range(16))
    consumer._turns.take()
    assert len(consumer._settlements.collected) == 1
    with consumer._prefetched._lock:
        consumer._prefetched.waiting.clear()  # as another worker took them
    queue.publish("more")
    queue.await_messages = lambda *_, **__: [][len(consumer._settlements.collected) :]
    consumer._turns.take()
    assert consumer.stats["acked"] == 1


@pytest.mark.parametrize("failure", [OutcomeUnknown("the answer was lost"), Unavailable("the store is away")])
def test_acknowledgements_that_fail_leave_their_messages_to_the_sweeper(queue, clock, failure):
    def fails(held):
        raise failure

    consumer = at_full_pace(queue, lambda delivery: None)
    queue.publish_many(range(16))
    remove, queue.pointers.remove = queue.pointers.remove, fails
    for _ in range(16):
        consumer._turns.take()
    queue.pointers.remove = remove
    assert consumer.stats == {"handled": 16, "unsettled": 16}
    left = queue.pointers.look([Slot(0, pointer) for pointer in range(32, 48)])
    assert [one.attempts for one in left] == [1] * 16


# ---- handed back


def test_stop_acknowledges_what_is_done_and_hands_back_what_was_not_begun(queue):
    order, remove, reserve = [], queue.pointers.remove, queue.pointers.reserve
    queue.pointers.remove = lambda held: order.append(("acked", len(held))) or remove(held)
    queue.pointers.reserve = lambda counts: order.append(("handed back", counts[0])) or reserve(counts)

    def handler(delivery):
        if delivery.payload == 3:
            order.clear()
            consumer.stop(0)

    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    for _ in range(4):
        consumer._turns.take()
    assert order[:2] == [("acked", 3), ("handed back", 12)]
    assert consumer.stats == {"handled": 4, "acked": 3, "handed_back": 12, "interrupted": 1}
    assert [message.payload for message in queue.peek()] == list(range(3, 13))
    assert waiting(queue) == [(n, 1) for n in range(3, 16)]


def test_a_stop_hands_back_at_once_what_was_not_begun_while_handlers_have_their_grace(queue, clock):
    began, back, reserve = [], [], queue.pointers.reserve
    queue.pointers.reserve = lambda counts: back.append(clock.monotonic()) or reserve(counts)

    def handler(delivery):
        consumer._workers = 1  # this one, which runs for longer than the grace
        back.clear()
        began.append(clock.monotonic())
        assert consumer.stop(5) is False
        assert clock.monotonic() >= began[0] + 5

    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    consumer._turns.take()
    assert back[0] == began[0]


def test_a_worker_that_ends_acknowledges_what_it_has_just_done(queue):
    def handler(delivery):
        consumer._stopping.set()

    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    consumer._turns.take()
    assert consumer.stats["acked"] == 1
    consumer._turns.take()
    assert waiting(queue) == [(n, 1) for n in range(1, 16)]


def test_only_the_attempt_that_was_not_begun_is_not_counted(queue, clock):
    queue.publish_many(range(3))
    queue.fail_many(queue.receive(3), [("rejected", None)] * 3)
    Shovel(queue).run_once()
    consumer = at_full_pace_of_others(queue, lambda delivery: consumer.stop(0))
    consumer._turns.take()
    assert [attempts for _, attempts in waiting(queue)] == [2, 2, 2]


def test_a_pause_hands_back_what_was_not_begun(queue):
    def handler(delivery):
        with pytest.warns(UserWarning, match="paused"):
            queue.pause()

    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    consumer._turns.take()
    consumer._move_on()
    queue.resume()
    assert waiting(queue) == [(n, 1) for n in range(1, 16)]


def test_what_waits_for_a_slow_handler_goes_to_an_idle_process(queue, clock, store):
    other = made(store)
    seen = []

    def handler(delivery):
        clock.advance(WAIT / 2)
        consumer._move_on()
        assert other.receive(16) == []
        clock.advance(WAIT)
        consumer._move_on()
        seen.extend(waiting(other))

    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    consumer._turns.take()
    assert seen == [(n, 1) for n in range(1, 16)]
    assert consumer.stats["acked"] == 1
    assert consumer._turns.pace.size < PREFETCH


def test_a_handler_that_hangs_is_given_up_alone(queue, clock):
    def handler(delivery):
        clock.advance(SWEEP / 2 + 1)
        consumer._keep_alive()
        consumer._move_on()

    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    clock.at(0.2, consumer._move_on)
    consumer._turns.take()
    assert [message.payload for message in queue.sideline.peek()] == [0]
    assert waiting(queue) == [(n, 1) for n in range(1, 16)]


def test_what_cannot_be_handed_back_is_tried_once_kept_alive_and_handled_here(queue, clock, store):
    seen, tries, extended, extend = [], [], [], queue.pointers.extend
    queue.pointers.extend = lambda held, *told: extended.append(len(held)) or extend(held, *told)

    def away(counts):
        tries.append(counts)
        return {shard: Unavailable("the store is away") for shard in counts}

    def handler(delivery):
        seen.append(delivery.payload)
        if delivery.payload == 0:
            queue.pointers.reserve = away
            for _ in range(int(SWEEP / 2)):
                clock.advance(1)
                consumer._move_on()
                consumer._prefetched.keep()
            queue.pointers.reserve = reserve

    reserve = queue.pointers.reserve
    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    for _ in range(16):
        consumer._turns.take()
    assert len(tries) == 1
    assert extended == [15], "a quarter of the sweep duration later"
    assert seen == list(range(16))
    assert consumer.stats["acked"] == 16


def test_what_a_sweep_took_while_the_process_was_paused_is_not_handled(queue, clock, store):
    seen = []

    def handler(delivery):
        seen.append(delivery.payload)
        if delivery.payload == 0:
            clock.advance(SWEEP + 1)
            slots = [(0, 33)]
            queue.pointers.stamp(
                [consumer._prefetched.waiting[0].delivery.held.slot._replace(pointer=slots[0][1])], "x"
            )

    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    for _ in range(15):
        consumer._turns.take()
    assert seen == [0, *range(2, 16)]


def test_what_could_not_be_extended_and_a_sweep_took_is_not_handled(queue, clock, store):
    seen, extend, reserve = [], queue.pointers.extend, queue.pointers.reserve

    def handler(delivery):
        seen.append(delivery.payload)
        if delivery.payload == 0:  # its process is cut off from the store, and others are not
            queue.pointers.reserve = lambda counts: {shard: Unavailable("away") for shard in counts}
            queue.pointers.extend = lambda held, *told: Rows([Unavailable("away")] * len(held))
            for _ in range(SWEEP + 1):
                clock.advance(1)
                consumer._move_on()
                consumer._prefetched.keep()
            queue.pointers.reserve, queue.pointers.extend = reserve, extend
            queue.pointers.stamp([consumer._prefetched.waiting[0].delivery.held.slot], "a sweep")

    consumer = at_full_pace(queue, handler)
    queue.publish_many(range(16))
    for _ in range(15):
        consumer._turns.take()
    assert seen == [0, *range(2, 16)]


def test_a_message_whose_consumer_died_is_handled_with_nothing_else_in_hand(queue, clock, store):
    queue.publish_many(["poison", "innocent", "innocent"])
    queue.fail_many(queue.receive(3), [("swept", None)] * 3)
    clock.advance(1)
    Shovel(queue).run_once()
    in_hand = []

    def handler(delivery):
        in_hand.append((delivery.payload, len(consumer._prefetched.waiting), len(consumer._settlements.collected)))

    consumer = at_full_pace_of_others(queue, handler)
    queue.publish("fresh")
    while consumer.stats["acked"] < 4:
        consumer._turns.take()
    suspects = [one for one in in_hand if one[0] != "fresh"]
    assert len(suspects) == 3
    assert all(one[1:] == (0, 0) for one in suspects)


def at_full_pace_of_others(queue, handler):
    """As `at_full_pace`, with what is in the queue already."""
    consumer = Consumer(queue, handler)
    consumer._turns.pace.handled(0.0)
    consumer._turns.pace.claimed(16, 16)
    return consumer


def test_a_group_hands_back_to_its_own_and_no_other_consumer_gets_it_twice(store):
    queue = made(store)
    group = queue.group("g")

    def handler(delivery):
        consumer.stop(0)

    consumer = at_full_pace_of_others(group, handler)
    queue.publish_many(range(16))
    consumer._turns.take()
    assert sorted(waiting(group)) == [(n, 1) for n in range(16)]
    assert waiting(queue) == [(n, 1) for n in range(16)]


def test_a_stop_waits_no_longer_than_its_grace_for_a_thread_that_looks(store):
    real = MemoryStore()
    queue = made(real)
    queue.publish_many(range(3))
    consumer = Consumer(queue, lambda delivery: None, concurrency=1)
    consumer._prefetched.put(queue.receive(3))
    told = []
    group = ActiveShards(queue.pointers)
    group.loaded = told.append
    group.follow(queue.active)
    with queue.active._lock:  # as a look does that hangs
        stopped = threading.Thread(target=consumer.stop, args=(0,), daemon=True)
        stopped.start()
        stopped.join(10)
        assert not stopped.is_alive()
    assert consumer.stats["handed_back"] == 3
    assert told == [{0}], "those that follow have locks of their own"


def test_where_nothing_could_be_handed_back_nobody_is_told_of_messages(queue, store):
    told = []
    queue.active.loaded = told.append
    queue.publish_many(range(2))
    told.clear()
    deliveries = queue.receive(2)
    reserve = queue.pointers.reserve
    queue.pointers.reserve = lambda counts: {shard: Unavailable("the store is away") for shard in counts}
    queue.hand_back(deliveries)
    assert told == []
    queue.pointers.reserve = reserve
    queue.hand_back(deliveries)
    assert told == [{0}]


# ---- on a real server


def test_on_a_real_server_messages_are_handled_once_in_few_calls_and_a_stop_in_between_loses_none(
    aerospike_store, monkeypatch
):
    noted = Pace.handled  # the handler is quick, whatever a busy machine makes of it
    monkeypatch.setattr(Pace, "handled", lambda self, seconds: noted(self, 0.0))
    store = CountingStore(aerospike_store)
    client = f"pf{store.seams.unique()[:6]}"
    queue = QueueRegistry(store, client).create(QueueConfig("q", retry=False, shards=2, concurrency=1))
    published = queue.publish_many(range(600))
    handled, halfway = Counter(), threading.Event()

    def handler(delivery):
        assert delivery.attempts == 1
        handled[delivery.message_id] += 1
        if sum(handled.values()) == 300:
            halfway.set()
            store.seams.sleep(0.3)  # so that the stop finds messages that were not begun

    first = Consumer(queue, handler, upkeep=False).start()
    assert halfway.wait(20)
    assert first.stop()
    assert first.stats["acked"] == sum(handled.values())
    store.reset()
    began = sum(handled.values())
    with Consumer(queue, handler, upkeep=False) as second:
        end = store.seams.monotonic() + 20
        while second.stats["acked"] < 600 - began and store.seams.monotonic() < end:
            store.seams.sleep(0.02)
        calls = store.total
    assert set(handled) == set(published)
    assert set(handled.values()) == {1}
    assert calls < 600 - began, "three a message without prefetch"


def test_what_is_done_is_acknowledged_at_once_though_the_next_handler_takes_long():
    stage = Stage()

    def body(store):
        queue = QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=1))
        began, seams = [], store.seams

        def handler(delivery):
            if delivery.payload == "slow":
                began.append(seams.monotonic())
                seams.sleep(5)

        queue.publish_many(["fast"] * 50 + ["slow"])
        with Consumer(queue, handler, concurrency=1, upkeep=False):
            while not began or in_flight(queue).messages > 1:
                seams.sleep(0.005)
            return seams.monotonic() - began[0]

    stage.act("process", body)
    stage.play()
    assert stage.said["process"] < SPAN + 2 * SUPERVISE_SOON
