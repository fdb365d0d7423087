"""Batches that end: what counts, what does not, and a follow-up that comes exactly once; and what that costs."""

from __future__ import annotations

import warnings
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest

from latchwork.background import FailureLog
from latchwork.errors import (
    AlreadyExists,
    Cancelled,
    Corrupt,
    InvalidRequest,
    LatchworkError,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    RecordTooBig,
    Refused,
    Unavailable,
)
from latchwork.logs import Log
from latchwork.queue import Consumer, Outcome, Publish, QueueConfig, QueueRegistry, ShovelConfig, State
from latchwork.queue.sharded import queue as queue_file
from latchwork.queue.sharded import stream
from latchwork.queue.sharded.batches.blocks import BLOCK, BatchPlace, Blocks, place_of_text
from latchwork.queue.sharded.publishing import batch as batch_file
from latchwork.queue.sharded.publishing import batch_end
from latchwork.queue.sharded.upkeep.ending import AGAIN, DISCOVER, LOOK, WHOLE, Ending
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.queue.sharded.upkeep.upkeep import upkeep_of
from latchwork.store import Key, MemoryStore, Put
from latchwork.store.rows import Rows
from latchwork.testing.clock import ManualClock
from latchwork.testing.everywhere import inject_everywhere
from latchwork.testing.stores import CountingStore, Crash, FaultyStore
from latchwork.testing.upkeep import bring_back
from tests.queue.sharded.delayed.test_delayed import Term, run_until
from tests.support import struck

NEXT = {"next": "load"}


class Farms:
    """What the upkeep of one process knows of."""

    def __init__(self, *queues):
        self.found = queues

    def queues(self):
        return list(self.found)

    def failure_log(self):
        return FailureLog(self.found[0].store.seams, Log(__name__))


def upkeep(*queues, passes=2):
    """What the leader does, as often as anything is to be done."""
    ending = Ending(Farms(*queues))
    for _ in range(passes):
        pause = ending.run(Term())
    return pause


def queue_on(store, name="q", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry = QueueRegistry(store, "c", farm_id="f")
        return registry.create(QueueConfig(name, **{"retry": False, "shards": 2, **options}))


def drain(view, n=1000):
    """The payloads of everything that can be received, which is acknowledged."""
    found = []
    while more := view.receive(n):
        found += [delivery.payload for delivery in more]
        view.ack_many(more)
    return found


@pytest.fixture
def queue(world):
    return world.process().queue


@pytest.fixture
def alone():
    return queue_on(MemoryStore(ManualClock()))


@pytest.fixture
def left_to_the_leader(monkeypatch):
    """Whoever acknowledges the last message, or closes a batch that is done, dies before it does more."""
    for module in (batch_file, queue_file):
        monkeypatch.setattr(module, "end_done", lambda *_: None)


left = pytest.mark.usefixtures("left_to_the_leader")

# ---- what a batch is for


def test_the_follow_up_comes_once_after_the_last_message_is_done(queue):
    with queue.batch("load-7", then=Publish(NEXT, headers={"h": "1"})) as batch:
        batch.publish("a")
        batch.publish_many(["b", "c"], keys=["x", None])
    first, *others = queue.receive(10)
    queue.ack_many(others)
    upkeep(queue)
    assert not batch.wait(0)
    assert queue.receive(10) == []
    first.ack()
    assert batch.wait(0)
    assert batch.progress().ended, "nobody leads, and nobody has to"
    upkeep(queue)
    upkeep(queue)
    (follow,) = queue.receive(10)
    assert (follow.payload, follow.headers) == (NEXT, {"h": "1"})
    follow.ack()
    progress = batch.progress()
    assert (progress.published, progress.done, progress.waiting, progress.complete, progress.ended) == (
        3,
        3,
        0,
        True,
        True,
    )


def test_a_batch_waits_for_a_handler_that_was_asked_to_stop_though_a_copy_of_its_message_was_written_too_late():
    """The dropped copy was taken for the message, which was said to be discarded: the follow-up came too early."""
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock), seams=clock)
    queue = queue_on(store)
    batch = queue.batch("b", then=Publish(NEXT))
    store.plan = {store._number + 3: lambda: clock.advance(queue.pointers.sweep / 2 + 1)}  # before its create
    message_id = batch.publish("a")
    batch.close()
    (delivery,) = queue.receive(10)
    assert queue.cancel(message_id) is Outcome.ASKED
    upkeep(queue)
    assert not batch.wait(0)
    assert drain(queue) == []
    delivery.ack()
    assert batch.wait(0)
    assert batch.progress().done == 1
    assert drain(queue) == [NEXT]


def test_nothing_follows_before_the_batch_is_closed(alone):
    batch = alone.batch("b", then=Publish(NEXT))
    batch.publish("a")
    assert drain(alone) == ["a"]
    upkeep(alone)
    assert not batch.wait(0)
    assert drain(alone) == []
    batch.close()
    assert drain(alone) == [NEXT]


def test_an_empty_batch_ends_as_it_is_closed(alone):
    with alone.batch("b", then=Publish(NEXT)) as batch:
        assert batch.publish_many([]) == []
    assert batch.wait(0)
    assert drain(alone) == [NEXT]


def test_a_batch_without_a_follow_up_is_there_to_be_waited_for(alone):
    with alone.batch("b") as batch:
        batch.publish("a")
    assert drain(alone) == ["a"]
    assert batch.wait(0)
    assert batch.progress().ended
    assert alone.batches.names() == {}


def test_a_message_without_a_batch_looks_in_the_store_and_costs_as_ever():
    store = CountingStore(MemoryStore(ManualClock()))
    queue = queue_on(store)
    store.reset()
    queue.publish("a")
    assert store.total == 2
    (delivery,) = queue.receive(1)
    (bins,) = [record.bins for key, record in store.inner._records.items() if key.set == "c_data_set"]
    assert set(bins) == {"data", "msgId", "attempts", "enqueuedAt", "modified_at", "v", "delivery", "fireTS"}
    store.reset()
    delivery.ack()
    assert store.total == 1
    assert not [key for key in store.inner._records if key.set == "c_batch_set"]


