"""One farm of test_two_farms.py: a Spark job of two phases, the second when every farm has done the first.

python -m tests.spark.farm_process FARM STORE_URL FOLDER
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from latchwork.coord import LatchLevel
from latchwork.spark import SparkLatch
from latchwork.store.connect import connect

from . import tasks
from .conftest import Sessions

FARMS = ("fra", "iad")
PHASES = ("load", "report")
PARTITIONS = 4
LOOKS = 1_200


def load(partition, farm, folder):
    """What the partition stands for."""
    return (partition + 1) * 10 ** FARMS.index(farm)


def report(partition, farm, folder):
    """The sum of this partition over all farms; fails where one of them has not loaded it."""
    return sum(int((folder / f"load-{each}-{partition}").read_text()) for each in FARMS)


def work(rows, phase, latch, farm, folder):
    """Make the partition's output visible by a rename, then count; two of four fail before or after that, once."""
    from pyspark import TaskContext

    tasks.fail_first(1)
    partition = TaskContext.get().partitionId()
    made = folder / f"{phase}-{farm}-{partition}"
    unfinished = made.with_suffix(".tmp")
    unfinished.write_text(str({"load": load, "report": report}[phase](partition, farm, folder)))
    unfinished.rename(made)
    latch.count_down_partition()
    tasks.fail_first(2)


def wait(latch, mark):
    """Wait for all farms: each fruitless 0.2 s makes `MARK.waiting` a byte longer; then there is `MARK.released`."""
    for _ in range(LOOKS):
        if latch.wait(0.2, progress=False):
            return mark.with_suffix(".released").touch()
        with mark.with_suffix(".waiting").open("a") as looks:
            looks.write("x")
    raise TimeoutError(f"{latch!r} was never released: {latch.missing()} are missing")


def main(farm, url, folder):
    sessions, store, folder = Sessions(folder), connect(url), Path(folder)
    numbers = sessions.on("local[2,4]").sparkContext.parallelize(range(PARTITIONS), PARTITIONS)
    for phase in PHASES:
        latch = SparkLatch.create(
            store, "shop", "nightly", PARTITIONS, phase=phase, farm_id=farm, farms=FARMS, level=LatchLevel.XDC
        )
        numbers.foreachPartition(partial(work, phase=phase, latch=latch, farm=farm, folder=folder))
        wait(latch, folder / f"{phase}-{farm}")
    sessions.stop()


if __name__ == "__main__":
    os.environ["SPARK_LOCAL_DIRS"] = sys.argv[3]
    main(*sys.argv[1:])
