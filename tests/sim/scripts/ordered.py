"""Ordered consumers of a sharded queue (P5)."""

from __future__ import annotations

import warnings

from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry

from ..stage import Fault, Kind, Stage
from .common import rule

SWEEP = 1500.0
"""Seconds of the sweep duration: nothing is swept within a script."""


def queue_on(store):
    """The queue of these scripts: one shard, whose messages are handled by threes, or as many as come in 20 s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig(
            "q", shards=1, sweep_duration=SWEEP, handler_timeout=60, batching=BatchingConfig(3, 20), unsafe_limits=True
        )
    return QueueRegistry(store, "c", farm_id="f").create(config)


def handled_by(store, seconds):
    """What an ordered consumer has handled after so many seconds, in the order in which it was."""
    seen = []

    def handle(deliveries):
        seen.extend(delivery.payload for delivery in deliveries)

    consumer = Consumer(queue_on(store), handle, concurrency=1, ordered=True, upkeep=False).start()
    store.seams.sleep(seconds)
    consumer.stop()
    return seen


def renewal_that_is_longer_under_way_than_the_lease():
    """P5: a consumer has claimed and not handled; the lock was lost, then its renewal comes, and is believed no more.

    A second message was published in between. Given back, the lock would be had by whoever has not seen it broken, and
    so takes nothing over.
    """
    stage = Stage({"c": {"Add:renewals": 11.0}})

    def publisher(store):
        queue = queue_on(store)
        queue.publish("m", key="k")
        store.seams.sleep(12)
        queue.publish("n", key="k")

    stage.act("p", publisher)
    stage.act("c", lambda store: handled_by(store, 90), after=1)
    return stage.play().said["c"] == ["m", "n"]


def first_of_two_that_cannot_be_read():
    """P5: two messages are claimed at once, and the store answers for the second one only, as often as it is asked."""
    stage = Stage({"c": {"q_SHARD_0_1 ": [Fault(Kind.ROW)] * 3}})
    stage.act("p", lambda store: queue_on(store).publish_many(["m", "n"], key="k"))
    stage.act("c", lambda store: handled_by(store, 60), after=1)
    return stage.play().said["c"] == ["m", "n"]


def claim_of_a_dead_holder_that_comes_late():
    """P5: a holder's claim is under way for 44 s; it has died, and its successor is at work, when the claim arrives."""
    late = [Fault(Kind.LATE, 44.0), *[Fault(Kind.DROPPED)] * 99]
    stage = Stage({"a": {"Put:claimed-from": late}})

    def publisher(store):
        queue = queue_on(store)
        queue.publish("m", key="k")
        store.seams.sleep(36)
        queue.publish("n", key="k")

    def successor(store):
        seen = []

        def handle(deliveries):
            store.seams.sleep(25)  # the second message and the claim come meanwhile
            seen.extend(delivery.payload for delivery in deliveries)

        consumer = Consumer(queue_on(store), handle, concurrency=1, ordered=True, upkeep=False).start()
        store.seams.sleep(200)
        consumer.stop()
        return seen

    stage.act("p", publisher)
    holder = stage.act("a", lambda store: handled_by(store, 500), after=1)
    stage.act("b", successor, after=2)
    stage.world.at(3.0, holder.die)
    return stage.play().said["b"] == ["m", "n"]


RULES = [
    (
        "P5 ordered, late renewal",
        renewal_that_is_longer_under_way_than_the_lease,
        rule("ordered", "given back by a late renewal"),
    ),
    (
        "P5 ordered, behind",
        first_of_two_that_cannot_be_read,
        rule("ordered", "what is behind a message on its way is given out"),
    ),
    (
        "P5 ordered, late claim",
        claim_of_a_dead_holder_that_comes_late,
        rule("ordered", "claims of a former holder count"),
    ),
]
