"""An outbox in front of a real Aerospike server whose requests and replies go missing."""

from __future__ import annotations

from itertools import islice

import pytest

from latchwork.errors import LatchworkError
from latchwork.queue import Outbox, PagedQueue, QueueRegistry
from latchwork.retry import RetryPolicy
from latchwork.store.aerospike.store import AerospikeStore
from tests.support.proxy import Fault
from tools import servers

from .world import World

RESERVE, ENTER, WRITE = 1, 2, 3
"""The calls of a batch that change something before it is finished, by how many come before each."""


@pytest.mark.long
@pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.LATE], ids=lambda fault: fault.name)
def test_what_is_put_arrives_once_and_in_order(aerospike_store, aerospike_proxy, clock, tmp_path, fault):
    world = World(aerospike_store, clock, tmp_path)
    through = AerospikeStore.from_url(aerospike_proxy.url).with_policy(RetryPolicy(attempts=1))
    pq = PagedQueue.open(tmp_path, "out")
    outbox = Outbox(pq, QueueRegistry(through, world.client).get("q"))
    numbers = iter(range(1000))
    for at in (RESERVE, ENTER, WRITE):
        for number in islice(numbers, 3):
            outbox.put(["a", number], key="a")
            world.acknowledged.append(("a", number))
        aerospike_proxy.script.extend([Fault.PASS] * at + [fault])
        forward_to_the_end(outbox)
    if fault is Fault.LATE:
        servers.until(aerospike_proxy.release, timeout=10)
    forward_to_the_end(outbox)
    through.close()
    assert aerospike_proxy.fired[fault] == 3
    world.check()
    assert len(world.received) == 9


def forward_to_the_end(outbox) -> None:
    for _ in range(20):
        try:
            outbox.forward()
        except LatchworkError:
            continue
        if not outbox.lag().messages:
            return
    raise AssertionError("it does not recover")
