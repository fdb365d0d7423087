"""Making the data source "latchwork" known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Misconfigured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
NEEDED = (4, 2)


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("latchwork")`, `.write`, `.readStream` and `.writeStream` work in this session.

    Sets `spark.sql.python.filterPushdown.enabled`, without which a source that takes filters fails. Latchwork has to
    be installed for the Python of the executors too ($PYSPARK_PYTHON). Raises `Misconfigured` where PySpark is missing
    or older than 4.2, or pyarrow is missing.
    """
    try:
        import pyspark  # noqa: PLC0415 - an optional extra

        from .datasource import LatchworkSource  # noqa: PLC0415 - needs that extra
    except ImportError as missing:
        raise Misconfigured(f"{missing}: pip install '.[spark]'") from missing
    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < NEEDED:
        raise Misconfigured(f"PySpark is {pyspark.__version__}; it must be 4.2 or newer: pip install '.[spark]'")
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(LatchworkSource)
