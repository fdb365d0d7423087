"""What came out of each message of a batch, in order, told apart exactly; and what that costs (docs/protocols P18)."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

import pytest
from msgspec.structs import force_setattr

from latchwork.errors import (
    Cancelled,
    Corrupt,
    Expired,
    HandlerFailed,
    InvalidRequest,
    LatchworkError,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    Unreadable,
    WaitTimeout,
)
from latchwork.queue import BatchResult, Outcome, Publish, QueueConfig, QueueRegistry, State
from latchwork.queue.sharded import shards
from latchwork.queue.sharded.batches import counting
from latchwork.queue.sharded.batches.blocks import BLOCK
from latchwork.queue.sharded.consumer.in_hand import Noted, Stage, settle_for
from latchwork.queue.sharded.delayed import entries
from latchwork.queue.sharded.hooks import RowsBeside
from latchwork.queue.sharded.publishing.batch_results import BatchResults
from latchwork.queue.sharded.workers import WorkerReport, reporting
from latchwork.store import Exists, MemoryStore, Put
from latchwork.testing import CountingStore, FaultyStore, ManualClock, bring_back
from latchwork.testing.everywhere import inject_everywhere
from latchwork.testing.stores import Crash
from tests.queue.sharded.test_one_message import calls, due, made
from tests.queue.sharded.test_results import work


def kept(store, name="q", **options):
    return made(store, name, **{"results": 3600} | options)


def told(batch, timeout=0):
    """For each message its value, or the kind of its error."""
    return [type(one.error) if one.error else one.value for one in batch.results(timeout)]


def states(batch):
    return [one.state for one in batch.results(0)]


def closed(queue, payloads, name="b", **given):
    with queue.batch(name) as batch:
        batch.publish_many(payloads, **given)
    return batch


def doubled(delivery):
    return delivery.payload * 2


# ---- what it is for


def test_results_come_in_the_order_of_publishing_each_with_the_id_of_its_message(store):
    queue = kept(store)
    with queue.batch("b") as batch:
        ids = [batch.publish(0), *batch.publish_many([1, 2, 3], keys=["x", "y", "x"]), batch.publish(4)]
    work(queue, doubled, 5)
    found = list(queue.batch("b", create=False).results())
    assert [one.message_id for one in found] == ids
    assert [one.result() for one in found] == [0, 2, 4, 6, 8]
    assert {one.state for one in found} == {State.DONE}


@pytest.mark.parametrize("value", [None, False, 0, "", [], {"total": 7}])
def test_what_is_nothing_is_a_result_too(store, value):
    queue = kept(store)
    batch = closed(queue, ["m"])
    queue.receive()[0].ack(value)
    (one,) = batch.results(0)
    assert (one.value, type(one.value), one.error, one.state) == (value, type(value), None, State.DONE)


def test_an_empty_batch_has_no_results_once_it_is_closed(store):
    queue = kept(store)
    batch = queue.batch("b")
    with pytest.raises(WaitTimeout, match="is not closed"):
        list(batch.results(0))
    batch.close()
    assert list(batch.results(0)) == []


def test_what_was_published_in_any_way_has_its_result(store, clock):
    """Delayed, with an id, with a dedup key, once more by its key, and by a key that another batch has."""
    queue = kept(store)
    queue.batch("other").publish(9, dedup="theirs")
    with queue.batch("b") as batch:
        ids = [batch.publish(1, delay=5), batch.publish(2, message_id="mine"), batch.publish(3, dedup="k")]
        assert batch.publish(3, dedup="k") == ids[2]
        batch.publish(9, dedup="theirs")
        ids.append(batch.publish(4))
    for one in (*queue.receive(10), *due(queue, clock)):
        one.ack(one.payload * 2)
    assert [(one.message_id, one.result()) for one in batch.results(0)] == list(zip(ids, [2, 4, 6, 8], strict=True))


def test_what_was_tried_again_has_the_result_of_the_attempt_that_was_acknowledged(store, clock):
    queue = kept(store, max_deliveries=5)
    batch = closed(queue, [1, 2, 3], key="k")
    first, second, third = queue.receive(3)
    first.nack()
    bring_back(queue)  # and the consumer of the other two died
    again = due(queue, clock)
    assert {one.payload for one in again} == {1, 2, 3}
    for one in again:
        one.ack(f"again {one.payload}")
    for late in (second, third):
        with pytest.raises(LeaseLost):
            late.ack("too late")
    assert told(batch) == ["again 1", "again 2", "again 3"]


def test_a_mark_of_an_acknowledgement_that_was_refused_hides_no_result(store):
    """The batch has counted the message as done, and another consumer has it."""
    queue = kept(store)
    batch = closed(queue, ["m"])
    (first,) = queue.receive()
    bring_back(queue)
    (second,) = queue.receive()
    with pytest.raises(LeaseLost):
        first.ack("first")
    assert batch.wait(0), "its handler ended well"
    assert told(batch) == [WaitTimeout]
    second.ack("second")
    assert told(batch) == ["second"]


# ---- how messages end that have none


ENDS = {
    "expired": (State.EXPIRED, Expired), "forgotten": (State.DONE, NotFound), "none": (State.DONE, type(None)),
    "kept": (State.DONE, type(None)), "unkept": (State.DONE, Unreadable), "parked": (State.PARKED, HandlerFailed),
    "discarded": (State.GONE, Cancelled), "moved": (State.GONE, Cancelled), "cancelled": (State.GONE, Cancelled),
    "ready": (State.READY, WaitTimeout), "running": (State.RUNNING, WaitTimeout),
    "retrying": (State.RETRYING, WaitTimeout), "delayed": (State.DELAYED, WaitTimeout),
}  # fmt: skip


def test_every_end_of_a_message_is_told_apart(store, clock):
    queue, other = kept(store, results=100), kept(store, "other")
    with queue.batch("b") as batch:
        now = [end for end in ENDS if end != "delayed"]
        ids = batch.publish_many(now, keys=[f"k{n % 2}" for n in range(len(now))])
        ids.append(batch.publish("delayed", delay=900))
    id_of = dict(zip(ENDS, ids, strict=True))
    held = {one.payload: one for one in queue.receive(20)}
    held["forgotten"].ack("for a while")
    clock.advance(101)
    failing = ("parked", "discarded", "moved")
    for one in (*failing, "retrying"):
        held[one].nack(error="it broke")
    again = {one.payload: one for one in due(queue, clock)}
    for one in failing:
        again[one].nack(error="it broke")
    again["retrying"].nack(error="it broke", delay=500)
    queue.parked.discard([id_of["discarded"]])
    queue.parked.move([id_of["moved"]], other)
    queue.give_back([held["cancelled"], held["ready"]])
    queue.cancel(id_of["cancelled"])
    queue.store.delete(queue.pointers.key(held["expired"].held.slot))  # as the store does once its life is over
    held["none"].ack()
    held["kept"].ack({"n": 1})
    settle_unkept(queue, held["unkept"])
    found = dict(zip(ENDS, batch.results(0), strict=True))
    assert {end: one.message_id for end, one in found.items()} == id_of
    assert {end: (one.state, type(one.error)) for end, one in found.items()} == ENDS
    assert (found["parked"].error.reason, found["parked"].error.error) == ("exhausted", "it broke")
    assert (found["none"].value, found["kept"].value) == (None, {"n": 1})
    assert "no worker of 'q' is at work" in str(found["ready"].error)
    assert not any("broke" in repr(one) for one in found.values()), "it may be confidential"
    for end, one in found.items():
        with suppress(LatchworkError):
            assert one.result() == one.value
            continue
        with pytest.raises(ENDS[end][1]):
            one.result()


def settle_unkept(queue, delivery):
    """Acknowledge a message whose result cannot be kept, as a worker does."""
    noted = Noted(0, Stage.DONE, delivery.shard, delivery.pointer, delivery.held.delivery)
    assert settle_for(queue, [noted], "killed", counts=True)["acknowledged"] == 1


def test_one_that_fails_for_good_ends_no_wait_in_a_hang(store, clock):
    """Parked, in a sideline that nobody empties, cancelled with its batch, and lost: nothing waits for these."""
    queue = kept(store, max_deliveries=1)
    batch = closed(queue, [1, 2], key="k")
    first, second = queue.receive(2)
    first.nack(error="it broke")
    second.ack("done")
    assert told(batch, None) == [HandlerFailed, "done"]
    aside = kept(store, "aside", retry=False)
    batch = closed(aside, [1])
    aside.receive()[0].nack()
    assert told(batch, None) == [HandlerFailed]
    stopped = queue.batch("stopped")
    stopped.publish_many([1, 2, 3], key="k")
    one, *_ = queue.receive(1)
    stopped.publish(4, delay=600)
    stopped.cancel()
    one.ack("it had begun")
    assert told(stopped, None) == ["it had begun", Cancelled, Cancelled, Cancelled]
    other = kept(store, "other")
    batch = closed(other, [1])
    store.delete(other.pointers.key(other.receive()[0].held.slot))  # as the store does once its life is over
    assert told(batch, None) == [Expired]


def test_who_brings_a_failed_message_back_gets_its_result(store, clock):
    queue = kept(store, max_deliveries=1)
    batch = closed(queue, ["m"])
    queue.receive()[0].nack()
    ((failed),) = batch.results(0)
    clock.advance(1)
    assert queue.parked.redrive([failed.message_id]) == {failed.message_id: Outcome.DONE}
    queue.receive()[0].ack("repaired")
    assert told(batch) == ["repaired"]


# ---- which messages


def test_what_was_not_published_is_left_out(store):
    queue = kept(store)
    with queue.batch("b") as batch:
        batch.publish("a", message_id="a", delay=5)
        with pytest.raises(LatchworkError):
            batch.publish_many(["x", "a", "y"], message_ids=["x", "a", "y"], delay=5)  # "a" waits already
    assert [one.message_id for one in batch.results(0)] == ["a", "x", "y"]


def test_messages_of_an_open_batch_are_told_and_that_more_may_come(store):
    queue = kept(store)
    batch = queue.batch("b")
    batch.publish_many([1, 2], key="k")
    queue.receive()[0].ack("one")
    queue.batches.begin(batch._state, 2)  # a call that publishes now, or has died
    batch.publish(3)
    results = batch.results(0)
    assert [next(results).state for _ in range(3)] == [State.DONE, State.READY, State.READY]
    with pytest.raises(WaitTimeout, match="is not closed: more messages may come"):
        next(results)
    assert next(results, None) is None
    batch.close()
    assert told(batch) == ["one", WaitTimeout, WaitTimeout], "what had not ended does not count"


def test_messages_without_an_id_are_not_known_here(store, monkeypatch):
    """As an earlier version has published them."""
    queue = kept(store)
    with queue.batch("b") as batch:
        with monkeypatch.context() as earlier:
            earlier.setattr(shards, "RowsBeside", lambda _: RowsBeside({}))
            ids = batch.publish_many([1, 2, 3], key="k")
        batch.publish(4)
    queue.receive()[0].ack("has one")
    queue.cancel(ids[1])
    found = list(batch.results(0))
    assert [(one.message_id, one.state, type(one.error)) for one in found] == [
        (None, State.DONE, NotFound), (None, State.GONE, Cancelled), (None, State.UNKNOWN, NotFound),
        (found[3].message_id, State.READY, WaitTimeout),
    ]  # fmt: skip
    assert "the result of message 1 is not known here" in str(found[0].error)
    assert "ask `queue.result` with the id" in str(found[0].error)
    assert queue.result(ids[0], 0) == "has one"
    for one in queue.receive(2):
        one.ack("late")
    assert told(batch, None) == [NotFound, Cancelled, NotFound, "late"], "none of them is waited for"


def test_the_end_says_that_these_were_all_only_if_the_batch_was_closed_from_the_first_look_on(store):
    """A call that publishes meanwhile, before messages that are read already, and a batch that is closed then."""
    queue = kept(store)
    batch = queue.batch("b")
    call, _ = queue.batches.begin(batch._state, 1)
    batch.publish("m")
    results = batch.results(0)
    assert next(results).state is State.READY
    queue.batches.confirm(batch._state, call)
    batch.close()
    with pytest.raises(WaitTimeout, match="was not closed when the first messages were read: others may have come"):
        next(results)
    assert next(results, None) is None


# ---- waiting


def test_results_are_waited_for_and_told_as_they_come():
    queue = kept(MemoryStore())
    batch = queue.batch("b")
    batch.publish_many([1, 2, 3], key="k")
    found, seen = [], threading.Event()

    def reader():
        for one in batch.results(20):
            found.append(one.result())
            seen.set()

    thread = threading.Thread(target=reader)
    thread.start()
    first, *others = queue.receive(3)
    others[1].ack("third")
    first.ack("first")
    assert not seen.wait(0.2), "the batch is not closed"
    batch.close()
    assert seen.wait(20)
    assert found == ["first"]
    others[0].ack("second")
    thread.join(20)
    assert found == ["first", "second", "third"]


def test_a_wait_ends_with_its_timeout_and_looks_ever_more_rarely(clock):
    store = CountingStore(MemoryStore(clock))
    queue = kept(store)
    batch = closed(queue, list(range(40)), key="k")
    first, *_ = queue.receive(1)
    first.ack("first")
    begun, before = clock.monotonic(), store.total
    assert told(batch, 60) == ["first"] + [WaitTimeout] * 39
    assert 60 <= clock.monotonic() - begun < 61
    assert store.total - before < 4 * 75


def test_the_time_of_whoever_reads_slowly_counts_and_what_is_done_is_told_nevertheless(clock):
    queue = kept(MemoryStore(clock))
    batch = closed(queue, list(range(3)), key="k")
    for one in queue.receive(2):
        one.ack(one.payload)
    found = batch.results(5)
    assert next(found).value == 0
    clock.advance(60)
    begun = clock.monotonic()
    assert [type(one.error) if one.error else one.value for one in found] == [1, WaitTimeout]
    assert clock.monotonic() == begun


def test_what_is_wrong_is_said_before_any_call(store):
    batches = [made(store, "plain").batch("b"), kept(store).batch("b")]
    before = store.total
    with pytest.raises(InvalidRequest, match=r"'plain' keeps no results: create it with QueueConfig\(results="):
        batches[0].results()
    for wrong in ("1", -1, float("nan")):
        with pytest.raises(InvalidRequest, match="timeout"):
            batches[1].results(wrong)
    batches[1].results()
    assert store.total == before, "and nothing is read before the first is asked for"


def test_a_batch_whose_time_is_over_is_not_found(store, clock):
    queue = kept(store)
    with queue.batch("b", life=60) as batch:
        batch.publish("m")
    clock.advance(61)
    with pytest.raises(NotFound, match="its time may be over"):
        list(batch.results())


# ---- many


def test_a_batch_of_many_blocks_is_read_in_bounded_parts(store):
    queue = kept(store)
    n = 2 * BLOCK + 3
    batch = closed(queue, list(range(n)))
    while some := queue.receive(BLOCK):
        for one in some:
            force_setattr(one, "answer", [str(one.payload)])
        queue.ack_many(some)
    before, found = store.total, batch.results(0)
    assert next(found).value == 0
    assert store.total - before == 2
    assert [one.value for one in found] == list(range(1, n))
    assert store.total - before == 2 * 3


def test_results_that_have_moved_are_read_together(store, clock):
    queue = kept(store)
    batch = closed(queue, list(range(300)), key="k", message_ids=[f"m{n}" for n in range(300)])
    for one in queue.receive(300):
        force_setattr(one, "answer", [str(one.payload)])
        one.ack(one.payload)
    before = store.total
    assert told(batch, 60) == list(range(300))
    assert store.total - before == 2, "in the slots in which they were counted"


def test_a_batch_costs_no_call_more_where_results_are_kept_and_no_row_where_they_are_not():
    spent = {}
    for kind, make in (("plain", made), ("kept", kept)):
        store = CountingStore(MemoryStore(ManualClock()))
        queue = make(store)
        batch = queue.batch("b")
        before = sum(store.rows.values())
        some = [calls(store, batch.publish_many, list(range(n)))[1] for n in (1, 1_000)]
        later = calls(store, partial(batch.publish, "later", delay=5))[1]
        rows = sum(store.rows.values()) - before
        taken = queue.receive(1)
        acked = calls(store, taken[0].ack)[1]
        spent[kind] = (*some, later, acked), rows
        there = [key for key in store.inner._records if key.name.startswith("N/")]
        assert len(there) == (3 if kind == "kept" else 0)
    assert spent["plain"][0] == spent["kept"][0] == (4, 4, spent["plain"][0][2], 2)
    assert spent["kept"][1] - spent["plain"][1] == 1 + 3 + 1


def test_a_name_takes_some_fifty_bytes_and_its_record_no_more_than_a_record_holds():
    queue = kept(MemoryStore(ManualClock()))
    closed(queue, list(range(2 * BLOCK)))
    closed(queue, list(range(BLOCK)), "long", message_ids=[f"{n:03d}" + "\U0001f600" * 253 for n in range(BLOCK)])
    sizes = {
        key.name: sum(len(id.encode()) + 4 for id in record.bins["ids"].values())
        for key, record in queue.store._records.items()
        if key.name.startswith("N/")
    }
    ours = [size for name, size in sizes.items() if "/long/" not in name]
    assert len(ours) == 2
    assert max(ours) < 50 * BLOCK
    assert max(sizes.values()) < 600_000


# ---- when something fails


@pytest.mark.long
def test_a_fault_at_any_call_of_a_publisher_leaves_no_message_that_counts_without_its_result():
    def publish(store, _):
        batch = kept(store).batch("b")
        batch.publish_many([1, 2], dedups=["k", "l"])
        batch.publish(3)
        batch.publish(4, delay=1)

    def check(store):
        queue = kept(store)
        batch = queue.batch("b")
        batch.publish_many([1, 2], dedups=["k", "l"])
        batch.close()
        for one in (*queue.receive(10), *due(queue, store.seams)):
            one.ack(one.payload)
        counted = batch.progress()
        found = told(batch)
        assert len(found) == counted.published == counted.done
        assert set(found) <= {1, 2, 3, 4}, found
        assert found.count(1) == found.count(2) == 1

    report = inject_everywhere(publish, prepare=lambda store: kept(store).batch("b"), check=check)
    assert not report.troubles, report


@pytest.mark.parametrize("delay", [None, 5])
def test_a_message_whose_name_cannot_be_written_does_not_count(store, monkeypatch, delay):
    queue = kept(store)
    batch = queue.batch("b")
    batch.publish("first")
    real = RowsBeside.taken_from

    def refused(self, sent):
        sent[-1:] = [Unavailable("the record is away")] if self.updates else sent[-1:]
        return real(self, sent)

    with monkeypatch.context() as away:
        away.setattr(RowsBeside, "taken_from", refused)
        with pytest.raises(OutcomeUnknown, match="may be delivered; its batch does not know of it: the record is away"):
            batch.publish("unnamed", delay=delay)
    batch.close()
    assert len(list(batch.results(0))) == batch.progress().published == 1


class NamedNowhere(RowsBeside):
    """The messages are created, and the record of their ids is away."""

    def __init__(self, named):
        super().__init__({})
        self._unnamed = list(named)

    def taken_from(self, sent):
        return {n: OutcomeUnknown("the record is away") for n in self._unnamed}


@pytest.mark.parametrize("delay", [None, 5])
def test_a_message_that_is_done_though_its_publishing_raised_is_told_as_far_as_it_is_known(
    store, clock, monkeypatch, delay
):
    queue = kept(store)
    with queue.batch("b") as batch:
        with monkeypatch.context() as away:
            for module in (shards, entries):
                away.setattr(module, "RowsBeside", NamedNowhere)
            with pytest.raises(OutcomeUnknown, match="the record is away"):
                batch.publish("in doubt", delay=delay)
        known = batch.publish("m", delay=delay)
    assert [one.message_id for one in batch.results(0)] == [known], "it is not waited for"
    for one in due(queue, clock):
        one.ack(one.payload)
    doubtful, of = batch.results(0)
    assert batch.progress().complete
    assert (of.message_id, of.value) == (known, "m")
    if delay:
        assert doubtful.value == "in doubt", "its id was noted once it was due"
    else:
        assert (doubtful.message_id, doubtful.state, type(doubtful.error)) == (None, State.DONE, NotFound)
        assert "its publishing raised an error, and it was delivered nevertheless" in str(doubtful.error)


def test_a_publisher_that_died_before_its_message_was_named_is_completed_by_the_next():
    there = MemoryStore(ManualClock())
    for n in range(1, 12):
        dying = FaultyStore(there)
        batch = kept(dying).batch("b")
        dying.plan = {dying._number + n: "crash_before"}
        with suppress(Crash):
            batch.publish(n, dedup=f"k{n}")
    queue = kept(there)
    batch = queue.batch("b")
    for n in range(1, 12):
        batch.publish(n, dedup=f"k{n}")
    batch.close()
    for one in queue.receive(20):
        one.ack(one.payload)
    assert sorted(told(batch)) == list(range(1, 12))


def test_an_error_of_the_store_ends_no_reading():
    store = FaultyStore(MemoryStore(ManualClock()))
    queue = kept(store)
    batch = closed(queue, list(range(BLOCK + 2)), key="k")
    for one in queue.receive(1_000):
        force_setattr(one, "answer", [str(one.payload)])
        one.ack(one.payload)
    results, found = batch.results(0), []
    for n in range(40):
        store.plan = {store._number + 1: "request_lost"} if n % 2 == 0 else {}
        for _ in range(30):
            try:
                found.append(next(results).value)
            except StopIteration:
                break
            except LatchworkError:
                store.plan = {}
    assert found == list(range(BLOCK + 2))


def test_what_is_damaged_is_the_error_of_its_messages_alone(store):
    queue = kept(store)
    batch = closed(queue, list(range(BLOCK + 2)), key="k")
    held = queue.receive(1_000)
    for one in held:
        force_setattr(one, "answer", [str(one.payload)])
    queue.ack_many(held)
    place = queue.batches.place(batch._state, 0)
    # One result, and one id.
    slot = held[1].held.slot
    store.operate(queue.pointers.key(slot), Put("result", 7))
    name = counting.names_key("c", place.batch, 0)
    ids = store.get(name).bins["ids"]
    store.operate(name, Put("ids", ids | {2: "x" * 900}))
    found = list(batch.results(0))
    assert [type(one.error) for one in found[:4]] == [type(None), Unreadable, Corrupt, type(None)]
    assert sum(one.error is None for one in found) == BLOCK
    # All ids of a block.
    store.operate(name, Put("ids", 7))
    found = list(batch.results(0))
    assert {type(one.error) for one in found[:BLOCK]} == {Corrupt}
    assert [one.value for one in found[BLOCK:]] == [BLOCK, BLOCK + 1]
    # All that is known of a block.
    store.operate(name, Put("ids", ids))
    store.operate(queue.batches.blocks.key(place.batch, 0), Put("done", "x"))
    found = list(batch.results(0))
    assert {(type(one.error), one.message_id in ids.values()) for one in found[:BLOCK]} == {(Corrupt, True)}
    assert [one.value for one in found[BLOCK:]] == [BLOCK, BLOCK + 1]


def test_what_is_acknowledged_while_it_is_looked_for_is_not_taken_for_lost(store, monkeypatch):
    """By a worker whose results are gone at once: the slot is empty, and the block was read before."""
    queue = kept(store)
    batch = closed(queue, ["m"])
    (delivery,) = queue.receive()
    real = BatchResults._answers

    def meanwhile(self, *given, **named):
        monkeypatch.undo()
        delivery.ack("it was kept for its time")
        store.delete(queue.pointers.key(delivery.held.slot))
        return real(self, *given, **named)

    monkeypatch.setattr(BatchResults, "_answers", meanwhile)
    (one,) = batch.results(0)
    assert (one.state, type(one.error)) == (State.DONE, NotFound)


def test_a_life_of_a_batch_with_results_on_every_store(world):
    first = world.process().queue
    registry = QueueRegistry(first.registry.store, first.registry.client_id, farm_id=first.registry.farm_id)
    queue = registry.create(QueueConfig("kept", shards=2, results=60, max_deliveries=1))
    with queue.batch("b", then=Publish("next")) as batch:
        ids = batch.publish_many(["a", "b", "c"], dedups=["a", "b", "c"])
        ids.append(batch.publish("later", delay=600))
    for one in queue.receive(3):
        if one.payload == "b":
            one.nack(error="it broke")
        else:
            one.ack({"of": one.payload})
    queue.cancel(ids[3])
    found = list(batch.results(5))
    assert [one.message_id for one in found] == ids
    assert [one.value for one in found] == [{"of": "a"}, None, {"of": "c"}, None]
    assert [type(one.error) for one in found] == [type(None), HandlerFailed, type(None), Cancelled]
    assert found[0] == BatchResult(ids[0], State.DONE, {"of": "a"})
    assert [type(one.error) for one in registry.get("kept").batch("b").results(0)][1] is HandlerFailed


def test_a_result_is_found_where_it_was_counted_also_if_the_trace_of_its_message_is_lost(store, clock):
    queue = kept(store, max_deliveries=5)
    batch = closed(queue, [1, 2], key="k", message_ids=["one", "two"])
    for one in queue.receive(2):
        one.nack()
    for one in due(queue, clock):
        one.ack(one.payload)
    for one in ("one", "two"):
        store.delete(queue.pointers.places.key(one))
    before = store.total
    assert told(batch) == [1, 2]
    assert store.total - before == 2


@pytest.mark.parametrize("hint", ["0:1", "1:99", "x", 7, "0:x", "0:²", "0:" + "9" * 30])
def test_a_slot_that_holds_another_message_is_no_result(store, hint):
    queue = kept(store, shards=1)
    queue.publish("another")
    queue.receive()[0].ack("another's")
    batch = closed(queue, ["m"])
    queue.receive()[0].ack("its own")
    place = queue.batches.place(batch._state, 0)
    store.operate(queue.batches.blocks.key(place.batch, 0), Put("done", {0: hint}))
    assert told(batch) == ["its own"]


@pytest.mark.parametrize("at_work", [True, False])
def test_what_waits_is_told_at_the_cost_of_a_few_calls(store, at_work):
    queue = kept(store, shards=1)
    batch = closed(queue, list(range(300)))
    if at_work:
        store.operate_many([reporting(queue, WorkerReport("w", 0, 0, 1, 1, 1, 1))])
    before = store.total
    found = list(batch.results(0))
    assert {type(one.error) for one in found} == {WaitTimeout}
    assert {"no worker" in str(one.error) for one in found} == {not at_work}
    assert store.total - before <= 6


def test_a_batch_whose_last_block_cannot_be_read_is_not_taken_for_closed(store):
    queue = kept(store, shards=1)
    batch = queue.batch("b")
    batch.publish("m")
    place = queue.batches.place(batch._state, 0)
    store.operate(queue.batches.blocks.key(place.batch, 0), Put("done", "x"), exists=Exists.ANY)
    results = batch.results(0)
    assert type(next(results).error) is Corrupt
    with pytest.raises(WaitTimeout, match="is not closed"):
        next(results)
