"""Validation of the names of locks, elections, owners and candidates."""

from __future__ import annotations

from ..errors import InvalidRequest
from ..inputs import checked_text
from ..seams import Seams


def checked_name(name: str) -> str:
    """Check the name of a lock or an election, and return it. Raises `InvalidRequest`."""
    return checked_text("name", name)


def checked_owner(owner: str | None, seams: Seams) -> str:
    """Check the name of an owner or a candidate, and return it; make one up if it is None. Raises `InvalidRequest`."""
    if owner is None:
        return f"{seams.process_name()}:{seams.unique()}"
    return checked_text("owner", owner)


def checked_holder(owner: str | None, seams: Seams) -> str:
    """Check an owner's name of at most 255 bytes, as one record keeps many names. Raises `InvalidRequest`."""
    name = checked_owner(owner, seams)
    if len(name.encode()) > 255:
        raise InvalidRequest(f"owner is {name[:40]!r}... of {len(name.encode())} bytes; it must have at most 255 bytes")
    return name
