"""The reading end of a local queue: from a position to the tail, page after page, without ever blocking a writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ...errors import Corrupt, Expired, Unreadable
from .files import File
from .index import PageIndex, end_of
from .layout import Layout, Place
from .page import FIRST, LAST, MIDDLE, WHOLE, Record, damaged, next_good, records


class PagedEntry(msgspec.Struct, frozen=True):
    """A message as it was read.

    timestamp: its arrival in seconds since the epoch (whole milliseconds).
    data: the decoded message.
    page, position: where it begins; together they name it for as long as it is kept.
    """

    # A msgspec struct costs a fifth of a dataclass, and one is made for every message.

    timestamp: float
    data: Any
    page: int
    position: int

    def __repr__(self) -> str:
        return f"PagedEntry(timestamp={self.timestamp}, page={self.page}, position={self.position})"


@dataclass(frozen=True)
class View:
    """A queue as its readers see it: its files, and where it begins and ends at this moment."""

    layout: Layout
    page_size: int
    first: Callable[[], int]
    tail: Callable[[], Place]
    decode: Callable[[bytes, Place], Any] | None

    def index(self, page: int) -> PageIndex:
        """Return the index of a page; empty for a missing page, which is reported when the page is read."""
        try:
            return self.layout.read_index(page, None if page == self.tail()[0] else self.page_size)
        except FileNotFoundError:
            return PageIndex(b"")


class PageReader:
    """A reader that begins at a position. `place` follows the last message returned: reading from there misses nothing.

    Not thread-safe.
    """

    def __init__(self, view: View, place: Place, *, skip_corrupt: bool) -> None:
        self._view, self._skip = view, skip_corrupt
        self.place = self._at = place
        self._pieces: list[bytes] = []
        self._begun: Place = place

    def entries(self, until: Place) -> Iterator[PagedEntry]:
        """Yield the messages up to `until`, which must not be beyond the tail; call it again to continue from there.

        Raises `Corrupt` with file and position at a place that fails its checks, `Unreadable` if the codec cannot
        decode a message (both unless skipping), `Expired` if the page to be read has been reclaimed.
        """
        while self._at < until:
            page, position = self._at
            live = page == until[0]
            file = self._open(page)
            if file is not None:
                try:
                    yield from self._page(file, page, position, until[1] if live else None)
                finally:
                    file.close()
            if file is None or not live:
                self._at = until if live else (page + 1, 0)

    def _open(self, page: int) -> File | None:
        path = self._view.layout.page(page)
        try:
            return self._view.layout.files.open(path)
        except FileNotFoundError:
            if page < self._view.first():
                raise Expired(f"{path} was reclaimed before it was read; read again from what is left") from None
            if self._skip:
                return None
            raise damaged(path, 0) from None

    def _page(self, file: File, page: int, start: int, end: int | None) -> Iterator[PagedEntry]:
        """Yield the messages of one page: of a sealed one to where its records end, of the last one to `end`."""
        path, stop = self._view.layout.page(page), self._view.page_size if end is None else end
        expected = self._indexed(file, page) if end is None else _always
        position: int | None = start
        while position is not None:
            try:
                yield from self._messages(page, records(file, page, position, stop, expected=expected, path=path))
                return
            except Corrupt as damage:
                if not self._skip:
                    raise
                position = next_good(file, page, damage.details["position"] + 1, stop)
                self._pieces = []
                self._at = (page, stop if position is None else position)

    def _messages(self, page: int, found: Iterator[Record]) -> Iterator[PagedEntry]:
        decode = self._view.decode
        for arrival, kind, payload, position, stop in found:
            self._at = (page, stop)
            begun: Place = (page, position)
            if kind == WHOLE:
                data = payload
            elif not self._whole(kind, payload, begun):
                continue
            else:
                data, begun = b"".join(self._pieces), self._begun
            self._pieces = []
            try:
                value = data if decode is None else decode(data, begun)
            except Unreadable:
                if not self._skip:
                    raise
                continue
            self.place = self._at
            yield PagedEntry(arrival / 1000, value, *begun)

    def _whole(self, kind: int, payload: bytes, begun: Place) -> bool:
        """Add a piece; return whether the message is complete. Pieces whose first or last is missing belong to an
        append that was never acknowledged.

        Each piece has a page of its own, one after another: if a page was passed over, the pieces behind it are
        dropped.
        """
        if kind == FIRST:
            self._pieces, self._begun = [payload], begun
        elif self._pieces and kind in {MIDDLE, LAST} and begun[0] == self._begun[0] + len(self._pieces):
            self._pieces.append(payload)
            return kind == LAST
        return False

    def _indexed(self, file: File, page: int) -> Callable[[int], bool]:
        """Return a function that says whether a sealed page continues at a position where it has a zero length.

        It does if the index names that position, behind the record before, or names a good record after it.
        """

        def more(position: int) -> bool:
            index = self._view.index(page)
            number = index.from_position(position)
            if number == len(index):
                return False
            before, size = index.entry(number - 1) if number else None, self._view.page_size
            if index.entry(number)[1] == position:
                if before is None or end_of(file, page, before, size) == position:
                    return True
                number += 1
            return number < len(index) and end_of(file, page, index.entry(number), size) is not None

        return more


def seek(view: View, arrival: int) -> Place:
    """Return where the first message that did not arrive before `arrival` (ms) is, or will be: by binary search.

    A page's index counts only as far as the page agrees with it; otherwise the page's own records count. The tail is
    read first: what is before it is in an index that is read later, so no message appended meanwhile is missed.
    """
    first, tail = view.first(), view.tail()
    page, index = _last_before(view, arrival, first, tail[0])
    while page > first and index.at_or_after(arrival) == 0:  # it does not begin before: its index had misled the search
        page, index = _last_before(view, arrival, first, page - 1)
    number = index.at_or_after(arrival)
    if number < len(index):
        return page, index.entry(number)[1]
    return (page + 1, 0) if page < tail[0] else tail


def _last_before(view: View, arrival: int, low: int, high: int) -> tuple[int, PageIndex]:
    """Return the last page that begins before `arrival`, by the indexes, or `low`; and its index, which agrees with the
    page.

    Messages of one instant may fill several pages, so it is not the one that begins at `arrival`.
    """
    while low < high:
        middle = (low + high + 1) // 2
        index = view.index(middle)
        if len(index) and index.entry(0)[0] < arrival:
            low = middle
        else:
            high = middle - 1
    index = view.index(low)
    if low < view.tail()[0]:
        index = view.layout.checked(low, index, index.at_or_after(arrival), view.page_size)
    return low, index


def _always(_: int) -> bool:
    return True
