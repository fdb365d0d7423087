"""Latches and the sink on several executors: lost ones, and speculative copies of a task that is still running."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from latchwork.coord import LatchLevel
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.spark import SparkLatch, acknowledge, register

from . import tasks
from .conftest import JAVA_OPTIONS, PYTHONPATH

PARTITIONS = 6
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.python.worker.reuse": "false",  # elsewhere it is true, so that both are tested
}

UNTIL_KILLED = 120.0
"""Seconds that an original waits for Spark to kill it, once its copy has won. An original that gives up before that has
failed, and Spark may start a third attempt."""


@pytest.fixture
def latch(store):
    """At XDC level the counter does not stop at zero, so a partition that counts twice shows."""
    return SparkLatch.create(store, "shop", "nightly", PARTITIONS, farm_id="here", level=LatchLevel.XDC)


@pytest.mark.long
def test_retried_partitions_count_once_on_two_executors(executors, latch, trail):
    numbers = executors.sparkContext.parallelize(range(60), PARTITIONS)
    assert numbers.mapPartitions(tasks.counting(latch, trail)).sum() == sum(range(60))
    assert len(trail.marks("begun")) == PARTITIONS + 4
    assert latch.missing() == []
    assert latch.counts() == {"here": 0}


@pytest.mark.long
def test_partitions_of_an_executor_that_is_lost_after_they_have_counted_count_once(executors, latch, trail):
    def task(rows):
        from pyspark import TaskContext

        trail.mark("begun")
        yield from latch.count_down_partitions(rows)
        trail.mark("counted")
        context = TaskContext.get()
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            tasks.kill_this_executor()

    numbers = executors.sparkContext.parallelize(range(60), PARTITIONS)
    assert numbers.mapPartitions(task).sum() == sum(range(60))
    assert {(0, 0), (0, 1)} <= set(trail.marks("counted"))
    assert latch.counts() == {"here": 0}
    assert latch.missing() == []


@pytest.mark.long
def test_rows_of_an_executor_that_is_lost_are_published_once(executors, store, url, trail):
    queue = QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=4))
    register(executors)

    def dies(batches):
        from pyspark import TaskContext

        yield from batches
        # The lost shuffle files make Spark run the stage again, in which attempts count from 0 again.
        if TaskContext.get().partitionId() == 0 and not trail.marks("dying"):
            trail.mark("dying")
            tasks.kill_this_executor()

    executors.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    frame = executors.range(300).repartition(4).mapInArrow(dies, "id bigint")
    options = {"store": url, "queue": "q", "clientId": "shop", "jobId": "load", "publishBatch": "10"}
    frame.write.format("latchwork").mode("append").options(**options).save()
    assert trail.marks("dying") == [(0, 0)]
    assert Counter(message.payload["id"] for message in queue.peek_all()) == Counter(range(300))


@pytest.mark.long
def test_a_stream_whose_executor_is_lost_reads_everything_once(executors, store, url, trail, tmp_path):
    queue = QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=4))
    queue.publish_many([{"id": n} for n in range(300)])
    register(executors)

    def dies(batches):
        yield from batches
        if not trail.marks("dying"):
            trail.mark("dying")
            tasks.kill_this_executor()

    options = {"store": url, "queue": "q", "clientId": "shop", "streamId": "etl"}
    frame = executors.readStream.format("latchwork").options(**options, payloadSchema="id long").load()
    sink = frame.select("payload.id").mapInArrow(dies, "id long").writeStream.format("parquet")
    sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", str(tmp_path / "out"))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    assert trail.marks("dying")
    assert Counter(row.id for row in executors.read.parquet(str(tmp_path / "out")).collect()) == Counter(range(300))
    acknowledge(executors, query)
    assert queue.depth().ready == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A standalone cluster from PySpark's own scripts: two workers whose addresses differ, as speculation asks for."""
    import pyspark

    folder = tmp_path_factory.mktemp("cluster")
    home = Path(pyspark.__file__).parent
    processes = []

    def start(name, *arguments):
        log = folder / f"{name}.log"
        environment = os.environ | {
            "PYTHONPATH": PYTHONPATH,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        }
        with log.open("wb") as out:
            command = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]]
            processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=folder))
        return log

    log = start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    url = tasks.await_line(log, re.compile(r"spark://127\.0\.0\.1:\d+"))
    for number, host in enumerate(("127.0.0.2", "127.0.0.3")):
        work = str(folder / f"work{number}")
        start(
            f"worker{number}", "worker.Worker", "--host", host, "--cores", "1", "--memory", "512m",
            "--webui-port", "0", "--work-dir", work, url,
        )  # fmt: skip
    for number in range(2):
        tasks.await_line(folder / f"worker{number}.log", re.compile("Successfully registered with master"))
    yield url
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(30)


@pytest.fixture(scope="module")
def speculating_master(sessions, cluster):
    yield cluster
    sessions.stop()


@pytest.fixture
def speculating(sessions, speculating_master):
    return sessions.on(speculating_master, **SPECULATION)


@pytest.mark.long
def test_a_speculative_copy_and_its_original_count_once(speculating, latch, trail):
    """The original counts and hangs; the copy that Spark starts on the other worker counts too, and wins."""

    def task(rows):
        from pyspark import TaskContext

        context = TaskContext.get()
        trail.mark("begun")
        if context.partitionId() == 0 and context.attemptNumber() == 1:
            trail.await_mark("0-0-counted")
        yield from latch.count_down_partitions(rows)
        trail.mark("counted")
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            trail.await_mark("0-1-counted")
            trail.await_mark("never", timeout=UNTIL_KILLED)

    numbers = speculating.sparkContext.parallelize(range(60), PARTITIONS)
    assert numbers.mapPartitions(task).sum() == sum(range(60))
    assert [mark for mark in trail.marks("counted") if mark[0] == 0] == [(0, 0), (0, 1)]
    assert len(trail.marks("counted")) > PARTITIONS
    assert latch.counts() == {"here": 0}
    assert latch.missing() == []


@pytest.mark.long
def test_rows_of_a_speculative_copy_and_its_original_are_published_once(speculating, store, url, trail):
    """The original publishes some and hangs; the copy sees the rows in another order, and wins."""
    queue = QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=4))
    register(speculating)

    def hangs(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        original = context.partitionId() == 0 and context.attemptNumber() == 0
        if context.partitionId() == 0 and not original:
            trail.await_mark("0-0-published")  # else a copy of an original that is slow to start would kill it
        rows = [row for batch in batches for row in batch["id"].to_pylist()]
        rows = rows if original else rows[::-1]
        for first in range(0, len(rows), 10):
            yield pa.RecordBatch.from_pydict({"id": pa.array(rows[first : first + 10], pa.int64())})
            if original and first == 20:
                trail.mark("published")
                trail.await_mark("0-1-published")
                trail.await_mark("never", timeout=UNTIL_KILLED)
        trail.mark("published")

    conf = "spark.sql.execution.arrow.maxRecordsPerBatch"
    speculating.conf.set(conf, "10")
    frame = speculating.range(0, 300, 1, PARTITIONS).mapInArrow(hangs, "id bigint")
    options = {"store": url, "queue": "q", "clientId": "shop", "jobId": "load", "publishBatch": "10"}
    frame.write.format("latchwork").mode("append").options(**options).save()
    assert {(0, 0), (0, 1)} <= set(trail.marks("published"))
    assert Counter(message.payload["id"] for message in queue.peek_all()) == Counter(range(300))
