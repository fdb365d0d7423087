"""Who asks for a lock or stands in an election, and for which."""

from __future__ import annotations

from ..errors import InvalidRequest
from ..inputs import checked_text
from ..seams import Seams


def checked_name(name: str) -> str:
    """The name of a lock or an election. Raises `InvalidRequest`."""
    return checked_text("name", name)


def checked_owner(owner: str | None, seams: Seams) -> str:
    """The owner's or the candidate's name, made up where none is given. Raises `InvalidRequest`."""
    if owner is None:
        return f"{seams.process_name()}:{seams.unique()}"
    return checked_text("owner", owner)


def checked_holder(owner: str | None, seams: Seams) -> str:
    """The same where many names are kept in one record: at most 255 bytes. Raises `InvalidRequest`."""
    name = checked_owner(owner, seams)
    if len(name.encode()) > 255:
        raise InvalidRequest(f"owner is {name[:40]!r}... of {len(name.encode())} bytes; it must have at most 255 bytes")
    return name
