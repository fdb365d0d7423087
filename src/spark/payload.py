"""JSON payloads as Arrow values of a Spark type.

A batch of payloads is decoded in one pass: msgspec checks each against a type of its own and Arrow makes the column of
what it gives, both without a step in Python for each value. Only values that JSON has no form for, such as dates, are
converted one by one.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from ..errors import InvalidRequest, Unreadable
from ..queue.sharded.envelope import Codec, Envelope
from ..typed import decoder

Converter = Callable[[Any], Any]
Row = tuple[int, Envelope]
_DECODE = Codec().decode
_MISFITS = (
    Unreadable, msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError,
    RecursionError,
)  # fmt: skip
"""The exceptions that conversions to a type raise for values of another type."""


class Payloads:
    """Payloads of one Spark type. Raises `InvalidRequest` for a type that no payload can be read as."""

    def __init__(self, kind: t.DataType) -> None:
        self._convert = _converter(kind)
        shape = _shape(kind)
        self._decode = decoder(shape.kind | None)
        self._finish = None if shape.finish is None else _or_null(shape.finish)

    def column(self, kind: pa.DataType, shard: int, rows: Sequence[Row]) -> pa.Array:
        """Return the column. Raises `Unreadable`, naming the message whose payload is not of the type."""
        try:
            return self._at_once(kind, rows)
        except _MISFITS:
            # Find the value that failed; there may be none, as a number such as 1.0 is a whole number too.
            return self._one_by_one(kind, shard, rows)

    def _at_once(self, kind: pa.DataType, rows: Sequence[Row]) -> pa.Array:
        decode, finish = self._decode, self._finish
        values = [decode(envelope.data) for _, envelope in rows]
        if finish is not None:
            values = [finish(value) for value in values]
        return pa.array(values, kind)

    def _one_by_one(self, kind: pa.DataType, shard: int, rows: Sequence[Row]) -> pa.Array:
        values = [self._converted(shard, *row) for row in rows]
        try:
            return pa.array(values, kind)
        except _MISFITS:
            for value, row in zip(values, rows, strict=True):  # Arrow does not name the row
                try:
                    pa.array([value], kind)
                except _MISFITS as failure:
                    raise _unlike(shard, *row, failure) from failure
            raise

    def _converted(self, shard: int, pointer: int, envelope: Envelope) -> Any:
        try:
            return self._convert(_DECODE(envelope.data))
        except _MISFITS as failure:
            raise _unlike(shard, pointer, envelope, failure) from failure


def _unlike(shard: int, pointer: int, envelope: Envelope, failure: Exception) -> Unreadable:
    return Unreadable(
        f"message {envelope.msg_id!r} at {shard}/{pointer} is not of the type that 'payloadSchema' says "
        f"({failure}): leave the option out to read payloads as text, and parse them with from_json"
    )


class _Shape(NamedTuple):
    """The type to which msgspec decodes a payload, and the conversion after that; None = Arrow takes it as it is."""

    kind: Any
    finish: Converter | None


# ---- in one pass


def _shape(kind: t.DataType) -> _Shape:
    """Return how values of this type are decoded if they are not null."""
    if isinstance(kind, t.StructType):
        return _of_struct(kind)
    if isinstance(kind, t.ArrayType):
        element = _shape(kind.elementType)
        finish = None
        if element.finish is not None:
            of_each = _or_null(element.finish)
            finish = lambda values: [of_each(value) for value in values]  # noqa: E731 - it is as short as its use
        return _Shape(list[element.kind | None], finish)  # type: ignore[name-defined]  # it is made for a schema
    as_it_is = _AS_IT_IS.get(type(kind))
    return _Shape(Any, _inner(kind)) if as_it_is is None else _Shape(as_it_is, None)


def _of_struct(kind: t.StructType) -> _Shape:
    """Return a dict of the fields that the type names, and that the payload has."""
    shapes = {field.name: _shape(field.dataType) for field in kind.fields}
    fields = {name: shape.kind | None for name, shape in shapes.items()}
    decoded = TypedDict("decoded", fields, total=False)  # type: ignore[misc]  # its fields are those of a schema
    to_finish = [
        (field.name, _unless_missing(field, _or_null(shapes[field.name].finish or (lambda value: value))))
        for field in kind.fields
        if shapes[field.name].finish is not None or not field.nullable
    ]

    def finish(value: dict[str, Any]) -> dict[str, Any]:
        for name, convert in to_finish:
            value[name] = convert(value.get(name))
        return value

    return _Shape(decoded, finish if to_finish else None)


def _or_null(convert: Converter) -> Converter:
    return lambda value: None if value is None else convert(value)


# ---- one by one: this is what a type takes


def _converter(kind: t.DataType) -> Converter:
    """Return the conversion from JSON's values to Arrow's for this type; None stays None."""
    return _or_null(_inner(kind))


def _inner(kind: t.DataType) -> Converter:
    if isinstance(kind, t.StructType):
        fields = {field.name: _unless_missing(field, _converter(field.dataType)) for field in kind.fields}
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


def _of_key(kind: t.DataType) -> Converter:
    """Return the conversion from the text of a JSON object's key; the keys of numbers and booleans are their JSON."""
    if isinstance(kind, t.StructType | t.ArrayType | t.MapType):
        raise InvalidRequest(
            f"'payloadSchema' has a map with keys of the type {kind.simpleString()}, and in JSON keys are text: use "
            "another key, or leave the option out to read payloads as text"
        )
    convert = _inner(kind)
    return (lambda key: convert(_DECODE(key))) if isinstance(kind, _UNQUOTED) else convert


def _unless_missing(field: t.StructField, convert: Converter) -> Converter:
    """Return the conversion of a field; one that is not nullable raises `TypeError` for a missing or null value."""

    def needed(value: Any) -> Any:
        if value is None:
            raise TypeError(f"the field {field.name!r} is missing or null, and it is 'not null'")
        return convert(value)

    return convert if field.nullable else needed


def _checked(kind: type, what: str) -> Converter:
    """Return a conversion that only checks the type of a value. what: is said of another one."""

    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is {what}")
        return value

    return checked


_mapping, _list = _checked(dict, "not an object"), _checked(list, "not a list")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _single(value: Any) -> float:
    """Return the number in single precision. Raises `OverflowError` if it would become an infinity."""
    number = _number(value)
    struct.pack("<f", number)  # the native "f" would accept it
    return number


def _time(value: Any) -> time:
    found = time.fromisoformat(value)
    if found.tzinfo is not None:
        raise TypeError(f"{value!r} has a time zone, and the type has none")
    return found


_UNQUOTED = (t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType)
_SCALARS: dict[type[t.DataType], Converter] = {
    t.StringType: _checked(str, "not a text"),
    t.NullType: lambda value: value,
    t.BooleanType: _checked(bool, "neither true nor false"),
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
_AS_IT_IS: dict[type[t.DataType], Any] = {
    t.StringType: str,
    t.BooleanType: bool,
    t.ByteType: int,
    t.ShortType: int,
    t.IntegerType: int,
    t.LongType: int,
    t.DoubleType: float,
}
"""The types for which JSON has a form of its own; Arrow refuses a number that is too large for its type."""
