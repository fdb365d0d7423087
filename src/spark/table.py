"""Messages as rows: the columns of a read, and JSON payloads as Arrow values of a Spark type."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from ..errors import InvalidRequest, Unreadable
from ..plain import shown
from ..queue.sharded.envelope import Codec, Envelope
from .options import Options

BATCH = 1_000
"""Rows of an Arrow batch."""
_TYPES = {
    "shard": "int",
    "pointer": "bigint",
    "message_id": "string",
    "headers": "map<string,string>",
    "attempts": "int",
    "enqueued_at": "timestamp",
}


def schema_of(options: Options, codec: Codec) -> str:
    """The columns, in Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in _kinds(options, codec).items())


def table_of(schema: t.StructType, options: Options, codec: Codec) -> Table:
    """How messages become rows of this schema.

    Raises `InvalidRequest` where it is another than `schema_of` says, or has a type that no payload can be read as.
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
    """Without a session nobody parses DDL, so the payload's own type is Spark's to know."""
    if field.name == "payload" and options.payload_schema is not None:
        return False
    # A session may take `timestamp` for the type without a zone.
    return field.dataType.simpleString().removesuffix("_ntz") != kinds[field.name]


def _payload_type(ddl: str) -> str:
    """The type as it is, or a struct where fields are listed: `origin string, hour int`."""
    text, depth = ddl.strip(), 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if depth == 0 and (character.isspace() or character in ",:"):
            return f"struct<{text}>"
    return text


@dataclass(frozen=True)
class Table:
    """How messages become Arrow batches: the columns, and whether payloads are read as a type of their own."""

    schema: t.StructType
    typed: bool

    def batches(self, shard: int, messages: Iterable[tuple[int, Envelope]]) -> Iterator[pa.RecordBatch]:
        """These messages in batches of 1,000. Raises `Unreadable` for a payload that is not of its type."""
        arrow = to_arrow_schema(self.schema, timezone="UTC")
        columns = self.columns()
        rest = iter(messages)
        while rows := list(islice(rest, BATCH)):
            arrays = [self._array(column, field, shard, rows) for column, field in zip(columns, arrow, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow)

    def columns(self) -> list[Column]:
        """What makes each column. Raises `InvalidRequest` for a type that no payload can be read as."""
        return [self._column(field) for field in self.schema.fields]

    def _array(self, column: Column, field: pa.Field, shard: int, rows: Sequence[tuple[int, Envelope]]) -> pa.Array:
        values = [column(shard, *row) for row in rows]
        try:
            return pa.array(values, field.type)
        except _MISFITS:
            if self.typed and field.name == "payload":
                for value, row in zip(values, rows, strict=True):  # Arrow does not say which one
                    _check_fits(value, field.type, shard, *row)
            raise

    def _column(self, field: t.StructField) -> Column:
        if field.name != "payload":
            return _COLUMNS[field.name]
        return _typed(_converter(field.dataType)) if self.typed else _stored


Column = Callable[[int, int, Envelope], Any]
_DECODE = Codec().decode
_MISFITS = (Unreadable, pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError)
"""What conversions to a type raise for values that are not of it."""


def _check_fits(value: Any, kind: pa.DataType, shard: int, pointer: int, envelope: Envelope) -> None:
    try:
        pa.array([value], kind)
    except _MISFITS as failure:
        raise _unlike(shard, pointer, envelope, failure) from failure


def _unlike(shard: int, pointer: int, envelope: Envelope, failure: Exception) -> Unreadable:
    return Unreadable(
        f"message {envelope.msg_id!r} at {shard}/{pointer} is not of the type that 'payloadSchema' says "
        f"({failure}): leave the option out to read payloads as text, and parse them with from_json"
    )


def _stored(_shard: int, _pointer: int, envelope: Envelope) -> Any:
    """The payload as it is stored; but a text as it was published, without the quotes of JSON, and null as none."""
    data = envelope.data
    if data == "null":
        return None
    if isinstance(data, str) and data.startswith('"'):
        try:
            return _DECODE(data)
        except Unreadable:
            return data  # another program's
    return data


def _typed(convert: Callable[[Any], Any]) -> Column:
    def payload(shard: int, pointer: int, envelope: Envelope) -> Any:
        try:
            return convert(_DECODE(envelope.data))
        except _MISFITS as failure:
            raise _unlike(shard, pointer, envelope, failure) from failure

    return payload


_COLUMNS: dict[str, Column] = {
    "shard": lambda shard, _pointer, _envelope: shard,
    "pointer": lambda _shard, pointer, _envelope: pointer,
    "message_id": lambda _shard, _pointer, envelope: envelope.msg_id,
    "headers": lambda _shard, _pointer, envelope: list((envelope.headers or {}).items()),
    "attempts": lambda _shard, _pointer, envelope: envelope.attempts,
    "enqueued_at": lambda _shard, _pointer, envelope: envelope.enqueued_at * 1000,  # Arrow's microseconds
}


def _converter(kind: t.DataType) -> Callable[[Any], Any]:
    """From what JSON holds to what Arrow takes for this type; None stays None."""
    inner = _inner(kind)
    return lambda value: None if value is None else inner(value)


def _inner(kind: t.DataType) -> Callable[[Any], Any]:
    if isinstance(kind, t.StructType):
        fields = {field.name: _of_field(field) for field in kind.fields}
        return lambda value: {name: convert(_mapping(value).get(name)) for name, convert in fields.items()}
    if isinstance(kind, t.ArrayType):
        element = _converter(kind.elementType)
        return lambda value: [element(one) for one in _list(value)]
    if isinstance(kind, t.MapType):
        of_key, of_value = _of_key(kind.keyType), _converter(kind.valueType)
        return lambda value: [(of_key(key), of_value(one)) for key, one in _mapping(value).items()]
    if type(kind) not in _SCALARS:
        raise InvalidRequest(
            f"'payloadSchema' has the type {kind.simpleString()}, which no payload can be read as: make it string and "
            "cast the column, or leave the option out to read payloads as text"
        )
    return _SCALARS[type(kind)]


def _of_key(kind: t.DataType) -> Callable[[Any], Any]:
    """From the text that a key of a JSON object is: of numbers and truths it is their JSON."""
    if isinstance(kind, t.StructType | t.ArrayType | t.MapType):
        raise InvalidRequest(
            f"'payloadSchema' has a map with keys of the type {kind.simpleString()}, and in JSON keys are text: use "
            "another key, or leave the option out to read payloads as text"
        )
    convert = _inner(kind)
    return (lambda key: convert(_DECODE(key))) if isinstance(kind, _UNQUOTED) else convert


def _of_field(field: t.StructField) -> Callable[[Any], Any]:
    convert = _converter(field.dataType)
    if field.nullable:
        return convert

    def needed(value: Any) -> Any:
        if value is None:
            raise TypeError(f"the field {field.name!r} is missing or null, and it is 'not null'")
        return convert(value)

    return needed


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise TypeError(f"{value!r} is no whole number")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _single(value: Any) -> float:
    """Raises `OverflowError` where only an infinity would be left of it."""
    number = _number(value)
    struct.pack("<f", number)  # the native "f" lets it pass
    return number


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _time(value: Any) -> time:
    found = time.fromisoformat(value)
    if found.tzinfo is not None:
        raise TypeError(f"{value!r} has a time zone, and the type has none")
    return found


_UNQUOTED = (t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType)
_SCALARS: dict[type[t.DataType], Callable[[Any], Any]] = {
    t.StringType: _text,
    t.NullType: lambda value: value,
    t.BooleanType: _truth,
    t.ByteType: _whole,
    t.ShortType: _whole,
    t.IntegerType: _whole,
    t.LongType: _whole,
    t.FloatType: _single,
    t.DoubleType: _number,
    t.DecimalType: lambda value: Decimal(str(value)),
    t.TimestampType: lambda value: datetime.fromisoformat(value.replace("Z", "+00:00")),
    t.TimestampNTZType: datetime.fromisoformat,
    t.DateType: date.fromisoformat,
    t.TimeType: _time,
    t.BinaryType: lambda value: base64.b64decode(value, validate=True),
}
