"""The large circular queue (P4). More of its rules are scripted in tests/queue/circular/test_counterexamples.py."""

from __future__ import annotations

from latchwork.errors import LatchworkError
from latchwork.queue.circular.queue import LargeQueue
from latchwork.store import Key

from ..stage import Fault, Kind, Stage
from .common import rule


def late_commit_after_not_committed():
    """P4: a commit is late, the connection is lost; somebody is told "not committed"; then the commit arrives."""
    stage = Stage({"a": {5: Fault(Kind.LATE, 2.0), **{call: Fault(Kind.DROPPED) for call in range(6, 30)}}})

    def asker(store):
        return LargeQueue.open(store, "q").transaction("t", timeout=5)

    stage.act("setup", lambda store: LargeQueue.create(store, "q", 4, entries_per_record=4, lease=30.0))
    stage.act("a", lambda store: LargeQueue.open(store, "q").enqueue("v", txn_id="t"), after=0.5)
    stage.act("b", asker, after=0.8)
    stage.play()
    committed = stage.bins(Key("q", "queue-metadata"))["tail-offset"] == 1
    told = stage.said["b"]
    return isinstance(told, LatchworkError) or (told is not None) == committed


def commit_whose_reply_is_lost():
    """P4: an enqueue is committed, the reply is lost; it is there once, and its caller is told so."""
    stage = Stage({"a": {5: Fault(Kind.REPLY_LOST)}})
    stage.act("setup", lambda store: LargeQueue.create(store, "q", 4, entries_per_record=4, lease=30.0))
    stage.act("a", lambda store: LargeQueue.open(store, "q").enqueue("v"), after=0.5)
    stage.act("b", lambda store: LargeQueue.open(store, "q").info().tail_offset, after=5)
    stage.play()
    return stage.said["a"] == 0 and stage.said["b"] == 1


def group_that_has_not_committed():
    """P4: a group that head waits for has read nothing yet; a dequeue must leave it everything."""
    stage = Stage()

    def reader(store):
        queue = LargeQueue.create(store, "q", 4, entries_per_record=4, lease=30.0)
        group = queue.group("g", hold_head=True)
        queue.enqueue_many(["v", "w"])
        queue.dequeue_many(2, timeout=0.5)
        return [entry.value for entry in group.read(2)]

    stage.act("a", reader)
    return stage.play().said["a"] == ["v", "w"]


RULES = [
    ("P4 status", late_commit_after_not_committed, rule("circular", "not committed is said without a new fence")),
    ("P4 doubt", commit_whose_reply_is_lost, rule("circular", "a commit in doubt counts as not made")),
    ("P4 groups", group_that_has_not_committed, rule("circular", "head does not wait for groups")),
]
