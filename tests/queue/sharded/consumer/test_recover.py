"""What a worker that died had in hand comes back at once where a person asks for it. Over memory and SQLite."""

# ruff: noqa: F811 - pytest gives a fixture by its name

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest, LeaseLost, Unavailable
from latchwork.queue.sharded import slots
from latchwork.queue.sharded.consumer.recover import left_by, recover
from latchwork.queue.sharded.workers import SILENT, WorkerReport, reporting
from latchwork.store.rows import Rows
from latchwork.testing.stores import CountingStore

from .test_interrupted import clock, opened, store  # noqa: F401 - fixtures


def reports(queue, worker):
    queue.store.repeat(reporting(queue, WorkerReport(worker, 0.0, 0, 1, 1, 0, 0)))


@pytest.fixture
def taken_by(monkeypatch):
    """Take the next message as this worker would."""

    def take(queue, worker):
        process = worker.rpartition(":")[0]
        with monkeypatch.context() as patched:
            patched.setattr(
                "latchwork.queue.sharded.subqueue.delivery_of",
                lambda seams: f"{seams.unique()}{slots.MADE_BY}{process}",
            )
            (one,) = queue.receive()
        reports(queue, worker)
        return one

    return take


@pytest.mark.parametrize("of_group", [False, True])
def test_what_a_dead_worker_had_comes_back_with_its_attempt_and_what_the_others_have_stays(
    store, clock, taken_by, of_group
):
    queue = opened(store)
    queue = queue.group("g", start="oldest") if of_group else queue
    opened(store).publish_many(["begun", "cut", "lives"])
    begun, cut, lives = (taken_by(queue, worker) for worker in ("vm:1:a", "vm:1:a", "vm:2:b"))
    if not of_group:
        queue.interrupting([cut])  # as it was about to stop
    clock.advance(SILENT + 1)
    reports(queue, "vm:2:b")
    left = left_by(queue)
    assert (list(left.dead), len(left.held), left.is_all) == (["vm:1"], 2, True)
    told = {"failed": 2, "given back": 0} if of_group else {"failed": 1, "given back": 1}
    assert recover(queue, left, "ann@desk") == told
    with pytest.raises(LeaseLost):
        begun.extend()
    lives.extend()
    (found, *_) = queue.delayed.search()
    assert (found.payload, found.attempts, found.reason) == ("begun", 1, "swept")
    assert found.last_error == "its worker vm:1 died: brought back by ann@desk, 51 s after its last report"
    if not of_group:
        (again,) = queue.receive()
        assert (again.payload, again.attempts) == ("cut", 1), "that attempt did not count"
    assert [one.settled for one in queue.workers()] == [True, False], "it is said to hold nothing any more"
    assert not left_by(queue).held
    clock.advance(1)
    reports(queue, "vm:1:a")
    assert not any(one.settled or one.is_silent for one in queue.workers()), "it was alive, and reports again"


def test_a_worker_that_is_not_known_to_be_dead_keeps_what_it_has(store, clock, taken_by):
    queue = opened(store)
    queue.publish_many(["m", "n"])
    held = taken_by(queue, "vm:1:a")
    clock.advance(30)
    with pytest.raises(InvalidRequest, match=r"worker 'vm:1' reported 30 s ago: it counts as dead after 50 s"):
        left_by(queue, ["vm:1"])
    with pytest.raises(InvalidRequest, match=r"worker 'vm:3' has not reported about this queue; .*: none"):
        left_by(queue, ["vm:3"])
    clock.advance(30)
    reports(queue, "vm:1:other")  # as a container that was started again: the same name, and the same number
    assert left_by(queue) == ({}, (), True)
    held.extend()


@pytest.fixture
def two_hosts(store, clock):
    """A queue, a message that a live worker has in hand, and the worker that died, of whose name the message has the
    same part.
    """
    dead, alive = (f"{host}.eu-central-1.compute.internal:1" for host in ("ip-172-31-45-123", "ip-172-31-9-7"))
    there, there.process_name = clock.skewed(0), lambda: alive
    opened(store).publish("m")
    (held,) = opened(CountingStore(store, seams=there)).receive()
    queue = opened(store)
    reports(queue, f"{dead}:x@f")
    clock.advance(SILENT + 1)
    reports(queue, f"{alive}:x@f")
    return queue, held, dead


def test_a_live_worker_keeps_its_messages_though_one_that_died_has_the_same_name_in_them(two_hosts):
    queue, held, dead = two_hosts
    left = left_by(queue)
    assert left == ({}, (), True)
    recover(queue, left, "ann@desk")
    with pytest.raises(InvalidRequest, match=r"died, and ip-172-31-9-7.* works: .* cannot be told apart; leave"):
        left_by(queue, [dead])
    held.ack()


def test_a_worker_is_not_said_to_hold_nothing_while_a_slot_of_its_queue_cannot_be_read(
    store, clock, taken_by, monkeypatch
):
    queue = opened(store)
    queue.publish_many(["m", "n"])
    first, second = (taken_by(queue, "vm:1:a") for _ in range(2))
    clock.advance(SILENT + 1)
    away, repeat_many = queue.pointers.key(second.held.slot), type(store).repeat_many

    def partly(self, updates):
        rows = repeat_many(self, updates)
        return Rows(Unavailable("away") if one.key == away else row for one, row in zip(updates, rows, strict=True))

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "repeat_many", partly)
        left = left_by(queue)
        assert ([one.slot for one in left.held], left.is_all) == ([first.held.slot], False)
        recover(queue, left, "ann@desk")
    assert [one.settled for one in queue.workers()] == [False]
    assert [one.slot for one in left_by(queue).held] == [second.held.slot]
