"""What a handler returned is kept, and handed to whoever waits for it (docs/protocols P31)."""

from __future__ import annotations

import pytest

from latchwork.errors import (
    Cancelled,
    Expired,
    HandlerFailed,
    InvalidRequest,
    LeaseLost,
    NotFound,
    Unreadable,
    WaitTimeout,
)
from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry, State
from latchwork.queue.sharded.consumer.in_hand import Noted, Stage, settle_for
from latchwork.queue.sharded.results import MAX_RESULT
from latchwork.store import MemoryStore, Put, Update
from latchwork.testing import CountingStore, FaultyStore, ManualClock, bring_back

from .test_one_message import calls, due, made, on_its_way


def kept(store, name="q", **options):
    return made(store, name, **{"results": 3600} | options)


def work(queue, handler, n=1):
    """Receive messages, and let a consumer's parts handle and settle them."""
    turns = Consumer(queue, handler, upkeep=False)._turns
    deliveries = queue.receive(n)
    for some in [deliveries] if queue.config.batching else [[one] for one in deliveries]:
        turns.settle(some, turns.verdicts(some))
    turns.settlements.send()
    return deliveries


@pytest.mark.parametrize("value", [{"total": 7, "of": [1.5, None, True]}, "text", 0, None, True, [], "x" * 60_000])
def test_what_a_handler_returns_is_the_result_each_time(store, value):
    queue = kept(store)
    of = queue.publish("m")
    work(queue, lambda delivery: value)
    found, n = calls(store, queue.result, of, 0)
    assert (found, type(found)) == (value, type(value))
    assert n == 1
    assert queue.result(of) == value
    assert queue.status(of).state is State.DONE
    assert queue.depth().ready == 0


def test_a_result_of_bytes_is_kept_in_a_queue_of_bytes_alone(store):
    queue = kept(store, codec="bytes")
    one, other = queue.publish(b"1"), queue.publish(b"2")
    work(queue, lambda delivery: b"\x00\xff" if delivery.payload == b"1" else {"n": 2}, 2)
    assert queue.result(one) == b"\x00\xff"
    assert queue.result(other) == {"n": 2}


class Model:
    """As one of pydantic with a field that it cannot write."""

    def model_dump(self, mode):
        raise ValueError(f"Unable to serialize to {mode}: unknown type")


@pytest.mark.parametrize("value", [object(), "x" * MAX_RESULT, {1: 2, "1": 3}, float("nan"), Model()])
def test_a_message_whose_result_cannot_be_kept_is_done_and_says_so(store, value):
    queue = kept(store)
    of = queue.publish("m")
    work(queue, lambda delivery: value)
    with pytest.raises(Unreadable, match="is done, and its result is not kept: the result"):
        queue.result(of, 0)
    bring_back(queue)
    assert queue.receive() == []
    queue.publish("m")
    (delivery,) = queue.receive()
    with pytest.raises(InvalidRequest, match="the result"):
        delivery.ack(value)
    delivery.ack("another")


@pytest.mark.parametrize("codec", ["json", "bytes"])
@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (object(), "as it is not JSON: .*; return text, numbers, lists and maps, or the place where it is$"),
        (float("nan"), "give None or a text instead$"),
    ],
)
def test_what_is_said_of_a_result_that_cannot_be_kept_is_true_of_a_result(store, codec, value, remedy):
    queue = kept(store, codec=codec)
    queue.publish(b"m" if codec == "bytes" else "m")
    (delivery,) = queue.receive()
    with pytest.raises(InvalidRequest, match=remedy) as refused:
        delivery.ack(value)
    assert "payload" not in str(refused.value)
    assert "codec" not in str(refused.value)


@pytest.mark.parametrize("state", ["retrying", "again", "given", "delayed", "back"])
def test_a_message_that_has_moved_has_its_result_by_its_id(store, clock, state):
    queue = kept(store, max_deliveries=5)
    of = on_its_way(queue, clock, state)
    if state == "again":
        bring_back(queue)
    for delivery in due(queue, clock, 70):
        delivery.ack({"attempts": delivery.attempts})
    assert queue.result(of, 0)["attempts"] in (1, 2, 3)


def test_a_result_is_found_though_the_clock_of_who_moved_its_message_before_was_ahead(store, clock):
    queue = kept(store, max_deliveries=5)
    of = on_its_way(queue, clock, "retrying")
    (first,) = due(queue, clock, 70)
    first.nack(error="again")
    (second,) = due(queue, clock, 70)
    second.ack("second")
    trace = queue.pointers.places.key(of)
    places = queue.store.get(trace).bins["places"]
    (before,) = (one for one in places if one.endswith(f"main {first.shard}:{first.pointer}"))
    ahead = f"{int(before[:14]) + 3_600_000:014d}{before[14:]}"
    queue.store.repeat(Update(trace, (Put("places", {ahead: 1} | {one: 1 for one in places if one != before}),)))
    assert queue.result(of, 0) == "second"


