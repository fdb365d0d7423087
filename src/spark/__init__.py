"""The PySpark pipeline: latches for partitions, a queue as a source and as a sink.

    latchwork.spark.register(spark)
    queue = {"store": url, "clientId": "shop", "queue": "orders"}
    frame.write.format("latchwork").mode("append").options(**queue, jobId="load-7").save()
    spark.readStream.format("latchwork").options(**queue, streamId="etl").load()

PySpark is imported only where it is needed, so that latches can be waited for without it.
"""

from typing import TYPE_CHECKING

from ..lazy import offer
from .acknowledge import acknowledge, release  # at once, as the module has the function's name
from .register import register  # as above

if TYPE_CHECKING:
    from .barrier import SparkBarrier
    from .batches import Batch, once_per_batch
    from .latch import SparkLatch
    from .listener import watch_streams
    from .sweep import sweep_on

__all__ = [
    "Batch", "SparkBarrier", "SparkLatch", "acknowledge", "once_per_batch", "register", "release", "sweep_on",
    "watch_streams",
]  # fmt: skip

__getattr__, __dir__ = offer(
    __name__,
    {
        ".barrier": "SparkBarrier",
        ".batches": "Batch once_per_batch",
        ".latch": "SparkLatch",
        ".listener": "watch_streams",
        ".sweep": "sweep_on",
    },
)
