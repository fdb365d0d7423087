"""The bytes of a record in its row: a mark, a checksum, and its bins in MessagePack.

SQLite gives out what it finds in the file. The checksum is of the record's key and of all that its row holds, so a row
that damage has changed, or to which a damaged index leads under another name, is never taken for the record. Rows that
the first version of the file's layout wrote have no checksum: of them only what no bin can hold is damage. They get
theirs with their next update.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any
from zlib import crc32

from msgspec import Struct

from ...errors import Corrupt, InvalidRequest
from ..local import apply as local
from ..model import values
from ..port import Key

_MARK = 0xC1
"""The one byte that is nowhere in MessagePack."""
_HEAD = struct.Struct(">BI")


class Columns(Struct, frozen=True):
    """The columns of a row without its key. Each column of a damaged one may be of any type."""

    generation: int
    updated: int
    expires: int | None
    data: bytes


def sealed(key: Key, record: local.Stored) -> Columns:
    """Return the row of a record."""
    generation, updated, expires, data = record.generation, record.updated, record.expires, values.encode(record.bins)
    head = _HEAD.pack(_MARK, _checksum(key, generation, updated, expires, data))
    return Columns(generation, updated, expires, head + data)


def opened(key: Key, row: Columns, bins: Collection[str] = (), *, rest: bool = False) -> local.Stored:
    """Return the record of a row, with these bins only, or all where none is named. Raises `Corrupt`, without the
    content.

    rest: keep the others as they are; then it is for an update that neither looks at them nor changes them.
    """
    generation, updated, expires, data = row.generation, row.updated, row.expires, row.data
    if not (type(generation) is int and type(updated) is int and type(expires) in _WHEN and type(data) is bytes):
        raise Corrupt(NO_RECORD)
    if type(key.name) is not str:  # it was read from the row
        raise Corrupt(NO_RECORD)
    if _is_sealed(data):
        content = data[_HEAD.size :]
        if _HEAD.unpack_from(data)[1] != _checksum(key, generation, updated, expires, content):
            raise Corrupt(UNSOUND)
        kept = values.decode(content, bins, rest=rest)
    else:
        _checked(key.name)
        kept = {name: _checked(value) for name, value in values.decode(data, () if rest else bins).items()}
    return local.Stored(kept, generation, updated, expires, len(data))


def bin_of(data: bytes, bin: str) -> str | int | None:
    """Return what an index keeps of a record: the bin's value if it is text or an integer. Raises `Corrupt`.

    It does not look at the checksum, for which it would need the whole row; reading the record does.
    """
    if type(data) is not bytes:
        raise Corrupt(NO_RECORD)
    value = values.decode(memoryview(data)[_HEAD.size if _is_sealed(data) else 0 :], (bin,)).get(bin)
    if type(value) is int:
        return value if values.MIN_INT <= value <= values.MAX_INT else None
    return value if type(value) is str else None


NO_RECORD = "a row that holds no record; restore it from a copy"
UNSOUND = "a record that fails its checksum; restore it from a copy"
_WHEN = (int, type(None))


def _is_sealed(data: bytes) -> bool:
    return len(data) >= _HEAD.size and data[0] == _MARK


def _checksum(key: Key, generation: int, updated: int, expires: int | None, data: bytes) -> int:
    of = f"{key.set}\0{key.name}\0{generation}\0{updated}\0{expires}\0".encode(errors="surrogateescape")
    return crc32(data, crc32(of))


def _checked(value: Any) -> Any:
    try:
        return values.taken(value, values.MAX_DEPTH + 2)  # what the stores themselves put around it is kept, too
    except (InvalidRequest, RecursionError):
        raise Corrupt("a record with a value that no bin can hold; restore it from a copy") from None
