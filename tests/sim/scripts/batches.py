"""Batches that are cancelled, and that tell of a parked message (P18)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from unittest import mock

from msgspec.structs import replace as replace_struct

from latchwork.background import FailureLog
from latchwork.errors import LeaseLost, WaitTimeout
from latchwork.logs import Log
from latchwork.queue import Outcome, Publish, QueueConfig, QueueRegistry, State, Status
from latchwork.queue.sharded import shards
from latchwork.queue.sharded.batches import records
from latchwork.queue.sharded.hooks import RowsBeside
from latchwork.queue.sharded.publishing import batch_results as results
from latchwork.queue.sharded.status import Found
from latchwork.queue.sharded.upkeep import ending
from latchwork.queue.sharded.upkeep.ending import Ending
from latchwork.store import missing
from latchwork.store.rows import Rows

from ..stage import Fault, Kind, Stage
from ..workload.sharded import Term
from .common import patched

NEXT, PARKED = "next", "parked"


def queue_on(store):
    """The queue of these scripts: one shard, and one attempt for a message."""
    return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=1, max_deliveries=1))


def batch_on(store):
    """The batch of these scripts."""
    return queue_on(store).batch("b", then=Publish(NEXT), on_parked=Publish(PARKED))


def publishes(store):
    """A batch of one message, closed."""
    with batch_on(store) as batch:
        batch.publish("m")


def comes(store):
    """What is in the queue."""
    return [message.payload for message in queue_on(store).peek_all()]


def cancelled_before_it_is_followed():
    """P18.11: who acknowledges the last message finds the batch done; then it is cancelled."""
    stage = Stage({"c": {"Put:ending": 1.0}})
    stage.act("p", publishes)
    stage.act("c", lambda store: queue_on(store).receive(1)[0].ack(), after=0.5)
    stage.act("x", lambda store: queue_on(store).batch("b").cancel(), after=1)
    stage.act("s", comes, after=5)
    stage.play()
    return stage.said["x"] is Outcome.DONE and stage.said["s"] == []


def cancelled_as_it_is_followed():
    """P18.11: the follow-up is on its way as the batch is cancelled."""
    stage = Stage({"c": {"q/batch": 1.0}})
    stage.act("p", publishes)
    stage.act("c", lambda store: queue_on(store).receive(1)[0].ack(), after=0.5)
    stage.act("x", lambda store: queue_on(store).batch("b").cancel(), after=1)
    stage.act("s", comes, after=5)
    stage.play()
    return stage.said["x"] is Outcome.NOT_THERE and stage.said["s"] == [NEXT]


class OneQueue:
    """What a leader knows of."""

    def __init__(self, store):
        self.queue = queue_on(store)

    def queues(self):
        return [self.queue]

    def failure_log(self):
        return FailureLog(self.queue.store.seams, Log(__name__))


def told_by_two_leaders():
    """P18.13: a message is parked, and two leaders see that at the same moment."""
    stage = Stage()
    stage.act("p", publishes)
    stage.act("c", lambda store: queue_on(store).receive(1)[0].nack(), after=0.5)
    for name in "ab":
        stage.act(name, lambda store: Ending(OneQueue(store)).run(Term(1)), after=1)
    stage.act("s", comes, after=5)
    return stage.play().said["s"] == [PARKED]


def told_without_ledger(queue, state):
    queue.publish(PARKED)
    queue.batches.note_told(state)


# ---- results


def asked_on(store, **options):
    """The queue of these scripts that keeps results."""
    config = QueueConfig("asked", shards=1, results=3_600, **options)
    return QueueRegistry(store, "c", farm_id="f").create(config)


def told(batch, timeout):
    """Of each message its result, or the code of its error."""
    return [one.error.code if one.error else one.value for one in batch.results(timeout)]


def answers(store):
    """Acknowledge each message that comes, with its payload."""
    for one in asked_on(store).receive(10, timeout=5):
        one.ack(one.payload)


def named_with_its_message():
    """P18.14: its publisher dies once the message is there, before it confirms; another completes it by its key."""
    stage = Stage({"p": {"MapRemove:open": Fault(Kind.CRASH_BEFORE)}})

    def publishes_again(store):
        with asked_on(store).batch("b") as batch:
            batch.publish("m", dedup="k")

    stage.act("p", lambda store: asked_on(store).batch("b").publish("m", dedup="k"))
    stage.act("c", answers, after=1)
    stage.act("q", publishes_again, after=2)
    stage.act("r", lambda store: told(asked_on(store).batch("b"), 0), after=4)
    return stage.play().said["r"] == ["m"]


def vouched_for_while_they_are_read():
    """P18.15: the first publisher has died, and its message is vouched for once somebody has begun to read."""
    stage = Stage({"p": {"MapRemove:open": Fault(Kind.CRASH_BEFORE)}})

    def publishes_again(store):
        with asked_on(store).batch("b") as batch:
            batch.publish_many(["m", "n"], dedups=["k", "l"])

    stage.act("p", lambda store: asked_on(store).batch("b").publish("m", dedup="k"))
    stage.act("r", lambda store: told(asked_on(store).batch("b"), 20), after=1)
    stage.act("q", publishes_again, after=2)
    stage.act("c", answers, after=3)
    return stage.play().said["r"] == ["m", "n"]


def closed_while_they_are_read():
    """P18.15: somebody begins before the batch is closed, at once; a call ends after that, and then it is closed."""
    stage = Stage({"p": {"MapRemove:open": 3.0}})

    def reads_slowly(store):
        found = []
        try:
            for one in asked_on(store).batch("b").results(0):
                found.append(one.state.value)
                store.seams.sleep(5)
        except WaitTimeout:
            found.append("more")
        return found

    stage.act("p", lambda store: asked_on(store).batch("b").publish("m"))
    stage.act("q", lambda store: asked_on(store).batch("b").publish("n"), after=1)
    stage.act("r", reads_slowly, after=2)
    stage.act("x", lambda store: asked_on(store).batch("b").close(), after=5)
    return stage.play().said["r"] == ["ready", "more"]


def counted_and_not_acknowledged_yet():
    """P18.16: the mark is there, and the acknowledgement is on its way."""
    stage = Stage({"c": {"Put:result": 3.0}})

    def publishes_one(store):
        with asked_on(store).batch("b") as batch:
            batch.publish("m")

    stage.act("p", publishes_one)
    stage.act("c", answers, after=1)
    stage.act("r", lambda store: told(asked_on(store).batch("b"), 20), after=2)
    return stage.play().said["r"] == ["m"]


def acknowledged_while_it_is_looked_for():
    """P18.17: a worker of an earlier version deletes the message after the block was read."""
    stage = Stage({"r": {"asked_SHARD_0_1": [2.0]}})

    def publishes_one(store):
        with asked_on(store).batch("b") as batch:
            batch.publish("m")

    def deletes(store):
        queue = asked_on(store)
        queue.pointers.results = 0
        queue.receive()[0].ack()

    stage.act("p", publishes_one)
    stage.act("r", lambda store: [one.state.value for one in asked_on(store).batch("b").results(0)], after=1)
    stage.act("c", deletes, after=2)
    return stage.play().said["r"] == ["done"]


def counted_by_the_wrong_slot():
    """P18.18: an acknowledgement that comes too late counts the message last, in a slot that it has left."""
    stage = Stage()

    def publishes_one(store):
        with asked_on(store, retry=False).batch("b") as batch:
            batch.publish("m", message_id="m")

    def held_too_long(store):
        (held,) = asked_on(store, retry=False).receive()
        replace_struct(held).nack()
        store.seams.sleep(3)
        with suppress(LeaseLost):
            held.ack("late")

    def brings_back(store):
        queue = asked_on(store, retry=False)
        queue.sideline.redrive(["m"])
        queue.receive()[0].ack("m")

    stage.act("p", publishes_one)
    stage.act("a", held_too_long, after=1)
    stage.act("b", brings_back, after=2)
    stage.act("r", lambda store: told(asked_on(store, retry=False).batch("b"), 0), after=6)
    return stage.play().said["r"] == ["m"]


def without_names(_):
    return RowsBeside({})


def as_if_closed(self, state, number, *, real=records.BatchRecords.look):
    now, *parts = real(self, state, number)
    return replace(now, closed=1, settled=True), *parts


def as_read_before(self, state, number, *, real=records.BatchRecords.look, read={}):  # noqa: B006 - it remembers
    return read.setdefault((id(self), number), real(self, state, number))


def by_its_mark_alone(finds):
    return Rows(Found(Status(State.UNKNOWN), None, {}) for _ in finds)


def never_early():
    """What was read before the batch was closed is forgotten."""
    never = property(lambda _: False, lambda *_: None)
    return mock.patch.object(results.BatchResults, "_early", never, create=True)


RULES = [
    ("P18.14", named_with_its_message, patched(shards, "RowsBeside", without_names)),
    ("P18.15", vouched_for_while_they_are_read, patched(records.BatchRecords, "look", as_if_closed)),
    ("P18.15 early", closed_while_they_are_read, never_early),
    ("P18.16", counted_and_not_acknowledged_yet, patched(results, "may_come", lambda *_: False)),
    ("P18.17", acknowledged_while_it_is_looked_for, patched(records.BatchRecords, "look", as_read_before)),
    ("P18.18", counted_by_the_wrong_slot, patched(results, "find_messages", by_its_mark_alone)),
    ("P18.11 follow", cancelled_before_it_is_followed, patched(records, "_MAY_FOLLOW", records._SAME)),
    ("P18.11 cancel", cancelled_as_it_is_followed,
     patched(records, "_MAY_CANCEL", records._SAME & missing("ended"))),
    ("P18.13", told_by_two_leaders, patched(ending, "tell_parked", told_without_ledger)),
]  # fmt: skip
