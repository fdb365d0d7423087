"""Writing a frame or a stream to a queue, each row once (docs/protocols P6).

Tasks publish through the ledger. So a task that is tried again, or runs twice at once, or belongs to a driver that was
started again, publishes only the missing messages. That holds if the rows are partitioned as before, and for two days.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal
from urllib.parse import quote

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DataType,
    MapType,
    StringType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from ..errors import InvalidRequest, LatchworkError, NonDeterministicInput
from ..logs import Log
from ..plain import shown
from ..queue.ledger import Ledger, Outgoing
from .batches import QUERY
from .garbage_collection import make_ready
from .options import Options

log = Log(__name__)

BATCH = "streaming.sql.batchId"
_HEADERS = MapType(StringType(), StringType())
_NOT_JSON = (CalendarIntervalType, YearMonthIntervalType, VariantType)
"""Types whose values Python does not get, or, of a variant, gets only as Spark's own bytes."""
_BESIDES: dict[str, DataType] = {"key": StringType(), "message_id": StringType(), "headers": _HEADERS}


@dataclass(frozen=True, slots=True)
class TaskResult(WriterCommitMessage):
    """The result of one task: its messages, and how many of them no attempt had published before."""

    partition: int
    messages: int
    new: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The conversion of rows to messages: from `payload`, `key`, `headers` and `message_id`, or each row whole as its
    payload.
    """

    whole: bool

    def outgoing(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Outgoing]:
        """Yield the messages of these batches. Raises `InvalidRequest` for a NaN or an infinity in a payload."""
        for batch in batches:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if self.whole or name == "payload":
                    _check_finite(name, column)
            names = batch.schema.names
            columns = [_values(column) for column in _in_utc(batch).columns]
            for values in zip(*columns, strict=True) if columns else repeat((), batch.num_rows):
                yield self._message(dict(zip(names, values, strict=True)))

    def _message(self, row: dict[str, Any]) -> Outgoing:
        if self.whole:
            return Outgoing(row)
        return Outgoing(row["payload"], row.get("message_id"), row.get("key"), row.get("headers"))


def _values(column: pa.Array) -> list[Any]:
    """Return the column's values. Only maps need the slow way, which is slow for all columns."""
    maps: Literal["strict"] | None = "strict" if "map<" in str(column.type) else None
    values: list[Any] = column.to_pylist(maps_as_pydicts=maps)
    return values


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert times to UTC: in the session's zone a row that is written again could become another message."""
    kinds = [_utc_type(column.type) for column in batch.columns]
    if kinds == [column.type for column in batch.columns]:
        return batch  # it has rows even if it has no column
    columns = [column.cast(kind) for column, kind in zip(batch.columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _utc_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_utc_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_utc_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_utc_type(kind.key_type), kind.item_field.with_type(_utc_type(kind.item_type)))
    return kind


def _check_finite(name: str, column: pa.Array) -> None:
    """Raise `InvalidRequest` for a NaN or an infinity: JSON has neither, and its encoder would write null."""
    kind = column.type
    if pa.types.is_floating(kind) and not _is_finite(column):
        raise InvalidRequest(
            f"the column {shown(name)} has a NaN or an infinity, which JSON cannot hold: make it null, or cast the "
            "column to string, before the write"
        )
    if pa.types.is_map(kind):
        entries = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        _check_finite(name, column.cast(pa.list_(entries)))
    elif pa.types.is_list(kind):
        _check_finite(name, column.flatten())
    elif pa.types.is_struct(kind):
        for field, values in zip(kind, column.flatten(), strict=True):
            _check_finite(f"{name}.{field.name}", values)


def _is_finite(column: pa.Array) -> bool:
    import pyarrow.compute as pc  # noqa: PLC0415 - it takes as long to load as all the rest, and few rows need it

    return not pc.any(pc.invert(pc.is_finite(column))).as_py()


def _check_writable(name: str, kind: DataType) -> None:
    """Raise `InvalidRequest` if the column has a type, perhaps further in, that no payload can have."""
    if isinstance(kind, _NOT_JSON):
        how = "to_json" if isinstance(kind, VariantType) else "cast to string"
        raise InvalidRequest(
            f"the column {shown(name)} has the type {kind.simpleString()}, which no payload can have: make it text "
            f"before the write, with {how}"
        )
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_writable(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_writable(name, kind.elementType)
    elif isinstance(kind, MapType):
        _check_writable(f"{name}.key", kind.keyType)
        _check_writable(f"{name}.value", kind.valueType)


def rows_of(schema: StructType, options: Options) -> Rows:
    """Return the conversion of rows of this schema. Raises `InvalidRequest` if the schema does not determine it."""
    names = schema.names
    if not names:  # Spark hands such rows over without their number, and none would be published
        raise InvalidRequest("the frame has no columns, so its rows are no messages: select some")
    for field in schema.fields:
        _check_writable(field.name, field.dataType)
    only_binary = options.open().codec.name == "bytes"
    if "payload" not in names:
        if only_binary:
            raise InvalidRequest(
                f"the queue {shown(options.queue)} takes only binary payloads, and a row without a column 'payload' "
                "would be JSON: give a binary column 'payload', or use a queue with codec='json'"
            )
        return Rows(whole=True)
    others = sorted(set(names) - {"payload", *_BESIDES})
    if others:
        raise InvalidRequest(
            f"beside 'payload' there may be {', '.join(_BESIDES)}, not {', '.join(others)}: put them into the payload "
            "with struct(...).alias('payload'), or rename 'payload' to make each row a message"
        )
    for name, kind in _BESIDES.items():
        if name in names and schema[name].dataType.simpleString() != kind.simpleString():
            found = schema[name].dataType.simpleString()
            raise InvalidRequest(f"the column {shown(name)} is {found}; it must be {kind.simpleString()}: cast it")
    binary = isinstance(schema["payload"].dataType, BinaryType)
    if binary != only_binary:
        raise InvalidRequest(f"the queue {shown(options.queue)} takes {'no ' if binary else 'only '}binary payloads")
    return Rows(whole=False)


class _Publisher:
    """The common part of batch and streaming writes."""

    def __init__(self, options: Options, rows: Rows) -> None:
        self._options, self._rows = options, rows

    def _publish(self, scope: str, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls this in a task
        partition = context.partitionId()
        try:
            ledger = self._ledger(scope)
            make_ready()
            done = ledger.publish(partition, self._rows.outgoing(batches))
        except NonDeterministicInput:
            raise  # to run the same input again does not help
        except LatchworkError as failure:
            rows = "the same input, with this mended," if isinstance(failure, InvalidRequest) else "the same input"
            raise type(failure)(
                f"partition {partition} of {scope}: {failure} [what it has published is in the ledger: running {rows} "
                "again under the same id completes it, and publishes nothing twice]",
                **failure.details,
            ) from failure
        return TaskResult(partition, done.messages, done.new)

    def _ledger(self, scope: str) -> Ledger:
        return Ledger(self._options.open(), scope, batch=self._options.publish_batch or None)

    def _report(self, scope: str, messages: Sequence[WriterCommitMessage | None]) -> str:
        """Return what an aborted write has published, from the ledger."""
        ledger = self._ledger(scope)
        left = {n: ledger.published(n) for n, message in enumerate(messages) if message is None}
        whole = sum(message.messages for message in messages if isinstance(message, TaskResult))
        some = ", ".join(f"{n}: {count}" for n, count in left.items())
        return (
            f"the write {scope} was aborted. It has left {whole} messages of {len(messages) - len(left)} complete "
            f"partitions and {sum(left.values())} of incomplete ones ({some}); they can be consumed. Running the same "
            "input again, partitioned the same, completes it and publishes nothing twice"
        )


class BatchWriter(_Publisher, DataSourceArrowWriter):
    """The writer of a frame. The option `jobId` identifies the write, because Spark gives a batch write no identity."""

    @property
    def _scope(self) -> str:
        return f"job/{quote(self._options.job_id or '', safe='')}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Publish the rows of one task, each once."""
        return self._publish(self._scope, iterator)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many messages the write has left behind."""
        log.warning("%s", self._report(self._scope, messages))


class StreamWriter(_Publisher, DataSourceStreamArrowWriter):
    """The writer of a stream's batches. The ids of the query and of the batch identify each write; both stay the same
    after a restart from the checkpoint.
    """

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Publish the rows of one task of a micro-batch, each once."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls this in a task
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        return self._publish(f"stream/{query}/{batch}", iterator)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log how many partitions are complete; the query's next start continues with this batch."""
        whole = sum(message is not None for message in messages)
        log.warning(
            "batch %d was aborted with %d of %d partitions published; started again from its checkpoint, the query "
            "completes it and publishes nothing twice", batchId, whole, len(messages),
        )  # fmt: skip
