"""What the on-call tools promise, over every store: a real worker is paused, seen, killed and missed."""

from __future__ import annotations

import os
import warnings

import pytest

from latchwork.observe.findings import PROBLEM, findings_of
from latchwork.observe.snapshot import clients_in, of_client
from latchwork.queue import Consumer, Outcome, QueueConfig, QueueRegistry
from latchwork.queue.sharded.workers import SILENT, WORKERS, WorkerReport, reporting
from latchwork.store import Key, MapPut
from latchwork.store.model.expr import SERVER_NOW, Const, ListOf
from tests.support.backends import store  # noqa: F401 - a fixture
from tests.support.waiting import until


@pytest.fixture
def registry(store):  # noqa: F811 - the fixture
    return QueueRegistry(store, f"oncall{os.getpid()}", farm_id="f")


def test_a_pause_is_acted_on_and_told_and_a_killed_worker_is_missed(registry):
    queue = registry.create(QueueConfig("q", shards=2))
    operator = QueueRegistry(registry.store, registry.client_id, farm_id="f").get("q")
    with Consumer(queue, lambda delivery: True) as consumer:
        until(queue.workers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            operator.pause(by="anna@web-7")
        first = operator.live.changed
        until(lambda: [one.acts_on for one in queue.workers()] == [first])
        assert queue.concurrency == 0
        operator.publish("waits")
        taken = of_client(registry)
        assert taken.leader is None or taken.leader.name == taken.queues[0].at_work[0].worker
        (paused,) = [one for one in findings_of(taken) if one.kind == "paused"]
        assert "paused by anna@web-7, " in paused.what
        operator.resume()
        assert operator.live.changed > first
        until(lambda: consumer.stats["acked"] == 1)
    assert queue.workers() == []

    # 2. A message fails, and waits for its next attempt.
    queue.publish("fails", message_id="id")
    until(lambda: [delivery.nack(error="it broke") for delivery in queue.receive()])
    stats = of_client(registry).queues[0].stats
    assert (stats.depth.retrying, stats.last_retry.message_id, stats.last_retry.error) == (1, "id", "it broke")
    assert queue.delayed.discard(["id"]) == {"id": Outcome.DONE}
    assert queue.depth().retrying == 0

    # 3. A worker that reported for the last time more than its silence ago, as one that was killed.
    queue = registry.create(QueueConfig("other", shards=1))
    queue.publish("nobody takes it")
    last = SERVER_NOW - round((SILENT + 25) * 1000)
    registry.store.repeat(reporting(queue, WorkerReport("gone", 0.0, 0, 1, 0, 0, 0)))
    report = MapPut(WORKERS, "gone", ListOf((last, *[Const(0)] * 5)))
    registry.store.operate(Key(f"{registry.client_id}_meta_set", "other_WORKERS"), report, repeatable=True)
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "no_worker"]
    assert (found.state, "gone, which last reported" in found.what) == (PROBLEM, True)
    assert registry.client_id in (clients_in(registry.store, "f") or [])
