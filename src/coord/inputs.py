"""Who asks for a lock or stands in an election, and for which."""

from __future__ import annotations

import os
import socket

from ..inputs import checked_text
from ..seams import Seams


def checked_name(name: str) -> str:
    """The name of a lock or an election. Raises `InvalidRequest`."""
    return checked_text("name", name)


def checked_owner(owner: str | None, seams: Seams) -> str:
    """The owner's or the candidate's name, made up where none is given. Raises `InvalidRequest`."""
    if owner is None:
        return f"{socket.gethostname()}:{os.getpid()}:{seams.unique()}"
    return checked_text("owner", owner)
