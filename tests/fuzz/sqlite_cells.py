"""Where the cells of a SQLite file are: its rows and index entries, each a run of bytes in a page.

As sqlite.org/fileformat2.html has it; just enough to damage one cell and nothing else.
"""

from __future__ import annotations

import sqlite3
import struct
from dataclasses import dataclass
from pathlib import Path

TABLE_LEAF, INDEX_LEAF, TABLE_INTERIOR, INDEX_INTERIOR = 0x0D, 0x0A, 0x05, 0x02
_HEADER = struct.Struct(">BHHHB")


@dataclass(frozen=True)
class Cell:
    """The bytes of one row, or of one entry of an index, that lie in its page; without its length and its number."""

    start: int
    end: int
    number: int | None
    """Of the row; None of an entry of an index, whose number is one of its values."""


def trees(path: Path) -> dict[str, int]:
    """The tables and indexes of the file, and the page where each begins."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    found = dict(connection.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0"))
    connection.close()
    return found


def cells(data: bytes, root: int) -> list[Cell]:
    """The cells of a table or an index, in order."""
    page_size = int.from_bytes(data[16:18], "big")
    start = (root - 1) * page_size
    head = start + (100 if root == 1 else 0)
    kind, _, count, _, _ = _HEADER.unpack_from(data, head)
    pointers = head + (8 if kind in (TABLE_LEAF, INDEX_LEAF) else 12)
    places = [start + int.from_bytes(data[at : at + 2], "big") for at in range(pointers, pointers + 2 * count, 2)]
    if kind in (TABLE_INTERIOR, INDEX_INTERIOR):
        below = [int.from_bytes(data[at : at + 4], "big") for at in [*places, head + 8]]
        return [cell for page in below for cell in cells(data, page)]
    return [_cell(data, at, page_size, kind) for at in places]


def _cell(data: bytes, at: int, page_size: int, kind: int) -> Cell:
    size, at = _varint(data, at)
    number = None
    if kind == TABLE_LEAF:
        number, at = _varint(data, at)
    return Cell(at, at + _local(size, page_size, kind), number)


def _local(size: int, page_size: int, kind: int) -> int:
    """How much of so large a payload is in its page; the rest is in pages of its own."""
    most = page_size - 35 if kind == TABLE_LEAF else (page_size - 12) * 64 // 255 - 23
    if size <= most:
        return size
    least = (page_size - 12) * 32 // 255 - 23
    kept = least + (size - least) % (page_size - 4)
    return kept if kept <= most else least


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if not data[place] & 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9
