"""One message at a time in a sideline (P5)."""

from __future__ import annotations

from contextlib import suppress

from latchwork.errors import LatchworkError
from latchwork.queue import Outcome

from ..stage import Fault, Kind, Stage
from .common import rule
from .sharded import queue_on


def _sidelined(store):
    queue = queue_on(store)
    queue.publish("m", message_id="m")
    queue.receive()[0].nack()


def _of_the_queue(store):
    return [delivery.payload for delivery in queue_on(store).receive(10)]


def discarded_while_a_consumer_has_it():
    """P5: somebody looks for the message, and before they discard it a consumer receives it, and acknowledges it."""
    stage = Stage({"o": {"Put:taken": 2.0}})

    def consumer(store):
        delivery = queue_on(store).sideline.receive()[0]
        store.seams.sleep(3)
        delivery.ack()
        return "acknowledged"

    stage.act("p", _sidelined)
    stage.act("o", lambda store: queue_on(store).sideline.discard(["m"])["m"], after=1)
    stage.act("c", consumer, after=1.5)
    stage.play()
    return (stage.said["o"], stage.said["c"]) == (Outcome.NOT_THERE, "acknowledged")


def brought_back_by_two():
    """P5: two bring one message back, and the first one is slow to load it."""
    stage = Stage({"a": {"Add:LOAD_POINTER": 1.0}})
    stage.act("p", _sidelined)
    for name, after in (("a", 1), ("b", 1.3)):
        stage.act(name, lambda store: queue_on(store).sideline.redrive(["m"])["m"], after=after)
    stage.act("c", _of_the_queue, after=5)
    return stage.play().said["c"] == ["m"]


def dies_while_it_brings_a_message_back():
    """P5: somebody dies before the message is in its queue: it is where it was."""
    stage = Stage({"o": {"Add:LOAD_POINTER": Fault(Kind.CRASH_BEFORE)}})

    def bring(store):
        with suppress(LatchworkError):
            queue_on(store).sideline.redrive(["m"])

    stage.act("p", _sidelined)
    stage.act("o", bring, after=1)
    stage.act("c", lambda store: [d.payload for d in queue_on(store).sideline.receive(10)], after=3)
    return stage.play().said["c"] == ["m"]


RULES = [
    ("P5 one, received", discarded_while_a_consumer_has_it, rule("sharded", "what somebody has received is discarded")),
    ("P5 one, two", brought_back_by_two, rule("sharded", "two bring a message back at once")),
    ("P5 one, load", dies_while_it_brings_a_message_back, rule("sharded", "gone here before it is there")),
]
