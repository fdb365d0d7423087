"""Batches that are cancelled, and that tell of a parked message (P18)."""

from __future__ import annotations

from latchwork.background import FailureLog
from latchwork.logs import Log
from latchwork.queue import Outcome, Publish, QueueConfig, QueueRegistry
from latchwork.queue.sharded.batches import records
from latchwork.queue.sharded.upkeep import ending
from latchwork.queue.sharded.upkeep.ending import Ending
from latchwork.store import missing

from ..stage import Stage
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


RULES = [
    ("P18.11 follow", cancelled_before_it_is_followed, patched(records, "_MAY_FOLLOW", records._SAME)),
    ("P18.11 cancel", cancelled_as_it_is_followed,
     patched(records, "_MAY_CANCEL", records._SAME & missing("ended"))),
    ("P18.13", told_by_two_leaders, patched(ending, "tell_parked", told_without_ledger)),
]  # fmt: skip
