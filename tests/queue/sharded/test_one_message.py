"""Where a message is, in any state, and that it can be cancelled there (docs/protocols P26)."""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import suppress

import pytest

from latchwork.errors import Cancelled, Expired, InvalidRequest, Refused
from latchwork.queue import BatchingConfig, Consumer, Outcome, Publish, QueueConfig, QueueRegistry, State
from latchwork.queue.sharded.places import PLACES, Trace, first_slot, named
from latchwork.queue.sharded.slots import Slot, slot_text
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.store import MemoryStore, Put, SQLiteStore
from latchwork.testing import CountingStore, FaultyStore, ManualClock, bring_back, inject_everywhere
from tests.support import struck
from tests.support.last_first import LastFirst
from tests.support.waiting import until

from .consumer.alone import OneThread
from .delayed.test_delayed import Farms, late_row, run_until
from .test_expired_depth import Ahead

DONE, ASKED, NOT_THERE = Outcome.DONE, Outcome.ASKED, Outcome.NOT_THERE


def made(store, name="q", **options):
    settings = {"shards": 2, "sweep_duration": 60, "backoff": 10, "max_deliveries": 2, "unsafe_limits": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(store, "c", farm_id="f").create(QueueConfig(name, **settings | options))


def calls(store, verb, *args):
    before = store.total
    result = verb(*args)
    return result, store.total - before


def due(queue, clock, seconds=12):
    """What comes once so many seconds are over, and nothing is swept."""
    run_until(Timers(Farms(queue)), clock, seconds)
    return queue.receive(10)


def on_its_way(queue, clock, state):
    """The id of a message in this state."""
    if state == "delayed":
        return queue.publish("m", delay=60)
    of = queue.publish("m", message_id="theirs") if state == "given" else queue.publish("m")
    if state in ("ready", "given"):
        return of
    held = queue.receive()
    for _ in range({"retrying": 1, "again": 1, "parked": 2}.get(state, 0)):
        held = held or due(queue, clock)
        held.pop().nack(error="it broke")
    if state == "again":
        due(queue, clock)
    if state == "back":
        queue.give_back(held)
    return of


STATES = {
    "ready": State.READY, "given": State.READY, "running": State.RUNNING, "retrying": State.RETRYING,
    "parked": State.PARKED, "delayed": State.DELAYED, "again": State.RUNNING, "back": State.READY,
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_a_message_is_found_in_any_state_by_at_most_two_calls(store, clock, state):
    queue = made(store)
    found, n = calls(store, queue.status, on_its_way(queue, clock, state))
    assert (found.state, found.cancelled) == (STATES[state], False)
    assert n <= 2
    assert found.attempts == {"running": 1, "retrying": 1, "parked": 2, "again": 2}.get(state, 0)
    assert (found.error == "it broke") is (state in ("retrying", "parked", "again"))
    assert (found.worker is not None) is (found.state is State.RUNNING)
    assert (found.due is not None) is (state in ("retrying", "delayed"))


@pytest.mark.parametrize("order", ["in order", "last first"])
@pytest.mark.parametrize("state", STATES)
def test_a_cancelled_message_does_not_come_again_whatever_its_state(store, clock, state, order):
    if order == "last first":
        store.inner = LastFirst(store.inner)
    queue = made(store)
    of = on_its_way(queue, clock, state)
    running = STATES[state] is State.RUNNING
    outcome, n = calls(store, queue.cancel, of)
    assert outcome is (ASKED if running else DONE)
    assert bool(outcome) is not running
    assert n <= 3
    assert queue.depth().delayed == 0
    assert queue.status(of).cancelled
    if running:
        return
    assert queue.status(of).state is State.GONE
    assert queue.cancel(of) is NOT_THERE
    assert due(queue, clock, 70) == []
    assert (queue.depth().ready, queue.depth().delayed) == (0, 0)
    assert queue.parked.peek() == []


def test_one_that_is_asked_ends_at_its_next_check_after_an_extension(store):
    queue = made(store)
    of = queue.publish("m")
    (delivery,) = queue.receive()
    assert queue.cancel(of) is ASKED
    delivery.check()
    assert calls(store, delivery.extend)[1] == 1
    with pytest.raises(Cancelled):
        delivery.check()


@pytest.mark.parametrize("extended", [True, False])
def test_one_that_was_asked_and_fails_is_not_tried_again(store, clock, extended):
    queue = made(store)
    of = queue.publish("m")
    (delivery,) = queue.receive()
    assert queue.cancel(of) is ASKED
    if extended:
        delivery.extend()
    delivery.nack(error="it broke")
    assert queue.status(of).state is State.GONE
    assert due(queue, clock, 20) == []


def test_one_that_was_asked_and_is_given_back_is_not_handed_out_again(store):
    queue = made(store)
    of = queue.publish("m")
    held = queue.receive()
    assert queue.cancel(of) is ASKED
    queue.give_back(held)
    assert queue.receive() == []
    assert queue.status(of).state is State.GONE


def test_one_that_was_asked_and_whose_consumer_dies_does_not_come_back(store):
    queue = made(store)
    of = queue.publish("m")
    queue.receive()
    assert queue.cancel(of) is ASKED
    bring_back(queue)
    assert queue.receive() == []
    assert queue.status(of).state is State.GONE


@pytest.mark.parametrize("ending", ["check", "nack", "later", "give_back", "dies"])
def test_one_that_was_cancelled_stays_so_if_it_is_cancelled_again(store, clock, ending):
    queue = made(store, results=3600)
    of = queue.publish("m")
    held = queue.receive()
    assert queue.cancel(of) is ASKED
    if ending == "check":  # as its consumer does once the handler has raised
        queue.drop_cancelled(held)
    elif ending == "give_back":
        queue.give_back(held)
    elif ending != "dies":
        held[0].nack(delay=5 if ending == "later" else None)
    bring_back(queue)
    assert queue.receive() == due(queue, clock, 20) == []
    for _ in range(2):
        assert queue.cancel(of) is NOT_THERE
        assert queue.status(of).state is State.GONE
        with pytest.raises(Cancelled):
            queue.result(of, 0)


def test_a_delayed_message_on_its_way_is_dropped_as_it_arrives(store, clock):
    queue = made(store)
    of = queue.publish("m", delay=5)
    entry = queue.delayed.entry(of)
    store.operate(entry, Put("moving", 1))
    assert queue.cancel(of) is ASKED
    assert due(queue, clock) == []
    assert queue.status(of).state is State.GONE


@pytest.mark.parametrize("batching", [None, BatchingConfig(2, 1)])
def test_a_handler_that_lets_a_cancel_pass_ends_its_message_alone(batching):
    queue = made(MemoryStore(OneThread()), shards=1, batching=batching)
    of, others = queue.publish("m"), [queue.publish("n")] if batching else []
    deliveries = queue.receive(2)

    def handler(given):
        (one,) = [each for each in (given if batching else [given]) if each.message_id == of]
        queue.cancel(of)
        one.extend()
        one.check()

    consumer = Consumer(queue, handler, upkeep=False)
    consumer._turns.settle(deliveries, consumer._turns.verdicts(deliveries))
    assert queue.status(of).state is State.GONE
    assert consumer.stats["cancelled"] == 1
    assert [(one.message_id, one.attempts) for one in queue.receive(10)] == [(one, 1) for one in others]


def test_the_log_does_not_say_of_the_rest_of_a_batch_that_the_worker_stops(caplog):
    queue = made(MemoryStore(OneThread()), shards=1, batching=BatchingConfig(2, 1))
    of = queue.publish_many(["m", "n"])[0]

    def handler(given):
        queue.cancel(of)
        given[0].extend()
        given[0].check()

    deliveries = queue.receive(2)
    consumer = Consumer(queue, handler, upkeep=False)
    consumer._turns.settle(deliveries, consumer._turns.verdicts(deliveries))
    (line,) = [one for one in caplog.messages if "was cut at" in one]
    assert line.endswith("which goes back uncounted: it ended early: a message that it was given was cancelled")


def test_in_order_the_next_message_does_not_wait_where_one_was_cancelled_in_its_handler():
    clock, seen = OneThread(), []
    queue = made(MemoryStore(clock), shards=1)
    of = queue.publish_many(["m", "n"], key="k")[0]

    def handler(delivery):
        seen.append(delivery.payload)
        if delivery.message_id == of:
            queue.cancel(of)
            delivery.extend()
            delivery.check()

    began = clock.monotonic()
    Consumer(queue, handler, ordered=True, upkeep=False)._turns.take()
    assert seen == ["m", "n"]
    assert clock.monotonic() - began < 1
    assert queue.status(of).state is State.GONE


def test_progress_is_shown_of_the_attempt_that_told_of_it(store, clock):
    queue = made(store)
    of = queue.publish("m")
    (delivery,) = queue.receive()
    delivery.progress(0.4, "chunk 12")
    assert queue.status(of).progress is None
    assert calls(store, delivery.extend)[1] == 1
    found = queue.status(of)
    assert (found.progress, found.note) == (0.4, "chunk 12")
    assert "chunk 12" not in repr(found)
    queue.give_back([delivery])
    queue.receive()
    assert (queue.status(of).progress, queue.status(of).note) == (None, None)


@pytest.mark.parametrize(("fraction", "note"), [(1.1, None), (-0.1, None), ("half", None), (None, 7)])
def test_progress_that_cannot_be_is_refused(store, fraction, note):
    queue = made(store)
    queue.publish("m")
    (delivery,) = queue.receive()
    with pytest.raises(InvalidRequest):
        delivery.progress(fraction, note)


def test_what_is_over_is_done_expired_or_unknown(store, clock):
    queue = made(store, message_expiry=100, queue_expiry=100)
    acked, expired = queue.publish_many(["a", "b"], keys=["a", "a"])
    (delivery,) = queue.receive()
    delivery.ack()
    assert queue.status(acked).state is State.DONE
    assert queue.status(expired).state is State.READY
    assert queue.status("nobody").state is State.UNKNOWN
    never = named(queue.name, "0" * 20, 2**32, Slot(0, 999))
    assert queue.status(never).state is State.UNKNOWN
    clock.advance(101)
    assert queue.status(acked).state is State.UNKNOWN
    assert queue.status(expired).state is State.EXPIRED
    assert queue.cancel(expired) is NOT_THERE


@pytest.mark.parametrize("state", ["delayed", "retrying"])
def test_what_nobody_brought_in_its_life_has_expired(store, clock, state):
    queue = made(store, message_expiry=3600, results=60)
    of = on_its_way(queue, clock, state)
    due_at = queue.status(of).due
    clock.advance((due_at - queue.status(of).since).total_seconds() + 3590)
    assert queue.status(of).state is (State.DELAYED if state == "delayed" else State.RETRYING)
    clock.advance(20)
    found, n = calls(store, queue.status, of)
    assert (found.state, found.due, n) == (State.EXPIRED, due_at, 3 if state == "retrying" else 2)
    with pytest.raises(Expired):
        queue.result(of, timeout=0)


def test_an_id_names_the_first_slot_and_stays_where_that_is_spent(store):
    queue = made(store, shards=1)
    queue.pointers.write_tombstones([Slot(0, 1)])
    of = queue.publish("m")
    assert first_slot(queue.name, of).slot == Slot(0, 1)
    (message,) = queue.peek()
    assert (message.message_id, message.pointer) == (of, 2)
    assert queue.status(of).state is State.READY
    assert queue.cancel(of) is DONE


def done_with(queue):
    """The id of a message that is acknowledged."""
    of = queue.publish("m")
    queue.receive()[0].ack()
    assert queue.status(of).state is State.DONE
    return of


def test_an_id_of_which_a_character_is_wrong_or_two_are_swapped_is_unknown_and_says_so(store):
    queue = made(store)
    of = done_with(queue)
    wrong = [of[:n] + other + of[n + 1 :] for n in range(len(of)) for other in "0a.~" if other != of[n]]
    wrong += [of[:n] + of[n + 1] + of[n] + of[n + 2 :] for n in range(len(of) - 1) if of[n] != of[n + 1]]
    wrong += [of[:n] + of[n + 1 :] for n in range(len(of))]
    for one in wrong:
        found = queue.status(one)
        assert (found.state, bool(found.hint)) == (State.UNKNOWN, "~" in one), one


def test_an_id_of_another_queue_is_unknown_also_where_that_has_passed_its_slot(store):
    queue, other = made(store), made(store, "other")
    ids = [done_with(queue) for _ in range(10)]
    done_with(other), done_with(other)
    for one in ids:
        found = other.status(one)
        assert (found.state, "another queue" in found.hint) == (State.UNKNOWN, True)


def test_an_id_of_an_earlier_version_says_what_a_record_shows(store):
    queue = made(store)
    of = queue.publish("m")
    earlier = of[:20] + of[24:]
    bins = store.get(queue.pointers.key(first_slot(queue.name, of).slot)).bins
    store.operate(queue.pointers.key(first_slot(queue.name, of).slot), Put("msgId", earlier))
    assert bins["msgId"] == of
    assert queue.status(earlier).state is State.READY
    (delivery,) = queue.receive()
    assert queue.status(earlier).state is State.RUNNING
    delivery.ack()
    found = queue.status(earlier)
    assert (found.state, "earlier version" in found.hint) == (State.UNKNOWN, True)


def test_a_part_of_an_id_is_unknown_with_a_hint_where_the_rest_is_missing(store):
    queue = made(store)
    of = queue.publish("m")
    for part in (of.split("~")[0], of[:20]):
        assert "whole id" in queue.status(part).hint
    assert queue.status("nobody").hint is None
    assert queue.status(of).hint is None


@pytest.mark.parametrize("seconds", [0, 70])
@pytest.mark.parametrize("how", ["discard", "move", "received", "cancelled"])
def test_done_is_not_said_of_what_a_person_has_removed(store, clock, how, seconds):
    queue = made(store)
    of = on_its_way(queue, clock, "ready" if how == "cancelled" else "parked")
    if how == "discard":
        queue.parked.discard([of])
    elif how == "move":
        queue.parked.move([of], made(store, "other"))
    elif how == "received":
        queue.parked.receive()[0].ack()
    else:
        queue.cancel(of)
    clock.advance(seconds)
    assert queue.status(of).state is State.GONE


def test_one_that_was_brought_back_is_done_once_it_is_acknowledged(store, clock):
    queue = made(store)
    of = on_its_way(queue, clock, "parked")
    clock.advance(1)
    queue.parked.redrive([of])
    assert queue.status(of).state is State.READY
    queue.receive()[0].ack()
    found = queue.status(of)
    assert (found.state, found.cancelled) == (State.DONE, False)


@pytest.mark.parametrize("id", [None, "theirs"])
@pytest.mark.parametrize("side", ["delayed", "sideline", "parked"])
def test_how_a_message_ended_is_known_though_all_of_it_was_in_one_millisecond(store, clock, side, id):
    queue = made(store, retry=side != "sideline", max_deliveries=1 if side == "parked" else 9)
    given = {} if id is None else {"message_id": id}

    def failed():
        of = queue.publish("m", **given)
        queue.receive()[0].nack()
        return of

    of, waiting = failed(), getattr(queue, side)
    waiting.redrive([of])
    queue.receive()[0].ack() if side != "delayed" else due(queue, clock, 1)[0].ack()
    assert queue.status(of).state is State.DONE
    clock.advance(1)
    of = failed()
    waiting.discard([of])
    if id is None:  # of an id that is used again, a redrive and a publish in one millisecond look alike
        assert queue.status(of).state is State.GONE


@pytest.mark.parametrize("is_named", [True, False])
def test_places_of_one_millisecond_are_in_the_order_in_which_a_message_takes_them(is_named):
    for length in range(1, 8):
        went = [
            f"main 1:{n + 3}" if (n % 2 == 0) != is_named else ("parked 1:1" if n > 4 else f"delayed m#{n + 1}#x")
            for n in range(length)
        ]
        for ticks in range(2 ** (length - 1)):
            times = [sum(ticks >> k & 1 for k in range(n)) for n in range(length)]
            stored = {f"{at:014d} {place}": 1 for at, place in zip(times, went, strict=True)}
            found = Trace.of({PLACES: stored}, is_named=is_named).places
            assert [one.entry or f"{one.side} {slot_text(one.slot)}" for one in found] == [
                place.removeprefix("delayed ") for place in went
            ]


def test_ids_of_a_large_call_name_the_slots_of_their_messages(store):
    queue = made(store)
    ids = queue.publish_many(list(range(2_100)))
    at = {message.message_id: Slot(message.shard, message.pointer) for message in queue.peek_all()}
    assert {of: first_slot(queue.name, of).slot for of in ids} == at


def test_publishing_costs_two_calls_and_an_acknowledgement_one_as_before():
    store = CountingStore(MemoryStore())
    queue = made(store)
    queue.publish("first")
    assert calls(store, queue.publish, "m")[1] == 2
    assert calls(store, queue.publish_many, ["m"] * 500)[1] == 2
    before = store.rows["operate_many"]
    (delivery,) = queue.receive()
    assert calls(store, delivery.ack)[1] == 1
    assert store.rows["operate_many"] == before


def test_a_group_has_no_messages_of_its_own_and_none_that_groups_wait_for_is_cancelled(store):
    queue = made(store)
    group = queue.group("audit")
    of = queue.publish("m")
    with pytest.raises(InvalidRequest, match="ask the queue"):
        group.status(of)
    with pytest.raises(Refused, match="groups wait for the message"):
        queue.cancel(of)
    assert [delivery.payload for delivery in queue.receive()] == ["m"]
    assert group.cancel("nobody") is NOT_THERE


@pytest.mark.parametrize("side", ["delayed", "parked"])
@pytest.mark.parametrize("given", [None, "theirs"])
def test_one_that_has_failed_is_not_cancelled_while_groups_wait_for_it(store, given, side):
    queue = made(store, max_deliveries=1 if side == "parked" else 2)
    group = queue.group("audit")
    of = queue.publish("m", message_id=given)
    queue.receive()[0].nack()
    trace = queue.pointers.places.key(of)
    before = store.get(trace)
    with pytest.raises(Refused, match="discard"):
        queue.cancel(of)
    assert store.get(trace).generation == before.generation  # who moves it meanwhile does not drop it
    assert queue.status(of).state is (State.PARKED if side == "parked" else State.RETRYING)
    assert not queue.status(of).cancelled
    (held,) = group.receive()
    with pytest.raises(Refused, match="discard"):
        queue.cancel(of)
    held.ack()
    assert queue.cancel(of) is DONE
    assert queue.status(of).state is State.GONE


@pytest.mark.parametrize("given", [None, "theirs"])
def test_a_delayed_message_on_its_way_to_groups_is_not_cancelled(store, clock, given):
    queue = made(store)
    group = queue.group("audit")
    of = queue.publish("m", delay=1, message_id=given)
    store.operate(queue.delayed.entry(of), Put("moving", int(store.seams.wall() * 1000)))
    with pytest.raises(Refused, match="groups wait"):
        queue.cancel(of)
    (delivery,) = due(queue, clock)
    assert [one.payload for one in group.receive()] == ["m"]
    delivery.nack()
    assert [one.message_id for one in due(queue, clock, 20)] == [of]


def test_of_two_messages_of_one_id_the_one_that_groups_wait_for_is_tried_again_after_a_cancel(store, clock):
    queue = made(store)
    queue.group("audit")
    queue.publish("shared", message_id="theirs")
    queue.publish("later", message_id="theirs", delay=60)
    assert queue.cancel("theirs") is DONE
    queue.receive()[0].nack()
    assert [one.payload for one in due(queue, clock, 70)] == ["shared"]


def test_a_cancel_that_is_refused_has_done_nothing_whatever_fails_in_it():
    def prepare(store):
        queue = made(store)
        queue.group("audit")
        queue.publish("m", message_id="m")
        queue.receive()[0].nack()

    def cancel(store, _):
        with suppress(Refused):
            assert made(store).cancel("m") is Outcome.UNKNOWN

    def check(store):
        found = made(store).status("m")
        assert (found.state, found.cancelled) == (State.RETRYING, False)

    report = inject_everywhere(cancel, prepare=prepare, check=check, faults=struck.faults("a cancel"))
    assert not report.troubles, report
    assert report.calls >= 3


@pytest.mark.parametrize("side", ["delayed", "parked", "sideline"])
def test_one_that_groups_wait_for_can_be_discarded_for_the_queue_alone(store, clock, side):
    queue = made(store, max_deliveries=1 if side == "parked" else 2, retry=side != "sideline")
    group = queue.group("audit")
    of = queue.publish("m")
    queue.receive()[0].nack()
    with pytest.raises(Refused, match=side):
        queue.cancel(of)
    assert getattr(queue, side).discard([of]) == {of: DONE}
    assert due(queue, clock, 20) == []
    assert [delivery.payload for delivery in group.receive()] == ["m"]


def test_a_batch_waits_no_more_for_a_message_that_was_cancelled(store):
    queue = made(store)
    made(store, "then")
    with queue.batch("b", then=Publish("over", queue="then")) as batch:
        ready, running = batch.publish("a"), batch.publish("b")
    held = {delivery.message_id: delivery for delivery in queue.receive(2)}
    queue.give_back([held[ready]])
    assert (queue.cancel(ready), queue.cancel(running)) == (DONE, ASKED)
    held[running].extend()
    queue.drop_cancelled([held[running]])
    progress = batch.progress()
    assert (progress.discarded, progress.waiting, progress.complete) == (2, 0, True)


@pytest.mark.parametrize("lost", ["reply_lost", "request_lost"])
def test_a_cancel_whose_reply_is_lost_knows_what_it_did(lost):
    store = FaultyStore(MemoryStore(ManualClock()))
    queue = made(store)
    of = queue.publish("m")
    store.plan |= {store._number + 1: lost}
    assert queue.cancel(of) is DONE
    assert queue.receive() == []


@pytest.mark.parametrize("message_id", [None, "order-1"])
@pytest.mark.parametrize(("waits", "said"), [("sideline", Outcome.DONE), ("delayed", Outcome.ASKED)])
def test_a_message_that_was_cancelled_before_its_copy_was_sent_again_does_not_come(
    store, clock, waits, said, message_id
):
    queue, answers = made(store, shards=1, retry=waits == "delayed"), []
    of = queue.publish("x", message_id=message_id)
    (delivery,) = queue.receive(1)
    delivery.nack()
    with late_row(store, "q_SHARD_0_", lambda: answers.append(queue.cancel(of))):
        if waits == "sideline":
            queue.sideline.redrive([of])
        else:
            run_until(Timers(Farms(queue)), clock, 15)
    run_until(Timers(Farms(queue)), clock, 60)
    assert answers == [said]
    assert queue.receive(10) == []
    assert queue.status(of).state is State.GONE


def test_a_cancel_that_finds_nothing_leaves_no_trace(store, clock):
    queue = made(store)
    of = on_its_way(queue, clock, "retrying")
    (delivery,) = due(queue, clock)
    delivery.ack()
    assert queue.cancel(of) is NOT_THERE
    assert not queue.status(of).cancelled
    assert queue.cancel("nobody") is NOT_THERE
    assert store.get(queue.pointers.places.key("nobody")) is None


def test_a_life_on_every_store(world):
    queue = world.process().queue
    of = queue.publish("m")
    assert queue.status(of).state is State.READY
    (delivery,) = queue.receive()
    delivery.progress(0.25, "a quarter")
    delivery.extend()
    found = queue.status(of)
    assert (found.state, found.progress, found.note, found.attempts) == (State.RUNNING, 0.25, "a quarter", 1)
    assert queue.cancel(of) is ASKED
    delivery.extend()
    with pytest.raises(Cancelled):
        delivery.check()
    delivery.nack(error="it broke")
    assert queue.status(of).state is State.GONE
    ready, delayed = queue.publish("n"), queue.publish("n", delay=60)
    assert queue.status(delayed).state is State.DELAYED
    assert [queue.cancel(one) for one in (ready, delayed, of)] == [DONE, DONE, NOT_THERE]
    assert [queue.status(one).state for one in (ready, delayed)] == [State.GONE] * 2
    assert queue.receive() == []


@pytest.mark.parametrize("kind", ["sqlite", "aerospike"])
def test_a_running_handler_ends_once_its_worker_has_extended_the_message(kind, request, tmp_path):
    ahead = Ahead()  # only of this process: the time of the real server is as ever
    if kind == "aerospike":
        real = FaultyStore(request.getfixturevalue("aerospike_store"), seams=ahead)
    else:
        real = SQLiteStore(tmp_path / "s.db", synchronous="off", seams=ahead)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("asked", shards=1, sweep_duration=60, handler_timeout=30, unsafe_limits=True)
        queue = QueueRegistry(real, "asked").create(config)
    begun, extends = threading.Event(), []
    extend = queue.pointers.extend
    queue.pointers.extend = lambda held, *told: extends.append(asked.is_set()) or extend(held, *told)
    asked, at_the_end = threading.Event(), []

    def handler(delivery):
        begun.set()
        try:
            while True:
                delivery.check()
                time.sleep(0.005)
        finally:
            at_the_end.append(extends.count(True))

    of = queue.publish("m")
    with Consumer(queue, handler, upkeep=False) as consumer:
        assert begun.wait(20)
        assert queue.cancel(of) is ASKED
        asked.set()
        ahead.by += 16  # more than a quarter of the sweep duration: the next extension is due
        until(lambda: consumer.stats["cancelled"] + consumer.stats["timed_out"])
    assert consumer.stats["cancelled"] == 1
    assert at_the_end in ([0], [1]), "an extension that was under way, or the next one"
    assert queue.status(of).state is State.GONE
    assert queue.depth().ready == queue.depth().delayed == 0
