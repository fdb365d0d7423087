"""Steps that fail, of themselves or as the store is away (P5): a consumer's hand is open to the queue, whatever a step
of it raises; and it settles, or settles again, only what is still its own.
"""

from __future__ import annotations

from contextlib import suppress

from latchwork.coord import RateLimiter
from latchwork.errors import LeaseLost, Unavailable
from latchwork.queue import Consumer, Sweeper
from latchwork.queue.sharded.consumer import settlements
from latchwork.queue.sharded.consumer.settlements import Settlements
from latchwork.queue.sharded.consumer.state import ConsumerState
from latchwork.queue.sharded.envelope import Reason
from latchwork.queue.sharded.subqueue import Subqueue

from ..stage import Fault, Kind, Stage
from ..workload.sharded import Office, Term
from .common import patched, rule
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


def a_failure_that_is_settled_late():
    """P5.38: the store was away as a message was to be failed; by the time it is back, another consumer has it."""
    stage, verdict = Stage(), (Reason.EXCEPTION, "no")

    def fails(store):
        queue = queue_on(store)
        (delivery,) = queue.receive(1)
        mine = Settlements(queue, ConsumerState("c", queue, None))
        mine._let_go([delivery], [Unavailable("the store is away")], [verdict])
        queue.pointers.stamp([delivery.held.slot], "the sweep's, and then another one's")
        mine.settle_again(now=True)
        depth = queue.depth()
        return depth.delayed + depth.sideline

    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("c", fails, after=0.5)
    return stage.play().said["c"] == 0


def a_failure_after_a_pause():
    """P5.40: a consumer is paused with a message until a sweep has moved it; then its handler fails."""
    stage = Stage()

    def fails(store):
        queue = queue_on(store)
        (delivery,) = queue.receive(1)
        store.seams.sleep(10)
        with suppress(LeaseLost):
            delivery.nack()
        depth = queue.depth()
        return depth.ready + depth.delayed

    stage.act("p", lambda store: queue_on(store).publish("m"))
    stage.act("c", fails, after=0.5)
    stage.act("s", lambda store: Sweeper(queue_on(store).registry, Office(Term(1))).run_once(), after=6)
    return stage.play().said["c"] == 1


RULES = [
    (
        "P5.31",
        the_limiter_cannot_be_asked,
        rule("rate", "a defect leaves what was claimed in nobody's hand"),
    ),
    (
        "P5.38",
        a_failure_that_is_settled_late,
        patched(settlements, "_still_ours", lambda _: True),
    ),
    (
        "P5.40",
        a_failure_after_a_pause,
        patched(Subqueue, "_may_be_swept", lambda *_: False),
    ),
]
