"""One farm: a Spark driver of its own that cleans and aggregates the flights of one airport.

Started by run.py, in a process of its own: `python farm.py JFK DIRECTORY`. It may be killed at any moment and started
again: its tasks write the same files under the same names, and a partition that has counted does not count again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from data import input_of, output_of
from plan import Plan
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from latchwork.coord import CountUpDownLatch
from latchwork.spark import SparkLatch

Batches = Iterator[pa.RecordBatch]
NAMES, SUMS = ("origin", "carrier"), ("flights", "departed", "arrived", "departure_delay", "arrival_delay")
SCHEMA = pa.schema(
    [*((name, pa.string()) for name in NAMES), ("hour", pa.int32()), *((name, pa.int64()) for name in SUMS)]
)


def main() -> None:
    """Run one farm's job to its end."""
    farm, plan = sys.argv[1], Plan.read(Path(sys.argv[2]))
    spark = session(farm, plan.partitions)
    delays = delays_by_carrier_and_hour(spark, plan.directory, farm)
    latch = plan.latch(farm)
    latch.preflight(delays.rdd.getNumPartitions())
    output = output_of(plan.directory, farm)
    output.mkdir(exist_ok=True)
    task = write_then_count(latch, plan.attempts(), output)
    written = delays.mapInArrow(task, "part string, groups long").collect()
    print(f"{farm}: {len(written)} parts, {sum(row.groups for row in written)} groups")
    spark.stop()


def session(farm: str, partitions: int) -> SparkSession:
    """A driver with one core, which tries each task up to four times."""
    settings = {
        "spark.sql.shuffle.partitions": partitions,
        "spark.sql.adaptive.enabled": "false",  # it would merge small partitions, and the latch counts them all
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[1,4]").appName(f"flights-{farm}")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def delays_by_carrier_and_hour(spark: SparkSession, directory: Path, farm: str) -> DataFrame:
    """The figures of data.py for one airport. Cleaning: whole minutes, codes without blanks around them."""
    flights = spark.read.parquet(str(input_of(directory, farm)))
    clean = flights.select(
        "origin",
        f.trim("carrier").alias("carrier"),
        f.col("hour").cast("int").alias("hour"),
        f.col("dep_delay").cast("int").alias("dep_delay"),
        f.col("arr_delay").cast("int").alias("arr_delay"),
    )
    return clean.groupBy("origin", "carrier", "hour").agg(
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


def fail_some(remainder: int, when: str) -> None:
    """Make the first attempt of every fourth partition fail here."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and context.partitionId() % 4 == remainder:
        raise RuntimeError(f"partition {context.partitionId()} is made to fail {when}")


if __name__ == "__main__":
    main()
