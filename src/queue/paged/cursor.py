"""A named, durable position of a consumer of the local queue."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from sys import maxsize

from ...errors import Corrupt, InvalidRequest, Unreadable
from ...forks import reset_in_child
from ...inputs import checked_count, checked_switch, checked_timeout
from ...plain import shown
from ...seams import Lock
from .backlog import Backlog, backlog, distance
from .layout import Layout, Place, disk
from .reader import PagedEntry, PageReader, View
from .writer import PageWriter

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def file_safe(name: str) -> None:
    """Raise `InvalidRequest` for a name that a cursor cannot have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(f"a cursor's name has 1 to 100 letters, digits, '_', '.' or '-': not {shown(name)}")


class Cursor:
    """A reader that continues after what was last committed, in this process or an earlier one: at least once.

    Threads may share a cursor; each message then goes to one of them, and `commit` covers what any of them has read.
    `turn` is a lock for threads that read, work and commit as one step. Not promised: that a message read but not
    committed is not read again after the queue is opened again.
    """

    def __init__(
        self,
        name: str,
        place: Place,
        view: View,
        writer: PageWriter,
        *,
        new_lock: Callable[[], Lock],
        deadline: Callable[[float | None], float | None],
        wait: Callable[[Place, float | None], bool],
        store: Callable[[Cursor, Place | None], None],
        administering: Callable[[], AbstractContextManager[Layout]],
    ) -> None:
        self.name = name
        self.administering = administering  # gives the queue's files to who keeps more beside them
        self._view, self._writer, self._store = view, writer, store
        self._deadline, self._wait = deadline, wait
        self._new_lock = new_lock
        self.reset_after_fork()
        reset_in_child(self)
        self._committed = self._read_to = place
        self._begun: Place | None = None  # where a commit that has not returned wants to be
        self._unsure = False  # whether the file may hold another place than `_committed`, or be gone

    def reset_after_fork(self) -> None:
        """Replace the locks in a forked child: another thread of the parent may hold them."""
        self._lock, self.turn = self._new_lock(), self._new_lock()

    @property
    def committed(self) -> Place:
        """Page and position of the last commit that returned: a new process reads from there.

        If a later commit, or `drop`, failed or was interrupted, a new process may find the state that it has begun to
        write.
        """
        return self._committed

    @property
    def tail(self) -> Place:
        """Page and position at which the queue ends at this moment."""
        return self._view.tail()

    def read(self, n: int, *, timeout: float | None = 0, skip_corrupt: bool = False) -> list[PagedEntry]:
        """Return the next messages, at most `n`; wait up to `timeout` seconds (None = no limit) for the first one.

        skip_corrupt: return the next good message instead of raising `Corrupt` or `Unreadable`.

        Returns an empty list if there is none. Raises `Corrupt` if the next message fails its checks, `Unreadable` if
        the codec cannot decode it, `Expired` if its page was deleted by another program; messages before a damaged or
        undecodable one are returned first.
        """
        checked_count("n", n)
        checked_switch("skip_corrupt", skip_corrupt)
        deadline = self._deadline(checked_timeout(timeout))
        while True:
            until = self._view.tail()
            found = self._take(n, until, skip_corrupt=skip_corrupt)
            if found or not self._wait(until, deadline):
                return found

    def commit(self) -> None:
        """Make the position after the last message read durable; after the return no crash makes it fall back.

        Syncs the queue up to there first, so the position never outlives the messages before it. Raises
        `StorageFailed`: not acknowledged, though a new process may find it so; it may be tried again, and `rewind`
        takes it back, unless the queue itself has failed. Raises `InvalidRequest` if the queue is closed, `NotFound` if
        the cursor was dropped.
        """
        with self._lock:
            if self._unsure or self._committed < self._read_to:
                self._writer.force(self._read_to)
                self._unsure, self._begun = True, self._read_to
                self._keep(self._read_to)

    def rewind(self) -> None:
        """Read again from where it was last committed.

        If the file may hold another position, because a commit failed or was interrupted, the last one is made durable
        again first. If that raises, as `commit` does, reading continues as before.
        """
        with self._lock:
            if self._unsure:
                self._keep(self._committed)
            self._read_to = self._committed

    def finish(self) -> None:
        """Complete the last commit, if it failed or was interrupted; raises what `commit` raises."""
        with self._lock:
            if self._begun is not None:
                self._keep(self._begun)

    def lag(self) -> int:
        """Return how many messages are not committed yet; one larger than a page counts once for each of its pages."""
        return self.backlog().messages

    def backlog(self) -> Backlog:
        """Return what is not committed yet: messages, bytes, and when the oldest of them arrived."""
        with disk(self._view.layout):
            return backlog(self._view, self._committed)

    def bytes_behind(self) -> int:
        """Return the bytes of the files that are not committed yet, including unused ends of full pages.
        Reads nothing.
        """
        return distance(self._view, self._committed)

    def drop(self) -> None:
        """Forget the name, durably; the cursor does not keep pages from being reclaimed any more.

        Raises `NotFound` if it was dropped before. Raises `StorageFailed`: a new process may find it or not; `rewind`
        takes that back.
        """
        with self._lock:
            self._unsure, self._begun = True, None
            self._store(self, None)
            self._unsure = False

    def _keep(self, place: Place) -> None:
        """Make the position durable; then set it in memory."""
        self._store(self, place)
        self._committed = place
        self._unsure, self._begun = False, None

    def _take(self, n: int, until: Place, *, skip_corrupt: bool) -> list[PagedEntry]:
        with self._lock:
            reader = PageReader(self._view, self._read_to, skip_corrupt=skip_corrupt)
            found: list[PagedEntry] = []
            try:
                with disk(self._view.layout):
                    found.extend(islice(reader.entries(until), min(n, maxsize)))
            except (Corrupt, Unreadable):
                if not found:
                    raise
            self._read_to = reader.place
            return found
