"""Streams of a session as figures: how far behind, how fast, how long a batch takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from ..observe.base import ObservedSeams, Telemetry
from ..seams import SYSTEM, Seams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener


def watch_streams(spark: SparkSession, telemetry: Telemetry) -> StreamingQueryListener:
    """Report every batch of the session's streams that read a queue to `telemetry`, by the queue's name. Return the
    listener, for `spark.streams.removeListener`.

    The metric `stream_lag` counts the messages that were there and not read when the batch was planned. The metric
    `stream_rate` has the messages that the batch read a second, 0 once the query waits or has ended, and
    `stream_batches` the seconds that it took. They come with the query's progress, so the store is not asked. Raises
    `InvalidRequest` if `telemetry` is not a Telemetry.

    On Spark Connect, PySpark up to 4.3 can wait without end in `removeListener` when an event of a stream comes at that
    moment (SPARK-59623): remove the listener when the streams have ended and `stream_rate` is 0, or leave it there.
    """
    if not isinstance(telemetry, Telemetry):
        raise InvalidRequest(f"a {type(telemetry).__name__} is not a Telemetry: give a PrometheusTelemetry, or another")
    listener = _listener(ObservedSeams(SYSTEM, telemetry))
    spark.streams.addListener(listener)
    return listener


def lag_of(source: Any) -> tuple[str, int] | None:
    """Return the queue of a source in a query's progress, and how many of its messages the query has yet to read.

    None if the source is not a queue. It is a number of slots: slots whose producer died before it wrote count too.
    """
    if not source.endOffset or "streamId" not in source.endOffset:
        return None
    end = json.loads(source.endOffset)
    # A batch that is run again after a restart has none; PySpark then gives the text "None", or "null" by Connect.
    latest = json.loads(source.latestOffset) if "streamId" in (source.latestOffset or "") else end
    behind = sum(latest["shards"].values()) - sum(end["shards"].values())
    return end["queue"], max(0, behind)


class StreamFigures:
    """The metrics of the streams of one session."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._queues: dict[str, set[str]] = {}  # by the id of the query's run

    def progressed(self, progress: Any) -> None:
        """Report that a batch is done, or was planned and found nothing."""
        for source in progress.sources:
            found = lag_of(source)
            if found is None:
                continue
            queue, lag = found
            self._queues.setdefault(str(progress.runId), set()).add(queue)
            self._seams.note("stream_lag", lag, queue=queue)
            self._seams.note("stream_rate", source.processedRowsPerSecond or 0.0, queue=queue)
            if source.numInputRows:
                self._seams.note("stream_batches", progress.batchDuration / 1000, queue=queue)

    def at_rest(self, run: object) -> None:
        """Report that the query waits for messages."""
        for queue in self._queues.get(str(run), ()):
            self._seams.note("stream_rate", 0.0, queue=queue)

    def ended(self, run: object) -> None:
        """Report that the query has ended or failed."""
        self.at_rest(run)
        self._queues.pop(str(run), None)


def _listener(seams: Seams) -> StreamingQueryListener:
    from pyspark.sql.streaming.listener import StreamingQueryListener  # noqa: PLC0415 - an optional extra

    figures = StreamFigures(seams)

    class Listener(StreamingQueryListener):
        """Spark calls it in a thread of its own, after each batch."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
            """Do nothing: there are no figures yet."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - as above
            """Report a batch."""
            figures.progressed(event.progress)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - as above
            """Report that there was no batch."""
            figures.at_rest(event.runId)

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - as above
            """Report the last batch."""
            figures.ended(event.runId)

    return Listener()
