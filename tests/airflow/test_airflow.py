"""DAGs wait for latches, take messages of queues as events, and share slots; on a real Airflow with its own database.

Airflow is in no environment of the other tests, as it brings 200 packages: `make airflow` makes one and runs this.
"""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from . import home  # noqa: F401 - before Airflow is imported

pytest.importorskip("airflow", reason="Airflow is not installed here: `make airflow` runs these tests")

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.shared_stream import SharedStreamManager
from airflow.utils.db import initdb

import latchwork.airflow
from latchwork.airflow import LatchSensor, LatchTrigger, MessageTrigger, SharedPool
from latchwork.coord import CountDownLatch, Semaphore
from latchwork.errors import InvalidRequest, LockUnavailable, Misconfigured
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import Key


@pytest.fixture(scope="session")
def dags():
    """The DAGs of the folder, in an Airflow with a new database."""
    initdb()
    from .dags import pack

    return pack


@pytest.fixture
def url(tmp_path, monkeypatch):
    """The store that connect() finds."""
    found = f"sqlite:{tmp_path}/store.db?synchronous=off"
    monkeypatch.setenv("LATCHWORK_STORE", found)
    return found


@pytest.fixture
def store(url):
    made = latchwork.connect(url)
    yield made
    made.close()


def run_of(dag):
    """Run the DAG in this process, its triggers too, as `airflow dags test` does; the state of each task."""
    run = dag.test()
    return {each.task_id: str(each.state) for each in run.get_task_instances()}


# ---- latches


def test_a_sensor_waits_in_the_triggerer_until_the_latch_is_released(dags, store, monkeypatch):
    latch = CountDownLatch.create(store, "etl", "load-1", count=1)
    deferred = threading.Event()
    connected = latchwork.airflow.aio_connect

    def connect(given):
        deferred.set()
        return connected(given)

    def release():
        assert deferred.wait(60)
        latch.count_down()

    monkeypatch.setattr(latchwork.airflow, "aio_connect", connect)
    thread = threading.Thread(target=release)
    thread.start()
    assert run_of(dags.farms) == {"wait": "success"}
    thread.join(60)
    assert deferred.is_set()


def test_a_sensor_of_a_latch_that_is_released_already_is_not_deferred(dags, store, monkeypatch):
    CountDownLatch.create(store, "etl", "load", count=1).count_down()
    monkeypatch.setattr(latchwork.airflow, "aio_connect", None)
    assert run_of(dags.released) == {"wait": "success", "poke": "success"}


def test_a_sensor_of_a_latch_that_is_not_there_fails(dags, url):
    assert run_of(dags.absent) == {"wait": "failed"}


def test_an_outage_of_the_store_is_no_end_of_the_wait_and_a_wrong_url_is():
    latch = {"task_id": "wait", "client_id": "etl", "latch_id": "load"}
    assert LatchSensor(**latch, store="aerospike://127.0.0.1:1/test").poke({}) is False
    with pytest.raises(Misconfigured):
        LatchSensor(**latch, store="sqlite:/nowhere/store.db").poke({})


@pytest.mark.parametrize("level", ["rack", "", None, 3])
def test_a_level_that_no_latch_has_is_refused_with_those_that_there_are(level):
    with pytest.raises(InvalidRequest, match=r"level is .* one of dc, xdc"):
        LatchSensor(task_id="wait", client_id="etl", latch_id="load", level=level)
    assert LatchSensor(task_id="wait", client_id="etl", latch_id="load", level="xdc").level == "xdc"


def test_a_sensor_in_a_worker_fails_where_the_latch_expires_or_is_not_created_in_time(store):
    latch = {"task_id": "wait", "client_id": "etl", "latch_id": "load", "deferrable": False}
    patient, waiting = LatchSensor(**latch), LatchSensor(**latch, create_timeout=3600)
    assert [patient.poke({}), waiting.poke({})] == [False, False], "it is not there yet"
    with pytest.raises(AirflowException, match="load"):
        LatchSensor(**latch, create_timeout=0).poke({})
    made = CountDownLatch.create(store, "etl", "load", count=1)
    assert [patient.poke({}), waiting.poke({})] == [False, False]
    made.delete()  # as it expires
    for sensor in (patient, waiting):
        with pytest.raises(AirflowException, match="load"):
            sensor.poke({})


