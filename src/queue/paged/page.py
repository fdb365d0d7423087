"""The format of a page: records one after another, ended by a zero length.

    length     4 bytes   of everything after it; written last, so a record is there wholly or not at all
    CRC-32C    4 bytes   of page number, position, length, arrival, kind and payload
    arrival    8 bytes   milliseconds since the epoch; also in the index, which can so be rebuilt from the page
    kind       1 byte    a whole message, or the first, a middle or the last piece of one larger than a page
    payload

Big-endian throughout; the first record is at position 0. The checksum covers where the record lies, so bytes that
were copied, or left behind by an earlier life of the disk block, are never taken for a record.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias

from google_crc32c import extend, value

from ...errors import Corrupt
from .files import File

WHOLE, FIRST, MIDDLE, LAST = range(4)

HEADER = 17
"""Bytes of a record without its payload."""

TERMINATOR = b"\0\0\0\0"
"""The length after the last record."""

_FIELDS = struct.Struct(">IIQB")
_CHECKED = struct.Struct(">IIIQB")
_LENGTH_SIZE = 4
_FIXED = HEADER - _LENGTH_SIZE
_CHUNK = 256 * 1024
_LATEST = 2**48  # ms since the epoch: the year 10889
_NOT_ZERO = re.compile(rb"[^\0]")

Record: TypeAlias = tuple[int, int, bytes, int, int]
"""Arrival in ms, kind, payload, position, position of the next."""


def record(page: int, position: int, arrival: int, kind: int, payload: bytes) -> bytes:
    """Return the bytes of one record for that position."""
    length = len(payload) + _FIXED
    crc = extend(value(_CHECKED.pack(page, position, length, arrival, kind)), payload)
    return _FIELDS.pack(length, crc, arrival, kind) + payload


def records(
    file: File, page: int, start: int, end: int, *, expected: Callable[[int], bool], path: str = ""
) -> Iterator[Record]:
    """Yield the records from `start`, up to the zero length that ends them or to `end`.

    Raises `Corrupt` with file and position at a zero length where `expected(position)` says that a record began, at an
    impossible length and at a wrong checksum. No byte of a record that fails its checks is ever returned.
    """
    base, buffer, position = start, b"", start
    while position + HEADER <= end:
        at = position - base
        if at + HEADER > len(buffer):
            base, at, buffer = position, 0, _padded(file, position, min(_CHUNK, end - position))
        length, crc, arrival, kind = _FIELDS.unpack_from(buffer, at)
        stop = position + _LENGTH_SIZE + length
        if length < _FIXED or stop > end:
            if length == 0 and not expected(position):
                return
            raise damaged(path, position)
        if stop - base > len(buffer):
            base, at, buffer = position, 0, _padded(file, position, max(stop - position, min(_CHUNK, end - position)))
        payload = buffer[at + HEADER : stop - base]
        if crc != extend(value(_CHECKED.pack(page, position, length, arrival, kind)), payload):
            raise damaged(path, position)
        yield arrival, kind, payload, position, stop
        position = stop
    if position < end and expected(position):
        raise damaged(path, position)


def next_good(file: File, page: int, start: int, end: int) -> int | None:
    """Return the first position from `start` on at which a whole record lies before `end`; None if there is none.

    Looks at every byte: for use after damage only. A position that cannot be a header is refused before its checksum is
    computed; for random bytes that would be one of up to a whole page at every second position.
    """
    buffer = _padded(file, start, end - start)
    at = 0
    while at + HEADER <= len(buffer):
        length, crc, arrival, kind = _FIELDS.unpack_from(buffer, at)
        stop = at + _LENGTH_SIZE + length
        if length >= _FIXED and stop <= len(buffer) and kind <= LAST and arrival < _LATEST:
            head = value(_CHECKED.pack(page, start + at, length, arrival, kind))
            if crc == extend(head, buffer[at + HEADER : stop]):
                return start + at
        at = _after_zeros(buffer, at)
    return None


def damaged(path: str, position: int) -> Corrupt:
    """Return the error for a place that fails its checks."""
    return Corrupt(
        f"{path} fails its checks at position {position}; read with skip_corrupt=True to go on after the damage",
        file=path,
        position=position,
    )


def _padded(file: File, position: int, size: int) -> bytes:
    return file.read(size, position).ljust(size, b"\0")


def _after_zeros(buffer: bytes, at: int) -> int:
    """Return the next offset at which a length that is not zero can begin."""
    found = _NOT_ZERO.search(buffer, at + 1)
    return len(buffer) if found is None else max(at + 1, found.start() - _LENGTH_SIZE + 1)
