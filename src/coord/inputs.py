"""Validation of the names of locks, elections, owners and candidates, and of what they publish."""

from __future__ import annotations

import json
from typing import Any

from ..errors import InvalidRequest
from ..inputs import checked_text
from ..plain import shown
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
        raise InvalidRequest(f"owner is {shown(name)} of {len(name.encode())} bytes; it must have at most 255 bytes")
    return name


def as_json(what: str, value: Any) -> tuple[str, int]:
    """Convert a value to the JSON that is stored, and return it with its size in bytes. Raises `InvalidRequest`."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text, len(text.encode())
    except (TypeError, ValueError, RecursionError) as failure:
        raise InvalidRequest(f"{what} cannot be stored as JSON: {failure}; give text, numbers, lists, maps") from None