# ---- what counts


def test_a_message_that_is_delivered_again_counts_once(world):
    queue = world.process().queue
    with queue.batch("b", then=Publish(NEXT)) as batch:
        batch.publish_many(["a", "b"])
    dead, *_ = queue.receive(10)
    world.lapse()
    world.process().sweeper().run_once()
    world.lapse()
    world.process().sweeper().run_once()
    with suppress(LeaseLost):
        dead.ack()  # too late: somebody else's, but its handler ended well
    assert batch.progress().done == 1
    for view in (queue, queue.sideline):
        for delivery in view.receive(10):
            delivery.ack()
    assert batch.progress().done == 2
    assert batch.wait(0)


def test_a_worker_that_dies_between_its_mark_and_its_delete_is_counted_once(world):
    process = world.process()
    with process.queue.batch("b") as batch:
        batch.publish("a")
    worker = world.process()
    (delivery,) = worker.queue.receive(1)
    worker.fails([2], "crash_before")
    with pytest.raises(Crash):
        delivery.ack()
    assert batch.progress().done == 1, "marked, and not deleted"
    world.recover()
    assert batch.progress().done == 1
    assert batch.wait(0)


def test_a_message_that_could_not_be_counted_stays(world):
    process = world.process()
    with process.queue.batch("b") as batch:
        batch.publish_many(["a", "b"])
    worker = world.process()
    deliveries = worker.queue.receive(10)
    worker.fails(range(1, 30), "dropped")
    with pytest.raises(LatchworkError):
        worker.queue.ack_many(deliveries)
    assert batch.progress().done == 0
    world.recover()
    assert batch.progress().done == 2


def test_a_message_whose_batch_alone_cannot_be_written_is_not_deleted(queue, monkeypatch):
    with queue.batch("b") as batch:
        batch.publish_many(["a", "b"])
    deliveries = queue.receive(10)
    with monkeypatch.context() as patched:
        patched.setattr(Blocks, "mark", lambda _, places, __: ([Unavailable("away")] * len(places), set()))
        with pytest.raises(Unavailable):
            queue.ack_many(deliveries)
    queue.ack_many(deliveries)
    assert batch.progress().done == 2


def test_many_messages_of_many_batches_are_acknowledged_together(queue):
    batches = [queue.batch(f"b{n}") for n in range(3)]
    for n, batch in enumerate(batches):
        batch.publish_many([n] * (n + 1))
        batch.close()
    queue.publish("other")
    assert sorted(map(str, drain(queue))) == ["0", "1", "1", "2", "2", "2", "other"]
    assert [batch.progress().done for batch in batches] == [1, 2, 3]
    assert all(batch.wait(0) for batch in batches)


def test_a_batch_of_more_messages_than_a_block_has(queue):
    n = 2 * BLOCK + 3
    with queue.batch("b", then=Publish(NEXT)) as batch:
        batch.publish_many(list(range(n)))
    seen, some = 0, queue.receive(BLOCK)
    while some:
        queue.ack_many(some)
        seen += len(some)
        progress = batch.progress()
        assert (progress.published, progress.done, progress.complete) == (n, seen, seen == n)
        some = queue.receive(BLOCK) if seen < n else []
    assert batch.wait(0)
    assert drain(queue) == [NEXT], "though it is not the last block that is done last"


def test_no_record_of_a_batch_grows_with_it(alone):
    with alone.batch("b") as batch:
        for _ in range(3):
            batch.publish_many(list(range(BLOCK)))
    assert len(drain(alone)) == 3 * BLOCK
    records = [record.bins for key, record in alone.store._records.items() if key.set == "c_batch_set"]
    assert len(records) == 2 + 3
    assert max(len(repr(bins)) for bins in records) < 10 * BLOCK


def test_groups_are_not_waited_for(queue):
    group = queue.group("audit")
    with queue.batch("b") as batch:
        batch.publish_many(["a", "b"])
    assert sorted(drain(group)) == ["a", "b"]
    assert batch.progress().done == 0
    failing = queue.group("billing", start="oldest")
    assert failing.receive(10) == [] or failing.receive(10) == []
    assert sorted(drain(queue)) == ["a", "b"]
    assert batch.wait(0)
    for one in queue.groups():
        one.drop()


def test_a_copy_that_failed_in_a_group_is_none_of_the_batch(queue):
    group = queue.group("audit")
    with queue.batch("b") as batch:
        batch.publish("a")
    (delivery,) = group.receive(1)
    delivery.nack()
    (copy,) = group.sideline.receive(1)
    copy.ack()
    assert batch.progress().done == 0
    assert drain(queue) == ["a"]
    assert batch.wait(0)
    group.drop()


def test_a_stream_that_acknowledges_counts_too(queue):
    with queue.batch("b") as batch:
        batch.publish_many(["a", "b", "c"], key="k")
    owner = stream.take(queue.pointers, "s")
    for state in queue.pointers.states():
        stream.acknowledge(queue.pointers, owner, state.shard, state.loaded)
    assert batch.progress().done == 3
    stream.release(queue.pointers, owner)


def test_a_stream_does_not_count_what_went_on_from_its_slot(queue):
    """A message with a kept id that failed is in the sideline; in its slot only the id is left."""
    with queue.batch("b") as batch:
        batch.publish("a", dedup="d")
    (delivery,) = queue.receive(1)
    delivery.nack()
    owner = stream.take(queue.pointers, "s")
    stream._discard(queue.pointers, delivery.shard, [delivery.pointer])
    assert batch.progress().done == 0
    stream.release(queue.pointers, owner)


# ---- what happens to messages


