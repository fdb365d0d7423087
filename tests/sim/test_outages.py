"""Real servers go away again and again under every primitive, and every promise holds (F15).

In a run of all tests it is the only node for a while. The soak has one of three nodes, and restarts, as well, by turns.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from latchwork.store.aerospike.store import AerospikeStore
from tests.support.outage import Place
from tests.support.proxy import Fault
from tests.support.real_servers import or_skip
from tests.support.scale import SCALE, SEEDS
from tools import servers
from tools.cluster import cluster, settled

from .hunt.coordination import Elections, Latches, Locks, Semaphores, Updates
from .hunt.ground import Ground, Outage, hunt
from .hunt.queues import LargeQueues, Outboxes, WorkQueues

HUNTERS = (Updates, Latches, Locks, Semaphores, Elections, LargeQueues, WorkQueues, Outboxes)
IN_THE_SOAK = SCALE > 1
SECONDS, LENGTHS = (75.0, (0.2, 30.0)) if IN_THE_SOAK else (12.0, (0.2, 3.0))
"""How long the outages go on, and how long each lasts."""


def _outages(place: Place, node: Callable[[], int]) -> dict[str, Outage]:
    return {
        "refused": lambda: place.refused(node()),
        "black hole": lambda: place.during(Fault.DROP_REQUEST, node()),
        "cut": lambda: place.during(Fault.CUT_AFTER, node()),
    }


@contextmanager
def the_only_node(ground: Callable[[], Ground]) -> Iterator[tuple[Place, dict[str, Outage]]]:
    """A server alone; its records stay."""
    with ExitStack() as stack:
        server = servers.started(servers.Asd())
        stack.callback(server.close)
        place = Place([server])
        stack.callback(place.close)
        yield place, {**_outages(place, lambda: 0), "stopped": place.stopped}


@contextmanager
def restarts(ground: Callable[[], Ground]) -> Iterator[tuple[Place, dict[str, Outage]]]:
    """A server alone that ends in order and is started again, with its records in a file."""
    with ExitStack() as stack:
        server = servers.started(servers.Asd(durable=True, data_size="256M"))
        stack.callback(server.close)
        place = Place([server])
        stack.callback(place.close)
        yield place, {"refused": place.refused, "ended": place.ended}


@contextmanager
def one_of_three(ground: Callable[[], Ground]) -> Iterator[tuple[Place, dict[str, Outage]]]:
    """Three nodes with two copies of each record, of which one goes away, or is killed and comes back empty.

    None is stopped: after 1.5 s the others go on without it, and what it then takes for its own when it goes on is a
    split of the namespace (F14), which is not promised.
    """
    with cluster(3) as nodes, ExitStack() as stack:
        place = Place(nodes)
        stack.callback(place.close)

        def any_node() -> int:
            return ground().chance.randrange(3)

        @contextmanager
        def killed() -> Iterator[None]:
            with place.ended(any_node(), signal.SIGKILL):
                yield
            settled(nodes)  # with the copies of two nodes gone at once there would be none

        yield place, {**_outages(place, any_node), "killed": killed}


PLACES = {"the only node": the_only_node}
if IN_THE_SOAK:
    PLACES |= {"restarts": restarts, "one of three": one_of_three}


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_while_nodes_go_away_again_and_again(seed, tmp_path, proved):
    name = list(PLACES)[seed % len(PLACES)]
    grounds: list[Ground] = []
    with or_skip(), PLACES[name](lambda: grounds[0]) as (place, outages):
        client = place.client(tend=250, patience=500)
        ground = Ground(AerospikeStore(client, "test"), seed, tmp_path, deletes_last=name != "restarts")
        grounds.append(ground)
        figures = hunt(ground, [hunter(ground) for hunter in HUNTERS], outages, SECONDS, LENGTHS)
        client.close()
    proved("outages", name, figures)
    assert not ground.violations, "\n".join(ground.violations)
