"""Latency of a Spark stream: from a publish in another process until `foreachBatch` has the message, at trigger 0.

Run it from the project's root as `python -m benchmarks.stream`. 50 messages a second are published, and each batch
begins once the one before has ended. There is no target: a message waits for the batch that runs, and then for its own,
so how long a batch takes decides. Beside it stands the same query over Spark's own source `rate-micro-batch`, which
makes its rows by itself: what its batch takes is Spark's, not the queue's.

Kafka is not measured here. As Databricks has published for streams from Kafka at 100,000 to 1,000,000 events a second
(https://www.databricks.com/blog/latency-goes-subsecond-apache-spark-structured-streaming), micro-batches take 700 to
900 ms, and 150 to 250 ms with asynchronous progress tracking, which is for queries without state that write to Kafka.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from benchmarks._harness import aerospike_url, arguments, table
from benchmarks.latency import RATE, Role, ours, quantiles
from benchmarks.spark import session

QUEUE = "q0"
WARM, SECONDS = 100, 20
"""Messages that are not counted, and seconds for which messages are."""
ROWS, BATCHES = 10, 60
"""Rows of a batch that Spark makes by itself, and how many batches."""
PATIENCE = 60.0


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url, tempfile.TemporaryDirectory() as folder, session(2) as spark:
        lags, batch = queue(spark, url, folder)
        alone = spark_alone(spark, folder)
    rows = [
        (f"the queue, {RATE} a second", len(lags), *quantiles(lags), batch),
        ("rate-micro-batch", "", "", "", "", alone),
    ]
    print(table(("source", "messages", "p50 ms", "p99 ms", "longest ms", "a batch: p50 ms"), rows))


def queue(spark: Any, url: str, folder: str) -> tuple[list[float], float]:
    """The milliseconds of each message, and of a batch."""
    lags: list[float] = []

    def note(frame: Any, _: int) -> None:
        payloads = [float(row.payload) for row in frame.select("payload").collect()]
        now = time.monotonic()
        lags.extend((now - at) * 1000 for at in payloads)

    at = {"store": ours(url), "clientId": "latency", "queue": QUEUE, "streamId": "bench"}
    query = (
        spark.readStream.format("latchwork")
        .options(**at)
        .load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", f"{folder}/queue")
        .start()
    )
    with closing(Role(sys.executable, "latchwork", "publish", url, QUEUE)) as publisher:
        publisher.has_said(1)
        for number in (WARM, RATE * SECONDS):
            lags.clear()
            publisher.process.stdin.write(f"{QUEUE} {number} {RATE}\n")
            publisher.process.stdin.flush()
            until(lambda number=number: len(lags) >= number, query, number / RATE + PATIENCE)
            publisher.has_said(1)
    return lags, ended(query)


def spark_alone(spark: Any, folder: str) -> float:
    """The milliseconds of a batch of a source that does nothing."""
    done: list[int] = []

    def note(frame: Any, _: int) -> None:
        done.append(len(frame.collect()))

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    query = stream.writeStream.foreachBatch(note).option("checkpointLocation", f"{folder}/alone").start()
    until(lambda: len(done) >= BATCHES, query, PATIENCE)
    return ended(query)


def ended(query: Any) -> float:
    """Stop the query; the milliseconds of a batch, by Spark's own report."""
    batches = [one.durationMs["triggerExecution"] for one in query.recentProgress if one.numInputRows]
    query.stop()
    return statistics.median(batches)


def until(holds: Callable[[], bool], query: Any, seconds: float) -> None:
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not holds():
        if not query.isActive or time.monotonic() > end:
            raise SystemExit(f"not all has come within {seconds:g} s: {query.exception()}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
