"""Spark's Python workers, each forked from a process that has loaded what their tasks need.

PySpark's own process loads none of that, so each worker does, which takes half a second of a core; and a task that
fails ends its workers. Not for tasks with threads or connections that are made while modules load.
"""

from __future__ import annotations

import gc

import ingest  # noqa: F401 - the tasks' own modules, and theirs
import process  # noqa: F401 - as above
import pyarrow as pa
import pyspark.worker  # noqa: F401 - as above
from pyspark.daemon import manager

import latchwork.spark.sink
import latchwork.spark.source
import latchwork.store.sqlite.store  # noqa: F401 - as above

if __name__ == "__main__":
    pa.array([0])  # pyarrow loads pandas with its first array
    gc.freeze()
    manager()
