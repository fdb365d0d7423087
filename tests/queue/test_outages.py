"""While a real server is away, each verb of a queue says so. What an outage in the middle of a call does is proved by
`tests/sim` (F15), and over a real server by `tests/sim/test_outages.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from latchwork.errors import Unavailable
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry, Shovel, ShovelConfig, Sweeper
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.slots import Slot
from latchwork.retry import RetryPolicy
from latchwork.store.aerospike.store import AerospikeStore
from tests.support.outage import Place
from tests.support.real_servers import or_skip
from tools import servers

NAMES = count()
ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A server of these tests alone, that can be out of reach."""
    with or_skip():
        server = servers.started(servers.Asd())
    made = Place([server])
    yield made
    made.close()
    server.close()


@pytest.fixture
def store(place: Place) -> Iterator[AerospikeStore]:
    """A store whose client forgets a lost node in little more than a second."""
    client = place.client(tend=250, patience=10_000)  # nobody waits for what is refused
    yield AerospikeStore(client, "test")
    client.close()


def queue_on(store: AerospikeStore, **options: Any) -> ShardedQueue:
    config = QueueConfig(f"q{next(NAMES)}", **{"shards": 2, "shovel": ShovelConfig(60), **options})
    return QueueRegistry(store, "outages").create(config)


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
    "activate": lambda queue: queue.registry.activate(queue.name),
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
