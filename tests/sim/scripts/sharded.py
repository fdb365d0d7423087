"""The sharded queue, its sweeper and its shovel (P5)."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, suppress
from unittest import mock

from latchwork.errors import LatchworkError, LeaseLost
from latchwork.queue.sharded import active, transfer
from latchwork.queue.sharded import shards as pointers
from latchwork.queue.sharded.config import QueueConfig
from latchwork.queue.sharded.registry import QueueRegistry
from latchwork.queue.sharded.status import State
from latchwork.queue.sharded.upkeep.sweeper import Sweeper

from ..stage import Fault, Kind, Stage
from ..workload.sharded import Office, Term
from .common import rule


def queue_on(store):
    """The queue of these scripts: one shard, swept after 4 s; failed messages wait in the sideline."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("q", shards=1, sweep_duration=4, handler_timeout=1, retry=False, unsafe_limits=True)
    return QueueRegistry(store, "c", farm_id="f").create(config)


def acknowledged_by_a_stale_receipt():
    """P5: a consumer is slow, the message is handed to somebody else; then the first one acknowledges."""
    stage = Stage()

    def consumer(store):
        queue = queue_on(store)
        queue.publish("m")
        delivery = queue.receive()[0]
        queue.pointers.stamp([delivery.held.slot], "somebody else")
        with suppress(LeaseLost):
            delivery.ack()
        return "data" in stage.bins(queue.pointers.key(delivery.held.slot))

    stage.act("a", consumer)
    return stage.play().said["a"]


def producer_slower_than_the_sweep():
    """P5: reserve, a long pause, create: the slot has been claimed, its consumer died, the sweep has passed it."""
    stage = Stage({"p": {3: Fault(Kind.PAUSE, 30.0)}, "c": {3: Fault(Kind.CRASH_AFTER)}})
    stage.act("setup", queue_on)

    def leader(store):
        queue = queue_on(store)
        sweeper = Sweeper(queue.registry, Office(Term(1)))
        for _ in range(14):
            store.seams.sleep(5)
            sweeper.run_once()
        found = queue.receive(10) + queue.sideline.receive(10)
        return [delivery.payload for delivery in found]

    stage.act("p", lambda store: queue_on(store).publish("m"), after=0.1)
    stage.act("c", lambda store: queue_on(store).receive(), after=0.3)
    stage.act("s", leader, after=1.0)
    stage.play()
    acknowledged = isinstance(stage.said["p"], str)
    return not acknowledged or "m" in stage.said["s"]


def copy_that_was_written_behind_the_sweep():
    """P5.39: as before; the producer writes again, and the message is handled: no copy is said to wait behind it."""
    stage = Stage({"p": {3: Fault(Kind.PAUSE, 30.0)}, "c": {3: Fault(Kind.CRASH_AFTER)}})
    stage.act("setup", queue_on)

    def leader(store):
        queue = queue_on(store)
        sweeper, handled = Sweeper(queue.registry, Office(Term(1))), []
        for _ in range(14):
            store.seams.sleep(5)
            sweeper.run_once()
            found = queue.receive(10)
            queue.ack_many(found)
            handled += found
        return [delivery.payload for delivery in handled], queue.status(handled[-1].message_id).state

    stage.act("p", lambda store: queue_on(store).publish("m"), after=0.1)
    stage.act("c", lambda store: queue_on(store).receive(), after=0.3)
    stage.act("s", leader, after=1.0)
    return stage.play().said["s"] == (["m"], State.DONE)


def copy_that_nobody_has_claimed():
    """P5.39: the producer is paused before it writes, and nobody consumes meanwhile: the message comes once."""
    stage = Stage({"p": {3: Fault(Kind.PAUSE, 30.0)}})
    stage.act("setup", queue_on)
    stage.act("p", lambda store: queue_on(store).publish("m"), after=0.1)
    stage.act("c", lambda store: [one.payload for one in queue_on(store).receive(10)], after=40)
    return stage.play().said["c"] == ["m"]


