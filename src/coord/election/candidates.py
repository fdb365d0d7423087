"""Who stands for an office: one record that every candidate writes to now and then. For people, not for decisions."""

from __future__ import annotations

from ...errors import NotFound
from ...store.model.expr import SERVER_NOW, Param
from ...store.model.ops import Compute, MapPut, MapRemove, Read
from ...store.port import NEVER, Exists, Key, RecordStore

CONTENDERS = "latchwork_contenders"
"""The set of all rosters; the key is the election's name."""
SEEN = "seen-until"
"""The map bin: until when (ms, server time) each candidate counts as present."""
_UNTIL = SERVER_NOW + Param("ms")


class Roster:
    """The candidates of one election, in no order."""

    def __init__(self, store: RecordStore, name: str) -> None:
        self._store, self._key = store, Key(CONTENDERS, name)

    def report(self, candidate: str, seconds: float) -> None:
        """Count as present for so many seconds from now, and strike off those who have not reported for long."""
        until = MapPut(SEEN, candidate, _UNTIL.bind(ms=round(seconds * 1000)))
        seen, now = self._store.operate(
            self._key, until, Read(SEEN), Compute(SERVER_NOW), exists=Exists.ANY, ttl=NEVER, repeatable=True
        )
        gone = tuple(name for name, end in seen.items() if end < now)
        if gone:
            self._store.operate(self._key, MapRemove(SEEN, gone), ttl=NEVER, repeatable=True)

    def leave(self, candidate: str) -> None:
        """Be present no more."""
        try:
            self._store.operate(self._key, MapRemove(SEEN, (candidate,)), ttl=NEVER, repeatable=True)
        except NotFound:
            return

    def names(self) -> list[str]:
        """The candidates that have reported lately, sorted."""
        try:
            seen, now = self._store.operate(self._key, Read(SEEN), Compute(SERVER_NOW))
        except NotFound:
            return []
        return sorted(name for name, end in (seen or {}).items() if end >= now)
