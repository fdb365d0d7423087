"""The first half of a farm's work: its flights become messages, one each."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from data import input_of
from faults import fail_some
from plan import CLIENT, Plan
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from latchwork.queue import QueueRegistry
from latchwork.queue.ledger import Ledger

Batches = Iterator[pa.RecordBatch]
ROW = "origin string, carrier string, hour int, dep_delay int, arr_delay int"


def publish(spark: SparkSession, plan: Plan, farm: str) -> int:
    """Write the farm's flights into its queue; how many it has published by then.

    The job's name makes it repeatable: tasks that are tried again, and a farm that is run again, publish what is
    missing and nothing else.
    """
    flights = clean(spark.read.parquet(str(input_of(plan.directory, farm)))).repartition(plan.partitions)
    fragile = flights.mapInArrow(fail_at_the_end, ROW)
    fragile.write.format("latchwork").mode("append").options(**plan.options(farm), jobId=plan.job).save()
    # By the sink's own record of them: a count in Spark would be one more query, which reads them all.
    ledger = Ledger(QueueRegistry(plan.store, CLIENT, farm_id=farm).get(plan.queue(farm)), f"job/{plan.job}")
    return sum(map(ledger.published, range(plan.partitions)))


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
