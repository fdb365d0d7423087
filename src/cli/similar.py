"""Which name may be meant, where there is none of a given one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from ..plain import shown


def meant(name: str, known: Iterable[str]) -> str:
    """Return `; is 'orders' meant?` where a known name is similar; else an empty text."""
    near = get_close_matches(name, list(known), n=1)
    return f"; is {shown(near[0])} meant?" if near else ""
