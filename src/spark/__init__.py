"""The PySpark pipeline: latches for partitions, a queue as a source and as a sink, a distributed sweep."""
