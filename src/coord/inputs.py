"""What locks and elections are given, checked before any I/O."""

from __future__ import annotations

import os
import socket

from ..errors import InvalidRequest
from ..seams import Seams
from ..store.port import RecordStore


def checked_store(store: RecordStore) -> RecordStore:
    """The store. Raises `InvalidRequest` for anything else, such as a URL."""
    if not isinstance(store, RecordStore):
        raise InvalidRequest(f"store is a {type(store).__name__}; make one with latchwork.connect(url)")
    return store


def checked_name(name: str) -> str:
    """The name of a lock or an election. Raises `InvalidRequest`."""
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"name is {name!r}; it must be a string that is not empty")
    return name


def checked_owner(owner: str | None, seams: Seams) -> str:
    """The owner's or the candidate's name, made up where none is given. Raises `InvalidRequest`."""
    if owner is None:
        return f"{socket.gethostname()}:{os.getpid()}:{seams.unique()}"
    if not isinstance(owner, str) or not owner:
        raise InvalidRequest(f"owner is {owner!r}; it must be a string that is not empty, or None")
    return owner


def checked_timeout(timeout: float | None) -> float | None:
    """Seconds to wait, or None. Raises `InvalidRequest`."""
    if timeout is not None and (not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout >= 0):
        raise InvalidRequest(f"timeout is {timeout!r}; it must be seconds, 0 or more, or None to wait for ever")
    return timeout


def farm_or_default(farm_id: str | None) -> str:
    """The farm that was named, else $LATCHWORK_FARM, else "local"."""
    return os.environ.get("LATCHWORK_FARM") or "local" if farm_id is None else farm_id
