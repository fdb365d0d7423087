"""The PySpark pipeline: latches for partitions, a queue as a source and as a sink, a distributed sweep."""

from .latch import SparkLatch

__all__ = ["SparkLatch"]
