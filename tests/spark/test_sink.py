"""The sink on a real Spark: every row once, under retries, lost executors, repeated writes and restarts (P6)."""

from __future__ import annotations

from collections import Counter

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import functions as f

from latchwork.observe import observe
from latchwork.observe.opentelemetry import OpenTelemetry
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.spark import register

ROWS = 300
ALL = Counter(range(ROWS))


@pytest.fixture
def queue(store):
    return QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=2))


@pytest.fixture
def options(url):
    return {"store": url, "queue": "q", "clientId": "shop"}


@pytest.fixture
def session(spark):
    register(spark)
    return spark


def write(frame, options, **more):
    frame.write.format("latchwork").mode("append").options(**options, **more).save()


def consumed(queue):
    found = Counter()
    while got := queue.receive(1000):
        found.update(delivery.payload["id"] for delivery in got)
        queue.ack_many(got)
    return found


def test_every_row_is_a_message_and_the_same_write_again_adds_none(session, queue, options):
    frame = session.range(ROWS).withColumn("name", f.concat(f.lit("n"), "id")).repartition(3)
    for _ in range(2):
        write(frame, options, jobId="load", publishBatch=40)
    assert {message.payload["name"] for message in queue.peek(3)} <= {f"n{n}" for n in range(ROWS)}
    assert consumed(queue) == ALL
    write(frame, options, jobId="load")
    assert consumed(queue) == Counter()
    write(frame, options, jobId="load/2")
    assert consumed(queue) == ALL


def test_tasks_that_fail_after_they_have_published_and_are_tried_again_publish_once(session, queue, options, trail):
    """The rows reach each attempt in another order, as after a shuffle."""

    def shuffled_then_failing(batches):
        import random

        import pyarrow as pa
        from pyspark import TaskContext

        trail.mark("begun")
        rows = [row for batch in batches for row in batch["id"].to_pylist()]
        attempt = TaskContext.get().attemptNumber()
        random.Random(attempt).shuffle(rows)
        for first in range(0, len(rows), 10):
            yield pa.RecordBatch.from_pydict({"id": pa.array(rows[first : first + 10], pa.int64())})
        if attempt == 0:
            trail.mark("failed")
            raise RuntimeError("made to fail")

    frame = session.range(ROWS).repartition(3).mapInArrow(shuffled_then_failing, "id bigint")
    conf = "spark.sql.execution.arrow.maxRecordsPerBatch"
    session.conf.set(conf, "10")  # so that rows are published while others are still to come
    try:
        write(frame, options, jobId="load", publishBatch=10)
    finally:
        session.conf.unset(conf)
    assert len(trail.marks("failed")) == 3
    assert queue.depth().loaded >= ROWS
    assert consumed(queue) == ALL


@pytest.mark.long
def test_input_that_is_not_the_same_each_time_is_said(session, queue, options):
    frame = session.range(ROWS).repartition(2)
    write(frame, options, jobId="load")
    with pytest.raises(Exception, match="the input is not the same each time"):
        write(frame.withColumn("id", f.col("id") + 1), options, jobId="load")


@pytest.mark.long
def test_a_write_that_was_aborted_is_completed_by_running_it_again(session, queue, options):
    def fails_at_one(batches):
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == 1:
            raise RuntimeError("made to fail")

    frame = session.range(ROWS).repartition(3)
    with pytest.raises(Exception, match="made to fail"):
        write(frame.mapInArrow(fails_at_one, "id bigint"), options, jobId="load")
    seen = consumed(queue)
    write(frame, options, jobId="load")
    assert seen + consumed(queue) == ALL


@pytest.mark.long
def test_payload_key_headers_and_message_id_may_be_columns(session, queue, options):
    frame = session.range(6).select(
        f.struct("id").alias("payload"),
        f.lit("k").alias("key"),
        f.create_map(f.lit("h"), f.col("id").cast("string")).alias("headers"),
        f.concat(f.lit("m"), "id").alias("message_id"),
    )
    write(frame, options, jobId="load")
    found = {message.message_id: message for message in queue.peek(10)}
    assert set(found) == {f"m{n}" for n in range(6)}
    assert found["m3"].payload == {"id": 3}
    assert found["m3"].headers == {"h": "3"}
    assert {message.shard for message in found.values()} == {queue.shard_of("k")}