def test_a_sensor_that_is_rescheduled_counts_from_its_first_look(url):
    sensor = LatchSensor(
        task_id="wait", client_id="etl", latch_id="load", deferrable=False, mode="reschedule", create_timeout=60
    )

    def looked(first):
        return {"ti": SimpleNamespace(get_first_reschedule_date=lambda _context: first)}

    now = datetime.now(timezone.utc)
    assert [sensor.poke(looked(first)) for first in (None, now - timedelta(seconds=30))] == [False, False]
    with pytest.raises(AirflowException, match="load"):
        sensor.poke(looked(now - timedelta(seconds=61)))


def test_a_trigger_does_not_wait_for_a_latch_to_be_created_that_was_there(store, monkeypatch):
    """It may expire before the triggerer looks."""
    deferred = []
    monkeypatch.setattr(LatchSensor, "defer", lambda _sensor, *, trigger, **_: deferred.append(trigger.create_timeout))
    sensor = LatchSensor(task_id="wait", client_id="etl", latch_id="load", timeout=50)
    sensor.execute({})
    CountDownLatch.create(store, "etl", "load", count=1)
    sensor.execute({})
    assert deferred == [50, 0]


def test_all_latches_of_a_triggerer_are_waited_for_by_one_store_which_the_last_one_closes(url, store, monkeypatch):
    """What waits by one store is read together (P19)."""
    latches = [CountDownLatch.create(store, "etl", f"load-{n}", count=1) for n in range(5)]
    opened, ended, connected = [], [], latchwork.airflow.aio_connect

    def connect(given):
        opened.append(connected(given))
        return opened[-1]

    async def event(n):
        async for one in LatchTrigger(client_id="etl", latch_id=f"load-{n}", store=url).run():
            ended.append(n)
            assert one.payload == {"released": True, "error": None}

    async def story():
        waits = [asyncio.ensure_future(event(n)) for n in range(5)]
        waits[4].add_done_callback(lambda _: ended.append("cancelled"))
        await asyncio.sleep(0)
        waits[4].cancel()
        for n in range(4):
            await asyncio.to_thread(latches[n].count_down)
            await within(30, lambda n=n: n in ended)
        await asyncio.gather(*waits, return_exceptions=True)

    monkeypatch.setattr(latchwork.airflow, "aio_connect", connect)
    asyncio.run(story())
    assert len(opened) == 1
    assert opened[0]._pool.is_closed
    assert latchwork.airflow._OPEN == {}


def test_a_trigger_is_made_again_from_what_airflow_stores(url):
    given = LatchTrigger(client_id="etl", latch_id="load", farm_id="east", level="xdc", create_timeout=5, store=url)
    path, arguments = given.serialize()
    assert path == "latchwork.airflow.LatchTrigger"
    assert LatchTrigger(**arguments).serialize() == given.serialize()
    message = MessageTrigger(client_id="shop", queue="orders")
    assert MessageTrigger(**message.serialize()[1]).shared_stream_key() == message.shared_stream_key()


# ---- messages


@pytest.fixture
def orders(store):
    queue = QueueRegistry(store, "shop").create(QueueConfig("orders", shards=1, backoff=0.001))
    queue.publish({"sku": 7}, headers={"from": "web"}, message_id="m7")
    return queue


async def within(seconds, condition):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def is_there(queue):
    """Whether the message is not acknowledged."""
    return queue.store.get(Key("shop_data_set", "orders_SHARD_0_1")) is not None or queue.depth().retrying > 0


