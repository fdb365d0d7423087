"""Making the data source "latchwork" known to a Spark session, and saying what a session lacks for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import Misconfigured

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

NEEDED = (4, 2)
FOUND_BY_ITSELF = "DATA_SOURCE_ALREADY_EXISTS"
"""Spark's name for the refusal of a source that it has found in `pyspark_latchwork`."""
MAX_CAUSE = 300
_OF_PYTHON = re.compile(r"^\s*([\w.]+Error: .+)$", re.MULTILINE)
_OF_JAVA = re.compile(r"java\S+Exception: (Cannot run program .+)")


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("latchwork")`, `.write`, `.readStream` and `.writeStream` work in this session.

    Where Latchwork is installed with PySpark, Spark finds the format by itself (`pyspark_latchwork`), and then this is
    only a check. Latchwork has to be installed for the Python of the executors too ($PYSPARK_PYTHON): where that is not
    the driver's own Python, a job of one task looks.

    Raises `Misconfigured` if PySpark is missing or older than 4.2, pyarrow is missing, or the executors' Python
    lacks Latchwork or something that it needs.
    """
    try:
        import pyspark  # noqa: PLC0415 - an optional extra

        # Check before the imports below, which fail on an older PySpark with an error that does not name the reason.
        if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < NEEDED:
            raise Misconfigured(
                f"PySpark is {pyspark.__version__}; it must be 4.2 or newer: pip install 'latchwork[spark]'"
            )
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - as above

        from .datasource import LatchworkSource  # noqa: PLC0415 - needs that extra
    except ImportError as missing:
        raise Misconfigured(f"{missing}: pip install 'latchwork[spark]'") from missing
    _check_workers(spark)
    try:
        spark.dataSource.register(LatchworkSource)
    except AnalysisException as failure:
        if failure.getCondition() != FOUND_BY_ITSELF:
            raise


def _check_workers(spark: SparkSession) -> None:
    """Raise `Misconfigured` if the Python of the executors cannot run the tasks of a read or a write."""
    if _same_python(spark):
        return
    try:
        lacks = spark.range(0, 1, 1, 1).mapInArrow(_probe(), "lacks string").collect()[0].lacks
    except Exception as failure:
        raise Misconfigured(
            f"the executors' Python ($PYSPARK_PYTHON) ran no task: {_cause(failure)}; it must be of the driver's "
            f"version, {sys.version_info.major}.{sys.version_info.minor}, and have PySpark, pyarrow and Latchwork"
        ) from failure
    if lacks:
        raise Misconfigured(
            f"the executors' Python cannot read or write a queue: {lacks}; install Latchwork with its extra 'spark' "
            "there, or set $PYSPARK_PYTHON to a Python that has it, before the session is started"
        )


def _same_python(spark: SparkSession) -> bool:
    """Whether tasks run in this very Python, on this machine."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return False
    context = spark.sparkContext
    return (context.master or "").startswith("local") and context.pythonExec == sys.executable


def _probe() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that ships by value, as the Python that runs it may know nothing of this module."""

    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys  # noqa: PLC0415 - it is run elsewhere

        import pyarrow as pa  # noqa: PLC0415 - as above

        for _ in batches:
            try:
                import latchwork.spark.datasource  # noqa: F401, PLC0415 - it is only tried

                lacks = ""
            except ImportError as missing:
                lacks = f"{missing}, in {sys.executable}"
            yield pa.RecordBatch.from_pydict({"lacks": pa.array([lacks], pa.string())})

    return probe


def _cause(failure: Exception) -> str:
    """Return the line that names the cause, from a trace through Python and Java."""
    text = str(failure)
    causes = _OF_PYTHON.findall(text) or _OF_JAVA.findall(text) or [type(failure).__name__]
    return str(causes[-1])[:MAX_CAUSE]
