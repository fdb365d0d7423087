"""What people have done to a store's queues: who, what, why, what was before and after, and how it ended.

Set `latchwork_audit`, a record for each action, key: an id of 20 hex digits; bins `at` (ms, by the server's clock),
`farm, who, what, target, why, before, after, outcome`. It is written before the action, with the outcome `begun`, and
again once the outcome is known: an action whose process died stays `begun`. A long one writes `after` now and then, to
say how far it is. It lives for 90 days.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import LatchworkError, OutcomeUnknown
from ..inputs import is_int
from ..logs import Log
from ..plain import one_line, shortened
from ..store import Key, Put, Record, RecordStore, Update
from ..store.model.expr import SERVER_NOW
from ..store.port import Exists

AUDIT = "latchwork_audit"
TTL = 90 * 86_400
"""Seconds."""
MOST_TEXT = 300
"""Characters of each text that are kept."""
BEGUN, DONE = "begun", "done"

log = Log(__name__)


@dataclass(slots=True)
class Deed:
    """An action of a person. target: the client, the queue, and perhaps the message. after: what it said it did.

    outcome: `begun`, `done`, `failed: CODE` or `unknown: CODE`.
    at: seconds since the epoch, by the server's clock; 0 = not read from the store.
    id: of its record; empty = it has none yet.
    """

    farm: str
    who: str
    what: str
    target: str
    why: str = ""
    before: str = ""
    after: str = ""
    outcome: str = BEGUN
    at: float = 0.0
    id: str = ""


_TEXTS = tuple(name for name in Deed.__slots__ if name not in {"at", "id"})


@contextmanager
def audited(store: RecordStore, deed: Deed) -> Iterator[Deed]:
    """Keep a record of the action in the block, which may set `after`. Two calls.

    Raises the store's errors where the record cannot be written, before anything is done. That it cannot be written
    again afterwards is logged: the action is done, and its record says `begun`.
    """
    deed.id = store.seams.unique()
    texts = [Put(name, _kept(getattr(deed, name))) for name in _TEXTS]
    store.repeat(Update(Key(AUDIT, deed.id), (Put("at", SERVER_NOW), *texts), exists=Exists.ANY, ttl=TTL))
    try:
        yield deed
    except BaseException as failure:
        code = failure.code if isinstance(failure, LatchworkError) else type(failure).__name__
        _end(store, deed, f"{'unknown' if isinstance(failure, OutcomeUnknown) else 'failed'}: {code}")
        raise
    _end(store, deed, DONE)


def note_progress(store: RecordStore, deed: Deed, said: str) -> None:
    """Note in the record of an action that goes on how far it is. One call; a failure of it is logged."""
    deed.after = said
    _write(store, deed, "its progress is not kept")


def _end(store: RecordStore, deed: Deed, outcome: str) -> None:
    deed.outcome = outcome
    _write(store, deed, "it stays 'begun'")


def _write(store: RecordStore, deed: Deed, otherwise: str) -> None:
    texts = tuple(Put(name, _kept(getattr(deed, name))) for name in ("after", "outcome"))
    try:
        store.repeat(Update(Key(AUDIT, deed.id), texts, exists=Exists.ANY, ttl=TTL))
    except LatchworkError as failure:
        log.warning("the audit record of %s %s: %s: %s", deed.what, one_line(deed.target), otherwise, failure.code)


def audit_of(store: RecordStore, limit: int | None = 500) -> list[Deed]:
    """Return the newest actions, the newest first; limit None: all. It reads the whole set: for people. What is damaged
    is left out.
    """
    found = [deed for record in store.scan(AUDIT) if (deed := _deed(record)) is not None]
    return sorted(found, key=lambda deed: deed.at, reverse=True)[:limit]


def _deed(record: Record) -> Deed | None:
    at: Any = record.bins.get("at")
    texts = {name: record.bins.get(name) for name in _TEXTS}
    if not is_int(at) or not all(isinstance(text, str) for text in texts.values()):
        return None
    return Deed(**{name: str(text) for name, text in texts.items()}, at=at / 1000, id=str(record.key.name))


def _kept(text: str) -> str:
    return shortened(one_line(text), MOST_TEXT)
