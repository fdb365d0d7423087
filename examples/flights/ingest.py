"""The first half of a farm's work: its flights become messages, one each."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from data import input_of
from faults import fail_some
from plan import Plan
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

Batches = Iterator[pa.RecordBatch]
ROW = "origin string, carrier string, hour int, dep_delay int, arr_delay int"


def publish(spark: SparkSession, plan: Plan, farm: str) -> int:
    """Write the farm's flights into its queue; how many messages are in it then.

    The job's name makes it repeatable: tasks that are tried again, and a farm that is run again, publish what is
    missing and nothing else.
    """
    flights = clean(spark.read.parquet(str(input_of(plan.directory, farm)))).repartition(plan.partitions)
    options = plan.options(farm)
    fragile = flights.mapInArrow(fail_at_the_end, ROW)
    fragile.write.format("latchwork").mode("append").options(**options, jobId=plan.job).save()
    return spark.read.format("latchwork").options(**options, columns="shard").load().count()


def clean(flights: DataFrame) -> DataFrame:
    """Whole minutes, codes without blanks around them."""
    return flights.select(
        "origin",
        f.trim("carrier").alias("carrier"),
        *(f.col(name).cast("int").alias(name) for name in ("hour", "dep_delay", "arr_delay")),
    )


def fail_at_the_end(batches: Batches) -> Batches:
    """The same rows; some first attempts fail after all of them, when they have been published."""
    yield from batches
    fail_some(3, "after its flights were published")
