"""Opening a queue after a crash: the last page is read, cut after its last good record, and synced.

Only the last page can be in doubt, because a page is synced before the next one is created. Recovery does not rely on
an earlier recovery having finished, so it may be killed at any step and run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import Corrupt, Unreadable
from ...logs import Log
from .files import File
from .index import PageIndex, Survey, survey
from .layout import Layout, Place

_log = Log(__name__)
_CHUNK = 1024 * 1024
MOST_MISSING = 100
"""Pages behind the last one that may be missing; writeMeta that names a later one is damaged, as it has no checksum."""


@dataclass(frozen=True)
class Recovered:
    """The result of a recovery: the first page, where to append, and the newest arrival time of the queue, in ms."""

    first: int
    tail: Place
    arrival: int


def recover(layout: Layout, page_size: int) -> Recovered | None:
    """Bring the files to a state in which messages can be appended; None for a queue that has no page yet.

    Keeps the last page up to its last good record. Damage before the position up to which the page is known to be
    synced, with good records behind it, is left for readers to report; behind that position nothing after the first bad
    record is kept. Raises OSError if the disk refuses; `Unreadable`, with nothing changed, if records would be lost
    with a page of that size; `Corrupt` if the page is missing of which messages were synced last.
    """
    numbers = layout.pages()
    _check_last(layout, numbers)
    if not numbers:
        return None
    last = numbers[-1]
    for number in numbers[-2:-1]:
        _check_sealed(layout, number, page_size)
    found = _recover_page(layout, last, page_size)
    arrivals = [PageIndex(found.entries).newest(), *(layout.newest(number, page_size) for number in numbers[-2:-1])]
    return Recovered(_first(layout, numbers), (last, found.end), max(arrivals))


def _check_last(layout: Layout, numbers: Sequence[int]) -> None:
    """Check that the page is there of which messages were synced last. Raises `Corrupt`: they cannot be read."""
    page, position = layout.synced()
    last = max(numbers, default=0)
    if position and page > last + MOST_MISSING:
        _log.warning("%s names page %d, and the last is %d: it is damaged", layout.path("writeMeta"), page, last)
    elif position and page > last:
        raise Corrupt(
            f"{layout.page(page)} is missing, of which {position} bytes were synced: bring the file back; or delete "
            f"{layout.path('writeMeta')} to go on without the messages in it",
            file=layout.page(page),
            position=0,
        )


def _first(layout: Layout, numbers: list[int]) -> int:
    """Return the first page of the queue: as readMeta says, unless that is past a cursor or the last page, which no
    reclaim does.
    """
    stored = layout.first_page()
    most = min([numbers[-1], *(place[0] for place in layout.cursors().values() if place)])
    return stored if stored is not None and 1 <= stored <= most else numbers[0]


def _recover_page(layout: Layout, number: int, page_size: int) -> Survey:
    synced = layout.synced_in(number)
    file = layout.files.open(layout.page(number))
    try:
        _fit(layout, number, file, page_size, synced)
        found = survey(file, number, page_size, synced)
        if found.end < synced:
            _log.warning("%s: good up to %d, of %d bytes that were synced", layout.page(number), found.end, synced)
        _zero(file, found.end, page_size)
        _rewrite(file, min(synced, found.end), found.end)
        file.sync()
    finally:
        file.close()
    _repair_index(layout, number, found.entries)
    layout.files.sync_directory(layout.directory)
    return found


def _fit(layout: Layout, number: int, file: File, page_size: int, synced: int) -> None:
    """Give the page the length of all pages. Bytes beyond it that are no record are cut off; a record there is not."""
    size = file.size()
    if size > page_size and survey(file, number, size, synced).end > page_size:
        raise _too_long(layout, number, page_size, size)
    if size != page_size:
        file.allocate(page_size)


def _check_sealed(layout: Layout, number: int, page_size: int) -> None:
    """Check that a page with another one behind it has the length of all pages. A page may be unreadable."""
    try:
        file = layout.files.open(layout.page(number))
    except OSError:
        return
    try:
        size = file.size()
    finally:
        file.close()
    if size > page_size:
        raise _too_long(layout, number, page_size, size)


def _too_long(layout: Layout, number: int, page_size: int, size: int) -> Unreadable:
    return Unreadable(
        f"{layout.path('allMeta')} says pages of {page_size} bytes, {layout.page(number)} holds more; "
        + layout.how_to_mend(size),
        file=layout.page(number),
        size=size,
    )


def _zero(file: File, start: int, end: int) -> None:
    """Write zeros behind the last record, so that no later crash can bring an old record back."""
    for position in range(start, end, _CHUNK):
        size = min(_CHUNK, end - position)
        zeros = bytes(size)
        if file.read(size, position) != zeros:
            file.write(zeros, position)


def _rewrite(file: File, start: int, end: int) -> None:
    """Write the bytes again: after a failed sync the system may take pages for written that never reached the disk."""
    for position in range(start, end, _CHUNK):
        file.write(file.read(min(_CHUNK, end - position), position), position)


def _repair_index(layout: Layout, number: int, entries: bytes) -> None:
    file = layout.files.open(layout.index(number), create=True)
    try:
        if file.read(file.size(), 0) != entries:
            file.truncate(0)
            file.write(entries, 0)
        file.sync()
    finally:
        file.close()
