"""The values that a bin can hold: integers of 64 bits, floats, str, bytes, bool, None inside lists and maps, and lists
and maps of these, whose keys are str, int or bytes. No text holds a NUL, at which the Aerospike client would cut it.

The local stores keep values that are never changed in place: `taken` makes a checked copy of a value that comes in,
`given` a copy of one that goes out, so that neither side shares the other's lists. Scalars are shared, which makes the
simulations fast. Map bins are kept in key order, the server's, so that the smallest key is the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from ...errors import Corrupt, InvalidRequest
from ...inputs import checked_store_name
from ...plain import shown

NO_BIN = object()
MAX_BIN = 15
"""Bytes in the name of a bin, the server's limit."""
known_bins: set[object] = {NO_BIN}
"""Names that have been checked before; a namespace has few. `NO_BIN` is that of an operation without a bin."""
MAX_INT, MIN_INT = 2**63 - 1, -(2**63)
MAX_KEPT = 2**31 - 1
"""Entries of a map that are kept, at most. The Aerospike client cuts the number to 32 bits, and would remove them."""
NESTED = (list, dict)
"""The kinds of values that hold others."""
HEADER = 9
"""Bytes that no scalar but text exceeds, and no header of a text, list or map."""
MAX_DEPTH = 62
"""Levels of lists and maps in a value. The Aerospike client reads 64, and stores more that it can never read; an
operation may put the value into a map, and what `Once` remembers of it into a list."""


def taken(value: Any, room: int = MAX_DEPTH) -> Any:
    """Return a copy of a caller's value as a bin keeps it. Raises `InvalidRequest` where no bin can hold it.

    room: levels of lists and maps that it may have; fewer where a layout keeps it within others.
    """
    kind = type(value)
    # Nearly every value is one of these; they go through here with each message several times.
    if (
        (kind is int and MIN_INT <= value <= MAX_INT)
        or (kind is str and value.isascii() and "\0" not in value)
        or kind is bytes
    ):
        return value
    scalar = _SCALARS.get(kind)
    return _nested(value, room) if scalar is None else scalar(value)


def given(value: Any) -> Any:
    """Return a copy of a kept value that the caller may change."""
    kind = type(value)
    if kind is list:
        return [given(item) for item in value]
    if kind is dict:
        return {key: given(item) for key, item in value.items()}
    return value


def bound(value: Any) -> int:
    """Return bytes that the value does not exceed when encoded; found without encoding it."""
    kind = type(value)
    if kind is str:
        return HEADER + len(value) * (1 if value.isascii() else 4)
    if kind is bytes:
        return HEADER + len(value)
    if kind is list:
        return HEADER + sum(map(bound, value))
    if kind is dict:
        return HEADER + sum(map(bound, value)) + sum(map(bound, value.values()))
    return HEADER


def encode(bins: dict[str, Any]) -> bytes:
    """Return the bins as bytes."""
    return _ENCODER.encode(bins)


def decode(data: bytes | memoryview, bins: Collection[str] = (), *, rest: bool = False) -> dict[str, Any]:
    """Return the bins that `encode` wrote, or only the named ones. Raises `Corrupt`, without the content.

    rest: keep the other bins, too, as bytes that `encode` writes again.
    """
    try:
        if not bins:
            return _DECODER.decode(data)
        # A bin that is passed over costs little, however large it is.
        found = _PASSING.decode(data)
        named = {name: _VALUE.decode(found[name]) for name in bins if name in found}
        return {**found, **named} if rest else named
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise Corrupt(f"a record whose bytes are not bins: {failure}; restore it from a copy") from None


