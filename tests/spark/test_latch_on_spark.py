"""A Spark latch on a real Spark: every partition counts once, whatever Spark does to its attempts."""

from __future__ import annotations

import pytest

from latchwork.coord import LatchLevel
from latchwork.spark import SparkLatch

from . import tasks

PARTITIONS = 6
RETRIED = 4
"""Of six partitions, two fail before they have counted and two after."""


@pytest.fixture
def latch(store):
    """At XDC level the counter does not stop at zero, so a partition that counts twice shows."""
    return SparkLatch.create(store, "shop", "nightly", PARTITIONS, farm_id="here", level=LatchLevel.XDC)


def numbers(spark):
    return spark.sparkContext.parallelize(range(60), PARTITIONS)


def all_counted_once(latch, trail):
    attempts, counted = trail.marks("begun"), trail.marks("counted")
    assert len(attempts) == PARTITIONS + RETRIED
    assert len(counted) == PARTITIONS + RETRIED // 2
    assert latch.missing() == []
    assert latch.counts() == {"here": 0}
    assert latch.wait(0, progress=False)


def test_retried_partitions_count_once_from_foreach_partition(spark, latch, trail):
    numbers(spark).foreachPartition(tasks.counting(latch, trail))
    all_counted_once(latch, trail)


@pytest.mark.long
def test_retried_partitions_count_once_from_map_partitions(spark, latch, trail):
    assert numbers(spark).mapPartitions(tasks.counting(latch, trail)).sum() == sum(range(60))
    all_counted_once(latch, trail)


@pytest.mark.long
def test_retried_partitions_count_once_from_map_in_pandas(spark, latch, trail):
    frame = spark.range(60).repartition(PARTITIONS)
    assert frame.mapInPandas(tasks.counting(latch, trail), frame.schema).count() == 60
    all_counted_once(latch, trail)


@pytest.mark.long
def test_a_bare_method_is_enough(spark, latch):
    latch.preflight(PARTITIONS)
    numbers(spark).foreachPartition(latch.count_down_partitions)
    assert latch.missing() == []


@pytest.mark.long
def test_a_handle_from_get_counts_the_same_latch(spark, store, latch):
    numbers(spark).foreachPartition(
        SparkLatch.get(store, "shop", "nightly", farm_id="here", level=LatchLevel.XDC).count_down_partitions
    )
    assert latch.missing() == []


@pytest.mark.long
def test_empty_partitions_count_too(spark, latch):
    spark.sparkContext.parallelize([], PARTITIONS).foreachPartition(latch.count_down_partitions)
    assert latch.missing() == []


@pytest.mark.long
def test_empty_partitions_of_a_frame_count_too(spark, latch):
    frame = spark.range(2).repartition(PARTITIONS)
    assert frame.mapInPandas(latch.count_down_partitions, frame.schema).count() == 2
    assert latch.missing() == []


@pytest.mark.long
def test_running_the_job_again_changes_nothing(spark, latch):
    for _ in range(2):
        numbers(spark).foreachPartition(latch.count_down_partitions)
    assert latch.counts() == {"here": 0}


@pytest.mark.long
def test_a_partition_whose_rows_are_not_all_taken_does_not_count(spark, latch):
    def takes_one(rows):
        return [next(latch.count_down_partitions(rows))]

    numbers(spark).mapPartitions(takes_one).count()
    assert len(latch.missing()) == PARTITIONS


def test_a_job_that_fails_leaves_the_others_and_names_the_rest(spark, latch):
    def fails_at_three(rows):
        from pyspark import TaskContext

        if TaskContext.get().partitionId() == 3:
            raise RuntimeError("made to fail")
        return latch.count_down_partitions(rows)

    with pytest.raises(Exception, match="made to fail"):
        numbers(spark).foreachPartition(fails_at_three)
    assert "here/3" in latch.missing()
    assert not latch.wait(0, progress=False)


@pytest.mark.long
def test_a_partition_beyond_those_that_the_latch_was_created_for_fails_the_job(spark, latch):
    with pytest.raises(Exception, match=r"partition 6 of SparkLatch.*was created for 6"):
        spark.sparkContext.parallelize(range(70), 7).foreachPartition(latch.count_down_partitions)


@pytest.mark.long
def test_the_same_partitions_of_two_phases_are_apart(spark, store):
    load = SparkLatch.create(store, "shop", "nightly", 2, phase="load")
    clean = SparkLatch.create(store, "shop", "nightly", 2, phase="clean")
    spark.sparkContext.parallelize(range(4), 2).foreachPartition(load.count_down_partitions)
    assert load.wait(0, progress=False)
    assert len(clean.missing()) == 2


def test_a_store_of_this_process_alone_is_refused_with_its_remedy(spark):
    from latchwork.store import MemoryStore

    latch = SparkLatch.create(MemoryStore(), "shop", "nightly", 2)
    with pytest.raises(Exception, match="use sqlite:PATH or aerospike"):
        spark.sparkContext.parallelize(range(4), 2).foreachPartition(latch.count_down_partitions)
