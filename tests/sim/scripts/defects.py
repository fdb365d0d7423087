"""Steps that fail of themselves (P5): a consumer's hand is open to the queue, whatever a step of it raises."""

from __future__ import annotations

from latchwork.coord import RateLimiter
from latchwork.queue import Consumer

from ..stage import Fault, Kind, Stage
from .common import rule
from .interrupted import queue_on


def consumed(store, **options):
    """The attempts of the messages that a consumer has begun with, in less than a sweep duration."""
    seen = []
    queue = queue_on(store)
    consumer = Consumer(queue, lambda one: seen.append(one.attempts), concurrency=1, upkeep=False, **options).start()
    store.seams.sleep(3)
    consumer.stop()
    return seen


def the_limiter_cannot_be_asked():
    """P5.31: a consumer has claimed a message; then the step that asks its limiter raises."""
    stage = Stage({"a": {"limit-of-q": Fault(Kind.DEFECT)}})
    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("a", lambda store: consumed(store, rate=RateLimiter(store, "limit-of-q", 10, 1.0)), after=0.5)
    return stage.play().said["a"] == [1] and stage.plan.struck["a", "limit-of-q"] == 1


RULES = [
    (
        "P5.31",
        the_limiter_cannot_be_asked,
        rule("rate", "a defect leaves what was claimed in nobody's hand"),
    ),
]
