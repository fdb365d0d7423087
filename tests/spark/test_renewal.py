"""The record of a queue that nobody but Spark uses: it lives as long as it is read from or written to."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.spark import options
from latchwork.spark.options import parse
from latchwork.spark.sink import BatchWriter, Rows
from latchwork.spark.source import StreamReader
from latchwork.spark.table import Table
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock

DAY = 86_400
GIVEN = parse({"store": "sqlite:", "queue": "q", "clientId": "shop", "streamId": "etl", "jobId": "load"})


@pytest.fixture
def clock():
    return ManualClock(seed=1)


@pytest.fixture
def store(clock, monkeypatch):
    made = MemoryStore(clock)
    monkeypatch.setattr(options, "connect", lambda _url: made)
    return made


@pytest.fixture
def queue(store):
    """Its record lives for four days."""
    return QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=1, queue_expiry=2 * DAY))


@pytest.fixture
def planner(store, queue):
    """A planner that asks what there is to read."""
    reader = StreamReader(GIVEN, Table(StructType(), typed=False))
    begin = reader.initialOffset()
    return lambda: reader.latestOffset(begin, ReadAllAvailable())


@pytest.fixture
def writer(store, queue, monkeypatch):
    """A write of one row in its first partition, by a task that forgets everything afterwards."""
    monkeypatch.setattr(pyspark.TaskContext, "_taskContext", SimpleNamespace(partitionId=lambda: 0))
    batch = pa.RecordBatch.from_pydict({"id": [1]})
    return lambda: BatchWriter(GIVEN, Rows(whole=True)).write(iter([batch]))


@pytest.fixture
def ledger(queue):
    return lambda: Ledger(queue, "scope").publish(0, [Outgoing(1)])


@pytest.mark.parametrize("user", ["planner", "writer", "ledger"])
def test_a_queue_that_only_spark_uses_outlives_its_expiry(request, store, queue, clock, user):
    use = request.getfixturevalue(user)
    for _ in range(10):
        clock.advance(DAY)
        use()
    assert store.get(queue.registry.records.key("q")).ttl == 4 * DAY


@pytest.mark.parametrize("user", ["planner", "writer"])
def test_a_record_is_renewed_once_in_a_tenth_of_its_life_however_often_the_queue_is_used(
    request, store, queue, clock, user
):
    use, key = request.getfixturevalue(user), queue.registry.records.key("q")
    before = store.get(key).generation
    for _ in range(10):  # ten times in less than 0.4 days, the tenth of its four
        clock.advance(DAY / 26)
        use()
    assert store.get(key).generation == before
    clock.advance(DAY / 26)
    use()
    assert store.get(key).generation == before + 1
