"""Java's archive of the classes that a farm loads: with it Java takes half as long to come up.

    python examples/flights/archive.py          # make demo does it, once

One farm runs with a few flights, and its Java writes the archive when it ends. Java ignores an archive that another
Java has written, or that other libraries went into; then this makes it again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import data
from farm import ARCHIVE, option, run, session
from plan import Plan
from processes import environment
from pyspark import SparkContext
from pyspark.sql import SparkSession

EVERY, PARTITIONS = 200, 2
"""Few flights: it is only about the classes."""
FARM = data.FARMS[0]


def main() -> None:
    """Run the farm, and wait for Java's end."""
    os.environ.update(environment())
    os.environ.pop("LATCHWORK_STORE", None)
    # Beside the archive, so that it is put there whole: Java crashes on one of which a part is missing.
    with TemporaryDirectory(prefix="flights-", dir=ARCHIVE.parent) as name:
        directory = Path(name)
        plan = Plan.new(directory, PARTITIONS, EVERY)
        data.split(data.load()[::EVERY], directory)
        plan.create()
        made = directory / ARCHIVE.name
        run(started(f"{option('ArchiveClassesAtExit', made)} -Xlog:disable"), plan, FARM)
        java = SparkContext._gateway.proc  # noqa: SLF001 - PySpark has no other way to wait for Java's end
        java.stdin.close()
        if java.wait() or not made.exists():
            sys.exit("Java has made no archive")
        made.replace(ARCHIVE)


def started(archive: str) -> SparkSession:
    """A session. Ctrl-C takes effect once it is there: PySpark would leave behind a Java that still comes up."""
    interrupts: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    spark = session(FARM, PARTITIONS, archive)
    signal.signal(signal.SIGINT, usual)
    if interrupts:
        raise KeyboardInterrupt
    return spark


if __name__ == "__main__":
    main()
