"""One farm: a Spark driver of its own that puts the flights of one airport into a queue, and processes what comes out.

Started by run.py, in a process of its own: `python farm.py DIRECTORY JFK`. It may be killed at any moment and started
again: what is published is not published again, the stream goes on from its checkpoint, tasks write the same files
under the same names, and a partition that has counted does not count again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from data import output_of
from ingest import publish
from plan import Plan
from process import delays_by_carrier_and_hour, stream_out, write_then_count
from pyspark.sql import SparkSession

from latchwork.spark import register

ARCHIVE = Path(sys.prefix) / "flights.jsa"
"""See archive.py; a farm runs without it too."""


def main() -> None:
    """Bring up Spark, and run one farm's jobs."""
    plan, farm = Plan.read(Path(sys.argv[1])), sys.argv[2]
    run(session(farm, plan.partitions, option("SharedArchiveFile", ARCHIVE) if ARCHIVE.exists() else ""), plan, farm)


def run(spark: SparkSession, plan: Plan, farm: str) -> None:
    """Run one farm's jobs to their end, and the session's."""
    register(spark)
    if plan.noted("published", farm) is None:
        plan.note("published", farm, publish(spark, plan, farm))
    flights = stream_out(spark, plan, farm)
    plan.note("consumed", farm, flights.count())
    delays = delays_by_carrier_and_hour(flights)
    latch = plan.latch(farm)
    latch.preflight(delays.rdd.getNumPartitions())
    output = output_of(plan.directory, farm)
    output.mkdir(exist_ok=True)
    task = write_then_count(latch, plan.attempts(), output)
    written = delays.mapInArrow(task, "part string, groups long").collect()
    print(f"{farm}: {len(written)} parts, {sum(row.groups for row in written)} groups")
    spark.stop()


def option(name: str, path: Path) -> str:
    """Java's option with a path; Spark splits the options at spaces, but not within quotes."""
    return f'-XX:{name}="{path}"'


def session(farm: str, partitions: int, archive: str) -> SparkSession:
    """A driver with one core, which tries each task up to four times. archive: Java's option for it."""
    settings = {
        "spark.sql.shuffle.partitions": partitions,
        "spark.sql.adaptive.enabled": "false",  # it would merge small partitions, and the latch counts them all
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {archive}",  # over before more pays
        "spark.python.daemon.module": "workers",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[1,4]").appName(f"flights-{farm}")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main()
