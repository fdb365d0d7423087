"""Where Spark finds the data source "latchwork" by itself.

Spark looks for modules named `pyspark_*` on the path of its Python when the first Python data source is asked for. So
`format("latchwork")` works without `latchwork.spark.register`, which may be called nevertheless.
"""

from latchwork.spark.datasource import LatchworkSource as DefaultSource

__all__ = ["DefaultSource"]
