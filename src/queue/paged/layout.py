"""The names and small files of a local queue: `<prefix>-N.page`, `-N.idx`, `-allMeta`, `-readMeta`, `-writeMeta`.

All small files but writeMeta are replaced as a whole: written to a new file, synced, renamed over the old one and made
durable by a sync of the directory. So each is found either new or unchanged. It ends in a checksum; allMeta and
readMeta of earlier versions have none. writeMeta is written in place, eight bytes at position 0.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from google_crc32c import value

from ...errors import Corrupt, Misconfigured, StorageFailed, Unreadable
from .files import Files
from .index import PageIndex, end_of, survey

FORMAT_VERSION = 1

Place: TypeAlias = tuple[int, int]
"""A page number, from 1, and a position in that page."""

_PAIR = struct.Struct(">ii")
_ONE = struct.Struct(">i")
_CHECKED_PAIR = _PAIR.size + 4
_OURS = re.compile(r"([1-9][0-9]{0,9}\.(page|idx)|(all|read|write)Meta|[^-]+\.(cursor|held|refused))(\.new)?")
LAST_PAGE = 2**31 - 1
"""The greatest number of a page: four bytes keep it."""


@dataclass(frozen=True)
class Layout:
    """The paths of one queue's files, and how its small files are read and written."""

    files: Files
    directory: Path
    prefix: str

    def path(self, rest: str) -> str:
        """Return the path of the file `<prefix>-<rest>`."""
        return f"{self.directory}/{self.prefix}-{rest}"

    def page(self, number: int) -> str:
        """Return the path of the page of that number."""
        return self.path(f"{number}.page")

    def index(self, number: int) -> str:
        """Return the path of the index of the page of that number."""
        return self.path(f"{number}.idx")

    def names(self) -> list[str]:
        """Return what follows `<prefix>-` in the names of this queue's files, without the lock."""
        start = len(self.prefix) + 1
        found = [name[start:] for name in self.files.names(self.directory) if name.startswith(f"{self.prefix}-")]
        return [name for name in found if _OURS.fullmatch(name)]

    def pages(self) -> list[int]:
        """Return the numbers of the existing pages, in order."""
        numbers = (int(name[:-5]) for name in self.names() if name.endswith(".page"))
        return sorted(number for number in numbers if number <= LAST_PAGE)  # no queue has made a later one

    def stored_page_size(self) -> int | None:
        """Return the page size that the queue was created with; None if it was not created yet.

        Raises `Unreadable` if the files are not of this format, or of a newer one, and `Corrupt` if allMeta fails its
        checksum. The files are not changed.
        """
        data = self._read("allMeta")
        if data is None and any(name.endswith((".page", ".idx", "Meta")) for name in self.names()):
            data = self._read("allMeta")  # another process may have just created the queue
            if data is None:
                raise Unreadable(f"{self.path('allMeta')} is missing beside other files of that prefix; take another")
        if data is None:
            return None
        if len(data) not in (_PAIR.size, _CHECKED_PAIR):
            raise Unreadable(f"{self.path('allMeta')} is not of a Latchwork queue; take another prefix")
        pair = _without_checksum(data, _PAIR)
        if pair is None:
            raise Corrupt(f"{self.path('allMeta')} fails its check; {self.how_to_mend()}",
                          file=self.path("allMeta"), position=0)  # fmt: skip
        page_size, version = _PAIR.unpack(pair)
        if version != FORMAT_VERSION or page_size <= 0:
            raise Unreadable(
                f"{self.path('allMeta')} has format version {version}, this program reads {FORMAT_VERSION}; "
                "upgrade it or take another prefix",
                version=version,
            )
        return int(page_size)

    def store_page_size(self, page_size: int) -> None:
        """Create the queue, durably."""
        self._replace("allMeta", _with_checksum(_PAIR.pack(page_size, FORMAT_VERSION)))

    def how_to_mend(self, page_size: int | None = None) -> str:
        """Return the remedy if allMeta does not have the page size."""
        numbers = self.pages()
        if page_size is None and numbers:
            page_size = self._size(self.page(numbers[0]))
        what = "the page size" if page_size is None else f"the pages' size, {page_size},"
        return f"write {what} and {FORMAT_VERSION} there, four bytes each, big-endian, and nothing else"

    def first_page(self) -> int | None:
        """Return the first page that has not been reclaimed, as last stored; None if that cannot be read."""
        one = _without_checksum(self._read("readMeta") or b"", _ONE)
        return None if one is None else int(_ONE.unpack(one)[0])

    def store_first_page(self, number: int) -> None:
        """Reclaim every page before that one, durably; their files may still have to be deleted."""
        self._replace("readMeta", _with_checksum(_ONE.pack(number)))

    def synced_in(self, number: int) -> int:
        """Return up to where the page was synced, according to writeMeta; more may have been synced than it says."""
        page, position = self.synced()
        return position if page == number else 0

    def synced(self) -> Place:
        """Return the last page of which anything was synced, and up to where, according to writeMeta; zeros where that
        says nothing.
        """
        data = self._read("writeMeta")
        if data is None or len(data) != _PAIR.size:
            return 0, 0
        position, page = _PAIR.unpack(data)
        return int(page), max(0, int(position))

    @staticmethod
    def write_meta(place: Place) -> bytes:
        """Return the content of writeMeta for that position."""
        return _PAIR.pack(place[1], place[0])

    def cursors(self) -> dict[str, Place | None]:
        """Return the stored positions of the named cursors; None for a damaged one."""
        names = [name[: -len(".cursor")] for name in self.names() if name.endswith(".cursor")]
        return {name.replace("~", "-"): self._cursor(name) for name in names}

    def damaged_cursor(self, name: str) -> Corrupt:
        """Return the error for a damaged cursor."""
        path = self.path(_cursor_file(name))
        message = f"{path} fails its check; delete it and open the queue again to read from the start"
        return Corrupt(message, file=path, position=0)

    def store_cursor(self, name: str, place: Place) -> None:
        """Make a cursor's position durable."""
        self._replace(_cursor_file(name), _with_checksum(_PAIR.pack(*place)))

    def drop_cursor(self, name: str) -> None:
        """Forget a cursor, durably."""
        self.files.remove(self.path(f"{_cursor_file(name)}.new"))
        self.files.remove(self.path(_cursor_file(name)))
        self.files.sync_directory(self.directory)

    def held(self, name: str) -> str:
        """Return the path of the file of messages that the outbox of that cursor holds back."""
        return self.path(_held_file(name))

    def read_held(self, name: str) -> bytes | None:
        """Return the content of that file; None if there is none. Raises `Corrupt`."""
        data = self._read(_held_file(name))
        if data is None:
            return None
        if data != _with_checksum(data[:-4]):
            path = self.held(name)
            raise Corrupt(f"{path} fails its check; move it away to go on without the messages that it has",
                          file=path, position=0)  # fmt: skip
        return data[:-4]

    def store_held(self, name: str, content: bytes | None) -> None:
        """Replace the content of that file, durably; None deletes it."""
        if content is not None:
            self._replace(_held_file(name), _with_checksum(content))
            return
        self.files.remove(f"{self.held(name)}.new")
        self.files.remove(self.held(name))
        self.files.sync_directory(self.directory)

    def set_aside(self, name: str, place: Place, content: bytes) -> str:
        """Make a file for a message that the outbox of that cursor has set aside, durably; return its path."""
        rest = _aside_file(name, place)
        self._replace(rest, content)
        self.files.remove(self.path(f"{rest}.new"))  # it is not replaced again
        return self.path(rest)

    def take_back(self, name: str, place: Place) -> None:
        """Delete the file of a message that was to be set aside, if there is one."""
        self.files.remove(self.path(_aside_file(name, place)))

    def aside(self, name: str) -> list[str]:
        """Return the paths of the messages that the outbox of that cursor has set aside."""
        ours = re.compile(re.escape(_file_safe(name)) + r"\.[0-9]+\.[0-9]+\.refused")
        return sorted(self.path(one) for one in self.names() if ours.fullmatch(one))

    def remove_page(self, number: int) -> None:
        """Delete a page and its index."""
        self.files.remove(self.page(number))
        self.files.remove(self.index(number))

    def read_index(self, number: int, page_size: int | None) -> PageIndex:
        """Return the index of a page; built from the page if it is not plausible, unless `page_size` is None.

        Raises FileNotFoundError if it has to be built and the page is missing.
        """
        index = PageIndex(self._read(f"{number}.idx") or b"")
        return index if page_size is None or index.plausible(page_size) else self.build_index(number, page_size)

    def build_index(self, number: int, page_size: int) -> PageIndex:
        """Return the index of a page, built from its good records."""
        file = self.files.open(self.page(number))
        try:
            return PageIndex(survey(file, number, page_size, page_size).entries)
        finally:
            file.close()

    def newest(self, number: int, page_size: int) -> int:
        """Return the last arrival on a full page, in ms; 0 if it is unknown.

        By its index if the page has no good record left to check it with, or cannot be read. Raises FileNotFoundError
        as `read_index` does.
        """
        index = self.read_index(number, page_size)
        try:
            return self.checked(number, index, len(index), page_size).newest() or index.newest()
        except OSError:
            return index.newest()

    def checked(self, number: int, index: PageIndex, at: int, page_size: int) -> PageIndex:
        """Return the index of a full page, or one built from the page if the page does not agree with the used part of
        the index.

        The used part is the entry `at` and the one before it; if `at` is the end, also that the page ends with the last
        entry.
        """
        return index if self._agrees(number, index, at, page_size) else self.build_index(number, page_size)

    def _agrees(self, number: int, index: PageIndex, at: int, page_size: int) -> bool:
        try:
            file = self.files.open(self.page(number))
        except FileNotFoundError:
            return True
        try:
            near = [index.entry(one) for one in (at - 1, at) if 0 <= one < len(index)]
            ends = [end_of(file, number, entry, page_size, last=at == len(index)) for entry in near]
            follows = len(near) < 2 or ends[0] == near[1][1]  # else there is a record between them, or none
            return follows and None not in ends
        finally:
            file.close()

    def _cursor(self, name: str) -> Place | None:
        data = self._read(f"{name}.cursor") or b""
        pair = _without_checksum(data, _PAIR) if len(data) == _CHECKED_PAIR else None
        return None if pair is None else _PAIR.unpack(pair)

    def _read(self, rest: str) -> bytes | None:
        try:
            file = self.files.open(self.path(rest))
        except FileNotFoundError:
            return None
        try:
            return file.read(file.size(), 0)
        finally:
            file.close()

    def _size(self, path: str) -> int:
        file = self.files.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def _replace(self, rest: str, data: bytes) -> None:
        """Replace a small file. The new one for the next time stays beside it, with its room: a cursor can be
        committed, and pages reclaimed, also when the queue's own pages have filled the disk.
        """
        beside = self.path(f"{rest}.new")
        file = self.files.open(beside, create=True)
        try:
            file.write(data, 0)
            file.truncate(len(data))
            file.sync()
        finally:
            file.close()
        self.files.replace(beside, self.path(rest))
        with suppress(OSError):
            spare = self.files.open(beside, create=True)
            try:
                spare.allocate(len(data))
            finally:
                spare.close()
        self.files.sync_directory(self.directory)


