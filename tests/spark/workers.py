"""Spark's Python workers of the tests with threads for executors: each is forked from a process that has loaded what
their tasks need.

PySpark's own process loads none of that, so each worker does, which takes a third of a second of a core. The tests with
executors of their own have PySpark's.
"""

from __future__ import annotations

import gc
from contextlib import suppress

from pyspark.daemon import manager

if __name__ == "__main__":
    with suppress(ImportError):  # a test asks what is said where these are missing
        import pyarrow as pa
        import pyspark.worker  # noqa: F401 - for the workers

        import latchwork.spark.sink
        import latchwork.spark.source
        import latchwork.store.sqlite.store  # noqa: F401 - for the workers

        pa.array([0])  # pyarrow loads pandas with its first array
    gc.freeze()
    manager()
