"""Messages as rows: the columns of a read, each made for a whole batch at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from ..errors import InvalidRequest, Unreadable
from ..plain import shown
from ..queue.sharded.envelope import BINS, Codec
from .options import Options
from .payload import Payloads, Row

_TYPES = {
    "shard": "int",
    "pointer": "bigint",
    "message_id": "string",
    "headers": "map<string,string>",
    "attempts": "int",
    "enqueued_at": "timestamp",
}


def schema_of(options: Options, codec: Codec) -> str:
    """Return the columns, in Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in _kinds(options, codec).items())


def table_of(schema: t.StructType, options: Options, codec: Codec) -> Table:
    """Return the conversion of messages to rows of this schema.

    Raises `InvalidRequest` if it differs from what `schema_of` says, or has a type that no payload can be read as.
    """
    kinds = _kinds(options, codec)
    if schema.names != list(kinds) or any(_differs(field, kinds, options) for field in schema.fields):
        raise InvalidRequest(
            f"the schema is {schema.simpleString()}; that of the queue {shown(options.queue)} is struct<"
            f"{', '.join(f'{name}: {kind}' for name, kind in kinds.items())}>: leave .schema(...) out, and use the "
            "options 'payloadSchema' for the payload's type and 'columns' for some of the columns"
        )
    table = Table(schema, typed=options.payload_schema is not None)
    table.columns()
    return table


def _kinds(options: Options, codec: Codec) -> dict[str, str]:
    payload = options.payload_schema
    kind = ("binary" if codec.name == "bytes" else "string") if payload is None else _payload_type(payload)
    return {name: _TYPES.get(name, kind) for name in options.columns}


def _differs(field: t.StructField, kinds: dict[str, str], options: Options) -> bool:
    """Whether a field of the schema has another type than expected. The payload's own type is not compared: without a
    session DDL cannot be parsed.
    """
    if field.name == "payload" and options.payload_schema is not None:
        return False
    # In some sessions `timestamp` means the type without a zone.
    return field.dataType.simpleString().removesuffix("_ntz") != kinds[field.name]


def _payload_type(ddl: str) -> str:
    """Return the type as it is, or a struct where fields are listed: `origin string, hour int`."""
    text, depth = ddl.strip(), 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if depth == 0 and (character.isspace() or character in ",:"):
            return f"struct<{text}>"
    return text


@dataclass(frozen=True)
class Table:
    """The conversion of messages to Arrow batches: the columns, and whether payloads are read as a type of
    their own.
    """

    schema: t.StructType
    typed: bool

    @property
    def bins(self) -> Sequence[str]:
        """The bins of a message to read; all of them if the headers must name the damaged ones."""
        names = self.schema.names
        return BINS if "headers" in names else ("data", *(_BINS[name] for name in names if name in _BINS))

    def batches(self, shard: int, messages: Iterable[Sequence[Row]]) -> Iterator[pa.RecordBatch]:
        """Yield the messages, a batch for each sequence of them. Raises `Unreadable` for a payload not of its type."""
        arrow = to_arrow_schema(self.schema, timezone="UTC")
        columns = self.columns()
        for rows in messages:
            if rows:
                arrays = [column(field.type, shard, rows) for column, field in zip(columns, arrow, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=arrow)

    def columns(self) -> list[Column]:
        """Return the converter of each column. Raises `InvalidRequest` for a type that no payload can be read as."""
        return [self._column(field) for field in self.schema.fields]

    def _column(self, field: t.StructField) -> Column:
        if field.name != "payload":
            return _COLUMNS[field.name]
        return Payloads(field.dataType).column if self.typed else _stored


Column = Callable[[pa.DataType, int, Sequence[Row]], pa.Array]
_BINS = {"message_id": "msgId", "attempts": "attempts", "enqueued_at": "enqueuedAt"}
_DECODE = Codec().decode


def _stored(kind: pa.DataType, _shard: int, rows: Sequence[Row]) -> pa.Array:
    """Return the payloads as they are stored, with two exceptions: a text has no quotes of JSON, and null is None."""
    return pa.array([_as_text(envelope.data) for _, envelope in rows], kind)


def _as_text(data: Any) -> Any:
    if data == "null":
        return None
    if isinstance(data, str) and data.startswith('"'):
        try:
            return _DECODE(data)
        except Unreadable:
            return data  # written by another program
    return data


_COLUMNS: dict[str, Column] = {
    "shard": lambda kind, shard, rows: pa.array([shard] * len(rows), kind),
    "pointer": lambda kind, _, rows: pa.array([pointer for pointer, _ in rows], kind),
    "message_id": lambda kind, _, rows: pa.array([envelope.msg_id for _, envelope in rows], kind),
    "headers": lambda kind, _, rows: pa.array([list((envelope.headers or {}).items()) for _, envelope in rows], kind),
    "attempts": lambda kind, _, rows: pa.array([envelope.attempts for _, envelope in rows], kind),
    # Arrow's microseconds
    "enqueued_at": lambda kind, _, rows: pa.array([envelope.enqueued_at * 1000 for _, envelope in rows], kind),
}