def test_a_parked_message_is_named_until_it_is_brought_back(alone):
    queue = queue_on(alone.store, "p", max_deliveries=1, shovel=ShovelConfig(1))
    with queue.batch("b", then=Publish(NEXT)) as batch:
        batch.publish_many(["a", "b"], message_ids=["one", "two"])
    for delivery in queue.receive(10):
        if delivery.payload == "a":
            delivery.ack()
    world_passes(queue)
    assert batch.missing() == ["two"]
    progress = batch.progress()
    assert (progress.done, progress.parked, progress.waiting) == (1, 1, 0)
    upkeep(queue)
    assert queue.parked.redrive(["two"]) == {"two": Outcome.DONE}
    assert batch.missing() == []
    assert drain(queue) == ["b", NEXT]


def world_passes(queue):
    """Bring what is in nobody's hands to the sideline and back, until it is parked."""
    for _ in range(3):
        bring_back(queue)
        queue.receive(10)


@pytest.mark.parametrize("by", ["id", "message"])
def test_what_is_discarded_is_waited_for_no_more(queue, by):
    with queue.batch("b", then=Publish(NEXT)) as batch:
        batch.publish_many(["a", "b"], message_ids=["one", "two"])
    for delivery in queue.receive(10):
        if delivery.payload == "a":
            delivery.nack()
        else:
            delivery.ack()
    assert not batch.wait(0)
    found = queue.sideline.search()
    assert queue.sideline.discard(["one"] if by == "id" else found) == {"one": Outcome.DONE}
    progress = batch.progress()
    assert (progress.done, progress.discarded, progress.waiting) == (1, 1, 0)
    upkeep(queue)
    assert drain(queue) == [NEXT]


def test_a_discard_that_was_interrupted_is_completed_by_the_same_call():
    def prepare(store):
        queue = queue_on(store)
        with queue.batch("b") as batch:
            batch.publish("a", message_id="one")
        queue.receive(1)[0].nack()

    def discard(store, _):
        queue_on(store).sideline.discard(["one"])

    def check(store):
        assert queue_on(store).batch("b").progress().waiting == 0

    faults = struck.faults("a discard of a batch's message")
    report = inject_everywhere(discard, prepare=prepare, check=check, faults=faults)
    assert not report.troubles, report


def test_a_message_that_is_redriven_is_not_taken_for_discarded(queue):
    with queue.batch("b") as batch:
        batch.publish("a", message_id="one")
    queue.receive(1)[0].nack()
    assert queue.sideline.redrive(["one"]) == {"one": Outcome.DONE}
    queue.sideline.discard(["one"])
    assert batch.progress().discarded == 0
    assert drain(queue) == ["a"]
    assert batch.wait(0)


def test_what_is_moved_to_another_queue_is_waited_for_no_more(alone):
    other = queue_on(alone.store, "other")
    with alone.batch("b") as batch:
        batch.publish("a", message_id="one")
        batch.publish("later", message_id="two", delay=60)
    alone.receive(1)[0].nack()
    assert alone.sideline.move(["one"], other) == {"one": Outcome.DONE}
    assert alone.delayed.move(["two"], other) == {"two": Outcome.DONE}
    assert batch.progress().discarded == 2
    assert drain(other) == ["a"]
    assert batch.wait(0)
    assert batch.progress().done == 0, "it is none of the batch there"


def test_a_move_that_was_interrupted_is_completed_by_the_same_call():
    def prepare(store):
        queue_on(store, "other")
        queue = queue_on(store)
        with queue.batch("b") as batch:
            batch.publish("a", message_id="one")
        queue.receive(1)[0].nack()

    def move(store, _):
        queue = queue_on(store)
        outcomes = queue.sideline.move(["one"], queue_on(store, "other"))
        if outcomes["one"] is Outcome.UNKNOWN:
            raise OutcomeUnknown("so it is done once more")

    def check(store):
        queue = queue_on(store)
        store.seams.advance(3_600)  # whoever has taken it died
        queue.sideline.move(["one"], queue_on(store, "other"))
        assert queue.batch("b").progress().waiting == 0

    faults = struck.faults("a move of a batch's message")
    report = inject_everywhere(move, prepare=prepare, check=check, faults=faults)
    assert not report.troubles, report


def test_a_delayed_message_is_waited_for_and_counts(alone):
    with alone.batch("b") as batch:
        batch.publish("a", delay=60)
    clock = alone.store.seams
    run_until(Timers(Farms(alone)), clock, 30)
    assert batch.progress().waiting == 1
    run_until(Timers(Farms(alone)), clock, 40)
    (delivery,) = alone.receive(1)
    delivery.nack(delay=5)
    run_until(Timers(Farms(alone)), clock, 10)
    assert drain(alone) == ["a"]
    assert batch.wait(0)


def test_a_delayed_message_that_is_cancelled_is_waited_for_no_more(queue):
    with queue.batch("b") as batch:
        batch.publish_many(["a", "b"], message_ids=["one", "two"], delay=600)
    assert queue.cancel("one")
    assert batch.progress().discarded == 1
    assert queue.delayed.discard(["two"]) == {"two": Outcome.DONE}
    assert batch.wait(0)


@pytest.mark.long
def test_a_cancel_whose_process_died_is_completed_when_the_message_would_be_due():
    def prepare(store):
        with queue_on(store).batch("b") as batch:
            batch.publish("a", message_id="one", delay=60)

    def cancel(store, _):
        queue_on(store).cancel("one")

    def check(store):
        queue = queue_on(store)
        run_until(Timers(Farms(queue)), store.seams, 70)
        assert drain(queue) == []
        assert queue.batch("b").progress().waiting == 0

    report = inject_everywhere(cancel, prepare=prepare, check=check)
    assert not report.troubles, report


def test_a_cancelled_message_leaves_its_batch_though_the_store_fails_as_it_would_be_due(alone, monkeypatch):
    with alone.batch("b") as batch:
        batch.publish_many(["a", "b"], message_ids=["one", "two"], delay=60)
    take_out, failing = Blocks.take_out, [Unavailable("no answer")] * 3

    def fails_at_first(*arguments):
        if failing:
            raise failing.pop()
        take_out(*arguments)

    monkeypatch.setattr(Blocks, "take_out", fails_at_first)
    assert alone.cancel("one")
    run_until(Timers(Farms(alone)), alone.store.seams, 80)
    assert failing == []
    assert batch.progress().discarded == 1
    assert drain(alone) == ["b"], "the others are published once, beside it"
    assert batch.wait(0)