@pytest.mark.long
def test_a_stream_is_written_once_though_its_batch_is_repeated(session, queue, options, tmp_path):
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    session.range(ROWS).repartition(3).write.parquet(str(source))

    def run():
        frame = session.readStream.schema("id bigint").parquet(str(source))
        sink = frame.writeStream.format("latchwork").options(**options)
        sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    run()
    for commit in (checkpoint / "commits").iterdir():
        commit.unlink()  # as if the driver had died after the tasks and before the commit
    run()
    assert consumed(queue) == ALL


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"jobId": None}, "'jobId' is missing"),
        ({"queue": None}, "'queue' of the data source 'latchwork' is missing"),
        ({"clientId": None}, "'clientId' of the data source 'latchwork' is missing"),
        ({"queue": "nope"}, "no queue 'nope'"),
        ({"topic": "x"}, "has no option topic; use store, queue"),
        ({"publishBatch": "0"}, "'publishBatch' is '0'; it must be a whole number from 1 to 1000"),
        ({"columns": "payload,offset"}, "use some of shard, pointer"),
        ({"store": "http://x"}, "no store has the URL"),
    ],
    ids=str,
)
def test_a_wrong_option_is_one_clear_error_at_planning(session, queue, options, change, says):
    given = {name: value for name, value in (options | {"jobId": "x"} | change).items() if value is not None}
    with pytest.raises(Exception, match=says) as failure:
        write(session.range(1), given)
    assert type(failure.value).__name__ == "AnalysisException"


@pytest.mark.long
def test_what_cannot_be_a_message_is_refused_at_planning(session, queue, options):
    for columns, says in (
        ([f.lit(1).alias("payload"), f.lit(1).alias("other")], "not other: put them into the payload"),
        ([f.lit(1).alias("payload"), f.lit(1).alias("key")], "'key' is int; it must be string"),
        ([f.lit(b"x").alias("payload")], "takes no binary payloads"),
    ):
        with pytest.raises(Exception, match=says):
            write(session.range(1).select(*columns), options, jobId="x")
    with pytest.raises(Exception, match="a queue cannot be overwritten"):
        session.range(1).write.format("latchwork").mode("overwrite").options(**options, jobId="x").save()


def test_an_aborted_write_says_exactly_what_it_has_left(queue, options, caplog):
    from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
    from latchwork.spark.options import parse
    from latchwork.spark.sink import BatchWriter, Rows, TaskResult

    Ledger(queue, "job/load").publish(0, [Outgoing({"id": n}) for n in range(7)])
    Ledger(queue, "job/load").publish(2, [Outgoing({"id": n}) for n in range(4)])
    BatchWriter(parse(options | {"jobId": "load"}), Rows(whole=True)).abort([TaskResult(0, 7, 7), None, None])
    assert "7 messages of 1 complete partitions and 4 of incomplete ones (1: 0, 2: 4)" in caplog.text


def test_a_trace_goes_through_spark_by_the_column_headers(session, store, queue, options):
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = OpenTelemetry(tracer=provider.get_tracer("test"))
    observed = QueueRegistry(observe(store, telemetry), "shop")
    observed.create(QueueConfig("out", shards=1))
    for n in range(3):
        observed.get("q").publish({"id": n})
    published = {span.context.span_id for span in spans.get_finished_spans()}
    frame = session.read.format("latchwork").options(**options, columns="payload,headers").load()
    with telemetry.handling([row.headers for row in frame.collect()], queue="q"):
        pass
    write(frame, {**options, "queue": "out"}, jobId="trace")
    (handled,) = [span for span in spans.get_finished_spans() if span.name == "latchwork handle"]
    assert {link.context.span_id for link in handled.links} == published
    parents = [delivery.headers["traceparent"].split("-")[2] for delivery in observed.get("out").receive(3)]
    assert {int(parent, 16) for parent in parents} == published
