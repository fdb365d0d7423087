"""The DAGs that the tests run. They find their store by $LATCHWORK_STORE, as in a deployment."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetWatcher, task

from latchwork.airflow import LatchSensor, MessageTrigger, SharedPool
from latchwork.errors import LockUnavailable
from latchwork.store import Key, Put

with DAG("farms", schedule=None) as farms:
    LatchSensor(task_id="wait", client_id="etl", latch_id="load-{{ 1 }}", timeout=60)

with DAG("released", schedule=None) as released:
    LatchSensor(task_id="wait", client_id="etl", latch_id="load")
    LatchSensor(task_id="poke", client_id="etl", latch_id="load", deferrable=False)

with DAG("absent", schedule=None) as absent:
    LatchSensor(task_id="wait", client_id="etl", latch_id="load", create_timeout=0)

with DAG("pooled", schedule=None) as pooled:

    @task
    def load():
        with SharedPool("warehouse", 2).slot(timeout=30) as permits:
            permits.operate(Key("tables", "orders"), Put("by", permits.owner))
            try:
                with SharedPool("warehouse", 2).slot(2, timeout=0):
                    raise AssertionError("there is one slot only")
            except LockUnavailable:
                permits.check()

    load()

ORDERS = Asset(
    "orders", watchers=[AssetWatcher(name="orders", trigger=MessageTrigger(client_id="shop", queue="orders"))]
)
with DAG("ordered", schedule=[ORDERS]) as ordered:

    @task
    def note(triggering_asset_events=None):
        for event in triggering_asset_events[ORDERS]:
            print("an order:", event.extra["payload"])

    note()
