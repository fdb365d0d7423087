"""The option `group`: a frame or a stream of what one group of a queue gets, beside everybody else (P7, P17)."""

from __future__ import annotations

import json

import pytest

from latchwork.errors import InvalidRequest, NotFound
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.spark import acknowledge, register
from latchwork.spark.options import parse
from latchwork.store.connect import connect

N = 40


@pytest.fixture
def url(tmp_path):
    return f"sqlite:{tmp_path / 'store.db'}?synchronous=off"


@pytest.fixture
def queue(url):
    return QueueRegistry(connect(url), "shop").create(QueueConfig("q", retry=False, shards=3))


def options(url, **more):
    return {"store": url, "clientId": "shop", "queue": "q"} | more


def numbers(rows):
    return sorted(int(row.payload) for row in rows)


def received(queue):
    found = []
    while batch := queue.receive(100):
        found += [delivery.payload for delivery in batch]
        queue.ack_many(batch)
    return sorted(found)


def test_a_group_is_named_beside_its_queue():
    given = {"store": "sqlite:x", "clientId": "shop", "queue": "q"}
    assert parse(given | {"group": "audit"}).queue == "q@audit"
    with pytest.raises(InvalidRequest, match="name the queue"):
        parse(given | {"queue": "q@audit", "group": "audit"})


def test_a_snapshot_of_named_shards_has_these_alone(url, queue):
    from latchwork.spark.datasource import LatchworkSource
    from latchwork.spark.options import COLUMNS
    from tests.spark.test_table import OWN

    for number in range(N):
        queue.publish(number, key=f"k{number}")
    for shards in ("1", "2, 0", "0,1,2"):
        reader = LatchworkSource(options(url, shards=shards)).reader(OWN)
        rows = [row for share in reader.partitions() for batch in reader.read(share) for row in batch.to_pylist()]
        named = {int(one) for one in shards.split(",")}
        assert {row["shard"] for row in rows} == named
        assert len(rows) == sum(state.loaded for state in queue.pointers.states() if state.shard in named)
        assert list(rows[0]) == list(COLUMNS)
    for shards in ("", "a", "-1", "1,1", "1.5", "0,3"):
        with pytest.raises(InvalidRequest, match="the option 'shards'"):
            LatchworkSource(options(url, shards=shards)).reader(OWN)
    with pytest.raises(InvalidRequest, match="batch reads"):
        LatchworkSource(options(url, shards="0", streamId="s")).streamReader(OWN)


@pytest.mark.long
def test_a_group_that_was_never_made_is_refused_when_the_query_is_planned(spark, url, queue):
    from pyspark.errors import AnalysisException

    register(spark)
    with pytest.raises(AnalysisException, match="q@audit"):
        spark.read.format("latchwork").options(**options(url, group="audit")).load()
    with pytest.raises(NotFound):
        parse(options(url, group="audit")).open()


@pytest.mark.long
def test_a_write_to_a_group_is_refused(spark, url, queue):
    from pyspark.errors import AnalysisException

    register(spark)
    queue.group("audit")
    frame = spark.createDataFrame([("1",)], "payload string")
    with pytest.raises(AnalysisException, match="a group publishes nothing"):
        frame.write.format("latchwork").mode("append").options(**options(url, group="audit", jobId="j")).save()


@pytest.mark.long
def test_frames_and_streams_of_two_groups_and_consumers_each_get_all(spark, url, queue, tmp_path):
    register(spark)
    audit, bills = queue.group("audit"), queue.group("bills")
    queue.publish_many(list(range(N)))
    audit_rows = spark.read.format("latchwork").options(**options(url, group="audit")).load()
    assert numbers(audit_rows.collect()) == list(range(N))
    streams = {}
    for name in ("audit", "bills"):
        stream = spark.readStream.format("latchwork").options(
            **options(url, group=name, streamId="etl", payloadSchema="bigint", columns="payload")
        )
        folder = str(tmp_path / name)
        streams[name] = (
            stream.load().writeStream.format("parquet").option("checkpointLocation", f"{folder}.state")
            .trigger(availableNow=True).start(folder)
        )  # fmt: skip
        streams[name].awaitTermination()
        assert numbers(spark.read.parquet(folder).collect()) == list(range(N))
    assert json.loads(streams["audit"].lastProgress.sources[0].endOffset)["queue"] == "q@audit"
    assert received(queue) == list(range(N)), "the streams own their groups, not the queue"
    for name, group in (("audit", audit), ("bills", bills)):
        assert acknowledge(spark, streams[name]) in (0, N)
        assert group.depth().ready == 0
        assert group.receive(1) == [], "it is free for consumers, and there is nothing left"
    assert queue.depth().ready == 0