def test_a_damaged_block_of_a_batch_holds_up_no_delayed_message(alone, monkeypatch):
    with alone.batch("b") as batch:
        batch.publish("a", message_id="one", delay=60)

    def fails(*_):
        raise Corrupt("flipped bytes")

    monkeypatch.setattr(Blocks, "take_out", fails)
    assert alone.cancel("one")
    alone.publish("later", delay=61)
    run_until(Timers(Farms(alone)), alone.store.seams, 80)
    assert drain(alone) == ["later"]
    buckets = [key for key in alone.store._records if key.name.startswith("B/") and key.set.endswith("_delay_set")]
    assert [alone.store.get(key).bins["ids"] for key in buckets] == [{}, {}]


def test_what_expires_is_waited_for_and_nothing_follows(alone):
    queue = queue_on(alone.store, "e", message_expiry=60, queue_expiry=3_600)
    with queue.batch("b", then=Publish(NEXT)) as batch:
        batch.publish("a")
    queue.store.seams.advance(100)
    upkeep(queue)
    assert drain(queue) == []
    progress = batch.progress()
    assert (progress.waiting, progress.complete) == (1, False)


# ---- publishing


def test_a_key_whose_message_is_of_no_batch_or_another_counts_there(queue):
    outside = queue.publish("o", dedup="outside")
    other = queue.batch("other")
    elsewhere = other.publish("e", dedup="elsewhere")
    with queue.batch("b") as batch:
        assert batch.publish_many(["x", "y", "z"], dedups=["outside", "elsewhere", "mine"])[:2] == [outside, elsewhere]
        with pytest.raises(AlreadyExists):
            batch.publish("z", dedup="mine", on_duplicate="raise")
    assert batch.progress().published == 1
    assert sorted(drain(queue)) == ["e", "o", "z"]
    assert (batch.progress().done, other.progress().done) == (1, 1)
    assert batch.wait(0)


def test_a_key_of_a_publish_that_failed_counts_once_it_is_published(world):
    process = world.process()
    batch = process.queue.batch("b")
    failing = world.process()
    mine = failing.queue.batch("b")
    failing.fails([4, 5, 6], "reply_lost")  # the messages themselves
    with suppress(LatchworkError):
        mine.publish("a", dedup="k", message_id="first")
    assert batch.publish("a", dedup="k", message_id="second") in ("first", "second")
    batch.close()
    assert batch.progress().published == 1
    assert not batch.wait(0)
    assert drain(process.queue) == ["a"]
    assert batch.wait(0)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_publish_whose_reply_is_lost_at_any_of_its_first_calls_counts_once(alone, call):
    store = FaultyStore(alone.store, seams=alone.store.seams)
    mine = queue_on(store).batch("b")
    store.plan = {store._number + call: "reply_lost"}
    with mine:
        assert len(mine.publish_many(["a", "b"])) == 2
    assert mine.progress().published == 2
    assert sorted(drain(alone)) == ["a", "b"]
    assert mine.wait(0)


def test_an_entry_that_another_publisher_completes_has_the_first_ones_place(alone):
    """Whoever completes it has a place of its own, which would be waited for in vain."""
    store = FaultyStore(alone.store, seams=alone.store.seams)
    dying = queue_on(store).batch("b")
    store.plan = {store._number + 4: "crash_before"}  # begin, look, reserve: the entry is made, the message is not
    with suppress(Crash):
        dying.publish("a", dedup="k")
    store.plan = {store._number + 5: "crash_before"}
    store.dead = False
    with suppress(Crash):
        dying.publish("a", dedup="k2")
    with alone.batch("b") as batch:
        batch.publish_many(["a", "a"], dedups=["k", "k2"])
    assert batch.progress().published == 2
    assert drain(alone) == ["a", "a"]
    assert batch.progress().done == 2
    assert batch.wait(0)


def test_nothing_is_reserved_for_what_cannot_be_published(alone):
    batch = alone.batch("b")
    for bad in (lambda: batch.publish(object()), lambda: batch.publish_many("text"),
                lambda: batch.publish_many([1], keys=["a", "b"]), lambda: batch.publish_many([1], dedups=[]),
                lambda: batch.publish("x" * 9_000_000)):  # fmt: skip
        with pytest.raises((InvalidRequest, RecordTooBig)):
            bad()
    assert batch.progress().published == 0
    assert not alone.batches.read("b").open


def too_far(queue):
    return datetime.fromtimestamp(queue.store.seams.wall(), timezone.utc) + timedelta(days=800)


def test_what_is_refused_as_it_is_stored_leaves_nothing_open(alone):
    batch = alone.batch("b")
    with pytest.raises(InvalidRequest):
        batch.publish("never", at=too_far(alone))
    assert not alone.batches.read("b").open
    batch.publish("a")
    batch.close()
    assert drain(alone) == ["a"]
    assert batch.wait(0)


def test_what_is_in_doubt_stays_so_though_its_batch_cannot_be_written(alone, monkeypatch):
    def failing(failure):
        def call(*_):
            raise failure

        return call

    batch = alone.batch("b")
    monkeypatch.setattr(batch_file, "store_messages", failing(OutcomeUnknown("no reply")))
    monkeypatch.setattr(alone.batches.__class__, "confirm", failing(Unavailable("away")))
    with pytest.raises(OutcomeUnknown, match="no reply"):
        batch.publish("a")


def test_a_deactivated_queue_takes_no_message_and_the_batch_goes_on(alone):
    batch = alone.batch("b")
    batch.publish("a")
    alone.registry.deactivate("q")
    with pytest.raises(Refused):
        batch.publish("b")
    batch.close()
    assert drain(alone) == ["a"]
    assert batch.wait(0)


