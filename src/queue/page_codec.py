"""What turns values into the bytes of a message and back, and moments into arrival times."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from ..errors import InvalidRequest, Unreadable
from .page_layout import Place

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, Place], Any]


def codec_of(codec: Any) -> tuple[Encode, Decode | None]:
    """The two directions of `bytes`, of a type (JSON by msgspec), or of an object with `encode` and `decode`.

    None for decoding means that the bytes are the value. Encoding raises `InvalidRequest` for a value that the codec
    does not take, decoding `Unreadable` with page and position.
    """
    if codec is bytes:
        return _raw, None
    if isinstance(codec, type):
        return _encoding(msgspec.json.encode, codec), _decoding(msgspec.json.Decoder(codec).decode)
    if callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None)):
        return _encoding(codec.encode, None), _decoding(codec.decode)
    raise InvalidRequest(f"a codec is bytes, a type, or has encode and decode; not {codec!r}")


def milliseconds(moment: datetime | float) -> int:
    """Whole milliseconds since the epoch, rounded down, for a datetime (naive: local time) or seconds."""
    seconds = moment.timestamp() if isinstance(moment, datetime) else moment
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise InvalidRequest(f"a moment is a datetime or seconds since the epoch, not {moment!r}")
    return math.floor(round(seconds * 1000, 3))  # a millisecond is not exact in floating seconds


def _raw(data: Any) -> bytes:
    if type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise InvalidRequest(f"a message is bytes, not {type(data).__name__}; open the queue with a codec for other values")


def _encoding(encode: Callable[[Any], bytes], kind: type | None) -> Encode:
    def run(value: Any) -> bytes:
        if kind is not None and not isinstance(value, kind):
            raise InvalidRequest(f"this queue takes {kind.__name__}, not {type(value).__name__}")
        try:
            return _raw(encode(value))
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the codec does not take this {type(value).__name__}: {error}") from error

    return run


def _decoding(decode: Callable[[bytes], Any]) -> Decode:
    def run(data: bytes, place: Place) -> Any:
        try:
            return decode(data)
        except (TypeError, ValueError) as error:
            raise Unreadable(
                f"the codec does not understand the message on page {place[0]} at {place[1]}: {error}",
                page=place[0],
                position=place[1],
            ) from error

    return run