def test_of_an_id_that_is_published_again_the_last_result_counts(store, clock):
    queue = kept(store)
    for result in ("first", "second", "third"):
        of = queue.publish("m", message_id="theirs")
        with pytest.raises(WaitTimeout):
            queue.result(of, 0)
        work(queue, lambda delivery, result=result: result)
        clock.advance(1)
        assert queue.result(of, 0) == result


def test_a_result_that_is_kept_for_longer_than_messages_live_is_found_by_every_id(clock):
    queue = kept(MemoryStore(clock), message_expiry=86_400, queue_expiry=86_400, results=10 * 86_400)
    ids = [queue.publish("m", message_id="given"), queue.publish("m")]
    clock.advance(86_000)
    work(queue, lambda delivery: 7, 2)
    clock.advance(10 * 86_400 - 60)
    assert [queue.result(id, 0) for id in ids] == [7, 7]
    clock.advance(120)
    for id in ids:
        with pytest.raises(NotFound):
            queue.result(id, 0)


def test_the_first_attempt_that_is_acknowledged_has_the_result(store):
    queue = kept(store)
    of = queue.publish("m")
    (first,) = queue.receive()
    bring_back(queue)
    (second,) = queue.receive()
    second.ack("second")
    with pytest.raises(LeaseLost):
        first.ack("first")
    assert queue.result(of, 0) == "second"
    of = queue.publish("m")
    (first,) = queue.receive()
    queue.give_back([first])
    (second,) = queue.receive()  # in the same slot
    for result, late in (("first", first), ("second", second), ("first", first)):
        if late is second and result == "second":
            late.ack(result)
            continue
        with pytest.raises(LeaseLost):
            late.ack(result)
    assert queue.result(of, 0) == "second"


@pytest.mark.parametrize("state", ["ready", "running", "retrying", "delayed"])
def test_one_that_is_not_done_has_no_result_in_time_and_says_where_it_is(store, clock, state):
    queue = kept(store)
    of = on_its_way(queue, clock, state)
    with pytest.raises(WaitTimeout) as failure:
        queue.result(of, 0)
    assert failure.value.details["state"] == state
    assert ("no worker" in str(failure.value)) is (state == "ready")


def test_one_that_failed_for_good_says_why(store, clock):
    queue = kept(store)
    of = on_its_way(queue, clock, "parked")
    with pytest.raises(HandlerFailed) as failure:
        queue.result(of)
    assert (failure.value.reason, failure.value.error) == ("exhausted", "it broke")
    clock.advance(1)
    queue.parked.redrive([of])
    queue.receive()[0].ack("repaired")
    assert queue.result(of, 0) == "repaired"
    sideline = kept(store, "s", retry=False)
    of = sideline.publish("m")
    sideline.receive()[0].nack(error="it broke")
    with pytest.raises(HandlerFailed, match="it broke"):
        sideline.result(of)


def test_absent_cancelled_expired_and_forgotten_differ(store, clock):
    queue = kept(store, message_expiry=100, queue_expiry=100, results=50)
    done, cancelled, expired = (queue.publish(n, key="a") for n in range(3))
    (delivery,) = queue.receive()
    delivery.ack("kept for 50 s")
    queue.cancel(cancelled)
    for of, kind in ((cancelled, Cancelled), ("nobody", NotFound), (done[:-1] + "x", NotFound)):
        with pytest.raises(kind):
            queue.result(of)
    clock.advance(51)
    with pytest.raises(NotFound, match="is done"):
        queue.result(done)
    clock.advance(50)
    with pytest.raises(Expired):
        queue.result(expired)
    plain = made(store, "plain")
    of = plain.publish("m")
    with pytest.raises(InvalidRequest, match="results="):
        plain.result(of)
    with pytest.raises(InvalidRequest, match="results="):
        plain.receive()[0].ack("a result")


def test_false_exceptions_and_what_has_not_run_still_fail_a_message(store):
    queue = kept(store)
    ids = [queue.publish(n) for n in range(3)]

    def handler(delivery):
        if delivery.payload == 1:
            raise ValueError("it broke")
        return (one for one in ()) if delivery.payload else False

    work(queue, handler, 3)
    assert [queue.status(of).state for of in ids] == [State.RETRYING] * 3


def test_the_log_does_not_say_that_a_rejected_message_is_done(store, caplog):
    async def not_awaited():
        """Nothing runs it."""

    queue = kept(store)
    queue.publish("m")
    work(queue, lambda delivery: not_awaited())
    assert [("rejected" in line, "is done" in line) for line in caplog.messages] == [(True, False)]


