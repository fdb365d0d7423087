"""A local queue in files: fixed-size pages, read from a point in time, with no server (docs/paged-queue.md)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import dropwhile, takewhile
from typing import Any

from ...errors import AlreadyOpen, InvalidRequest, LatchworkError, NotFound
from ...inputs import checked_switch, checked_timeout, seconds_of
from ...logs import Log
from ...seams import SYSTEM, Seams
from ...unpicklable import Unpicklable
from .codec import Decode, codec_of, milliseconds
from .cursor import Cursor, file_safe
from .files import SYSTEM_FILES, FileLock, Files
from .layout import Layout, Place, disk
from .opening import check_arguments, checked_directory, lock_directory, resolve_page_size
from .reader import PagedEntry, PageReader, View, seek
from .recovery import Recovered, recover
from .signal import Signal
from .writer import PageWriter

_log = Log(__name__)


class PagedQueue(Unpicklable):
    """A queue in the files of one directory, for one process at a time. Safe to share between its threads.

    Promises: an acknowledged message survives a crash of the process, and of the machine once it was synced
    (`force_every`); after a crash the queue holds a prefix of what was appended; bytes that fail their checks are never
    returned as data. Delivery is at least once, in the order of appending. Not promised: anything on a network file
    system, or on a disk that reports a sync that it has not done.
    """

    _INSTEAD = "pickle its directory, and open it there when it is closed here"

    def __init__(self, layout: Layout, page_size: int, lock: FileLock, *, lifetime: float | None, seams: Seams) -> None:
        self._layout, self._page_size = layout, page_size
        self._owned: FileLock | None = lock
        self._lifetime, self._seams = lifetime, seams
        self._first = 1
        self._writer: PageWriter
        self._view: View
        self._encode: Callable[[Any], bytes]
        self._cursors: dict[str, Cursor] = {}
        self._damaged: set[str] = set()
        self._admin = seams.lock()
        self._appended = Signal(seams)
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        prefix: str,
        *,
        page_size: int = 64 * 1024 * 1024,
        force_every: int = 0,
        lifetime: float | timedelta | None = None,
        codec: Any = bytes,
        seams: Seams = SYSTEM,
        files: Files = SYSTEM_FILES,
    ) -> PagedQueue:
        """Open the queue of that prefix, creating it (and the directory) if it does not exist, and recover it.

        page_size: bytes, 64 to 2,147,483,647. It counts when the queue is created; later the stored one is used, with a
            warning.
        force_every: 0 leaves syncing to the system, n syncs with every n-th message.
        lifetime: seconds (or a timedelta) after which `reclaim` may delete pages.
        codec: `bytes`, a type (stored as JSON by msgspec), or an object with `encode` and `decode`.

        Raises `AlreadyOpen` if another process, or this one, has it open; `Unreadable` if the files are of another
        format or a newer version; `Misconfigured` without permission; `StorageFailed` if the disk refuses. If the
        format or the permissions are wrong, nothing is changed.
        """
        seconds = seconds_of(lifetime)
        check_arguments(prefix, page_size, force_every, seconds)
        encode, decode = codec_of(codec)
        layout = Layout(files, checked_directory(directory), prefix)
        with disk(layout):
            layout.stored_page_size()  # refuses what is not ours before the lock file is made beside it
            files.make_directory(layout.directory)
            lock = lock_directory(layout)
            try:
                queue = cls(layout, resolve_page_size(layout, page_size), lock, lifetime=seconds, seams=seams)
                queue._encode = encode
                queue._start(force_every, decode)
            except BaseException:
                lock.close()
                raise
        _OPEN.add(queue)
        return queue

    def append(self, data: Any) -> None:
        """Add one message at the end.

        On return every reader can see it, and it survives the end of this process; with `force_every=1` it also
        survives a crash of the machine. Raises `StorageFailed`: not acknowledged, though it may be there when the queue
        is opened again. Raises `InvalidRequest`: the codec does not take it, or the queue is closed.
        """
        self._writer.append(self._encode(data))
        if self._appended.waiting:
            self._appended.notify()

    def append_many(self, datas: Iterable[Any]) -> None:
        """Add messages in order, with at most one sync. After a crash, or `StorageFailed`, the first few of them may be
        there.

        All are encoded before the first is written.
        """
        if not isinstance(datas, Iterable):
            raise InvalidRequest(f"datas is a {type(datas).__name__}; give a list of messages, or use append for one")
        payloads = [self._encode(data) for data in datas]
        if payloads:
            self._writer.append_many(payloads)
            self._appended.notify()

    def force(self) -> None:
        """Return once everything appended so far is on the disk."""
        self._writer.force()

    def read(
        self,
        since: datetime | float | None = None,
        *,
        follow: bool = False,
        timeout: float | None = None,
        skip_corrupt: bool = False,
    ) -> Iterator[PagedEntry]:
        """Yield the messages that arrived at `since` or later (None: all that are left), in order.

        since: a datetime (a naive one in local time) or seconds since the epoch; counts in whole milliseconds, rounded
            down.
        follow: wait for more messages, and end when none came for `timeout` seconds (None = no limit) or the queue was
            closed. Only appends of this process wake it: there is no other writer. Without `follow` it ends with the
            messages that existed at the call.
        skip_corrupt: continue at the next good message instead of raising `Corrupt` or `Unreadable`.

        Raises `Corrupt` with file and position at the first place that fails its checks, `Unreadable` with page and
        position at the first message that the codec cannot decode, `Expired` if the next page was reclaimed meanwhile.
        """
        arrival = None if since is None else milliseconds(since)
        timeout = checked_timeout(timeout)
        checked_switch("follow", follow)
        checked_switch("skip_corrupt", skip_corrupt)
        self._check_open()
        until = self._writer.tail
        with disk(self._layout):
            start = (self._first, 0) if arrival is None else seek(self._view, arrival)
        found = self._follow(PageReader(self._view, start, skip_corrupt=skip_corrupt), until, timeout, follow=follow)
        return found if arrival is None else dropwhile(lambda entry: entry.timestamp < arrival / 1000, found)

    def cursor(self, name: str) -> Cursor:
        """Return the durable position of that name, created at the start of the queue; one object for one name.

        name: letters, digits and `_ . -`, at most 100.

        Until the cursor is dropped, the pages that it has not passed are not reclaimed. Raises `Corrupt` if its file is
        damaged; until the file is deleted, and the queue opened again, no page is reclaimed.
        """
        file_safe(name)
        with self._administering():
            if name in self._damaged:
                raise self._layout.damaged_cursor(name)
            if name not in self._cursors:
                self._layout.store_cursor(name, (self._first, 0))
                self._add_cursor(name, (self._first, 0))
            return self._cursors[name]

    def reclaim(self) -> int:
        """Delete the pages whose messages are all older than the lifetime and passed by every cursor; return how many.

        The page being written stays. Runs by itself whenever a page is full, and if the disk has no room for the next
        one. Age is by the wall clock. Raises
        `InvalidRequest` if the queue is closed, `StorageFailed` if the disk refuses.
        """
        self._check_open()
        if self._lifetime is None:
            return 0
        with self._administering():
            horizon = int((self._seams.wall() - self._lifetime) * 1000)
            held = [cursor.committed[0] for cursor in self._cursors.values()]
            held += [self._first for _ in self._damaged]  # the positions of these cursors are not known
            limit, layout, size = min([self._writer.tail[0], *held]), self._layout, self._page_size
            gone = list(takewhile(lambda page: page < limit and layout.newest(page, size) < horizon, layout.pages()))
            if gone and gone[-1] >= self._first:
                layout.store_first_page(gone[-1] + 1)
                self._first = gone[-1] + 1
            for number in gone:
                layout.remove_page(number)
            return len(gone)

    def disk_bytes(self) -> int:
        """Return the bytes that the pages take on the disk, without the indexes."""
        return len(self._layout.pages()) * self._page_size

    def close(self) -> None:
        """Sync everything and let another process open the queue. Readers that follow end.

        Raises `StorageFailed` if that sync fails; the queue is closed nevertheless. If an interrupt (Ctrl-C) ends the
        wait for a thread that uses the files, they still belong to this process: call it again.
        """
        if self._owned is None:
            return
        self._closed = True
        try:
            self._writer.close()
        finally:
            self._appended.notify()
            if self._writer.closed:
                with self._admin:  # a thread that uses the files must finish before another process owns them
                    self._unlock()

    def __enter__(self) -> PagedQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def disown(self) -> None:
        """Refuse every append in a forked child, which calls it by itself: the parent continues to write."""
        self._closed = True
        self._unlock()
        self._writer.refuse(AlreadyOpen("the queue belongs to the process that forked this one; open another"))

    def _unlock(self) -> None:
        """Close the lock, at most once: a second time the files may be another owner's."""
        if self._owned is not None:
            self._owned.close()
            self._owned = None

    def _start(self, force_every: int, decode: Decode | None) -> None:
        layout, size = self._layout, self._page_size
        found = recover(layout, size)
        fresh = found is None
        if fresh:
            layout.store_first_page(1)
        found = found or Recovered(1, (1, 0), 0)
        self._first = found.first
        self._writer = PageWriter(
            layout, size, found, force_every=force_every, seams=self._seams, reclaim=self._reclaim_quietly
        )
        self._writer.start(fresh=fresh)
        self._view = View(layout, size, lambda: self._first, lambda: self._writer.tail, decode)
        for name, place in layout.cursors().items():
            if place is None:
                _log.warning("%s; no page is reclaimed until then", layout.damaged_cursor(name))
                self._damaged.add(name)
                continue
            if place > found.tail:  # only if files were cut by hand: commits sync the queue first
                _log.warning("cursor %s was at %s, beyond the end of %s", name, place, layout.path("*"))
                layout.store_cursor(name, found.tail)
            self._add_cursor(name, max(min(place, found.tail), (self._first, 0)))

    def _add_cursor(self, name: str, place: Place) -> None:
        self._cursors[name] = Cursor(
            name,
            place,
            self._view,
            self._writer,
            new_lock=self._seams.lock,
            deadline=self._appended.deadline,
            wait=self._wait,
            store=self._store_cursor,
            administering=self._administering,
        )

    def _store_cursor(self, cursor: Cursor, place: Place | None) -> None:
        """Make a cursor's position durable; with None, forget the cursor. Refuses a dropped cursor, whose name may be
        another's.
        """
        name = cursor.name
        with self._administering():
            if self._cursors.get(name) is not cursor:
                raise NotFound(f"cursor {name} was dropped; ask the queue for it again to start over", name=name)
            if place is not None:
                self._layout.store_cursor(name, place)
            else:
                self._layout.drop_cursor(name)
                del self._cursors[name]

    def _follow(self, reader: PageReader, until: Place, timeout: float | None, *, follow: bool) -> Iterator[PagedEntry]:
        with disk(self._layout):
            yield from reader.entries(until)
        while follow and self._wait(until, self._appended.deadline(timeout)):
            until = self._writer.tail
            with disk(self._layout):
                yield from reader.entries(until)

    def _wait(self, place: Place, deadline: float | None) -> bool:
        """Whether there is more than `place` by the deadline; False at once when the queue is closed."""
        self._appended.wait(lambda: self._closed or self._writer.tail > place, deadline)
        return self._writer.tail > place

    def _reclaim_quietly(self) -> int:
        """Free disk space when a page is full. If that fails, log it: it is no reason to refuse the append."""
        try:
            return self.reclaim()
        except LatchworkError as error:
            _log.warning("%s could not be reclaimed: %s", self._layout.path("*"), error)
            return 0

    @contextmanager
    def _administering(self) -> Iterator[Layout]:
        """Hold the lock on the cursors and the list of pages, while the queue is open: later they may be another
        owner's. The small files are read and replaced meanwhile.
        """
        self._check_open()  # before the lock: a forked child may find it held, without end
        with self._admin:
            self._check_open()
            with disk(self._layout):
                yield self._layout

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest(f"{self._layout.path('*')} is closed; open it again")


def _leave_to_parent() -> None:
    for queue in tuple(_OPEN):
        queue.disown()


_OPEN: weakref.WeakSet[PagedQueue] = weakref.WeakSet()
os.register_at_fork(after_in_child=_leave_to_parent)