def test_what_is_done_while_others_take_it_out_counts_once(alone, monkeypatch):
    """Without the sizes in the guard it would be done and out, and the batch would end one message early."""
    batch = alone.batch("b", then=Publish(NEXT))
    batch.publish_many(["a", "b"])
    blocks, place = alone.batches.blocks, alone.batches.place(batch._state, 0)
    read = blocks.store.get_many

    def done_meanwhile(*args, **options):
        found = read(*args, **options)
        monkeypatch.undo()
        blocks.mark([place])
        return found

    monkeypatch.setattr(blocks.store, "get_many", done_meanwhile)
    blocks.take_out([place])
    batch.close()
    assert (batch.progress().published, batch.progress().done) == (2, 1)
    assert not batch.wait(0)


def test_whoever_vouches_while_others_take_it_out_is_heard(alone, monkeypatch):
    batch = alone.batch("b")
    batch.publish("a")
    blocks, place = alone.batches.blocks, alone.batches.place(batch._state, 0)
    read = blocks.store.get_many

    def vouched_meanwhile(*args, **options):
        found = read(*args, **options)
        monkeypatch.undo()
        blocks.vouch([place])
        return found

    monkeypatch.setattr(blocks.store, "get_many", vouched_meanwhile)
    blocks.take_out([place])
    assert batch.progress().published == 1
    blocks.take_out([place])
    assert batch.progress().published == 1


# ---- closing


def test_closing_again_changes_nothing(alone):
    batch = alone.batch("b")
    batch.close()
    first = alone.batches.read("b").closed
    alone.store.seams.advance(5)
    batch.close()
    alone.batch("b").close()
    assert alone.batches.read("b").closed == first


def test_publishing_after_the_close_is_refused(queue):
    batch = queue.batch("b")
    batch.close()
    with pytest.raises(Refused, match="closed"):
        batch.publish("late")
    with pytest.raises(Refused, match="closed"):
        queue.batch("b").publish_many(["late"])
    assert queue.receive(10) == []


def test_a_publisher_that_was_overtaken_by_the_close_is_told(world, monkeypatch):
    process = world.process()
    batch = process.queue.batch("b", then=Publish(NEXT))
    stored = batch_file.QueueBatch._stored

    def closed_meanwhile(self, messages, terms):
        outcomes = stored(self, messages, terms)
        world.process().queue.batch("b").close()
        return outcomes

    monkeypatch.setattr(batch_file.QueueBatch, "_stored", closed_meanwhile)
    with pytest.raises(Refused) as refused:
        batch.publish("a", message_id="one")
    assert refused.value.details["published"] == ["one"]
    assert batch.wait(0), "it is not waited for"
    assert drain(process.queue).count("a") == 1
    assert batch.wait(0)
    assert batch.progress().done == 1


def test_an_exception_in_the_block_leaves_the_batch_open(alone):
    with suppress(KeyError), alone.batch("b", then=Publish(NEXT)) as batch:
        batch.publish("a")
        raise KeyError
    assert drain(alone) == ["a"]
    upkeep(alone)
    assert not batch.wait(0)
    batch.publish("b")
    batch.close()
    assert drain(alone) == ["b", NEXT]
    assert batch.wait(0)


def test_a_close_that_cannot_be_listed_is_refused_until_it_can(alone):
    batch = alone.batch("b", then=Publish(NEXT))

    def list_instead(*names):
        alone.store.operate(alone.batches.index, Put("names", dict.fromkeys(names, 0)))

    many = [str(n) for n in range(1_000)]
    list_instead(*many)
    with pytest.raises(Refused, match="close it again"):
        batch.close()
    list_instead()
    batch.close()
    upkeep(alone)
    assert drain(alone) == [NEXT]
    list_instead(*many)
    batch.close()  # it has ended


# ---- the follow-up


@left
def test_a_batch_whose_end_could_not_be_noted_is_listed_until_it_is(monkeypatch):
    class Busy(CountingStore):
        busy = False

        def _operate(self, update):
            if self.busy and update.key.name.startswith("B/"):
                raise Unavailable("the record is busy")
            return super()._operate(update)

        def _operate_many(self, updates):
            busy = [self.busy and update.key.name.startswith("B/") for update in updates]
            rows = iter(super()._operate_many([one for one, is_busy in zip(updates, busy, strict=True) if not is_busy]))
            return [Unavailable("the record is busy") if is_busy else next(rows) for is_busy in busy]

    store = Busy(MemoryStore(ManualClock()))
    queue = queue_on(store)
    with queue.batch("b", then=Publish(NEXT)) as batch:
        pass
    follow = batch_end.follow

    def followed(*given):
        follow(*given)
        store.busy = True

    with monkeypatch.context() as patch:
        patch.setattr(batch_end, "follow", followed)
        upkeep(queue)
    store.busy = False
    assert drain(queue) == [NEXT]
    store.seams.advance(AGAIN + 1)
    upkeep(queue)
    assert drain(queue) == []
    assert batch.progress().ended
    assert not queue.batches.names()


def test_what_keeps_the_follow_up_away_fails_no_acknowledgement(alone):
    other = queue_on(alone.store, "other")
    with alone.batch("b", then=Publish(NEXT, queue="other")) as batch:
        batch.publish("a")
    alone.registry.deactivate("other")
    assert drain(alone) == ["a"], "no error"
    assert not batch.progress().ended
    other = queue_on(alone.store, "other")
    alone.registry.refresh()
    upkeep(alone)
    assert drain(other) == [NEXT]


def test_the_follow_up_goes_where_it_is_told(alone):
    other = queue_on(alone.store, "other", codec="bytes")
    with alone.batch("b", then=Publish(b"\x00", queue="other", key="customer")):
        pass
    upkeep(alone)
    (follow,) = other.receive(1)
    assert (follow.payload, follow.shard) == (b"\x00", other.shard_of("customer"))
    with pytest.raises(NotFound):
        alone.batch("c", then=Publish(1, queue="nowhere"))