def _with_checksum(content: bytes) -> bytes:
    return content + int(value(content)).to_bytes(4, "big")


def _without_checksum(data: bytes, content: struct.Struct) -> bytes | None:
    """Return what stands before the checksum, or everything, as earlier versions wrote it; None if it is damaged."""
    found = data[: content.size]
    return found if data in (found, _with_checksum(found)) and len(found) == content.size else None


def _file_safe(name: str) -> str:
    """Return the name of a cursor without a hyphen, so that it is never in the name of a file of another prefix."""
    return name.replace("-", "~")


def _cursor_file(name: str) -> str:
    return f"{_file_safe(name)}.cursor"


def _held_file(name: str) -> str:
    return f"{_file_safe(name)}.held"


def _aside_file(name: str, place: Place) -> str:
    return f"{_file_safe(name)}.{place[0]}.{place[1]}.refused"


@contextmanager
def disk(layout: Layout) -> Iterator[None]:
    """Turn the errors of the operating system into the package's errors."""
    try:
        yield
    except (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError) as error:
        raise Misconfigured(
            f"no way to use {layout.directory}: {error}; give this user the directory, or take another",
            directory=str(layout.directory),
        ) from error
    except OSError as error:
        raise StorageFailed(
            f"{layout.path('*')}: {error}; make room on the disk or repair it, then try again",
            directory=str(layout.directory),
        ) from error
