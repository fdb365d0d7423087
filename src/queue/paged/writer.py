"""The writing end of a local queue: one page at a time, one writer process, any number of its threads.

A record is written in this order: a zero length, the content (and the zero length that ends it), then the length. A
batch is one such write, so its records become visible together. Threads that need a sync share one: the first one syncs
for all that have written by then.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...errors import InvalidRequest, LatchworkError, StorageFailed
from ...seams import Seams
from .files import File
from .index import ENTRY
from .layout import Layout, Place
from .page import FIRST, HEADER, LAST, MIDDLE, TERMINATOR, WHOLE, record
from .recovery import Recovered

_BATCH = 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


class PageWriter:
    """A writer at the end of the last page. `tail` is where the next record goes: everything before it may be read.

    After a write or a sync that failed it refuses everything with `StorageFailed`: it is not known then what the disk
    holds of the page, and another try could take a lost page for a good one. Opening the queue again checks the page.
    An interrupt (KeyboardInterrupt) of a batch, or of the change to a new page, has the same effect. A message for
    whose index, or page, the disk has no room is undone, and the next one may be taken.
    """

    def __init__(
        self,
        layout: Layout,
        page_size: int,
        found: Recovered,
        *,
        force_every: int,
        seams: Seams,
        reclaim: Callable[[], int],
    ) -> None:
        self._layout, self._page_size, self._force_every = layout, page_size, force_every
        self._wall, self._reclaim = seams.wall, reclaim
        self._new_lock = seams.lock
        self._lock, self._sync_lock = seams.lock(), seams.lock()
        self._failure: LatchworkError | None = None
        self.closed = False
        self._arrival = found.arrival
        self._unforced = 0
        self.tail: Place = found.tail
        self._synced: Place = found.tail
        self._page: File
        self._index: File
        self._index_size = 0
        self._meta: File

    def start(self, *, fresh: bool) -> None:
        """Open the files of the last page, creating it if `fresh`. Raises OSError if the disk refuses."""
        self._meta = self._layout.files.open(self._layout.path("writeMeta"), create=True)
        number = self.tail[0]
        if fresh:
            self._create(number)
        else:
            self._page = self._layout.files.open(self._layout.page(number))
            self._index = self._layout.files.open(self._layout.index(number))
            self._index_size = self._index.size()
            self._mark(self.tail)
            self._guarded(self._meta.sync)  # it may go back, where damage was cut off: see _mark

    def append(self, payload: bytes) -> None:
        """Write one message; if a sync is due, it is done before the return."""
        if self._failure is not None:
            raise self._refusal()
        with self._lock:
            page, position = self.tail
            if position + HEADER + len(payload) <= self._page_size and self._failure is None:
                try:
                    arrival = self._next_arrival()
                    self._put(record(page, position, arrival, WHOLE, payload), ENTRY.pack(arrival, position))
                except OSError as error:
                    raise self._poison(error) from error
                due = bool(self._force_every) and self._count(1)
            else:
                due = self._extend((payload,))
        if due:
            self.force()

    def append_many(self, payloads: Sequence[bytes]) -> None:
        """Write messages in order, with one sync at the end if one is due."""
        if self._failure is not None:
            raise self._refusal()
        with self._lock:
            due = self._extend(payloads)
        if due:
            self.force()

    def force(self, upto: Place | None = None) -> None:
        """Return once everything appended before the call (or before `upto`) is on the disk."""
        upto = upto or self.tail
        with self._sync_lock:
            if self._synced < upto:
                self._sync()

    def close(self) -> None:
        """Sync and close the files; after a failure without the sync. Once it is `closed`, nothing is written or
        synced.

        An interrupt while it waits leaves the files open: call it again.
        """
        with self._lock, self._sync_lock:
            if self.closed:
                return
            try:
                if self._failure is None:
                    if self._synced < self.tail:
                        self._sync()
                    self._guarded(self._index.sync, self._meta.sync)
            finally:
                self._failure = self._failure or InvalidRequest("the queue is closed; open it again")
                for file in (self._page, self._index, self._meta):
                    file.close()
                self.closed = True

    def refuse(self, reason: LatchworkError) -> None:
        """Raise `reason` for every append from now on, in a forked child: another thread of the parent may hold the
        locks.
        """
        self._failure = self._failure or reason
        self._lock, self._sync_lock = self._new_lock(), self._new_lock()

    def _extend(self, payloads: Sequence[bytes]) -> bool:
        if self._failure is not None:
            raise self._refusal()
        arrival = self._next_arrival()
        frames: list[bytes] = []
        entries: list[bytes] = []
        size = 0
        for payload in payloads:
            page, start = self.tail
            room = self._page_size - start - size
            if frames and (HEADER + len(payload) > room or size >= _BATCH):
                self._write(frames, entries)
                frames, entries, size = [], [], 0
                page, start = self.tail
                room = self._page_size - start
            if HEADER + len(payload) > room and start:
                self._roll()
                page, start = self.tail
            if HEADER + len(payload) > self._page_size:
                self._write_pieces(payload, arrival)
            else:
                frames.append(record(page, start + size, arrival, WHOLE, payload))
                entries.append(ENTRY.pack(arrival, start + size))
                size += len(frames[-1])
        if frames:
            self._write(frames, entries)
        return self._count(len(payloads))

    def _write_pieces(self, payload: bytes, arrival: int) -> None:
        """Write a message larger than a page, from the start of a page. Readers drop it unless its last piece
        exists.
        """
        room = self._page_size - HEADER
        for start in range(0, len(payload), room):
            if start:
                self._roll()
            kind = FIRST if start == 0 else LAST if start + room >= len(payload) else MIDDLE
            frame = record(self.tail[0], 0, arrival, kind, payload[start : start + room])
            self._write([frame], [ENTRY.pack(arrival, 0)])

    def _write(self, frames: list[bytes], entries: list[bytes]) -> None:
        self._entirely(lambda: self._guarded(lambda: self._put(b"".join(frames), b"".join(entries))))

    def _put(self, frames: bytes, entries: bytes) -> None:
        page, position = self.tail
        content = TERMINATOR + frames[4:] + TERMINATOR
        self._page.write(content[: self._page_size - position], position)
        self._page.write(frames[:4], position)
        try:
            self._index.write(entries, self._index_size)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            # The page was reserved, its index was not. The tail has not moved, so nobody has seen these records.
            self._page.write(bytes(len(content))[: self._page_size - position], position)
            raise self._no_room(self._layout.index(page), error) from error
        tail, size = (page, position + len(frames)), self._index_size + len(entries)
        # After the index: a search relies on it for all before the tail. No interrupt comes between the two.
        self.tail, self._index_size = tail, size

    def _next_arrival(self) -> int:
        """Return the present time, or the newest arrival so far if the clock was set back."""
        now = int(self._wall() * 1000)
        self._arrival = max(self._arrival, now)
        return self._arrival

    def _count(self, messages: int) -> bool:
        self._unforced += messages
        if not self._force_every or self._unforced < self._force_every:
            return False
        self._unforced = 0
        return True

    def _roll(self) -> None:
        """Continue in a new page, and delete those that are too old: first, if the disk has no room for another."""
        try:
            self._continue()
        except StorageFailed:
            if self._failure is not None or not self._reclaim():
                raise
            self._continue()
        else:
            self._reclaim()

    def _continue(self) -> None:
        """Continue in a new page. The old one is synced first, so that only the last page is ever in doubt."""
        number = self.tail[0] + 1
        with self._sync_lock:
            self._sync()
            self._guarded(self._index.sync)
            old = (self._page, self._index)
            self._entirely(lambda: self._move(number))
        for file in old:
            file.close()

    def _move(self, number: int) -> None:
        self._create(number)
        self.tail = self._synced = (number, 0)

    def _create(self, number: int) -> None:
        """Reserve and sync the files of a new page. A full disk shows here, before anything is acknowledged."""
        layout, opened = self._layout, []
        try:
            for path, size in (layout.page(number), self._page_size), (layout.index(number), 0):
                opened.append(layout.files.open(path, create=True))
                opened[-1].allocate(size) if size else opened[-1].truncate(0)
        except OSError as error:
            self._undo(number, opened)
            raise self._no_room(layout.page(number), error) from error
        page, index = opened
        self._guarded(page.sync, index.sync, lambda: layout.files.sync_directory(layout.directory))
        self._page, self._index, self._index_size = page, index, 0
        self._mark((number, 0))

    @staticmethod
    def _no_room(path: str, error: OSError) -> StorageFailed:
        full = error.errno in _FULL
        what = f"no room for {path}: {error}; free some" if full else f"{path} cannot be made: {error}; put that right"
        return StorageFailed(f"{what} and append again", file=path)

    def _undo(self, number: int, opened: list[File]) -> None:
        """Delete the empty page, as far as the disk allows; recovery would also accept one."""
        for file in opened:
            file.close()
        with suppress(OSError):
            self._layout.remove_page(number)

    def _sync(self) -> None:
        """Sync the page and note it in writeMeta; the caller holds the sync lock."""
        if self._failure is not None:
            raise self._refusal()
        tail = self.tail
        self._guarded(self._page.sync)
        self._synced = tail
        self._mark(tail)

    def _mark(self, place: Place) -> None:
        """Note in writeMeta how far the page is synced. Only after a sync: recovery takes a bad record before this
        position for damage, not for an incomplete write.
        """
        self._guarded(lambda: self._meta.write(self._layout.write_meta(place), 0))

    def _guarded(self, *steps: Callable[[], None]) -> None:
        try:
            for step in steps:
                step()
        except OSError as error:
            raise self._poison(error) from error

    def _entirely(self, step: Callable[[], None]) -> None:
        """Do a step that must not be left half done: after an interrupt no append is accepted, as after a
        failed write.
        """
        try:
            step()
        except LatchworkError:
            raise
        except BaseException as error:
            self._poison(error)
            raise

    def _poison(self, error: BaseException) -> LatchworkError:
        why = str(error) or type(error).__name__
        self._failure = StorageFailed(
            f"{self._layout.page(self.tail[0])} could not be written or synced ({why}); what was acknowledged before "
            "is safe; open the queue again to go on",
            file=self._layout.page(self.tail[0]),
        )
        return self._refusal()

    def _refusal(self) -> LatchworkError:
        """Return a new exception each time: raising one object from several threads would mix their tracebacks."""
        failure = self._failure or StorageFailed()
        return type(failure)(str(failure), **failure.details)
