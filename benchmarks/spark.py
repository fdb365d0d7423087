"""A queue as a Spark sink and source against the same loops in plain Python, on as many processes.

Run it from the project's root as `python -m benchmarks.spark`. Target: at least 0.7 of plain Python for reads and 0.85
for writes, and near-linear in shards up to the cores. Sessions, processes and connections are warm before the clock
runs; the plain loops read and write through the same ledger and ranges, and each case runs three times, taking turns.
Reads are of four times as many messages as writes.

Where the rest goes. Every query starts a Python process to plan it, which imports PySpark, pyarrow and Latchwork,
however little there is to do; so the time of one that has nothing to do is a column of its own, and the last column
leaves it out. Every task of Python costs Spark as much as reading thousands of messages, most of it the
JVM's side; so a task reads 30,000 messages at least.
Of a message most is the call, as in plain Python; decoding it and making its columns is done for a batch at once, in C.
What Spark does with the columns then is counted too, and plain Python makes none.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from typing import Any

from pyspark.sql import SparkSession

from benchmarks._harness import aerospike_url, arguments, table
from benchmarks.targets import Verdict, judged
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded import stream as ranges
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.spark import register
from latchwork.store.aerospike.store import AerospikeStore

PAYLOAD = "x" * 240
TURNS = 3
READ = 4
"""Times as many messages are read as written: a read is so much quicker that its query's start would be most of it."""
TARGETS = {"write": 0.85, "read": 0.7}
CLIENT = "bench_spark"
SHARDS = (1, 4, 16)
NUMBERS = count()
HEAD = (
    "cores", "shards", "", "Spark, messages a second", "plain Python", "x plain Python", "a query for nothing (s)",
    "x without that",
)  # fmt: skip


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    messages = int(20_000 * options.seconds)
    rows = []
    with aerospike_url(options.url) as url:
        for cores in (1, 2):
            with plain_python(cores) as pool, session(cores) as spark:
                bench = Bench(url, cores, messages, spark, pool)
                for shards in SHARDS if cores == 2 else SHARDS[-1:]:
                    rows += bench.measured(shards)
    size = len(PAYLOAD) + 16
    print(f"{messages:,} messages of {size} bytes written, {READ * messages:,} read, median of {TURNS} turns\n")
    print(table(HEAD, rows) + "\n")
    print(judged(
        Verdict(f"Spark {verb} / plain Python, {cores} cores, {shards} shards", TARGETS[verb], ratio)
        for cores, shards, verb, _, _, ratio, *_ in rows
        if shards == SHARDS[-1]
    ))  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """One number of cores: a Spark session, and as many processes of plain Python."""

    url: str
    cores: int
    messages: int
    spark: Any
    pool: Any

    def measured(self, shards: int):
        """Write in turns, then read in turns."""
        times = self.timed(
            lambda: self.writes(*(new_queue(self.url, shards) for _ in range(3))), lambda: forget(self.url)
        )
        filled = new_queue(self.url, shards)
        list(self.pool.map(plain_write, *parts(self.url, filled, self.cores, READ * self.messages)))
        times |= self.timed(lambda: self.reads(filled, new_queue(self.url, shards)))
        forget(self.url)
        for verb, messages in (("write", self.messages), ("read", READ * self.messages)):
            ours, plain, nothing = (statistics.median(times[f"{who} {verb}"]) for who in ("spark", "plain", "no"))
            rates = messages / ours, messages / plain
            yield self.cores, shards, verb, *rates, plain / ours, nothing, plain / max(ours - nothing, 0.001)

    def timed(self, steps, between=lambda: None):
        """The seconds of each step in each turn; the first turn only warms everything up."""
        times: dict[str, list[float]] = {}
        for turn in range(TURNS + 1):
            for name, step in steps().items():
                began = time.perf_counter()
                step()
                if turn:
                    times.setdefault(name, []).append(time.perf_counter() - began)
            between()
        return times

    def writes(self, by_spark: str, by_python: str, empty: str):
        given = parts(self.url, by_python, self.cores, self.messages)
        return {
            "spark write": lambda: spark_write(self.spark, self.url, by_spark, self.cores, self.messages),
            "plain write": lambda: list(self.pool.map(plain_write, *given)),
            "no write": lambda: spark_write(self.spark, self.url, empty, self.cores, 0),
        }

    def reads(self, filled: str, empty: str):
        messages = READ * self.messages
        given = parts(self.url, filled, self.cores, messages)
        return {
            "no read": lambda: spark_read(self.spark, self.url, empty, 0),
            "spark read": lambda: spark_read(self.spark, self.url, filled, messages),
            "plain read": lambda: check(sum(self.pool.map(plain_read, *given)), messages),
        }


def parts(url, queue: str, cores: int, messages: int):
    """The arguments of one call for each process."""
    return [url] * cores, [queue] * cores, range(cores), [cores] * cores, [messages // cores] * cores


def spark_write(spark, url: str, queue: str, cores: int, messages: int) -> None:
    frame = spark.range(0, messages, 1, cores).selectExpr("id", f"'{PAYLOAD}' as text")
    sink = frame.write.format("latchwork").mode("append").options(store=url, queue=queue, clientId=CLIENT)
    sink.option("jobId", "bench").save()


def spark_read(spark, url: str, queue: str, messages: int) -> None:
    source = spark.read.format("latchwork").options(store=url, queue=queue, clientId=CLIENT).load()
    check(source.selectExpr("count(payload)").first()[0], messages)


def plain_write(url: str, queue: str, part: int, parts: int, messages: int) -> None:
    rows = (Outgoing({"id": part * messages + n, "text": PAYLOAD}) for n in range(messages))
    Ledger(opened(url, queue), "bench").publish(part, rows)


def plain_read(url: str, queue: str, part: int, parts: int, messages: int) -> int:
    """One process reads a slice of every shard."""
    pointers, found = opened(url, queue).pointers, 0
    for state in pointers.states():
        first, last = state.loaded * part // parts, state.loaded * (part + 1) // parts
        found += sum(map(len, ranges.peek(pointers, state.shard, first, last)))
    return found


def opened(url: str, queue: str):
    return QueueRegistry(AerospikeStore.from_url(url), CLIENT).get(queue)


def new_queue(url: str, shards: int) -> str:
    name = f"q{next(NUMBERS)}"
    QueueRegistry(AerospikeStore.from_url(url), CLIENT).create(QueueConfig(name, shards=shards))
    return name


def forget(url: str) -> None:
    """Make room in the server."""
    store = AerospikeStore.from_url(url)
    for name in ("data_set", "meta_set", "ledger_set"):
        store._link.connect().truncate(store.namespace, f"{CLIENT}_{name}", 0)


def check(found: int, messages: int) -> None:
    if found != messages:
        raise SystemExit(f"{found} messages were read, and {messages} written")


@contextmanager
def plain_python(processes: int):
    """Processes that have started."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(abs, range(processes)))
        yield pool


@contextmanager
def session(cores: int):
    """A Spark session that knows the source and the sink."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{cores}]").appName("latchwork-benchmark")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    yield spark
    spark.stop()


if __name__ == "__main__":
    main()
