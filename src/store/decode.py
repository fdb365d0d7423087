"""Records as typed values: one struct for each kind of record, whose fields are its bins with their limits.

A stored value may be anybody's: another program's, an older version's, or damaged. So a reader first makes the bins
into a struct, by `decoded`; what does not fit is `Corrupt`, with the names of the record and the bin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ..errors import Corrupt
from .model.record import Key

T = TypeVar("T")

MAX_COUNTER = 2**62
"""No counter, fence or offset of ours comes near it, and none that is below it wraps when something is added."""
Counter = Annotated[int, Meta(ge=0, le=MAX_COUNTER)]


def decoded(kind: type[T], key: Key, bins: Mapping[str, Any]) -> T:
    """The record as this kind of struct. Raises `Corrupt` for a bin that is missing, of another type or out of range.

    Bins that the struct has no field for are passed over.
    """
    try:
        return msgspec.convert(bins, kind)
    except (msgspec.ValidationError, UnicodeError) as failure:
        raise damaged(key, str(failure)) from None


def damaged(key: Key, what: str) -> Corrupt:
    """The error for a record that is not as its writer leaves it; `what` names the bin, and not what it holds."""
    return Corrupt(f"the record {key.set}/{key.name} is damaged: {what}; restore or delete it", key=key)