def decoded(bins: dict[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
    """Return what `decode` with `rest` has returned, once these bins are decoded too, or all where none is named.

    Raises `Corrupt`, without the content.
    """
    raw = [name for name in names or bins if type(bins.get(name)) is msgspec.Raw]
    try:
        return {**bins, **{name: _VALUE.decode(bins[name]) for name in raw}} if raw else bins
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise Corrupt(f"a record whose bytes are no bins: {failure}; restore it from a copy") from None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(dict[str, Any])
_PASSING = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_VALUE = msgspec.msgpack.Decoder()


# ---- maps in key order

_KEY = itemgetter(0)


def rank(key: Any) -> tuple[int, Any]:
    """Return the server's order of map keys: integers, then strings, then bytes."""
    return (1 if isinstance(key, str) else 2 if isinstance(key, bytes) else 0, key)


def ordered(entries: dict[Any, Any]) -> dict[Any, Any]:
    """Return the map in key order."""
    try:
        return dict(sorted(entries.items(), key=_KEY))
    except TypeError:  # keys of several types
        return {key: entries[key] for key in sorted(entries, key=rank)}


def with_entry(entries: dict[Any, Any], key: Any, value: Any) -> dict[Any, Any]:
    """Return the ordered map with one entry set; cheap for a new largest key, which is what tokens are."""
    in_place = not entries or key in entries or rank(key) > rank(next(reversed(entries)))
    changed = entries.copy()
    changed[key] = value
    return changed if in_place else ordered(changed)


def without_smallest(entries: dict[Any, Any], count: int) -> dict[Any, Any]:
    """Return the ordered map without its first `count` entries."""
    changed = entries.copy()
    for key in islice(entries, count):
        del changed[key]
    return changed


_KEYS = (str, int, bytes)
"""The types of map keys. Named here, since `str | int` would make an object for each call."""


def map_key(key: Any) -> Any:
    """Return the key, where a map can have it. Raises `InvalidRequest`."""
    if not isinstance(key, _KEYS) or isinstance(key, bool):
        raise InvalidRequest(f"{shown(key)} cannot be a map key; use str, int or bytes")
    return taken(key)


# ---- checking


def checked_bin(name: str) -> str:
    """Return the name of a bin, once it is within the server's limit. Raises `InvalidRequest`."""
    if not isinstance(name, str):
        raise InvalidRequest(f"bin name {shown(name)}: it must be text")
    size = len(_text(name).encode())
    if not 0 < size <= MAX_BIN:
        raise InvalidRequest(
            f"bin name {shown(name)} has {size} bytes; it must have 1 to {MAX_BIN}: use a shorter name"
        )
    checked_store_name("bin name", name)
    known_bins.add(name)
    return name


def amount(number: int) -> int:
    """Return a number that can be added to an integer. Raises `InvalidRequest`."""
    if not isinstance(number, int) or isinstance(number, bool) or not MIN_INT <= number <= MAX_INT:
        raise InvalidRequest(f"{shown(number)} cannot be added; use an integer of 64 bits")
    return number


def element(number: int) -> int:
    """Return a place in a list, or a number of places. Raises `InvalidRequest`."""
    if not isinstance(number, int) or not 0 <= number <= MAX_INT:
        raise InvalidRequest(
            f"{shown(number)} as a place in a list, or as a number of places: it must be an integer of 64 bits, 0 or "
            "more"
        )
    return number


def kept(number: int) -> int:
    """Return how many entries of a map are kept. Raises `InvalidRequest`."""
    if not isinstance(number, int) or not 0 <= number <= MAX_KEPT:
        raise InvalidRequest(f"{shown(number)} as a number of entries to keep: give 0 to {MAX_KEPT:,}")
    return number


def _integer(value: int) -> int:
    if MIN_INT <= value <= MAX_INT:
        return value
    raise InvalidRequest(f"the integer {shown(value)} has more than 64 bits: store it as text")


def _text(value: str) -> str:
    if "\0" in value:
        raise InvalidRequest(
            f"a text with a NUL at {value.index(chr(0))} cannot be stored; give bytes, or leave the NUL out"
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as failure:
            raise InvalidRequest(f"a text that is not valid Unicode ({failure.reason}): store it as bytes") from None
    return value


def _itself(value: Any) -> Any:
    return value


def _nested(value: Any, room: int) -> Any:
    """Return a list or a map with each part taken; a value of any other type is first made a plain one."""
    if type(value) not in NESTED:
        return taken(_plain(value), room)
    if not room:
        raise InvalidRequest(
            f"lists and maps nested too deeply: a bin holds {MAX_DEPTH} levels of them, including the ones that "
            "a queue adds around a value; store it as JSON text or bytes"
        )
    if type(value) is list:
        return [taken(item, room - 1) for item in value]
    return ordered({map_key(key): taken(item, room - 1) for key, item in value.items()})


def _plain(value: Any) -> Any:
    """Return a value of a subclass, such as an enumeration's member or a number of numpy, as a value of its
    base type.
    """
    for kind, plain in _KINDS.items():
        if isinstance(value, kind):
            return plain(value)
    raise InvalidRequest(f"a {type(value).__name__} cannot be stored; use int, float, str, bytes, list, dict")


_SCALARS: dict[type, Callable[[Any], Any]] = {
    int: _integer,
    str: _text,
    bytes: _itself,
    float: _itself,
    bool: _itself,
    type(None): _itself,
}
_KINDS: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    list: list,
    dict: dict,
}