async def first_event(manager, trigger):
    """The first event of a trigger, as the triggerer takes it; what it asks for next; and the number to confirm."""
    key = trigger.shared_stream_key()
    stream = trigger.filter_shared_stream(manager.subscribe(trigger_id=1, trigger=trigger, key=key))
    event = await asyncio.wait_for(anext(stream), 30)
    seq = manager.bind_pending_event(trigger_id=1, key=key)
    return event, asyncio.ensure_future(anext(stream)), seq


def test_a_message_is_acknowledged_once_its_event_is_stored_and_not_before(url, orders):
    async def story():
        manager = SharedStreamManager()
        trigger = MessageTrigger(client_id="shop", queue="orders")
        event, following, seq = await first_event(manager, trigger)
        assert event.payload == {"id": "m7", "payload": {"sku": 7}, "headers": {"from": "web"}}
        await asyncio.sleep(0.3)  # so long nothing acknowledges it
        before = is_there(orders)
        manager.confirm_persisted([seq])
        await within(30, lambda: not is_there(orders))
        following.cancel()
        await manager.stop_all()
        return before

    assert asyncio.run(story()) is True


def test_a_message_whose_event_is_not_stored_comes_again(url, orders):
    async def story():
        manager = SharedStreamManager(ack_timeout=0.2)
        _, following, _ = await first_event(manager, MessageTrigger(client_id="shop", queue="orders"))
        await within(30, lambda: orders.depth().retrying == 1)
        following.cancel()
        await manager.stop_all()

    asyncio.run(story())
    assert is_there(orders)


def test_a_triggerer_that_dies_before_an_event_is_stored_loses_no_message(url, orders):
    async def story():
        manager = SharedStreamManager()
        _, following, _ = await first_event(manager, MessageTrigger(client_id="shop", queue="orders"))
        following.cancel()
        await manager.stop_all()

    asyncio.run(story())
    assert is_there(orders)


def test_a_message_that_airflow_cannot_take_is_failed_and_the_next_one_is_an_event(url, orders):
    """Its event would end the triggerer, and come again to the next one."""
    (first,) = orders.receive()
    first.ack()
    for payload in ({"sku": 2**64}, {"sku": 8}):
        orders.publish(payload)

    async def story():
        manager = SharedStreamManager()
        event, following, _ = await first_event(manager, MessageTrigger(client_id="shop", queue="orders"))
        following.cancel()
        await manager.stop_all()
        return event.payload["payload"]

    assert asyncio.run(story()) == {"sku": 8}
    assert orders.depth().retrying == 1


def test_a_queue_of_bytes_is_refused_with_the_remedy(url, store):
    QueueRegistry(store, "shop").create(QueueConfig("raw", shards=1, codec="bytes"))

    async def story():
        await first_event(SharedStreamManager(), MessageTrigger(client_id="shop", queue="raw"))

    with pytest.raises(InvalidRequest, match=r"'raw' are bytes.* codec='json'"):
        asyncio.run(story())


# ---- pools


def test_tasks_of_all_deployments_share_the_slots_of_a_pool_and_are_fenced(dags, store):
    assert run_of(dags.pooled) == {"load": "success"}
    record = store.get(Key("tables", "orders"), "by", "fences")
    assert record.bins["by"].startswith("pooled.load@")
    assert record.bins["by"].endswith("#1")
    assert len(record.bins["fences"]) == 1, "who held the slot before is refused"
    assert Semaphore(store, "warehouse", permits=2).holders() == []


def test_a_wait_that_is_too_short_for_the_slot_of_a_dead_worker_is_told_so(store, caplog):
    held = Semaphore(store, "warehouse", permits=1, lease=30).acquire()
    for lease, told in ((30.0, True), (0.05, False)):
        caplog.clear()
        with pytest.raises(LockUnavailable), SharedPool("warehouse", 1, lease=lease).slot(timeout=0.1):
            pytest.fail("it is held")
        assert ("waits for longer than the lease" in caplog.text) is told
    held.release()
