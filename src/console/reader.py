"""What one request shows, read at once and within a limit of time; what was read lately is shared by all requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..cli.top.feed import PATIENCE, Feed, Fetched, Place
from ..deadline import Deadline
from ..errors import LatchworkError
from ..plain import one_line
from ..seams import Lock, Seams
from ..store import RecordStore

KEPT = 256
"""Parts of pages that are remembered at most."""


class Kept:
    """What requests have read lately. Safe to share between threads."""

    def __init__(self, lock: Lock) -> None:
        self._lock, self._found = lock, OrderedDict[tuple[str, ...], Fetched]()

    def get(self, key: tuple[str, ...]) -> Fetched:
        """Return what was read last for this part of a page."""
        with self._lock:
            return self._found.get(key) or Fetched()

    def put(self, key: tuple[str, ...], fetched: Fetched) -> None:
        """Remember it, in the place of the oldest part where there are many."""
        with self._lock:
            self._found[key] = fetched
            self._found.move_to_end(key)
            if len(self._found) > KEPT:
                self._found.popitem(last=False)

    def clear(self) -> None:
        """Let everything be read again: something was done."""
        with self._lock:
            self._found.clear()


class Reader(Feed):
    """The feed of `latchwork top`, for one request: nothing is read in the background."""

    def __init__(
        self,
        stores: Mapping[str, RecordStore],
        clients: Sequence[str] | None,
        seams: Seams,
        kept: Kept,
        outboxes: Sequence[Place] = (),
    ) -> None:
        super().__init__(stores, clients, 2.0, seams, outboxes)
        self._kept = kept
        self.look()

    @property
    def away(self) -> dict[str, str]:
        """Why there are no figures of now, by farm, for those whose store is away."""
        found = {one.farm: one_line(one.away) for one in (self.found.clients if self.found else ()) if one.away}
        return found or (dict.fromkeys(self.stores, one_line(self.failure)) if self.failure else {})

    def fetched(self, key: tuple[str, ...], read: Callable[[], Any], every: float) -> Fetched:
        """Return what `read` returns now, or returned to anybody in the last `every` seconds. A store that is away is
        not asked again.
        """
        known, now = self._kept.get(key), self.seams.monotonic()
        if now - known.at <= every:
            return known
        if key[1] in self.away:
            return Fetched(known.value, self.away[key[1]], known.at)
        value, failure = known.value, None
        try:
            with Deadline(self.seams, PATIENCE):
                value = read()
        except LatchworkError as error:
            failure = one_line(f"{error} [{error.code}]")
        found = Fetched(value, failure, self.seams.monotonic())
        self._kept.put(key, found)
        return found
