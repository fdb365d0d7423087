"""Conversion of values to the bytes of a message and back, and of moments to arrival times."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from inspect import getattr_static
from types import UnionType
from typing import Annotated, Any, get_origin

from ... import lossless
from ...errors import InvalidRequest, Unreadable
from ...inputs import is_number
from ...plain import shown
from ...typed import decoder
from ..undecodable import why
from .layout import Place

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, Place], Any]

_WAYS = ("encode", "decode")
_LATEST = 10**12
"""Seconds: later than any real time, and small enough to count in milliseconds."""


def codec_of(codec: Any) -> tuple[Encode, Decode | None]:
    """Return encoder and decoder of `bytes`, of a type (JSON by msgspec), or of an object with `encode` and `decode`.

    The decoder None means that the bytes are the value. Encoding raises `InvalidRequest` for a value that the codec
    does not take, and for one that a type would not read back (True as an int, an infinite float): it would block all
    messages behind it. If nothing is an instance of the type (`Any`, a TypedDict), it raises the error for a value that
    would be read back as another one. Decoding raises `Unreadable` with page and position. Both do so whatever error
    the codec raises, and quote nothing of the message.
    """
    if codec is bytes:
        return _raw, None
    if _encodes(codec):
        return _encoding(codec.encode), _decoding(codec.decode)
    kind = get_origin(codec) or codec  # of dict[str, int] it is dict
    if isinstance(kind, type) and kind not in (UnionType, Annotated):
        decode: Callable[[bytes], Any] = decoder(codec)
        return _encoding(_json, _checkable(kind), decode), _decoding(decode)
    raise InvalidRequest(f"a codec is bytes, a type, or has encode and decode; not {shown(codec)}")


def _json(value: Any) -> bytes:
    """Return the JSON of a value. Raises `InvalidRequest` where that would not be all of it."""
    data = lossless.encode(value)
    lossless.check(value, data)
    return data


def _checkable(kind: type) -> type | None:
    """Return the type; None for one that cannot have instances, as a TypedDict: such a value is checked by reading it
    back.
    """
    try:
        isinstance(None, kind)
    except TypeError:
        return None
    return kind


def _encodes(codec: Any) -> bool:
    """Whether the object has both `encode` and `decode`; of a class only if they need no instance."""
    kind = get_origin(codec) or codec
    if isinstance(kind, type):
        return all(isinstance(getattr_static(kind, way, None), staticmethod | classmethod) for way in _WAYS)
    return all(callable(getattr(codec, way, None)) for way in _WAYS)


def milliseconds(moment: datetime | float) -> int:
    """Return whole milliseconds since the epoch, rounded down, for a datetime (naive: local time) or seconds.

    Raises `InvalidRequest` for any other type, and for a time that is out of range.
    """
    seconds = _timestamp(moment) if isinstance(moment, datetime) else moment
    if not is_number(seconds) or not -_LATEST <= seconds <= _LATEST:
        raise InvalidRequest(
            f"a moment is a datetime or seconds since the epoch, at most {_LATEST} before or after, not {shown(moment)}"
        )
    return math.floor(round(seconds * 1000, 3))  # a millisecond is not exact in floating seconds


def _timestamp(moment: datetime) -> float:
    try:
        return moment.timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRequest(
            f"{shown(moment)} is not a moment in local time ({error}): give it a timezone, or None for everything"
        ) from error


def _raw(data: Any) -> bytes:
    if type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise InvalidRequest(f"a message is bytes, not {type(data).__name__}; open the queue with a codec for other values")


def _encoding(
    encode: Callable[[Any], bytes], kind: type | None = None, read_back: Callable[[bytes], Any] | None = None
) -> Encode:
    def run(value: Any) -> bytes:
        if kind is not None and not isinstance(value, kind):
            raise InvalidRequest(
                f"the payload is a {type(value).__name__}; this queue takes {kind.__name__}: encode it"
            )
        try:
            data = _raw(encode(value))
            back = value if read_back is None else read_back(data)
        except InvalidRequest:
            raise
        except Exception as failure:  # noqa: BLE001 - the the user's codec may raise anything, and quote the message
            # A plain TypeError is msgspec's own, of a type that it does not encode.
            reason = str(failure) if read_back is not None and type(failure) is TypeError else why(failure)
            raise InvalidRequest(f"the codec does not take this {type(value).__name__}: {reason}") from None
        if kind is None and back is not value and back != value:
            raise InvalidRequest(f"this {type(value).__name__} would come back as another value: give what JSON has")
        return data

    return run


def _decoding(decode: Callable[[bytes], Any]) -> Decode:
    def run(data: bytes, place: Place) -> Any:
        try:
            return decode(data)
        except Exception as failure:  # noqa: BLE001 - the type is the user's; one message must not block the others
            raise Unreadable(
                f"the codec does not understand the message on page {place[0]} at {place[1]}: {why(failure)}",
                page=place[0],
                position=place[1],
            ) from None

    return run
