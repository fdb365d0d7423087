"""What a user does on Spark Connect, in a process of its own: a session there changes the whole of PySpark.

python -m tests.spark.connect_job STORE_URL FOLDER: starts a Connect server, and prints what came of each step as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

from latchwork.coord import LeaseElection
from latchwork.observe import Telemetry
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.retry import Poll
from latchwork.seams import SYSTEM
from latchwork.spark import SparkLatch, acknowledge, once_per_batch, register, sweep_on, watch_streams
from latchwork.store import Add, Key
from latchwork.store.connect import connect

ROWS, PARTITIONS = 60, 3


def main(url, folder):
    faulthandler.dump_traceback_later(600, exit=True)  # where it stands, should it ever stand still
    from pyspark.sql import SparkSession

    from .conftest import SETTINGS

    builder = SparkSession.builder.remote("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    store, folder = connect(url), Path(folder)
    queue = QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=2))
    options = {"store": url, "queue": "q", "clientId": "shop"}
    register(spark)
    steps = {
        "session": f"{type(spark).__module__}",
        "latch": count(spark, store, options),
        "read": read(spark, options),
        "stream": stream(spark, options, url, folder, queue),
        "sweep": sweep(spark, store),
    }
    print(json.dumps(steps))
    spark.stop()


def count(spark, store, options):
    """Write, counting each partition once it has been handed on; who waits for the latch finds all of it."""
    latch = SparkLatch.create(store, "shop", "load", PARTITIONS)
    frame = spark.range(0, ROWS, 1, PARTITIONS).mapInArrow(latch.count_down_partitions, "id long")
    frame.write.format("latchwork").mode("append").options(**options, jobId="load").save()
    return [latch.wait(10, progress=False), latch.missing()]


def read(spark, options):
    frame = spark.read.format("latchwork").options(**options, payloadSchema="id long").load()
    return [frame.where("shard = 1").count() > 0, sorted(row.id for row in frame.select("payload.id").collect())]


def stream(spark, options, url, folder, queue):
    """A batch into a record, once; then tasks acknowledge it."""
    metadata = folder / "checkpoint" / "metadata"

    def upsert(frame, batch_id):
        checkpoint = json.loads(metadata.read_text())["id"]
        with once_per_batch(connect(url), "totals", batch_id, checkpoint=checkpoint) as batch:
            if not batch.done:
                batch.operate(Key("totals", "all"), Add("n", frame.count()))

    telemetry = Telling()
    listener = watch_streams(spark, telemetry)
    frame = spark.readStream.format("latchwork").options(**options, streamId="etl", maxMessagesPerBatch=40).load()
    query = frame.writeStream.foreachBatch(upsert).option("checkpointLocation", str(folder / "checkpoint"))
    query = query.trigger(once=True).start()  # takes all, and acknowledges nothing
    assert query.awaitTermination(300)
    acknowledged = acknowledge(spark, query)
    Poll().until(SYSTEM, lambda: telemetry.ended, timeout=60)  # an event on its way would stop Spark: SPARK-59623
    spark.streams.removeListener(listener)
    total = connect(url).get(Key("totals", "all")).bins["n"]
    return [total, acknowledged, queue.depth().ready, len(queue.receive(1)), sorted(telemetry.names)]


def sweep(spark, store):
    """Messages of a consumer that is gone come into the sideline, by tasks; how many, and what failed."""
    config = QueueConfig("swept", retry=False, shards=2, sweep_duration=timedelta(seconds=1), unsafe_limits=True)
    queue = QueueRegistry(store, "sweepers").create(config)
    queue.publish_many(range(4))
    assert len(queue.receive(4)) == 4
    election = LeaseElection(store, "sweeper")
    election.start()
    leadership = Poll().until(SYSTEM, lambda: election.leadership, timeout=30)
    report = sweep_on(spark, queue.registry, leadership)
    end = time.monotonic() + 60
    while report.rehomed < 4 and time.monotonic() < end:
        time.sleep(0.3)
        report += sweep_on(spark, queue.registry, leadership)
    election.stop()
    return [report.rehomed, list(report.failures), len(queue.sideline.peek(10))]


class Telling(Telemetry):
    """Keeps the names of what it is told."""

    def __init__(self):
        self.names, self.ended = set(), False

    def record(self, event, value, labels):
        self.names.add(event.name)
        self.ended = self.ended or (event.name == "stream_rate" and value == 0)

    def read(self, source):
        """No gauges here."""


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:  # threads of PySpark would keep a process that has failed alive
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
