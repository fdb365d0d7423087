"""Validation of arguments before any I/O: text, whole numbers, times."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from threading import TIMEOUT_MAX
from typing import Any, TypeAlias, TypeVar

from .errors import InvalidRequest
from .plain import shown

T = TypeVar("T")
Span: TypeAlias = timedelta | float
"""A length of time as it may be given: numbers are seconds. As a setting it is a `timedelta`."""
NO_LIMIT = 1e9
"""Seconds; no pause is longer, and a later deadline counts as no limit."""
MOST_DIGITS = 18
"""Digits of a whole number that is given as text: a number of 18 digits always fits into a bin."""
_SEPARATORS = re.compile("[;:=,\x00-\x1f\x7f-\x9f]")


def checked_text(what: str, value: str) -> str:
    """Return the text if every store and ZooKeeper can keep it. Raises `InvalidRequest`."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{what} is {shown(value)}; it must be a string that is not empty")
    if "\0" in value or not _is_unicode(value):
        raise InvalidRequest(
            f"{what} is {shown(value)}; it must have no NUL character and be valid Unicode: correct it"
        )
    return value


def checked_store_name(what: str, value: str) -> str:
    """Return the text, where it can be the name of a set, bin, index or namespace, or a part of one. Raises
    `InvalidRequest`.

    Such names stand in the commands of Aerospike's info protocol and in its answers, which know no way to quote: a
    newline in a name would begin a command of its own.
    """
    found = _SEPARATORS.search(checked_text(what, value))
    if found:
        raise InvalidRequest(
            f"{what} is {shown(value)}; a name of a set, bin, index or namespace has no control character and none of "
            f"; : = , in it: leave the {shown(found[0])} out"
        )
    return value


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # it has a lone surrogate, such as a file name that could not be decoded
        return False
    return True


def checked_kind(what: str, value: T, kind: type[T]) -> T:
    """Return the value if it is of that kind. Raises `InvalidRequest`."""
    if not isinstance(value, kind):
        raise InvalidRequest(f"{what} is {shown(value)}; it must be a {kind.__name__}")
    return value


def checked_choice(what: str, value: T, choices: Collection[str]) -> T:
    """Return the value if it is one of the `choices`. Raises `InvalidRequest`."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequest(f"{what} is {shown(value)}; it must be one of {', '.join(choices)}")
    return value


def checked_many(what: str, values: Iterable[T]) -> list[T]:
    """Return the entries of an iterable that is not text. Raises `InvalidRequest`."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{what} is {shown(values)}; it must be a list, or another iterable of entries")
    return list(values)


def checked_each(what: str, values: Sequence[T] | None, count: int) -> Sequence[T] | None:
    """Return the entries, one for each of `count` payloads, or None. Raises `InvalidRequest`."""
    if values is None:
        return None
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise InvalidRequest(f"{what} is {shown(values)}; it must be a list")
    if len(values) != count:
        raise InvalidRequest(f"{len(values)} {what} for {count} payloads: give as many {what}")
    return values


def checked_some(what: str, numbers: Collection[int] | None, count: int) -> None:
    """Raise `InvalidRequest` unless all of the numbers are from 0 to below `count`; None stands for all of them."""
    if numbers is None:
        return
    if isinstance(numbers, str | bytes) or not isinstance(numbers, Collection):
        raise InvalidRequest(f"{what} is {shown(numbers)}; give a list of numbers, or None for all")
    for number in numbers:
        checked_whole(what, number, 0, count - 1)


def checked_number(what: str, value: float, low: float = 0.0, high: float = NO_LIMIT) -> float:
    """Return the number if it lies between `low` and `high`; NaN does not. Raises `InvalidRequest`."""
    if not is_number(value) or not low <= value <= high:
        raise InvalidRequest(f"{what} is {shown(value)}; it must be a number from {low:g} to {high:g}")
    return value


def checked_callable(what: str, value: T) -> T:
    """Return the value if it can be called. Raises `InvalidRequest`."""
    if not callable(value):
        raise InvalidRequest(f"{what} is {shown(value)}; it must be a function")
    return value


