"""Text that is safe to print or log: of limited length, without characters that control a terminal or are invisible."""

from __future__ import annotations

import logging
import re
import shlex
from datetime import timedelta
from itertools import islice
from types import TracebackType
from typing import Any

MOST_SHOWN = 100
"""Characters of a value that a message shows."""
MOST_SAID = 1000
"""Characters of a message."""
LOG_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"
"""A line of the command's log."""
_WIDE, _DEEP, _BITS = 6, 3, 512
_UNITS = ((86_400, "days"), (3_600, "h"), (60, "min"))
_PLAIN_WORD = re.compile(r"[\w@%+=:,./-][\w@%+=:,./~-]*", re.ASCII)
"""What a shell takes as it is; an id that `publish` has made is such a word."""
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # controls: newlines, and what begins an order to the terminal
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"  # no width, line ends of Unicode, directions, tags
    "\ud800-\udfff]"  # halves of characters
)


def one_line(text: str) -> str:
    """Return the text with all invisible characters escaped, so that it stays in its line and cannot control a
    terminal.
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shortened(text: str, most: int) -> str:
    """Return the text, of at most `most` characters: of a longer one its begin and its end."""
    if len(text) <= most:
        return text
    begin = most * 2 // 3
    return f"{text[:begin]} ... {text[begin + 5 - most :]}"


def shown(value: object) -> str:
    """Return a value as every message shows it: its `repr` in one line, at most 100 characters of it.

    Never raises, whatever the value's own `repr` does, and writes out no more of a large or deep value than is shown.
    """
    try:
        text = _written(value, _DEEP)
    except Exception:  # noqa: BLE001 - the value's own repr may raise anything
        text = f"a {type(value).__name__} that cannot be shown"
    return shortened(one_line(text), MOST_SHOWN)


def word(text: str) -> str:
    """Return a text as one word of a command that a person copies into a shell, in quotes where it needs them."""
    text = one_line(text)
    return text if _PLAIN_WORD.fullmatch(text) else shlex.quote(text)


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: `1 message`, `2 messages`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def shown_time(seconds: float) -> str:
    """Return a length of time for people, rounded: `75 s`, `12 min`, `5 h`, `3 days`."""
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def exact_time(span: timedelta) -> str:
    """Return a length of time for people as it was set, in the largest unit that needs no fraction: `15 days`,
    `36 h`.
    """
    seconds = span.total_seconds()
    for unit, name in _UNITS:
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:,.0f} {'day' if seconds == 86_400 else name}"
    return f"{seconds:,.6f}".rstrip("0").rstrip(".") + " s"


def _written(value: Any, levels: int) -> str:
    kind = type(value)
    if kind is int and value.bit_length() > _BITS:  # Python does not write out several thousand digits
        return f"a whole number of {value.bit_length()} bits"
    if kind in (str, bytes, bytearray) and len(value) > MOST_SHOWN:
        return f"{value[: MOST_SHOWN // 2]!r}... (length {len(value)})"
    if kind in _BRACKETS:
        return _part_of(value, levels, *_BRACKETS[kind])
    return repr(value)


def _part_of(value: Any, levels: int, begin: str, end: str) -> str:
    """Return the first entries of a collection, as a large or deep one cannot be written out."""
    if not value:
        return repr(value)
    if not levels:
        return f"{begin}...{end}"
    parts = [_written(part, levels - 1) for part in islice(value, _WIDE)]
    if type(value) is dict:
        parts = [f"{key}: {_written(entry, levels - 1)}" for key, entry in zip(parts, value.values(), strict=False)]
    more = f", ... (length {len(value)})" if len(value) > _WIDE else "," if end == ")" and len(value) == 1 else ""
    return f"{begin}{', '.join(parts)}{more}{end}"


_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), dict: ("{", "}")}


class PlainFormatter(logging.Formatter):
    """A formatter that prints a log record on one line, and each line of its traceback on one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 - as above
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return "\n".join(map(one_line, super().formatException(ei).split("\n")))