@left
def test_a_follow_up_whose_queue_is_deactivated_is_tried_again_later(alone):
    other = queue_on(alone.store, "other")
    with alone.batch("b", then=Publish(NEXT, queue="other")):
        pass
    alone.registry.deactivate("other")
    ending = Ending(Farms(alone))
    ending.run(Term())
    other = queue_on(alone.store, "other")
    alone.registry.refresh()
    assert ending.run(Term()) == DISCOVER, "not at once"
    alone.store.seams.advance(AGAIN)
    ending.run(Term())
    assert drain(other) == [NEXT]


@pytest.mark.parametrize("given", ["x", -1, 2**31, 2**62])
def test_a_batch_that_does_not_know_how_many_messages_it_has_does_not_end(alone, given):
    batch = alone.batch("b", then=Publish(NEXT))
    batch.publish("a")
    alone.store.operate(alone.batches.key("b"), Put("next", given))
    with pytest.raises(Corrupt):
        batch.close()
    assert drain(alone) == ["a"], "and nothing follows, nor is counted for hours"
    upkeep(alone)
    assert drain(alone) == []


@pytest.mark.parametrize(
    "given",
    [
        {"me": [3, 2**40]}, {"me": [2**40, 3]}, {"me": [3, float("inf")]}, {"me": [3, 0]}, {"me": [3]}, {1: [3, 1]}, 7,
        {"me": [3, 3], "you": [3, 3]},
    ],
)  # fmt: skip
def test_a_batch_of_which_ordinals_are_open_that_it_never_gave_out_is_damaged_at_once(alone, given):
    """It had 2**40 of them listed one by one, by each leader in turn."""
    batch = alone.batch("b", then=Publish(NEXT))
    batch.publish_many(["a", "b", "c"])
    with alone.batch("other", then=Publish("other")):
        pass
    alone.store.operate(alone.batches.key("b"), Put("open", given), Put("closed", 1))
    with pytest.raises(Corrupt):
        batch.close()
    upkeep(alone)
    assert sorted(drain(alone)) == ["a", "b", "c", "other"], "and nothing follows"


def test_ordinals_that_are_open_at_the_close_are_taken_out_a_few_at_a_time(alone, monkeypatch):
    monkeypatch.setattr("latchwork.queue.sharded.batches.records.STEP", 1)
    batch = alone.batch("b", then=Publish(NEXT))
    alone.batches.begin(batch._state, 3 * BLOCK)
    most = []
    monkeypatch.setattr(Blocks, "take_out", lambda self, places, *bin: most.append(len(places)))
    batch.close()
    assert most == [BLOCK] * 3


def test_a_leader_that_waits_for_many_messages_asks_for_few_blocks(alone):
    store = CountingStore(alone.store)
    queue = queue_on(store)
    batch = queue.batch("b", then=Publish(NEXT))
    batch.publish("a")
    batch.close()
    store.operate(queue.batches.key("b"), Put("next", 10_000_000))
    ending = Ending(Farms(queue))
    ending.run(Term())
    store.reset()
    assert ending.run(Term()) == LOOK
    assert store.total <= 3
    assert sum(store.rows.values()) <= 3
    assert not batch.wait(0)


@left
def test_one_damaged_batch_keeps_no_other_from_its_end(alone):
    with alone.batch("a", then=Publish("a")), alone.batch("b", then=Publish("b")):
        pass
    alone.store.operate(alone.batches.key("a"), Put("life", "x"))
    upkeep(alone)
    assert drain(alone) == ["b"]
    with pytest.raises(Corrupt):
        alone.batch("a")


def test_the_upkeep_of_a_consumer_publishes_it_within_seconds(clock):
    store = MemoryStore(clock)
    queue = queue_on(store)
    seen = []
    with Consumer(queue, lambda delivery: seen.append(delivery.payload)):
        duties = upkeep_of(queue.registry)._duties
    assert any(isinstance(duty, Ending) for duty in duties)


# ---- names, and how long a batch lives


@pytest.mark.parametrize("life", [60.2, 61, timedelta(minutes=1, microseconds=1)])
def test_a_batch_lives_for_no_less_than_was_asked(alone, life):
    alone.batch("b", life=life)
    assert alone.store.get(alone.batches.key("b")).ttl == 61


def test_a_name_is_used_once_until_its_records_expire(alone):
    batch = alone.batch("b", then=Publish(NEXT), life=600)
    assert alone.batch("b").name == "b"
    with pytest.raises(AlreadyExists):
        alone.batch("b", then=Publish("another"))
    batch.publish("a")
    alone.store.seams.advance(300)
    batch.publish("a")  # which does not renew it
    alone.store.seams.advance(301)
    with pytest.raises(NotFound):
        batch.wait(1)
    with pytest.raises(NotFound):
        batch.publish("a")
    again = alone.batch("b", then=Publish("another"))
    assert drain(alone) == ["a", "a"], "acknowledgements go on"
    again.close()
    assert again.progress().published == 0, "the messages of the one before are none of it"
    upkeep(alone)
    assert drain(alone) == ["another"]


def test_the_index_forgets_what_has_expired_but_not_what_is_being_made(alone):
    alone.batch("old", life=60)
    alone.store.seams.advance(61)
    upkeep(alone)
    assert list(alone.batches.names()) == ["old"], "somebody may be making it"
    alone.store.seams.advance(3_600)
    alone.batch("new")
    upkeep(alone)
    assert list(alone.batches.names()) == ["new"]


def test_a_batch_is_found_by_name_and_not_made(alone):
    with pytest.raises(NotFound):
        alone.batch("b", create=False)
    alone.batch("b").publish("a")
    assert alone.batch("b", create=False).progress().published == 1


def test_no_more_batches_than_a_thousand_are_open_at_a_time(alone, monkeypatch):
    for n in range(1_000):
        alone.batch(str(n))
    with pytest.raises(Refused, match="1000 batches"):
        alone.batch("one more")
    alone.batch("7").close()
    upkeep(alone)
    alone.batch("one more")


