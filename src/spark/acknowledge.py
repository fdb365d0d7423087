"""Finishing a bounded run of a stream: Spark does not tell a source when its last batch is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from ..queue.sharded import stream as ranges
from ..queue.sharded.subscription import Subscription, checked_subscription
from ..store.connect import connect
from ..store.port import RecordStore
from .offsets import created, pointers_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TASKS = 64
"""Tasks at most that delete what a run has read."""


def acknowledge(spark: SparkSession, query: StreamingQuery, *, store: RecordStore | None = None) -> int:
    """Acknowledge everything that the query has finished, by its last progress; return by how many pointers.

    The executors delete the messages. If the query has ended before the call, its queues are released: consumers may
    use them, or a later start of the query takes them again. Call it after a run with `availableNow`, and after
    `stop()`.

    store: where the queue is; needed only if its URL has a password, which is kept out of checkpoints, and
        $LATCHWORK_STORE is not set.

    Raises `FencedOut` if another query of this stream runs, `InvalidRequest` if the query has no Latchwork source, or
    if the queue in the store is not the one that was read. Not promised: that an ended query leaves the queue to a
    successor of its stream that runs already; it takes the queue from it.
    """
    ended = not query.isActive  # before its progress: a batch that is done in between would be released as unread
    progress = query.lastProgress
    sources = progress.sources if progress is not None else []
    ends = [json.loads(source.endOffset) for source in sources if source.endOffset and "streamId" in source.endOffset]
    if progress is not None and not ends:
        raise InvalidRequest(
            f'the query {query.name or query.id} does not read a queue: give one whose source is format("latchwork")'
        )
    return sum(_finish(spark, end, store, ended=ended) for end in ends)


def release(queue: Subscription, stream_id: str) -> None:
    """Release a queue that a stream owns: consumers may use it, or a later start of a query takes it again.

    For a query that ended before its first batch was done: `acknowledge` cannot know what such a query read. Messages
    that it has read and not acknowledged are delivered again. A query of this stream that still runs is fenced off.
    Four calls. Raises `QueueOwned` if another stream owns it.
    """
    checked_subscription(queue)
    ranges.release(queue.pointers, ranges.take(queue.pointers, stream_id))


def _finish(spark: SparkSession, end: dict[str, Any], store: RecordStore | None, *, ended: bool) -> int:
    from ..queue.sharded.registry import QueueRegistry  # noqa: PLC0415 - with Spark's own imports, not before

    where = store or connect(end["store"] or None)
    queue = QueueRegistry(where, end["clientId"], farm_id=end["farmId"] or None).get(end["queue"])
    pointers = queue.pointers
    done = pointers_of(end, created(queue), [state.checked() for state in pointers.states()])
    # A planner that still runs is fenced by the process that takes over.
    owner = ranges.take(pointers, end["streamId"]) if ended else ranges.current(pointers, end["streamId"])
    fired = {state.shard: state.checked().fired for state in pointers.states()}
    due = [(shard, last) for shard, last in enumerate(done) if fired[shard] < last]

    def delete(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                ranges.acknowledge(pointers, owner, row["shard"], row["last"])
            yield batch

    if due:
        frame = spark.createDataFrame(due, "shard int, last bigint").repartition(min(len(due), TASKS), "shard")
        frame.mapInArrow(delete, frame.schema).count()
    if ended:
        ranges.release(pointers, owner)
    return sum(last - fired[shard] for shard, last in due)
