"""A Spark driver of one farm: in each generation that it is told of, a job whose partitions count, and a wait for all.

python -m tests.spark.farm_driver FARM STORE_URL FOLDER. It reads a generation, says "joined", reads "count", says
"counted", and waits.
"""

from __future__ import annotations

import os
import sys

from latchwork import connect
from latchwork.coord import LatchLevel
from latchwork.errors import PartyLost
from latchwork.spark import SparkLatch

from .conftest import Sessions

FARMS = ("ewr", "jfk", "lga")
PARTITIONS, LEASE = 2, 8.0


def main(farm, url, folder):
    sessions = Sessions(folder)
    numbers = sessions.on("local[1]").sparkContext.parallelize(range(PARTITIONS), PARTITIONS)
    print("ready", flush=True)
    for line in sys.stdin:
        latch = SparkLatch.get_or_create(
            connect(url), "shop", "nightly", PARTITIONS, generation=int(line), farms=FARMS, farm_id=farm,
            level=LatchLevel.XDC,
        )  # fmt: skip
        with latch.join(lease=LEASE):
            print("joined", flush=True)
            sys.stdin.readline()
            numbers.foreachPartition(lambda rows, latch=latch: latch.count_down_partition())
            print("counted", flush=True)
            try:
                print(latch.wait(120, progress=False), flush=True)
            except PartyLost as lost:
                print("lost", lost.parties, flush=True)
    sessions.stop()


if __name__ == "__main__":
    os.environ["SPARK_LOCAL_DIRS"] = sys.argv[3]
    main(*sys.argv[1:])