@pytest.mark.parametrize(
    "bad",
    [
        lambda queue: queue.batch(""),
        lambda queue: queue.batch("x" * 129),
        lambda queue: queue.batch(7),
        lambda queue: queue.batch("b", life=0),
        lambda queue: queue.batch("b", life=timedelta(days=800)),
        lambda queue: queue.batch("b", then="next"),
        lambda queue: queue.batch("b", then=Publish(object())),
        lambda queue: queue.batch("b", then=Publish("x" * 70_000)),
        lambda queue: queue.batch("b", then=Publish("x", headers={"a": 1})),
        lambda queue: queue.batch("b", then=Publish("x", key=7)),
        lambda queue: queue.batch("b").wait(-1),
    ],
)
def test_bad_input_is_refused(alone, bad):
    with pytest.raises(InvalidRequest):
        bad(alone)


def test_a_group_has_no_batches(alone):
    with pytest.raises(InvalidRequest):
        alone.group("g").batch("b")


@pytest.mark.parametrize("text", ["", "q", "q/b/t", "q/b/t/x/1", "q/b/t/1/-1", "q/b/t/1/1.5", "q/b/t/1/" + "9" * 30])
def test_a_damaged_place_is_none(text):
    assert place_of_text(text) is None


def test_a_place_is_read_as_it_was_written():
    place = BatchPlace("a%2Fb/c/t", 60, 7)
    assert place_of_text(place.text) == place


def test_a_message_whose_place_is_damaged_is_delivered_and_acknowledged(alone):
    with alone.batch("b") as batch:
        batch.publish("a")
    (key,) = [key for key in alone.store._records if key.set == "c_data_set"]
    alone.store.operate(Key(*key), Put("batch", 7))
    (delivery,) = alone.receive(1)
    assert delivery.headers == {"latchwork-damaged": "batch"}
    delivery.ack()
    assert not batch.wait(0)


def test_nothing_secret_is_in_a_repr():
    assert "hunter2" not in repr(Publish("hunter2", headers={"t": "hunter2"}))


# ---- what it costs


def test_what_batches_cost():
    store = CountingStore(MemoryStore(ManualClock()))
    queue = queue_on(store)
    costs = {}

    def cost(what, call):
        store.reset()
        found = call()
        costs[what] = store.total
        return found

    batch = cost("make", lambda: queue.batch("b"))
    cost("join", lambda: queue.batch("b"))
    cost("publish one", lambda: batch.publish("a"))
    cost("publish hundreds", lambda: batch.publish_many(list(range(399))))
    (one,) = cost("receive one", lambda: queue.receive(1))
    cost("acknowledge one", one.ack)
    *others, last = cost("receive hundreds", lambda: queue.receive(399))
    cost("acknowledge hundreds", lambda: queue.ack_many(others))
    cost("close", batch.close)
    cost("acknowledge the last", last.ack)
    cost("wait", lambda: batch.wait(0))
    cost("progress", batch.progress)
    other = queue.batch("c")
    other.publish("a")
    cost("cancel", other.cancel)
    cost("a leader without batches", lambda: Ending(Farms(queue_on(MemoryStore(ManualClock())))).run(Term()))
    assert costs == {
        "make": 1, "join": 2, "publish one": 4, "publish hundreds": 4, "acknowledge one": 2, "acknowledge hundreds": 2,
        "receive one": 5, "receive hundreds": 4, "close": 3, "acknowledge the last": 6, "wait": 2, "progress": 3,
        "cancel": 2, "a leader without batches": 0,
    }  # fmt: skip


def test_a_leader_asks_all_queues_in_one_call_and_whole_blocks_once():
    store = CountingStore(MemoryStore(ManualClock()))
    queues = [queue_on(store, f"q{n}") for n in range(5)]
    ending = Ending(Farms(*queues))
    store.reset()
    assert ending.run(Term()) == DISCOVER
    assert store.total == 1
    with queues[0].batch("b") as batch:
        batch.publish_many(list(range(3 * BLOCK)))
    done = queues[0].receive(3 * BLOCK)
    queues[0].ack_many([one for one in done if one.payload < 2 * BLOCK])
    assert ending.run(Term()) == LOOK
    store.reset()
    assert ending.run(Term()) == LOOK
    assert (store.total, sum(store.rows.values())) == (3, 5 + 1 + 1)


# ---- cancelled


def test_nothing_of_a_cancelled_batch_is_handed_out_and_nothing_follows(queue):
    with queue.batch("b", then=Publish(NEXT)) as batch:
        batch.publish_many(["a", "b", "c"])
    queue.publish("other")
    (first,) = queue.receive(1)
    assert batch.cancel()
    assert drain(queue) == ["other"]
    first.extend()
    with pytest.raises(Cancelled, match="was cancelled"):
        first.check()
    first.ack()
    upkeep(queue)
    assert drain(queue) == []
    progress = batch.progress()
    assert (progress.cancelled, progress.closed, progress.ended) == (True, True, True)
    with pytest.raises(Cancelled, match="not all of it was done"):
        batch.wait(0)
    assert batch.cancel(), "again: it is"
    assert queue.list_batches() == []


@pytest.mark.parametrize("state", ["ready", "running", "retrying"])
def test_a_message_of_a_cancelled_batch_is_gone_and_not_done(alone, state):
    queue = queue_on(alone.store, "r", retry=True, backoff=1, results=timedelta(hours=1))
    batch = queue.batch("b")
    of = batch.publish("m")
    held = queue.receive(1) if state != "ready" else []
    if state == "retrying":
        held.pop().nack()
    assert batch.cancel()
    if held:  # as its consumer does once the handler has raised
        queue.drop_cancelled(held)
    run_until(Timers(Farms(queue)), queue.store.seams, 5)
    assert drain(queue) == []
    for _ in range(2):
        status = queue.status(of)
        assert (status.state, status.cancelled) == (State.GONE, True)
        with pytest.raises(Cancelled, match="was cancelled"):
            queue.result(of, 0)
        assert queue.cancel(of) is Outcome.NOT_THERE


