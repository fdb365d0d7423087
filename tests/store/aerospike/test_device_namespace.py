"""A namespace on a device: it works on the rows of a batch at the same time, so those of one record have no order."""

from __future__ import annotations

from datetime import timedelta

import pytest

from latchwork.queue import Consumer, Outcome, Publish, QueueConfig, QueueRegistry
from latchwork.store.aerospike import AerospikeStore
from tests.support.real_servers import or_skip
from tests.support.waiting import until
from tools import servers

MANY = 50


@pytest.fixture(scope="module")
def on_device():
    server = servers.Asd(durable=True, data_size="256M")
    with or_skip():
        servers.started(server)
    store = AerospikeStore.from_url(server.url)
    yield store
    store.close()
    server.close()


def opened(store, name, **settings):
    return QueueRegistry(store, "device").create(QueueConfig(name, shards=2, **settings))


def test_each_delayed_message_that_is_cancelled_is_told_to_be_gone_and_counts_no_more(on_device):
    queue = opened(on_device, "delayed")
    ids = queue.publish_many(range(MANY), delay=600)
    assert [queue.cancel(one) for one in ids] == [Outcome.DONE] * MANY
    assert queue.depth().delayed == 0


def test_each_message_that_waits_or_runs_is_cancelled(on_device):
    queue = opened(on_device, "ready")
    ids = queue.publish_many(range(MANY))
    held = {one.message_id for one in queue.receive(MANY // 2, timeout=10)}
    outcomes = {one: queue.cancel(one) for one in ids}
    assert outcomes == {one: Outcome.ASKED if one in held else Outcome.DONE for one in ids}


def test_each_message_that_is_tried_again_is_cancelled(on_device):
    queue = opened(on_device, "retrying", backoff=timedelta(minutes=10))
    ids = queue.publish_many(range(MANY))
    while held := queue.receive(MANY, timeout=0):
        for one in held:
            one.nack(error="boom")
    assert {queue.cancel(one) for one in ids} == {Outcome.DONE}
    assert queue.depth().retrying == 0


def test_a_batch_whose_delayed_messages_are_cancelled_ends_at_once(on_device):
    queue = opened(on_device, "batched")
    with queue.batch("load", then=Publish("over", queue="batched")) as batch:
        ids = batch.publish_many(range(MANY), delay=600)
    for one in ids:
        queue.cancel(one)
    progress = batch.progress()
    assert (progress.waiting, progress.discarded) == (0, MANY)


def test_a_unique_key_is_free_once_its_message_was_cancelled_or_is_done(on_device):
    queue = opened(on_device, "unique")
    for n in range(MANY):
        first = queue.publish(n, unique=f"k-{n}")
        assert queue.publish("another", unique=f"k-{n}") == first
        assert queue.cancel(first) is Outcome.DONE
    second = [queue.publish(n, unique=f"k-{n}") for n in range(MANY)]
    handled = []
    with Consumer(queue, lambda delivery: handled.append(delivery.payload)):
        until(lambda: len(handled) == MANY)
    assert sorted(handled) == list(range(MANY))
    assert len(set(second)) == MANY


def test_hundreds_of_messages_of_a_shard_that_are_given_back_are_handed_out_again_at_once(on_device):
    queue = QueueRegistry(on_device, "device").create(QueueConfig("returned", shards=1))
    queue.publish_many(range(900))
    assert all(row is True for row in queue.give_back(_taken(queue, 900)))
    assert {one.attempts for one in _taken(queue, 900)} == {1}


def _taken(queue, n):
    held = []
    while len(held) < n and (more := queue.receive(n - len(held), timeout=1)):
        held += more
    assert len(held) == n
    return held
