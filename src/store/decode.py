"""Records as typed values: one struct for each kind of record, whose fields are its bins with their limits.

A stored value may come from another program or an older version, or be damaged. So a reader first makes the bins
into a struct, by `decoded`; what does not fit is `Corrupt`, with the names of the record and the bin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ..errors import Corrupt
from ..typed import converted
from .model.record import Key

T = TypeVar("T")

MAX_COUNTER = 2**62
"""The largest counter, fence or offset that is accepted: real ones are far smaller, and adding to one below it never
wraps.
"""
Counter = Annotated[int, Meta(ge=0, le=MAX_COUNTER)]


def decoded(kind: type[T], key: Key, bins: Mapping[str, Any]) -> T:
    """Return the record as this kind of struct. Raises `Corrupt` for a bin that is missing, of another type or out of
    range.

    Bins that the struct has no field for are passed over.
    """
    try:
        return converted(bins, kind)
    except (msgspec.ValidationError, UnicodeError) as failure:
        raise damaged(key, str(failure)) from None


def damaged(key: Key, what: str) -> Corrupt:
    """Return the error for a record that is not as its writer leaves it; `what` names the bin, and not what
    it holds.
    """
    return Corrupt(f"the record {key.set}/{key.name} is damaged: {what}; restore or delete it", key=key, what=what)
