"""Java's archive of the classes that a farm loads: with it Java takes half as long to come up.

    python examples/flights/archive.py          # make demo does it, once

One farm runs with a few flights, and its Java writes the archive when it ends. Java ignores an archive that another
Java has written, or that other libraries went into; then this makes it again.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import data
from farm import ARCHIVE, run, session
from plan import Plan
from processes import environment
from pyspark import SparkContext

EVERY, PARTITIONS = 200, 2
"""Few flights: it is only about the classes."""
FARM = data.FARMS[0]


def main() -> None:
    """Run the farm, and wait for Java's end."""
    os.environ.update(environment())
    os.environ.pop("LATCHWORK_STORE", None)
    with TemporaryDirectory(prefix="latchwork-archive-") as directory:
        plan = Plan.new(Path(directory), PARTITIONS, EVERY)
        data.split(data.load()[::EVERY], plan.directory)
        plan.create()
        unfinished = ARCHIVE.with_suffix(".unfinished")
        run(session(FARM, PARTITIONS, f"-XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"), plan, FARM)
        java = SparkContext._gateway.proc  # noqa: SLF001 - PySpark has no other way to wait for Java's end
        java.stdin.close()
        if java.wait() == 0 and unfinished.exists():
            unfinished.replace(ARCHIVE)


if __name__ == "__main__":
    main()
