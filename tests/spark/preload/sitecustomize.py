"""Python runs this first in each process that has this folder on its path: it makes Spark's Python processes start
with less work.

- Spark puts an archive of PySpark before the installed one on their path, and nothing in an archive is kept compiled:
  each process would compile PySpark again, which takes half a second of a core.
- PySpark loads nothing that its workers need before it forks them, so each would load it: another third of a second.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path


def _is_installed_too(entry: str) -> bool:
    """Whether this is an archive in `pyspark/python/lib` of a folder that is on the path itself."""
    return entry.endswith(".zip") and "/pyspark/python/lib/" in entry and str(Path(entry).parents[3]) in sys.path


sys.path[:] = [entry for entry in sys.path if not _is_installed_too(entry)]

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    with suppress(ImportError):  # a test asks what is said where these are missing
        import gc

        import pyarrow as pa
        import pyspark.worker  # noqa: F401 - for the workers

        import latchwork.spark.sink
        import latchwork.spark.source
        import latchwork.store.sqlite.store  # noqa: F401 - for the workers

        pa.array([0])  # pyarrow loads pandas with its first array
        gc.freeze()