def not_dropped():
    return mock.patch.object(transfer._Loading, "_drop")


def slot_passed_before_its_producer_writes():
    """P5: reserve, a short pause, create; in between the slot was claimed, its consumer died, and it was swept."""
    stage = Stage({"p": {3: Fault(Kind.PAUSE, 1.5)}, "c": {3: Fault(Kind.CRASH_AFTER)}})
    stage.act("setup", queue_on)

    def leader(store):
        queue = queue_on(store)
        sweeper = Sweeper(queue.registry, Office(Term(1)))
        for pause in (0.1, 5, 5, 5, 5, 5):
            store.seams.sleep(pause)
            sweeper.run_once()
        return [delivery.payload for delivery in queue.receive(10) + queue.sideline.receive(10)]

    stage.act("p", lambda store: queue_on(store).publish("m"), after=0.1)
    stage.act("c", lambda store: queue_on(store).receive(), after=0.3)
    stage.act("s", leader, after=0.6)
    stage.play()
    return isinstance(stage.said["p"], str) and stage.said["s"] == ["m"]


def claim_whose_reply_is_lost():
    """P5: one of two messages is claimed, the reply is lost; whoever asks again gets the first one."""
    stage = Stage({"c": {3: Fault(Kind.REPLY_LOST)}})
    stage.act("p", lambda store: queue_on(store).publish_many(["m", "n"]))
    stage.act("c", lambda store: [delivery.payload for delivery in queue_on(store).receive(1)], after=1)
    return stage.play().said["c"] == ["m"]


def producer_slower_than_the_consumers_grace():
    """P5: the slot is claimed while its message is still on its way; its producer publishes again."""
    stage = Stage({"p": {3: 1.0}})
    stage.act("setup", queue_on)

    def consumer(store):
        queue = queue_on(store)
        return [delivery.payload for _ in range(3) for delivery in queue.receive(1, timeout=2)]

    stage.act("p", lambda store: queue_on(store).publish("m"), after=0.1)
    stage.act("c", consumer, after=0.3)
    stage.play()
    return isinstance(stage.said["p"], str) and stage.said["c"] == ["m"]


def no_tombstones():
    return mock.patch.object(pointers.Shards, "write_tombstones", lambda self, slots, keep=0: [True] * len(slots))


def consumer_dies_while_it_rejects():
    """P5: whichever call of a rejection is the last one of its process, the message is still there."""

    def kept(call):
        stage = Stage({"c": {call: Fault(Kind.CRASH_AFTER)}})
        stage.act("p", lambda store: queue_on(store).publish("m"))
        stage.act("c", lambda store: [delivery.nack() for delivery in queue_on(store).receive(1)], after=1)
        stage.play()
        return any(stored.bins.get("data") is not None for stored in stage.server.snapshot().values())

    return all(kept(call) for call in range(3, 10))


def swept_while_a_consumer_holds_it():
    """P5: a consumer takes less than the sweep duration; meanwhile a sweep goes by."""
    stage = Stage()

    def consumer(store):
        delivery = queue_on(store).receive(1)[0]
        store.seams.sleep(2)
        delivery.ack()
        return "acknowledged"

    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("c", consumer, after=1)
    stage.act("s", lambda store: Sweeper(queue_on(store).registry, Office(Term(1))).run_once(), after=2)
    return stage.play().said["c"] == "acknowledged"


def set_back(stage, at):
    """The server's clock goes back an hour."""
    stage.world.at(at, lambda: setattr(stage.world, "server_offset", stage.world.server_offset - 3600))


def consumer_that_died_before_the_servers_clock_went_back():
    """P5: a consumer dies with a message in its hands, and the server's clock goes back: nobody waits for that hour."""
    stage = Stage()

    def leader(store):
        queue = queue_on(store)
        sweeper = Sweeper(queue.registry, Office(Term(1)))
        for _ in range(4):
            sweeper.run_once()
            store.seams.sleep(5)
        return [delivery.payload for delivery in queue.sideline.receive(10)]

    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("c", lambda store: queue_on(store).receive(1), after=1)
    set_back(stage, 1.5)
    stage.act("s", leader, after=2)
    return stage.play().said["s"] == ["m"]


