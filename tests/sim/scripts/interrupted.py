"""Interrupted work (P5): messages that a consumer gives back as it stops, and the consumers that take them back."""

from __future__ import annotations

import warnings

from latchwork.queue import Consumer
from latchwork.queue.sharded.config import QueueConfig
from latchwork.queue.sharded.registry import QueueRegistry
from latchwork.queue.sharded.upkeep.sweeper import Sweeper

from ..stage import Fault, Kind, Stage
from ..workload.sharded import Office, Term
from .common import rule

TAKE = "Put:fireTS Add:attempts Put:interrupted"
"""The stamp of what was given back."""
GIVE = "Put:interrupted Put:delivery"


def queue_on(store):
    """The queue of these scripts: one shard, swept after 4 s; failed messages come back by themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("q", shards=1, sweep_duration=4, handler_timeout=1, unsafe_limits=True)
    return QueueRegistry(store, "c", farm_id="f").create(config)


def gives_back(store):
    """A consumer that stops with a message in hand."""
    queue = queue_on(store)
    deliveries = queue.receive(1)
    queue.interrupting(deliveries)
    return queue.give_back(deliveries)


def receives(store, timeout=0):
    """The payload and the attempt of each message that a consumer gets."""
    return [(delivery.payload, delivery.attempts) for delivery in queue_on(store).receive(1, timeout=timeout)]


def two_consumers_read_one_entry():
    """P5.22: both have read the entry; the first takes the message, then the second tries to."""
    stage = Stage({"b": {TAKE: 0.5}})

    def first(store):
        (delivery,) = queue_on(store).receive(1)
        store.seams.sleep(1)
        delivery.ack()
        return delivery.payload

    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("a", gives_back, after=0.5)
    stage.act("b", receives, after=1)
    stage.act("c", first, after=1.01)
    stage.play()
    return stage.said["b"] == [] and stage.said["c"] == "m"


def taken_back_by_a_repeat():
    """P5.22: a consumer takes the message back and gives it back again; then its stamp comes once more."""
    stage = Stage({"b": {TAKE: Fault(Kind.DUPLICATE, 1.0)}})
    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("a", gives_back, after=0.5)
    stage.act("b", gives_back, after=1)
    stage.act("c", receives, after=3)
    return stage.play().said["c"] == [("m", 1)]


def looked_for_while_it_is_given_back():
    """P5.23: a consumer waits; the message is freed a second after its consumer began to give it back."""
    stage = Stage({"a": {GIVE: 1.0}})
    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("a", gives_back, after=0.5)
    stage.act("c", lambda store: receives(store, timeout=5), after=0.6)
    return stage.play().said["c"] == [("m", 1)]


def given_back_twice():
    """P5.24: the second attempt is given back, and the reply is lost."""
    stage = Stage({"b": {GIVE: Fault(Kind.REPLY_LOST)}})

    def leader(store):
        sweeper = Sweeper(queue_on(store).registry, Office(Term(1)))
        for _ in range(4):
            sweeper.run_once()
            store.seams.sleep(5)

    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("a", receives, after=0.5)
    stage.act("s", leader, after=1)
    stage.act("b", gives_back, after=30)
    stage.act("c", receives, after=35)
    return stage.play().said["c"] == [("m", 2)]


def given_back_again_before_the_entry_goes():
    """P5.25: the message is taken back and given back again; then the removal of the first entry comes once more."""
    stage = Stage({"b": {"MapRemove:returned": Fault(Kind.DUPLICATE, 1.0)}})
    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("a", gives_back, after=0.5)
    stage.act("b", gives_back, after=1)
    stage.act("c", receives, after=3)
    return stage.play().said["c"] == [("m", 1)]


def swept_before_anybody_looks():
    """P5, sweep: a message that was given back is moved to the tail; its slot is not listed any more."""
    stage = Stage()

    def leader(store):
        queue = queue_on(store)
        sweeper = Sweeper(queue.registry, Office(Term(1)))
        for _ in range(4):
            sweeper.run_once()
            store.seams.sleep(5)
        return [state.returned for state in queue.pointers.states()]

    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("a", gives_back, after=0.5)
    stage.act("s", leader, after=1)
    return not any(stage.play().said["s"])


def killed_after_the_stop_began():
    """P5.26: a consumer stops, and its process is killed before its handler has ended."""
    stage = Stage()

    def consumer(store):
        consumer = Consumer(queue_on(store), lambda delivery: store.seams.sleep(100), upkeep=False)
        consumer.start()
        store.seams.sleep(0.3)
        consumer.stop(100)

    def leader(store):
        queue = queue_on(store)
        sweeper = Sweeper(queue.registry, Office(Term(1)))
        for _ in range(4):
            sweeper.run_once()
            store.seams.sleep(5)
        return [(delivery.attempts, delivery.reason) for delivery in queue.receive(1)]

    stage.act("p", lambda store: queue_on(store).publish("m"))
    killed = stage.act("c", consumer, after=0.1)
    stage.world.at(0.8, killed.die)
    stage.act("s", leader, after=1)
    return stage.play().said["s"] == [(1, "interrupted")]


RULES = [
    ("P5.22", two_consumers_read_one_entry, rule("retry", "taken back whoever has it")),
    ("P5.22 giver", taken_back_by_a_repeat, rule("retry", "taken back whoever gave it back")),
    ("P5.23", looked_for_while_it_is_given_back, rule("retry", "listed before it is free")),
    ("P5.24", given_back_twice, rule("retry", "one attempt less, each time")),
    ("P5.25", given_back_again_before_the_entry_goes, rule("retry", "an entry is removed whoever put it there")),
    ("P5 swept entry", swept_before_anybody_looks, rule("retry", "the sweep leaves entries of what it moves")),
    ("P5.26", killed_after_the_stop_began, rule("retry", "not marked as the stop begins")),
]
