"""A named, durable position of a consumer of the local queue."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

from ..errors import Corrupt, InvalidRequest
from ..seams import Seams
from .page_layout import Place
from .page_reader import PagedEntry, PageReader, View
from .page_writer import PageWriter

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def file_safe(name: str) -> None:
    """`InvalidRequest` for a name that a cursor cannot have."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"a cursor's name has 1 to 100 letters, digits, '_', '.' or '-': not {name!r}", name=name)


class Cursor:
    """Reads on from where it was last committed, in this process or an earlier one: at least once.

    Threads may share a cursor; each message then goes to one of them, and `commit` covers what any of them has read.
    Not promised: that a message read but not committed is not read again after the queue is opened anew.
    """

    def __init__(
        self,
        name: str,
        place: Place,
        view: View,
        writer: PageWriter,
        *,
        seams: Seams,
        wait: Callable[[Place, float | None], bool],
        drop: Callable[[str], None],
    ) -> None:
        self.name = name
        self._view, self._writer, self._wait, self._drop = view, writer, wait, drop
        self._lock = seams.lock()
        self._committed = self._read_to = place

    @property
    def committed(self) -> Place:
        """Page and position from which a new process would read."""
        return self._committed

    def read(self, n: int, *, timeout: float | None = 0, skip_corrupt: bool = False) -> list[PagedEntry]:
        """The next messages, at most `n`; waits up to `timeout` seconds (None: for ever) for the first one.

        An empty list if there is none. `Corrupt` if the next message fails its checks, `Expired` if its page was
        reclaimed by another means than this package; what precedes it is returned first. With `skip_corrupt` the
        next good message is returned instead.
        """
        if n < 1:
            raise InvalidRequest(f"a cursor reads 1 message or more at a time, not {n}", n=n)
        self._wait(self._read_to, timeout)
        with self._lock:
            reader = PageReader(self._view, self._read_to, skip_corrupt=skip_corrupt)
            found: list[PagedEntry] = []
            messages = reader.entries(self._view.tail())
            try:
                found.extend(islice(messages, n))
            except Corrupt:
                if reader.place == self._read_to:
                    raise
            self._read_to = reader.place
            return found

    def commit(self) -> None:
        """Make the position after the last message read durable; on return no crash makes it fall back.

        Syncs the queue up to there first, so the position never outlives the messages before it.
        """
        with self._lock:
            if self._committed < self._read_to:
                self._writer.force(self._read_to)
                self._view.layout.store_cursor(self.name, self._read_to)
                self._committed = self._read_to

    def lag(self) -> int:
        """How many messages are not committed yet; one larger than a page counts once for each of its pages."""
        page, position = self._committed
        behind = self._view.index(page)
        later = range(page + 1, self._view.tail()[0] + 1)
        return len(behind) - behind.from_position(position) + sum(len(self._view.index(number)) for number in later)

    def drop(self) -> None:
        """Forget the name, durably; it no longer holds pages back from being reclaimed."""
        with self._lock:
            self._drop(self.name)