def in_a_call(function: Any) -> tuple[Any, Any]:
    """Return the two functions that may run when this is called: itself, and the `__call__` of an object."""
    return function, getattr(function, "__call__", None)  # noqa: B004 - of an object


def is_async(function: Any) -> bool:
    """Whether a call of it gives a coroutine."""
    return any(map(inspect.iscoroutinefunction, in_a_call(function)))


def checked_switch(what: str, value: bool) -> bool:
    """Return the switch if it is True or False: a text such as "no" would turn it on. Raises `InvalidRequest`."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{what} is {shown(value)}; it must be True or False")
    return value


def is_int(value: Any) -> bool:
    """Whether the value is a whole number. True and False do not count as numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether the value is a number, perhaps NaN. True and False do not count as numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def checked_whole(what: str, value: int, low: int, high: int) -> int:
    """Return the number if it is a whole number from `low` to `high`. Raises `InvalidRequest`."""
    if not is_int(value) or not low <= value <= high:
        raise InvalidRequest(f"{what} is {shown(value)}; it must be a whole number from {low} to {high}")
    return value


def checked_count(what: str, value: int) -> int:
    """Return the number of messages that is asked for, a whole number from 1. Raises `InvalidRequest`."""
    if not is_int(value) or value < 1:
        raise InvalidRequest(f"{what} is {shown(value)}; it must be a whole number from 1")
    return value


def whole_of(text: str) -> int | None:
    """Return the whole number that a text of decimal digits stands for; None for any other text, and for one of more
    than 18 digits: Python refuses to read some thousands.
    """
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def checked_timeout(timeout: float | None, what: str = "timeout") -> float | None:
    """Return seconds to wait, or None, which stands for all times that are longer than one can wait, too.

    Raises `InvalidRequest`.
    """
    if timeout is None:
        return None
    if not is_number(timeout) or not timeout >= 0:
        raise InvalidRequest(f"{what} is {shown(timeout)}; it must be seconds, 0 or more, or None for no limit")
    try:
        seconds = float(timeout)
    except OverflowError:
        raise InvalidRequest(f"{what} is {shown(timeout)}; it must fit into a float, or be None for no limit") from None
    return None if seconds > TIMEOUT_MAX else timeout


def checked_moment(what: str, moment: datetime) -> datetime:
    """Return the time, where it has a time zone and no calendar ends near it. Raises `InvalidRequest`."""
    if not isinstance(moment, datetime) or moment.tzinfo is None or not 1 < moment.year < 9000:
        raise InvalidRequest(
            f"{what} is {shown(moment)}, which has no time zone, or a year that few calendars have: give an aware "
            "datetime"
        )
    return moment


def seconds_of(span: Any) -> Any:
    """Convert a `timedelta` to seconds; return everything else as it is, still to be checked."""
    return span.total_seconds() if isinstance(span, timedelta) else span


def checked_seconds(what: str, span: Span, low: float, high: float = math.inf, *, why: str = "") -> float:
    """Return the seconds of a length of time, given as a `timedelta` or as a number, where they lie between the two.

    why: what the upper limit is, for the message. Raises `InvalidRequest`.
    """
    seconds: float = seconds_of(span)
    if not is_number(seconds) or not low <= seconds <= high:  # true for NaN
        limits = f"{low:.10g} or more" if high == math.inf else f"{low:.10g} to {high:.10g}"
        raise InvalidRequest(f"{what} is {shown(span)}; it must be seconds, or a timedelta, of {limits}{why}")
    return seconds


def span_of(what: str, span: Any) -> timedelta:
    """Return a length of time that was given as a `timedelta` or as seconds. Raises `InvalidRequest`."""
    if isinstance(span, timedelta):
        return span
    if is_number(span) and -1e9 < span < 1e9:  # false for NaN
        return timedelta(seconds=span)
    raise InvalidRequest(f"{what} is {shown(span)}; give a timedelta, or a number of seconds")


def farm_or_default(farm_id: str | None) -> str:
    """Return the farm that was named, else $LATCHWORK_FARM, else "local"."""
    return os.environ.get("LATCHWORK_FARM") or "local" if farm_id is None else farm_id
