"""Validation of names (locks, elections, owners, candidates, farms), of times to live, and of what is published."""

from __future__ import annotations

import json
from typing import Any

from ..errors import InvalidRequest
from ..inputs import checked_store_name, checked_text, checked_whole
from ..lossless import check_keys, plain_number
from ..plain import shown
from ..seams import Seams
from ..store.port import KEEP, MAX_TTL

FARM_COUNT = "count#"
"""The prefix of the bin with a farm's counter, the longest prefix before a farm's id."""
MAX_FARM = 15 - len(FARM_COUNT)


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
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain_number)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as failure:
        raise InvalidRequest(f"{what} cannot be stored as JSON: {failure}; give text, numbers, lists, maps") from None
    check_keys(what, text)
    return text, size


def named(what: str, value: str) -> str:
    """Check that a value is a string and not empty, and return it. Raises `InvalidRequest`."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{what} is {shown(value)}; it must be a string with at least one character")
    try:
        value.encode()
    except UnicodeEncodeError as failure:
        raise InvalidRequest(
            f"{what} is {shown(value)}, which is no valid Unicode ({failure.reason}): correct it"
        ) from None
    return value


def checked_farm(farm: str) -> str:
    """Check a farm's id, and return it. Raises `InvalidRequest` if its bins could not be named."""
    size = len(checked_store_name("farm_id", farm).encode())
    if size > MAX_FARM:
        raise InvalidRequest(f"farm_id {shown(farm)} has {size} bytes; at most {MAX_FARM}, as bin names end at 15")
    if FARM_COUNT in farm:
        raise InvalidRequest(
            f"farm_id {shown(farm)} contains {shown(FARM_COUNT)}, at which the Java library fails: leave it out"
        )
    return farm


def checked_ttl(ttl: int | None) -> int:
    """Check a time to live in seconds, and return it; None means that the record's is kept."""
    return KEEP if ttl is None else checked_whole("ttl", ttl, 1, MAX_TTL)
