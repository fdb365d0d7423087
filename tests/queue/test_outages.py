"""A real server goes away in the middle of a call of a queue, and every message is where the caller was told it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from latchwork.errors import LatchworkError, Unavailable
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry, Shovel, ShovelConfig, Sweeper
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.slots import Slot
from latchwork.retry import RetryPolicy
from latchwork.store.aerospike.store import AerospikeStore
from tests.conftest import NO_SERVER
from tests.support.outage import Place
from tools import servers

NAMES = count()
PATIENT, ONCE = RetryPolicy(attempts=8, wait=0.05, max_wait=0.2), RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A server of these tests alone, that can be out of reach."""
    try:
        server = servers.started(servers.Asd())
    except servers.Unreachable as reason:
        pytest.skip(f"{NO_SERVER}{reason}")
    made = Place([server])
    yield made
    made.close()
    server.close()


@pytest.fixture
def store(place: Place) -> Iterator[AerospikeStore]:
    """A store whose client forgets a lost node in little more than a second."""
    client = place.client(tend=250, patience=1000)
    yield AerospikeStore(client, "test")
    client.close()


@pytest.fixture
def away(place: Place, store: AerospikeStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the next call of this verb of the backend find no node; it is known again afterwards."""

    def vanish(verb: str) -> None:
        call, gone = getattr(store, verb), []

        def meanwhile(*given: Any) -> Any:
            if gone:
                return call(*given)
            gone.append(given)
            with place.no_node(store._client()):
                return call(*given)

        monkeypatch.setattr(store, verb, meanwhile)

    return vanish


def queue_on(store: AerospikeStore, **options: Any) -> ShardedQueue:
    config = QueueConfig(f"q{next(NAMES)}", **{"shards": 2, "shovel": ShovelConfig(60), **options})
    return QueueRegistry(store, "outages").create(config)


def drained(queue: ShardedQueue) -> list[Any]:
    """What the queue gives to a consumer until nothing is left, in order."""
    found: list[Any] = []
    while deliveries := queue.receive(100):
        found += [delivery.payload for delivery in deliveries]
        queue.ack_many(deliveries)
    return sorted(found)


# ---- in the middle of a batch


def test_messages_are_not_acknowledged_by_a_batch_that_was_never_sent(store, away):
    queue = queue_on(store)
    queue.publish_many(range(10))
    deliveries = queue.receive(10)
    store.policy = ONCE
    away("_delete_many")
    with pytest.raises(Unavailable, match="no node"):
        queue.ack_many(deliveries)
    assert not any(delivery.settled for delivery in deliveries)
    store.policy = PATIENT
    queue.ack_many(deliveries)
    assert all(store.get(queue.pointers.key(delivery.held.slot)) is None for delivery in deliveries)


def test_messages_are_acknowledged_once_the_server_is_back(store, away):
    store.policy = PATIENT
    queue = queue_on(store)
    queue.publish_many(range(10))
    deliveries = queue.receive(10)
    away("_delete_many")
    queue.ack_many(deliveries)
    assert all(store.get(queue.pointers.key(delivery.held.slot)) is None for delivery in deliveries)


def test_nothing_is_published_by_a_batch_that_was_never_sent(store, away):
    queue = queue_on(store)
    store.policy = ONCE
    away("_operate_many")
    with pytest.raises(LatchworkError) as failed:
        queue.publish_many(range(10))
    store.policy = PATIENT
    assert failed.value.details["published"] == []
    assert drained(queue) == []


def test_what_is_published_across_an_outage_arrives(store, away):
    store.policy = PATIENT
    queue = queue_on(store)
    away("_operate_many")
    assert len(queue.publish_many(range(10))) == 10
    assert drained(queue) == list(range(10))


@pytest.mark.parametrize("policy", [ONCE, PATIENT], ids=["once", "patient"])
def test_a_large_queue_never_commits_over_slots_that_were_not_written(store, away, policy):
    store.policy = policy
    queue = LargeQueue.create(store, f"large{next(NAMES)}", 40, entries_per_record=5)
    queue.enqueue_many(["a", "b", "c"])
    away("_operate_many")
    with suppress(Unavailable):
        queue.enqueue_many(list("defghij"), timeout=20)  # over two records
    store.policy = PATIENT
    left = "".join(entry.value for entry in queue.dequeue_many(40, timeout=20))
    assert left in ("abc", "abcdefghij")
    assert policy is ONCE or left == "abcdefghij"


# ---- while nobody is there

ASKING: dict[str, Callable[[ShardedQueue], Any]] = {
    "receive": lambda queue: queue.receive(10),
    "depth": lambda queue: queue.depth(),
    "peek": lambda queue: queue.peek(),
    "get_many": lambda queue: queue.store.get_many([queue.pointers.key(Slot(shard, 1)) for shard in (0, 1)]),
    "redrive": lambda queue: queue.redrive(10),
    "redrive, dry": lambda queue: queue.redrive(10, dry_run=True),
    "shovel": lambda queue: Shovel(queue).run_once(),
    "publish": lambda queue: queue.publish(1),
    "publish_many": lambda queue: queue.publish_many(range(10)),
    "scale": lambda queue: queue.scale(3),
    "queues": lambda queue: queue.registry.queues(),
    "refresh": lambda queue: queue.registry.refresh(),
    "create": lambda queue: queue.registry.create(QueueConfig("another")),
    "get": lambda queue: QueueRegistry(queue.store, "outages").get(queue.name),
    "last_sweep": lambda queue: queue.registry.last_sweep(queue.name),
    "deactivate": lambda queue: queue.registry.deactivate(queue.name),
    "open": lambda queue: LargeQueue.open(queue.store, "any"),
}


class Leads:
    """An election that this process has won."""

    def __init__(self) -> None:
        self.leadership, self.epoch = self, 1

    def check(self) -> None:
        """It leads."""


def test_every_call_while_no_node_is_known_is_unavailable(place, store):
    store.policy = ONCE
    queue = queue_on(store, max_deliveries=1)
    queue.publish_many(range(3))
    (first, second, _) = queue.receive(3)
    first.nack()
    with place.no_node(store._client()):
        for name, ask in ASKING.items():
            with pytest.raises(Unavailable):
                pytest.fail(f"{name} gave {ask(queue)!r}")
        for settle in (second.ack, second.nack, second.extend, lambda: queue.ack_many([second])):
            with pytest.raises(Unavailable):
                settle()
        with pytest.raises(Unavailable):
            Sweeper(queue.registry, Leads()).run_once()
    second.ack()
