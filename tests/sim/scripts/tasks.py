"""Functions as tasks, in a deploy that changes their parameters (P29)."""

from __future__ import annotations

from latchwork.errors import InvalidRequest
from latchwork.queue import QueueConfig, QueueRegistry, Worker
from latchwork.queue.sharded.consumer import worker as worker_file
from latchwork.queue.sharded.tasks import signature
from latchwork.queue.sharded.tasks.signature import Signature, report

from ..stage import Stage
from .common import patched


def old(to: str) -> None:
    """What the workers run that are there."""


def new(to: str, subject: str = "") -> None:
    """What the deploy brings."""


def worker_on(store, function):
    """A worker of this function."""
    registry = QueueRegistry(store, "c", farm_id="f")
    registry.create(QueueConfig("q", shards=1))
    made = Worker(registry, upkeep=False)
    return made, made.task("q", concurrency=1)(function)


def publishes(store):
    """What comes of a call of the new function: its error, or the number of messages that are stored."""
    made, task = worker_on(store, new)
    try:
        task.publish("ada", subject="hi")
    except InvalidRequest as refused:
        return str(refused)
    return made.registry.get("q").depth().ready


def reports(store, function):
    """A worker that has reported."""
    made, task = worker_on(store, function)
    report(made.registry.get("q"), task.stored_signature)


def published_as_a_worker_begins():
    """P29.1: an old worker takes its first message; a second later somebody publishes a new call."""
    stage = Stage()

    def works(store):
        made, _ = worker_on(store, old)
        made.start()
        store.seams.sleep(3)
        made.stop(0)

    stage.act("w", works)
    stage.act("p", publishes, after=1)
    return "would not understand" in str(stage.play().said["p"])


def published_in_a_rolling_deploy():
    """P29.2: one worker is new already, another one is not."""
    stage = Stage()
    stage.act("w", lambda store: reports(store, old))
    stage.act("v", lambda store: reports(store, new), after=5)
    stage.act("p", publishes, after=6)
    return "would not understand" in str(stage.play().said["p"])


def published_with_a_wrong_type():
    """P29.3: the caller gives a number where the function takes text."""
    stage = Stage()

    def publishes_a_number(store):
        made, task = worker_on(store, new)
        try:
            task.publish(7)
        except InvalidRequest:
            return made.registry.get("q").depth().ready
        return None

    stage.act("p", publishes_a_number)
    return stage.play().said["p"] == 0


def read_by_a_former_worker():
    """P29.4: a new call has come to an old worker nevertheless, as one that had not reported."""
    stage = Stage()

    def handles(store):
        made, task = worker_on(store, old)
        (delivery,) = made.registry.get("q").receive(1)
        try:
            task.handle(delivery)
        except InvalidRequest as refused:
            return str(refused)
        return None

    stage.act("p", publishes)
    stage.act("w", handles, after=1)
    return "unknown field" in str(stage.play().said["w"])


def what_was_given(self, args, kwargs):
    return dict(self._signature.bind(*args, **kwargs).arguments)


def what_is_known(self, payload):
    return {name: payload[name] for name in self._signature.parameters if name in payload}


RULES = [
    ("P29.1", published_as_a_worker_begins, patched(worker_file, "report", lambda *_: None)),
    ("P29.2", published_in_a_rolling_deploy, patched(signature, "SILENT", 2.0)),
    ("P29.3", published_with_a_wrong_type, patched(Signature, "payload", what_was_given)),
    ("P29.4", read_by_a_former_worker, patched(Signature, "arguments", what_is_known)),
]
