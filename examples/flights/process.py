"""The second half of a farm's work: the messages are streamed out and aggregated, and every partition counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from faults import fail_some
from ingest import ROW, Batches
from plan import Plan
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from latchwork.coord import CountUpDownLatch
from latchwork.observe import Event, Sample, Telemetry
from latchwork.spark import SparkLatch, acknowledge, watch_streams

PER_BATCH = 75_000
"""Messages of a micro-batch at most: each farm has two, the second so small that the planner itself acknowledges it."""
NAMES, SUMS = ("origin", "carrier"), ("flights", "departed", "arrived", "departure_delay", "arrival_delay")
SCHEMA = pa.schema(
    [*((name, pa.string()) for name in NAMES), ("hour", pa.int32()), *((name, pa.int64()) for name in SUMS)]
)


class NotedLag(Telemetry):
    """Writes down how many messages the farm's stream has yet to read, for whoever watches the farms."""

    def __init__(self, plan: Plan, farm: str) -> None:
        self._plan, self._farm = plan, farm

    def record(self, event: Event, value: float, labels: Mapping[str, str]) -> None:
        """After each batch."""
        if event.name == "stream_lag" and labels["queue"] == self._plan.queue(self._farm):
            self._plan.note("lag", self._farm, int(value))

    def read(self, source: Callable[[], Iterable[Sample]]) -> None:
        """No gauges of queues."""


def stream_out(spark: SparkSession, plan: Plan, farm: str) -> DataFrame:
    """Every message of the farm's queue as a row, once; the queue is empty then.

    The checkpoint makes it repeatable, and Spark's file sink writes each batch once.
    """
    folder = plan.directory / f"stream-{farm}"
    settings = {"streamId": plan.job, "payloadSchema": ROW, "columns": "payload", "maxMessagesPerBatch": PER_BATCH}
    messages = spark.readStream.format("latchwork").options(**plan.options(farm), **settings).load()
    sink = messages.select("payload.*").writeStream.format("parquet").option("path", str(folder / "flights"))
    watch_streams(spark, NotedLag(plan, farm))
    query = sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    acknowledge(spark, query)
    return spark.read.parquet(str(folder / "flights"))


def delays_by_carrier_and_hour(flights: DataFrame) -> DataFrame:
    """The figures of data.py for one airport."""
    return flights.groupBy("origin", "carrier", "hour").agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.count("arr_delay").alias("arrived"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("departure_delay"),
        f.coalesce(f.sum("arr_delay"), f.lit(0)).alias("arrival_delay"),
    )


def write_then_count(latch: SparkLatch, attempts: CountUpDownLatch, output: Path) -> Callable[[Batches], Batches]:
    """The task: write the partition's file, rename it, and only then count. It ships to the workers."""

    def task(batches: Batches) -> Batches:
        attempts.count_up()
        yield from latch.count_down_partitions(write(batches, output))
        fail_some(2, "after it has counted")

    return task


def write(batches: Batches, output: Path) -> Batches:
    """Write a partition under a name that every attempt shares; it is there whole or not at all."""
    context = TaskContext.get()
    assert context is not None
    table = pa.concat_tables([SCHEMA.empty_table(), *map(as_table, batches)])
    part = output / f"part-{context.partitionId():05}.parquet"
    unfinished = part.with_suffix(f".{context.taskAttemptId()}.unfinished")
    pq.write_table(table, unfinished)
    fail_some(1, "before it has counted")
    unfinished.replace(part)
    yield pa.RecordBatch.from_pydict({"part": [part.name], "groups": [table.num_rows]})


def as_table(batch: pa.RecordBatch) -> pa.Table:
    """The batch with the types of the file."""
    return pa.Table.from_batches([batch]).cast(SCHEMA)
