"""The index of a page: one 12-byte record for each record of the page, its arrival time and its position.

An index is only a help: it is checked against the page, and a page without a usable index gets one built from its
records (docs/paged-queue.md).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass

from ...errors import Corrupt
from .files import File
from .page import HEADER, next_good, records

ENTRY = struct.Struct(">qi")
"""Arrival in ms since the epoch, position in the page."""


class PageIndex:
    """The entries of one page, in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data[: len(data) // ENTRY.size * ENTRY.size]

    def __len__(self) -> int:
        return len(self._data) // ENTRY.size

    def entry(self, number: int) -> tuple[int, int]:
        """Return arrival and position of the entry of that number, from 0."""
        arrival, position = ENTRY.unpack_from(self._data, number * ENTRY.size)
        return arrival, position

    def at_or_after(self, arrival: int) -> int:
        """Return the number of the first entry that did not arrive earlier; `len` if all did."""
        return bisect_left(range(len(self)), arrival, key=lambda number: self.entry(number)[0])

    def from_position(self, position: int) -> int:
        """Return the number of the first entry at or after that position; `len` if there is none."""
        return bisect_left(range(len(self)), position, key=lambda number: self.entry(number)[1])

    def newest(self) -> int:
        """Return the arrival in the last entry; 0 if there is none."""
        return self.entry(len(self) - 1)[0] if len(self) else 0

    def plausible(self, page_size: int) -> bool:
        """Whether it begins and ends as the index of a page that holds something must."""
        return len(self) > 0 and self.entry(0)[1] == 0 and 0 <= self.entry(len(self) - 1)[1] <= page_size - HEADER


def end_of(file: File, page: int, entry: tuple[int, int], page_size: int, *, last: bool = False) -> int | None:
    """Return where the record of an index entry ends.

    None if the page does not have it, or has another record behind it although the entry is the `last`.
    """
    if entry[1] < 0:
        return None
    found = records(file, page, entry[1], page_size, expected=lambda _: not last)
    try:
        record = next(found, None)
        if record is None or record[0] != entry[0] or (last and next(found, None) is not None):
            return None
        return record[4]
    except Corrupt:
        return None


@dataclass(frozen=True)
class Survey:
    """The content of a page: its index, and where its last good record ends."""

    entries: bytes
    end: int


def survey(file: File, page: int, page_size: int, synced: int) -> Survey:
    """Read a whole page. A bad record before `synced` is damage, and records behind it are looked for; from `synced`
    on, it is the end.
    """
    entries, end = bytearray(), 0
    position: int | None = 0
    while position is not None:
        try:
            for found in records(file, page, position, page_size, expected=lambda at: at < synced):
                entries += ENTRY.pack(found[0], found[3])
                end = found[4]
            break
        except Corrupt as damage:
            at = damage.details["position"]
        position = next_good(file, page, at + 1, page_size) if at < synced else None
    return Survey(bytes(entries), end)
