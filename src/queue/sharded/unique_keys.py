"""The keys of messages that are unique until they are done: which message has a key (docs/protocols P30).

Set `{client}_unique_set`, key `{queue}/{key}`. Bins: `id`, the message; `at`, since when (ms, server).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from ...errors import Corrupt, NotFound, Refused
from ...inputs import is_int
from ...store import Bin, Compute, Exists, Key, Param, Put, Read, RecordStore, Removal, Update, missing
from ...store.model.expr import SERVER_NOW, Bound
from ...store.port import MAX_TTL
from .envelope import Envelope

YOUNG = 1_000
"""Milliseconds for which a publisher that has taken a key may still be about to write its message."""
_ID, _AT = "id", "at"
_LOOK = (Read(_ID), Read(_AT), Compute(SERVER_NOW))
_MINE = Bin(_ID, str).eq(Param("me", str))
_AS_READ = missing(_ID) | _MINE | Bin(_ID, str).eq(Param("old", str))


class Holder(NamedTuple):
    """The message that has a key. at: since when; now: when that was read (ms, server)."""

    message_id: str
    at: int
    now: int

    @property
    def is_young(self) -> bool:
        """Whether its publisher may not have written it yet."""
        return self.now - self.at < YOUNG


class UniqueKeys:
    """The keys of one queue. Safe to share between threads."""

    def __init__(self, store: RecordStore, client_id: str, queue: str, life: int) -> None:
        self.store, self._life = store, life
        self._set, self._queue = f"{client_id}_unique_set", quote(queue, safe="")

    def key(self, unique: str) -> Key:
        """Return the key of the record."""
        return Key(self._set, f"{self._queue}/{unique}")

    def holder(self, unique: str) -> Holder | None:
        """Return the message that has the key; None where it is free. One call."""
        try:
            name, at, now = self.store.repeat(Update(self.key(unique), _LOOK))
        except NotFound:
            return None
        if name is not None and not isinstance(name, str):
            raise Corrupt(f"{self.key(unique)}: its message is a {type(name).__name__}; delete the record")
        return Holder(name, at if is_int(at) else 0, now) if name else None

    def claim(self, unique: str, me: str, old: str | None, ahead: int) -> bool:
        """Let the key name this message, if it is free or names `old`; whether it does. One call.

        ahead: ms until the message is due.
        """
        ops = (Put(_ID, me), Put(_AT, SERVER_NOW))
        guard = Bound(_AS_READ, {"me": me, "old": old or me})
        update = Update(self.key(unique), ops, guard, exists=Exists.ANY, or_absent=True, ttl=self._ttl(ahead))
        try:
            self.store.repeat(update)
        except Refused:
            return False
        return True

    def keeping(self, unique: str, me: str, ahead: int) -> Update:
        """Return the update that lets the record live as long as it does after a claim."""
        return Update(self.key(unique), (Put(_ID, me),), Bound(_MINE, {"me": me}), ttl=self._ttl(ahead))

    def free(self, messages: Sequence[Envelope]) -> None:
        """Free the keys that these messages have. One call, or none. A failure is harmless: who publishes next finds
        that they are over.
        """
        held = {one.unique: one.msg_id for one in messages if one.unique is not None}
        if held:
            self.store.delete_many(
                [Removal(self.key(unique), Bound(_MINE, {"me": me})) for unique, me in held.items()], repeatable=True
            )

    def _ttl(self, ahead: int) -> int:
        return min(MAX_TTL, self._life + max(0, ahead) // 1000)
