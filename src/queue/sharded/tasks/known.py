"""The signatures of a task that its workers know now (docs/protocols/tasks.md).

Set `{client}_meta_set`, key `{queue}_TASK`, one map bin `signatures`: a hash of a signature -> `[server's ms, its
text]`. All workers of one program share an entry.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from ....errors import NotFound
from ....store import Key, MapPut, Read, Update
from ....store.model.expr import SERVER_NOW, ListOf, Param
from ....store.model.form import Form
from ....store.model.ops import Compute
from ....store.port import Exists
from ..record import lifetime
from ..workers import REPORT, SILENT, HasWorkers
from .signature import StoredSignature

SIGNATURES = "signatures"
FRESH = REPORT
"""Seconds for which a publisher relies on what it has read."""

_READ = (Read(SIGNATURES), Compute(SERVER_NOW))

__all__ = ["FRESH", "REPORT", "report", "signatures_of"]


def _key(queue: HasWorkers) -> Key:
    return Key(queue.pointers.meta_set, f"{queue.config.name}_TASK")


def report(queue: HasWorkers, text: str) -> None:
    """Say that a worker with this signature works now. One call; harmless when repeated. Raises the store's errors."""
    put = MapPut(SIGNATURES, Param("hash", str), ListOf((SERVER_NOW, Param("text", str))))
    form = Form(put, exists=Exists.ANY, ttl=lifetime(queue.config))
    name = blake2b(text.encode(), digest_size=8).hexdigest()
    queue.store.repeat_many([form.fill(_key(queue), hash=name, text=text)]).raise_unless()


def signatures_of(queue: HasWorkers) -> list[StoredSignature]:
    """Return the signatures of the workers that have reported within `SILENT` seconds. One call.

    What cannot be read is left out. Raises the store's errors.
    """
    (row,) = queue.store.repeat_many([Update(_key(queue), _READ)]).raise_unless(NotFound).values((None, 0))
    found, now = row
    entries = list(found.values()) if isinstance(found, dict) else []
    texts = [entry[1] for entry in entries if _is_fresh(entry, now)]
    return [one for one in map(StoredSignature.read, texts) if one is not None]


def _is_fresh(entry: Any, now: int) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and type(entry[0]) is int and now - entry[0] <= SILENT * 1000
