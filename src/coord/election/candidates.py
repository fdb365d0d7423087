"""The list of an election's candidates: one record that every candidate updates regularly.

It is for people, and for the upkeep, which finds the farms by it. Who leads does not depend on it.
"""

from __future__ import annotations

from typing import Any

from ...errors import Corrupt, LatchworkError, NotFound, Unreadable
from ...inputs import is_int
from ...logs import Log
from ...store.decode import damaged
from ...store.model.expr import SERVER_NOW, Param
from ...store.model.ops import Compute, MapPut, MapRemove, Read
from ...store.port import NEVER, Exists, Key, RecordStore, Row, Update

log = Log(__name__)

CONTENDERS = "latchwork_contenders"
"""The set of these records; the key is the election's name."""
SEEN = "seen-until"
"""The map bin: until when (ms, server time) each candidate counts as present."""
_UNTIL = SERVER_NOW + Param("ms")


class Candidates:
    """The candidates of one election."""

    def __init__(self, store: RecordStore, name: str) -> None:
        self._store, self._key = store, Key(CONTENDERS, name)

    def report(self, candidate: str, seconds: float) -> None:
        """Count `candidate` as present for `seconds` from now, and remove candidates whose time is over. A list that is
        damaged is begun again: all others report too, within a third of their time.
        """
        try:
            self._report(candidate, seconds)
        except (Corrupt, Unreadable) as damage:
            log.warning("%s is begun again: %s", self._key, damage)
            self._store.delete(self._key, repeatable=True)
            self._report(candidate, seconds)

    def _report(self, candidate: str, seconds: float) -> None:
        until = MapPut(SEEN, candidate, _UNTIL.bind(ms=round(seconds * 1000)))
        seen, now = self._store.operate(
            self._key, until, Read(SEEN), Compute(SERVER_NOW), exists=Exists.ANY, ttl=NEVER, repeatable=True
        )
        gone = tuple(name for name, end in self._ends(seen).items() if end < now)
        if gone:
            self._store.operate(self._key, MapRemove(SEEN, gone), ttl=NEVER, repeatable=True)

    def leave(self, candidate: str) -> None:
        """Remove this candidate."""
        try:
            self._store.operate(self._key, MapRemove(SEEN, (candidate,)), ttl=NEVER, repeatable=True)
        except NotFound:
            return

    def names(self) -> list[str]:
        """Return the candidates that are present, sorted."""
        return self.present(self._store.repeat_many([self.reading])[0])

    @property
    def reading(self) -> Update:
        """The update that reads the candidates, for a batch; `present` says who they are."""
        return Update(self._key, (Read(SEEN), Compute(SERVER_NOW)))

    def present(self, row: Row) -> list[str]:
        """Return the candidates that are present, sorted, from the row of `reading`. Raises its error."""
        if isinstance(row, NotFound):
            return []
        if isinstance(row, LatchworkError):
            raise row
        seen, now = row
        return sorted(name for name, end in self._ends(seen).items() if end >= now)

    def _ends(self, seen: Any) -> dict[str, int]:
        """Return until when each candidate counts as present. Raises `Corrupt`."""
        ends = {} if seen is None else seen
        if not isinstance(ends, dict) or not all(isinstance(name, str) and is_int(end) for name, end in ends.items()):
            raise damaged(self._key, f"bin {SEEN!r} holds no candidates")
        return ends
