"""The lag of an outbox, read from its files, whether its producer runs or not."""

from __future__ import annotations

import os

from ...errors import NotFound
from ...seams import SYSTEM, Seams
from ..paged.backlog import backlog
from ..paged.files import ReadingFiles
from ..paged.layout import Layout, Place, disk
from ..paged.opening import checked_directory
from ..paged.reader import View
from .outbox import OutboxLag, lag_of

_LENGTH = 4
"""Bytes of a record's length, which counts everything behind it."""


def stored_lag(
    directory: str | os.PathLike[str], prefix: str, name: str = "outbox", *, seams: Seams = SYSTEM
) -> OutboxLag:
    """Return what waits in the outbox of that name. It takes no lock and changes nothing; the disk may be read-only.

    While the producer runs, the result may be behind by a moment. Raises `NotFound` if there is no such outbox;
    `Corrupt`, `Unreadable`, `Misconfigured` and `StorageFailed` as when the local queue is opened.
    """
    layout = Layout(ReadingFiles(), checked_directory(directory), prefix)
    with disk(layout):
        page_size = layout.stored_page_size()
        cursors = layout.cursors() if page_size else {}
        if page_size is None or name not in cursors:
            raise NotFound(
                f"no outbox {name!r} in {layout.path('*')}: it is made when its producer first puts a message"
            )
        place = cursors[name]
        if place is None:
            raise layout.damaged_cursor(name)
        end = max(_end(layout), place)
        found = backlog(View(layout, page_size, lambda: place[0], lambda: end, None), place)
        return lag_of(found, layout, name, place, seams)


def _end(layout: Layout) -> Place:
    """Return the end of the last record in the indexes."""
    number = max(layout.pages(), default=1)
    index = layout.read_index(number, None)
    if not len(index):
        return number, 0
    position = index.entry(len(index) - 1)[1]
    file = layout.files.open(layout.page(number))
    try:
        return number, position + _LENGTH + int.from_bytes(file.read(_LENGTH, position), "big")
    finally:
        file.close()