def extended_between_look_and_take():
    """P5: a leader has seen a message left alone for a sweep duration; its consumer extends it; then it is taken."""
    stage = Stage({"s": {"q_SHARD_0_1 operate_many Put:delivery": [0.0, 0.0, 0.5]}})

    def consumer(store):
        delivery = queue_on(store).receive(1)[0]
        store.seams.sleep(5.4)
        delivery.extend()
        store.seams.sleep(1)
        delivery.ack()
        return "acknowledged"

    def leader(store):
        sweeper = Sweeper(queue_on(store).registry, Office(Term(1)))
        for _ in range(2):
            sweeper.run_once()
            store.seams.sleep(4.1)

    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("c", consumer, after=1)
    set_back(stage, 0.5)
    stage.act("s", leader, after=2)
    return stage.play().said["c"] == "acknowledged"


def messages_behind_a_mark_that_stays_young():
    """P5: a leader has marked what was fired, the server's clock goes back; a consumer dies with a later message."""
    stage = Stage()

    def leader(store):
        queue = queue_on(store)
        sweeper = Sweeper(queue.registry, Office(Term(1)))
        for _ in range(8):
            sweeper.run_once()
            store.seams.sleep(5)
        return [delivery.payload for delivery in queue.sideline.receive(10)]

    stage.act("p", lambda store: queue_on(store).publish_many(["m", "n"]))
    stage.act("first", lambda store: [delivery.ack() for delivery in queue_on(store).receive(1)], after=1)
    stage.act("s", leader, after=2)
    set_back(stage, 2.5)
    stage.act("c", lambda store: queue_on(store).receive(1), after=3)
    return stage.play().said["s"] == ["n"]


def earlier_leader_sweeps_after_a_later_one():
    """P5: a leader that was cut off sweeps once more after its successor has."""
    stage = Stage()

    def both(store):
        queue = queue_on(store)
        queue.publish("m")
        queue.receive(1)
        epochs = []
        for epoch in (2, 1):
            store.seams.sleep(5)
            with suppress(LatchworkError):
                Sweeper(queue.registry, Office(Term(epoch))).run_once()
            epochs.append(stage.bins(queue.registry.records.key("q")).get("epoch"))
        return epochs

    stage.act("a", both)
    return stage.play().said["a"] == [2, 2]


def waiting(store):
    """What a consumer gets that waits for 5 s, which is less than the interval of late looks."""
    return [delivery.payload for delivery in queue_on(store).receive(1, timeout=5)]


def published_while_a_consumer_looks():
    """P5: a consumer has read the pointers, and reads the bell a second later; a message comes in between."""
    stage = Stage({"c": {4: 1.0}})
    stage.act("setup", queue_on)
    stage.act("c", waiting, after=0.1)
    stage.act("p", lambda store: queue_on(store).publish("m"), after=0.6)
    return stage.play().said["c"] == ["m"]


def published_while_a_consumer_waits():
    """P5: a consumer has looked and found nothing; then a message comes."""
    stage = Stage()
    stage.act("setup", queue_on)
    stage.act("c", waiting, after=0.1)
    stage.act("p", lambda store: queue_on(store).publish("m"), after=2)
    return stage.play().said["c"] == ["m"]


@contextmanager
def no_late_looks():
    made = active.ActiveShards.__init__
    with mock.patch.object(active.ActiveShards, "__init__", lambda self, queue, _: made(self, queue, 1e9)):
        yield


def ring_that_is_lost():
    """P5: a publisher dies before its ring; who waits looks at the pointers all the same, if late."""
    stage = Stage()
    stage.act("setup", queue_on)

    def producer(store):
        queue = queue_on(store)
        queue.pointers.bell.ring_later = lambda: None
        queue.publish("m")

    def consumer(store):
        queue = queue_on(store)
        return [delivery.payload for _ in range(3) for delivery in queue.receive(1, timeout=5)]

    stage.act("c", consumer, after=0.1)
    stage.act("p", producer, after=2)
    return stage.play().said["c"] == ["m"]


