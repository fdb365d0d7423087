"""Real servers go away again and again under every primitive, and every promise holds (F15)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from latchwork.store.aerospike.store import AerospikeStore
from tests.conftest import NO_SERVER
from tests.support import servers
from tests.support.outage import Place
from tests.support.proof import SCALE, SEEDS
from tests.support.proxy import Fault

from .hunt.coordination import Elections, Latches, Locks, Semaphores, Updates
from .hunt.ground import Ground, hunt
from .hunt.queues import LargeQueues, Outboxes, WorkQueues

HUNTERS = (Updates, Latches, Locks, Semaphores, Elections, LargeQueues, WorkQueues, Outboxes)
SECONDS, LENGTHS = (12.0, (0.2, 3.0)) if SCALE == 1 else (75.0, (0.2, 30.0))
"""How long the outages go on, and how long each lasts."""


@pytest.fixture
def only_node() -> Iterator[Place]:
    """One server of this test alone."""
    try:
        server = servers.started(servers.Asd())
    except servers.Unreachable as reason:
        pytest.skip(f"{NO_SERVER}{reason}")
    place = Place([server])
    yield place
    place.close()
    server.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_while_the_only_node_goes_away_again_and_again(only_node, seed, tmp_path, proved):
    client = only_node.client(tend=250, patience=500)
    ground = Ground(AerospikeStore(client, "test"), seed, tmp_path)
    outages = {
        "refused": only_node.refused,
        "stopped": only_node.stopped,
        "black hole": partial(only_node.during, Fault.DROP_REQUEST),
        "cut": partial(only_node.during, Fault.CUT_AFTER),
    }
    figures = hunt(ground, [hunter(ground) for hunter in HUNTERS], outages, SECONDS, LENGTHS)
    proved("outages", "the only node", figures)
    assert not ground.violations, "\n".join(ground.violations)
    client.close()
