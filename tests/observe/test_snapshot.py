"""One snapshot for all who look: what it costs, how old it is, and what it says of a store that is away."""

from __future__ import annotations

import json
import threading

import pytest

from latchwork.cli.top.feed import Feed
from latchwork.cli.top.pages import overview as overview_page
from latchwork.cli.top.pages import queues as queues_page
from latchwork.cli.top.table import BARS
from latchwork.errors import InvalidRequest
from latchwork.observe import snapshot
from latchwork.observe.document import document_of
from latchwork.observe.snapshot import OTHERS, of_client, view_of
from latchwork.queue import Consumer, QueueConfig, QueueRegistry
from latchwork.queue.sharded.pointers import LOAD
from latchwork.store import Exists, MemoryStore, Put
from latchwork.testing.stores import CountingStore, FaultyStore
from tests.support.backends import store as any_store  # noqa: F401 - a fixture


def registry_with(store, queues, client="shop"):
    registry = QueueRegistry(store, client, farm_id="f")
    for n in range(queues):
        registry.create(QueueConfig(f"q{n}", shards=1))
    return registry


@pytest.mark.parametrize(("queues", "most"), [(0, 4), (1, 4), (40, 4), pytest.param(501, 5, marks=pytest.mark.long)])
def test_a_look_at_all_queues_is_three_calls_and_one_for_every_500_queues(clock, queues, most):
    store = CountingStore(MemoryStore(clock))
    registry = registry_with(store, queues)
    for queue in registry.queues():
        queue.publish("m")
    registry.queues()
    store.reset()
    assert len(of_client(registry).queues) == queues
    assert store.total <= most + 1, "at first also what is not active is listed"
    for _ in range(int(OTHERS) // 4 + 2):
        clock.advance(4)
        store.reset()
        taken = of_client(registry)
        assert (len(taken.queues), store.total <= most) == (queues, True), store.calls
        assert all(queue.stats.ready.waiting == 1 for queue in taken.queues)
    clock.advance(2 * OTHERS)
    store.reset()
    of_client(registry)
    assert store.total <= most + 1, "after a pause everything is listed"


def test_the_messages_of_a_queue_do_not_change_what_a_look_costs(clock):
    store = CountingStore(MemoryStore(clock))
    queue = QueueRegistry(store, "shop", farm_id="f").create(QueueConfig("q", shards=8))
    queue.publish_many(range(3000))
    of_client(queue.registry)
    store.reset()
    assert of_client(queue.registry).queues[0].stats.depth.ready == 3000
    assert store.total <= 4


@pytest.mark.long
@pytest.mark.parametrize("queues", [500, pytest.param(1_000, marks=pytest.mark.long)])
def test_500_queues_and_a_million_messages_in_one_of_them_are_looked_at_within_3_calls_and_one_for_500(clock, queues):
    store = CountingStore(MemoryStore(clock))
    registry = registry_with(store, queues)
    large = registry.get("q7")
    large.publish_many(range(1_000))
    # Those in between are not there, as none of them is ever looked at.
    store.operate(large.pointers.pointers_key(0), Put(LOAD, 999_000), exists=Exists.ANY)
    large.publish_many(range(1_000))
    snapshot({"f": store}, "shop", max_age=0)  # at first also what is not active is listed
    clock.advance(1)
    store.reset()
    (state,) = snapshot({"f": store}, "shop", max_age=0).clients
    assert store.total <= 3 + queues / 500, store.calls
    assert len(state.taken.queues) == queues
    assert {queue.name: queue.stats.depth.ready for queue in state.taken.queues}["q7"] == 1_000_000
    feed = Feed({"f": store}, ["shop"], 2.0, clock)
    clock.advance(5)
    store.reset()
    feed.look()
    assert len(queues_page(feed, BARS).rows) == queues
    assert overview_page(feed, 80).rows[0].cells[3] == "1,000,000"
    assert store.total <= 3 + queues / 500, "and so are the pages that are made of it"


def test_ten_readers_cost_as_one_also_if_they_come_at_once(clock):
    store = CountingStore(MemoryStore(clock))
    registry_with(store, 3)
    store.reset()
    readers = [threading.Thread(target=snapshot, args=({"f": store}, "shop")) for _ in range(10)]
    for one in readers:
        one.start()
    for one in readers:
        one.join(60)
    cost = store.total
    assert 0 < cost <= 6
    snapshot({"f": store}, "shop", max_age=5)
    assert store.total == cost
    clock.advance(1.5)
    assert snapshot({"f": store}, "shop", max_age=5).clients[0].age == pytest.approx(1.5)
    assert store.total == cost
    assert snapshot({"f": store}, "shop", max_age=1).clients[0].age == 0
    assert store.total > cost


def test_a_queue_that_is_deactivated_stays_in_the_next_look(clock):
    registry = registry_with(MemoryStore(clock), 2)
    assert [queue.stats.active for queue in of_client(registry).queues] == [True, True]
    registry.deactivate("q1")
    clock.advance(1)
    assert [(queue.name, queue.stats.active) for queue in of_client(registry).queues] == [("q0", True), ("q1", False)]


def test_rates_are_unknown_at_first_and_then_those_since_the_look_before(clock):
    registry = registry_with(MemoryStore(clock), 1)
    queue = registry.get("q0")
    queue.publish_many(range(5))
    (state,) = of_client(registry).queues
    assert (state.in_rate, state.out_rate) == (None, None)
    clock.advance(2)
    queue.publish_many(range(6))
    queue.receive(4)
    (state,) = of_client(registry).queues
    assert (state.in_rate, state.out_rate) == (3.0, 2.0)


def test_a_store_that_is_away_is_told_within_the_timeout_with_the_last_figures_and_their_age(clock):
    there, away = MemoryStore(clock), FaultyStore(MemoryStore(clock), seams=clock)
    for store in (there, away):
        registry_with(store, 1).get("q0").publish("m")
    stores = {"iad": there, "lhr": away}
    for farm, store in stores.items():
        QueueRegistry(store, "shop", farm_id=farm).create(QueueConfig("own", shards=1))
    assert [one.away for one in snapshot(stores, "shop").clients] == [None, None]
    clock.advance(10)
    away.plan = {away._number + n: "dropped" for n in range(1, 1000)}
    began = clock.monotonic()
    iad, lhr = snapshot(stores, "shop").clients
    assert clock.monotonic() - began <= 3
    assert (iad.away, iad.age) == (None, pytest.approx(0, abs=3))
    assert lhr.away
    assert [queue.name for queue in lhr.taken.queues] == ["own"]
    assert lhr.age >= 10


def test_a_store_that_was_never_reached_has_no_figures_rather_than_zeros(clock):
    away = FaultyStore(MemoryStore(clock), seams=clock)
    away.plan = dict.fromkeys(range(1, 1000), "dropped")
    (state,) = snapshot({"f": away}, "shop").clients
    assert (state.taken, state.age, bool(state.away)) == (None, None, True)
    assert document_of(snapshot({"f": away}, "shop"))["clients"][0]["findings"] is None


@pytest.mark.parametrize("known", [True, False])
def test_a_look_that_was_interrupted_is_none_so_the_next_one_has_figures_of_its_own(clock, known):
    store = FaultyStore(MemoryStore(clock), seams=clock)
    view = view_of(registry_with(store, 1))

    def interrupt():
        raise KeyboardInterrupt

    if known:
        view.look()
        clock.advance(60)
    store.plan = {store._number + 1: interrupt}
    with pytest.raises(KeyboardInterrupt):
        view.look()
    store.plan = {}
    assert view.look(max_age=15).at == clock.wall()
    assert view.age == 0


def test_every_part_of_the_document_says_of_whom_it_is_true_and_how_old_it_is(any_store):  # noqa: F811 - the fixture
    registry = registry_with(any_store, 1, client="docclient")
    with Consumer(registry.get("q0"), lambda delivery: True, upkeep=False):
        found = snapshot({"f": any_store}, "docclient")
        document = json.loads(json.dumps(document_of(found)))
    (client,), process = document["clients"], document["process"]
    assert (client["of"], client["farm"], client["away"]) == ("store", "f", None)
    assert 0 <= client["age"] < 60
    assert client["taken"]["queues"][0]["stats"]["depth"]["ready"] == 0
    assert client["findings"] == []
    assert (process["of"], process["age"]) == ("process", 0)
    assert "q0" in [one["queue"] for one in process["consumers"]]


def test_clients_that_are_not_named_are_those_that_have_queues(clock):
    store = MemoryStore(clock)
    for client in ("shop", "bank"):
        registry_with(store, 1, client)
    assert [one.client for one in snapshot({"f": store}).clients] == ["bank", "shop"]
    with pytest.raises(InvalidRequest, match="stores is empty"):
        snapshot({})


def test_a_look_at_one_queue_reads_that_queue_alone(clock):
    store = CountingStore(MemoryStore(clock))
    registry = registry_with(store, 30)
    view = view_of(registry, "q7")
    store.reset()
    assert [queue.name for queue in view.look().queues] == ["q7"]
    assert store.rows["get_many"] < 10


def test_a_queue_that_was_lost_and_made_again_has_no_rates_below_zero(clock):
    store = MemoryStore(clock)
    registry = QueueRegistry(store, "shop", farm_id="f")
    queue = registry.create(QueueConfig("q", shards=1))
    queue.publish_many(range(9))
    view = view_of(registry)
    view.look()
    clock.advance(1)
    store.operate(queue.pointers.pointers_key(0), Put(LOAD, 2), exists=Exists.ANY)
    (state,) = view.look().queues
    assert (state.in_rate, state.out_rate) == (None, None)
