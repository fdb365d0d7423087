"""Making a Python worker of Spark ready for its first read or write."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_ready = False


def make_ready() -> None:
    """Exempt what this worker has loaded from garbage collection, once in its life; only in a task.

    Spark collects garbage after every task. What PySpark, pyarrow and Latchwork have loaded, some 60,000 objects, lives
    as long as the worker, and to look at it each time takes as long as reading a thousand messages or more.
    """
    global _ready
    if not _ready and TaskContext.get() is not None:
        _ready = True
        gc.freeze()