def test_each_message_of_a_batch_has_its_own_result(store):
    queue = kept(store, shards=1, batching=BatchingConfig(3, 1))
    ids = [queue.publish(n) for n in range(3)]
    work(queue, lambda deliveries: [one.payload * 10 for one in deliveries], 3)
    assert [queue.result(of, 0) for of in ids] == [0, 10, 20]


def test_one_that_groups_wait_for_has_its_result_before_and_after_they_are_done(store):
    queue = kept(store)
    group = queue.group("audit")
    of = queue.publish("m")
    (other,) = group.receive()  # before the queue's own consumers are done with it
    queue.receive()[0].ack("own")
    assert queue.result(of, 0) == "own"
    other.ack()
    assert queue.result(of, 0) == "own"
    of = queue.publish("m")
    queue.receive()[0].ack("again")
    group.receive()[0].ack()
    assert queue.result(of, 0) == "again"
    with pytest.raises(InvalidRequest, match="ask the queue"):
        group.result(of)


def test_a_group_that_is_done_last_ends_no_result_before_its_time(store, clock):
    queue = kept(store, results=86_400)
    group = queue.group("audit")
    of = queue.publish("m", dedup="k", dedup_for=60)
    (other,) = group.receive()  # it knows of 60 s alone
    queue.receive()[0].ack("own")
    other.ack()
    clock.advance(120)
    assert queue.result(of, 0) == "own"
    bring_back(queue)  # the sweep of the group drops what nobody waits for, and keeps the result
    assert queue.result(of, 0) == "own"


def test_one_of_a_batch_of_messages_has_its_result_and_counts(store):
    queue = kept(store)
    with queue.batch("night") as batch:
        of = batch.publish("m")
    queue.receive()[0].ack("counted")
    assert queue.result(of, 0) == "counted"
    assert batch.progress().complete


def test_a_result_costs_no_call_more_and_nothing_where_none_are_kept():
    for options, rows in (({}, "delete_many"), ({"results": 60}, "operate_many")):
        store = CountingStore(MemoryStore())
        queue = made(store, **options)
        assert calls(store, queue.publish_many, ["m"] * 500)[1] == 2
        deliveries = queue.receive(500)
        before = store.total, store.rows[rows]
        queue.ack_many(deliveries)
        assert store.total - before[0] == 1
        assert store.rows[rows] - before[1] == 500


@pytest.mark.parametrize("lost", ["reply_lost", "request_lost"])
def test_an_acknowledgement_in_doubt_has_its_result_or_the_message_comes_again(lost):
    store = FaultyStore(MemoryStore(ManualClock()))
    queue = kept(store)
    of = queue.publish("m")
    (delivery,) = queue.receive()
    store.plan |= {store._number + 1: lost}
    delivery.ack("once")
    assert queue.result(of, 0) == "once"


@pytest.mark.parametrize("lost", ["reply_lost", "request_lost"])
def test_an_acknowledgement_of_a_message_that_has_moved_is_refused_whatever_its_next_call_comes_to(lost):
    """It was found to be absent before anything was in doubt."""
    store = FaultyStore(MemoryStore(ManualClock()))
    queue = kept(store)
    of = queue.publish("m")
    (delivery,) = queue.receive()
    store.delete(queue.pointers.key(delivery.held.slot))
    store.plan |= {store._number + 2: lost}
    with pytest.raises(LeaseLost):
        delivery.ack("lost")
    with pytest.raises(NotFound):
        queue.result(of, 0)


def test_a_result_that_died_with_its_process_says_so(store):
    queue = kept(store)
    of = queue.publish("m")
    (delivery,) = queue.receive()
    noted = Noted(0, Stage.DONE, delivery.shard, delivery.pointer, delivery.held.delivery)
    assert settle_for(queue, [noted], "killed", counts=True)["acknowledged"] == 1
    with pytest.raises(Unreadable, match="died"):
        queue.result(of, 0)
    store.operate(queue.pointers.key(delivery.held.slot), Put("result", 7))
    with pytest.raises(Unreadable, match="damaged"):
        queue.result(of, 0)


def test_a_wait_looks_ever_more_rarely(clock):
    store = CountingStore(MemoryStore(clock))
    queue = kept(store)
    of = queue.publish("m")
    queue.receive()
    before = store.total
    with pytest.raises(WaitTimeout):
        queue.result(of, 60)
    assert store.total - before < 80


def test_a_life_with_a_result_on_every_store(world):
    first = world.process().queue
    registry = QueueRegistry(first.registry.store, first.registry.client_id, farm_id=first.registry.farm_id)
    queue = registry.create(QueueConfig("kept", shards=2, results=60))
    of, other = queue.publish("m"), queue.publish("n", delay=60)
    with pytest.raises(WaitTimeout):
        queue.result(of, 0)
    queue.receive()[0].ack({"n": 1})
    assert queue.result(of, 5) == {"n": 1}
    assert registry.get("kept").config.results == queue.config.results
    with pytest.raises(WaitTimeout):
        queue.result(other, 0)
