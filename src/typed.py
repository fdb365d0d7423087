"""Data read as types, by msgspec, in any thread.

msgspec describes a type when the type is first used, and keeps the description before it is whole. Another thread that
uses the type at this moment reads what is not there yet, and the process dies of a segmentation fault (seen with 0.22:
two workers of a new process claimed their first messages at the same moment). So one thread at a time describes types,
here, and nothing else in this library calls `msgspec.convert` or makes a decoder for a type.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_describing = threading.RLock()
_described: set[Any] = set()
# A fork waits until no type is half described: the child has no thread that would go on.
os.register_at_fork(before=_describing.acquire, after_in_parent=_describing.release, after_in_child=_describing.release)


def converted(value: Any, kind: type[T]) -> T:
    """Return the value as that type, which is one of this library. Raises `msgspec.ValidationError`."""
    if kind not in _described:
        decoder(kind)
        _described.add(kind)
    return msgspec.convert(value, kind)


def decoder(kind: Any, *, dec_hook: Callable[[type, Any], Any] | None = None) -> Callable[[str | bytes], Any]:
    """Return a function that reads JSON as that type, which may be the user's. Raises what msgspec raises for a type
    that it cannot read.

    dec_hook: makes objects of types that msgspec does not know.
    """
    with _describing:
        return msgspec.json.Decoder(kind, dec_hook=dec_hook).decode


def schema(kind: Any, schema_hook: Callable[[type], dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of a type. Raises what msgspec raises for a type that it cannot describe.

    schema_hook: describes types that msgspec does not know.
    """
    with _describing:
        return msgspec.json.schema(kind, schema_hook=schema_hook)
