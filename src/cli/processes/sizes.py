"""Sizes of memory, as people write them: `512M`, `1.5G`."""

from __future__ import annotations

import re

from ...errors import InvalidRequest
from ...plain import shown

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
LEAST = 16 * 2**20
"""Bytes below which no worker can start."""


def checked_size(name: str, text: str) -> int:
    """Return the bytes of a size. Raises `InvalidRequest`."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if size < LEAST:
        raise InvalidRequest(f"{name} is {shown(text)}; write at least {shown_size(LEAST)}, such as 512M or 1.5G")
    return size


def shown_size(size: int) -> str:
    """Return a size for people: `812 MiB`."""
    return f"{size / 2**20:,.0f} MiB"