def lose(stage, at, *names):
    """The store has lost these records."""

    def strike():
        for key in [key for key in stage.server._records if key.name in names]:
            del stage.server._records[key]

    stage.world.at(at, strike)


def swept_by(store, times, pause=5.0):
    """What comes to the sideline while a leader sweeps so often."""
    queue = queue_on(store)
    sweeper = Sweeper(queue.registry, Office(Term(1)))
    for _ in range(times):
        sweeper.run_once()
        store.seams.sleep(pause)
    return [delivery.payload for delivery in queue.sideline.receive(10)]


def record_lost_while_a_dead_consumers_message_waits():
    """P5: a consumer dies, a sweep sees its message, and the queue's record is lost; somebody makes the queue again."""
    stage = Stage()
    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("c", lambda store: queue_on(store).receive(1), after=0.1)
    stage.act("first", lambda store: swept_by(store, 1), after=0.2)
    lose(stage, 1, "q")
    stage.act("s", lambda store: swept_by(store, 4), after=2)
    return stage.play().said["s"] == ["m"]


def pointers_lost_below_what_was_swept():
    """P5: what was fired has been swept, the pointers are lost, and as many messages more are published and claimed."""
    stage = Stage()

    def publish(store):
        queue = queue_on(store)
        queue.publish("m")
        queue.receive(1)[0].ack()

    stage.act("p", publish)
    stage.act("first", lambda store: swept_by(store, 3), after=0.2)
    lose(stage, 18, "q_SHARD_0_POINTERS")

    def die(store):
        queue = queue_on(store)
        queue.publish("n")
        queue.receive(1)

    stage.act("c", die, after=19)
    stage.act("s", lambda store: swept_by(store, 4), after=20)
    return stage.play().said["s"] == ["n"]


RULES = [
    (
        "P5 record lost",
        record_lost_while_a_dead_consumers_message_waits,
        rule("sharded", "a queue made again is swept from FIRE"),
    ),
    ("P5 pointers lost", pointers_lost_below_what_was_swept, rule("sharded", "lost pointers are not noticed")),
    ("P5 acknowledge", acknowledged_by_a_stale_receipt, rule("sharded", "acknowledging without a guard")),
    ("P5 late create", producer_slower_than_the_sweep, rule("sharded", "a late create is acknowledged")),
    ("P5.39 swept", copy_that_was_written_behind_the_sweep, not_dropped),
    ("P5.39 unclaimed", copy_that_nobody_has_claimed, not_dropped),
    ("P5 pass", slot_passed_before_its_producer_writes, rule("sharded", "the sweep passes empty slots at once")),
    ("P5 claim", claim_whose_reply_is_lost, rule("store", "retry of an in-doubt add")),
    ("P5 tombstone", producer_slower_than_the_consumers_grace, no_tombstones),
    ("P5 fail", consumer_dies_while_it_rejects, rule("sharded", "deleted before it is loaded")),
    ("P5 abandoned", swept_while_a_consumer_holds_it, rule("sharded", "the sweep takes what a consumer holds")),
    (
        "P5 left alone",
        consumer_that_died_before_the_servers_clock_went_back,
        rule("sharded", "only what the server's clock says is abandoned"),
    ),
    ("P5 extended", extended_between_look_and_take, rule("sharded", "what was left alone is taken as it is now")),
    ("P5 mark", messages_behind_a_mark_that_stays_young, rule("sharded", "marks grow old by the server's clock")),
    ("P5 bell", published_while_a_consumer_looks, rule("sharded", "the bell is read after the pointers")),
    ("P5 ring", published_while_a_consumer_waits, rule("sharded", "a shard that was empty is not rung for")),
    ("P5 late look", ring_that_is_lost, no_late_looks),
    ("P5 epoch", earlier_leader_sweeps_after_a_later_one, rule("sharded", "sweep pointers ignore the epoch")),
]
