"""What the commands of several primitives ask of a record. It needs no queues, which take long to load."""

from __future__ import annotations

from ...errors import NotFound
from ...plain import word
from ...store import Compute, Key, Record, RecordStore
from ...store.model.expr import SERVER_NOW
from ..session import Session
from ..similar import meant_in


def checked_there(session: Session, kind: str, name: str, sets: str) -> Record:
    """Check that this name was ever used, by one call; return its record. Raises `NotFound`: nobody there is another
    answer than a wrong name.
    """
    key = Key(sets, name)
    record = session.store.get(key)
    if record is None:
        why = f"it was never used, or has expired, or the name is wrong{meant_in(session.store, key)}"
        raise NotFound(f"no {kind} {name!r} in {session.where}: {why}", name=name)
    return record


def time_of(store: RecordStore, key: Key) -> int:
    """Return the server's time (ms), by a record. One call. Raises `NotFound`."""
    (now,) = store.operate(key, Compute(SERVER_NOW))
    return int(now)


def died(fence: object) -> str:
    """Return that the writer with this fence died, which the record of a read-write lock remembers."""
    return f"the writer with the fence {fence} died before it released: its changes may be incomplete"


def cleared_by(record: Record, fence: object) -> str:
    """Return what a person does about a writer of this read-write lock that died, with the command."""
    return f"repair what it protects, then say so: latchwork rwlock clear {word(str(record.key.name))} --fence {fence}"
