"""A driver of its own, to be killed: reads the queue as a stream into Parquet, slowly, until it has read everything.

python -m tests.spark.driver URL FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(url, folder):
    from latchwork.spark import register
    from tests.spark.conftest import Sessions

    session = Sessions(folder).on("local[2]")
    register(session)
    stream(session, url, folder).awaitTermination()


def stream(session, url, folder, per_batch=10):
    """The query: many small batches, so that there are many moments to die at."""
    options = {"store": url, "queue": "q", "clientId": "shop", "streamId": "etl", "payloadSchema": "id int"}
    frame = session.readStream.format("latchwork").options(**options, maxMessagesPerBatch=per_batch).load()
    sink = frame.writeStream.format("parquet").option("checkpointLocation", str(Path(folder) / "checkpoint"))
    return sink.option("path", str(Path(folder) / "out")).trigger(availableNow=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
