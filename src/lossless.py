"""Values that JSON text would change without a word: what is stored is what was given, or it is refused."""

from __future__ import annotations

import json
import math
import operator
from numbers import Integral, Rational, Real
from typing import Any

import msgspec

from .errors import InvalidRequest
from .typed import decoder

_SCALARS = frozenset((str, int, float, bool, type(None)))
_TEXT = frozenset((str,))


def plain_number(value: Any) -> int | float:
    """Convert a number of another library, such as numpy, to Python's own; for the JSON encoder. Raises `TypeError`."""
    if isinstance(value, Integral):
        return operator.index(value)
    if isinstance(value, Real) and not isinstance(value, Rational):
        number = float(value)
        if number == value or math.isnan(number):
            return number
    module, name = type(value).__module__, type(value).__qualname__
    raise TypeError(f"Encoding objects of type {name if module == 'builtins' else f'{module}.{name}'} is unsupported")


_ENCODER = msgspec.json.Encoder(enc_hook=plain_number)
_decode = decoder(Any)
encode = _ENCODER.encode
"""Return JSON text of a value, as bytes. Raises errors of all kinds."""


def check(value: Any, encoded: bytes) -> None:
    """Raise `InvalidRequest` where this text is not all of the value: it has a number that is not finite, or two keys
    that are one in JSON.
    """
    if isinstance(value, msgspec.Raw):  # it is JSON already
        return
    if b"null" in encoded and not _finite(value):
        raise InvalidRequest(
            f"this {type(value).__name__} has a number that is not finite (nan or inf), for which JSON has nothing: "
            "give None or a text instead"
        )
    if b"{" in encoded and not _is_flat(value) and _has_lost_a_key(encoded):
        check_keys(f"this {type(value).__name__}", encoded)


def as_json(what: str, value: Any) -> tuple[str, int]:
    """Convert a value to the JSON that is stored, and return it with its size in bytes. Raises `InvalidRequest`."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain_number)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as failure:
        raise InvalidRequest(f"{what} cannot be stored as JSON: {failure}; give text, numbers, lists, maps") from None
    check_keys(what, text)
    return text, size


def check_keys(what: str, text: str | bytes) -> None:
    """Raise `InvalidRequest` where a map in this JSON text has a key twice, of which a reader would keep one."""
    try:
        json.loads(text, object_pairs_hook=_map_of)
    except _Twins:
        raise InvalidRequest(
            f"{what} has a map with two keys that are one in JSON, as 1 and '1', of which one would be lost: give all "
            "keys as text"
        ) from None
    except (ValueError, RecursionError):  # it is as deep as can be, or has a `msgspec.Raw` that is no JSON
        return


def _is_flat(value: Any) -> bool:
    """Whether it is a map of texts to plain values, as most are: that has no such keys."""
    return type(value) is dict and _TEXT.issuperset(map(type, value)) and _SCALARS.issuperset(map(type, value.values()))


def _has_lost_a_key(encoded: bytes) -> bool:
    """Whether a reader may not get all of it; also true of a `msgspec.Raw` in it that is written in another way."""
    try:
        return len(encode(_decode(encoded))) != len(encoded)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # as in `check_keys`
        return False


class _Twins(Exception):
    """A map has a key twice."""


def _map_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twins
    return found


def _finite(value: Any) -> bool:
    """Whether no number in it is infinite or no number at all; `msgspec` writes null for such."""
    try:
        left = [msgspec.to_builtins(value, enc_hook=plain_number)]
    except (TypeError, RecursionError):  # it holds `msgspec.Raw`, which is JSON already, or is as deep as can be
        return True
    while left:
        one = left.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return False
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
    return True
