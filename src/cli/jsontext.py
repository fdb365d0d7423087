"""Conversion of values from JSON, as a command reads it, and to JSON, as it prints it."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from ..errors import InvalidRequest
from ..plain import shown


def to_json(value: Any) -> str:
    """Return the value as JSON; it never fails, as the value may have no other copy any more.

    What JSON has no word for is text: bytes in hexadecimal digits, infinite numbers and keys of any kind as Python
    writes them.
    """
    try:
        text = json.dumps(value, default=_text, allow_nan=False)
    except (TypeError, ValueError):  # a key or a number that JSON does not have
        text = json.dumps(_plain(value))
    return text.replace("\x7f", "\\u007f")  # the only control character that JSON does not escape


def from_json(text: str) -> Any:
    """Return the value of a JSON document. Raises `ValueError`; `InvalidRequest` for a document that no store can keep.

    Such a document has a number beyond the largest float, or the same key twice in one object, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_no_json, parse_float=_finite, object_pairs_hook=_object)
    except RecursionError:
        raise InvalidRequest(f"{shown(text)} is nested too deeply: put it in quotes, as one JSON text") from None


def checked_json(option: str, text: str) -> Any:
    """Return the value of a JSON document. option: where it was given, for the error. Raises `InvalidRequest`."""
    try:
        return from_json(text)
    except InvalidRequest:
        raise
    except ValueError:
        what = f"{option} {shown(text)}".lstrip()
        raise InvalidRequest(f"{what} is not JSON; quote a string twice: '\"text\"'") from None


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        known = None | str | int
        return {key if isinstance(key, known) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _text(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. One that names a key twice would lose a value without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InvalidRequest(f"the key {shown(twice)} is there twice in one object: give it once")
    return found


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidRequest(f"{digits} is larger than any number: give at most 1.7e308, or put it in quotes as text")
    return number