def test_what_is_put_off_or_parked_goes_as_a_consumer_comes_to_it(alone):
    queue = queue_on(alone.store, "p", max_deliveries=1, retry=True)
    batch = queue.batch("b")
    batch.publish("later", delay=5)
    batch.publish("parked")
    queue.receive(1)[0].nack()
    assert batch.progress().parked == 1
    assert batch.cancel()
    run_until(Timers(Farms(queue)), queue.store.seams, 6)
    assert drain(queue) == drain(queue.parked) == []
    progress = batch.progress()
    assert (progress.discarded, progress.waiting) == (2, 0)


def test_a_batch_that_is_being_followed_is_not_cancelled_and_one_that_is_cancelled_is_not_followed(alone, monkeypatch):
    batch = alone.batch("b", then=Publish(NEXT))
    batch.publish("a")
    follow, cancelled = batch_end.follow, []

    def late(*given, **named):
        cancelled.append(batch.cancel())
        follow(*given, **named)

    monkeypatch.setattr(batch_end, "follow", late)
    batch.close()
    assert drain(alone) == ["a", NEXT]
    assert cancelled == [Outcome.NOT_THERE]
    other = alone.batch("c", then=Publish(NEXT))
    other.publish("a")
    state = other._records.close(other._state)
    other.cancel()
    batch_end.end(alone, state, 0)
    assert drain(alone) == []


def test_publishing_into_a_cancelled_batch_is_refused(alone):
    batch = alone.batch("b")
    batch.publish("a")
    batch.cancel()
    with pytest.raises(Refused, match="was cancelled"):
        batch.publish("b")


def test_a_cancel_that_was_interrupted_is_completed_by_the_same_call():
    def prepare(store):
        queue_on(store).batch("b", then=Publish(NEXT)).publish("a")

    def cancel(store, _):
        assert queue_on(store).batch("b").cancel()

    def check(store):
        queue = queue_on(store)
        upkeep(queue)
        assert drain(queue) == queue.list_batches() == []
        assert queue.batch("b").progress().cancelled

    faults = struck.faults("a cancel of a batch")
    report = inject_everywhere(cancel, prepare=prepare, check=check, faults=faults)
    assert not report.troubles, report


def test_where_it_cannot_be_asked_whether_a_batch_was_cancelled_nothing_is_handed_out(alone, monkeypatch):
    batch = alone.batch("b")
    batch.publish("a")
    with monkeypatch.context() as patch:
        patch.setattr(Blocks, "cancelled", lambda *_: (_ for _ in ()).throw(Unavailable("away")))
        with pytest.raises(Unavailable):
            alone.receive(1)
    (one,) = alone.receive(1)
    assert (one.payload, one.attempts) == ("a", 1)


def test_a_group_gets_the_messages_of_a_cancelled_batch(queue):
    group = queue.group("g")
    batch = queue.batch("b")
    batch.publish("a")
    batch.cancel()
    assert drain(queue) == []
    assert drain(group) == ["a"]


# ---- parked


def test_what_is_published_on_parked_comes_once_however_many_are_parked_and_who_looks(alone):
    queue = queue_on(alone.store, "p", max_deliveries=1, retry=True)
    with queue.batch("b", then=Publish(NEXT), on_parked=Publish("parked")) as batch:
        batch.publish_many(["a", "b", "c"])
    ending = Ending(Farms(queue))
    ending.run(Term())
    assert queue.depth().ready == 3, "nothing is parked"
    done, *failed = queue.receive(3)
    done.ack()
    for one in failed:
        one.nack()
        ending.run(Term())
        Ending(Farms(queue)).run(Term())
    assert drain(queue) == ["parked"]
    queue.parked.redrive([failed[0].message_id])
    queue.receive(1)[0].nack()
    ending.run(Term())
    assert drain(queue) == []
    queue.parked.discard(batch.missing())
    ending.run(Term())
    assert drain(queue) == [NEXT], "what follows comes as ever"


def test_a_message_that_is_parked_late_where_others_were_looked_at_is_found_within_a_minute(alone, monkeypatch):
    queue = queue_on(alone.store, "p", max_deliveries=1, retry=True, shards=1)
    queue.publish_many(["other", "other"])
    batch = queue.batch("b", on_parked=Publish("parked"))
    batch.publish("a")
    *others, late = queue.receive(3)
    for one in (others[0], late, others[1]):
        one.nack()
    parked, look = queue.parked.pointers, queue.parked.pointers.look
    ending = Ending(Farms(queue))

    def before_it_was_there(slots):
        return Rows([None if slot.pointer == 2 else one for slot, one in zip(slots, look(slots), strict=True)])

    with monkeypatch.context() as patch:
        patch.setattr(parked, "look", before_it_was_there)
        ending.run(Term())
    ending.run(Term())
    assert drain(queue) == []
    queue.store.seams.advance(WHOLE)
    ending.run(Term())
    assert drain(queue) == ["parked"]


def test_a_batch_that_cannot_tell_of_a_parked_message_keeps_no_other_from_it_and_is_tried_again(alone):
    queue, _ = (queue_on(alone.store, name, max_deliveries=1, retry=True, shards=1) for name in ("p", "away"))
    for name, publish in (("a", Publish("parked a", queue="away")), ("b", Publish("parked b"))):
        queue.batch(name, on_parked=publish).publish(name)
        queue.receive(1)[0].nack()
    alone.registry.deactivate("away")
    ending = Ending(Farms(queue))
    ending.run(Term())
    assert drain(queue) == ["parked b"]
    away = queue_on(alone.store, "away", max_deliveries=1, retry=True, shards=1)
    ending.run(Term())
    assert (drain(away), drain(queue)) == (["parked a"], [])


def test_another_on_parked_is_refused(alone):
    alone.batch("b", on_parked=Publish("x"))
    alone.batch("b")
    with pytest.raises(AlreadyExists, match="with another follow-up"):
        alone.batch("b", on_parked=Publish("y"))
    with pytest.raises(InvalidRequest, match="on_parked is 3"):
        alone.batch("c", on_parked=3)
