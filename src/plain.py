"""Text for people in which nothing steers the terminal, hides, or turns the text around it."""

from __future__ import annotations

import logging
import re
from types import TracebackType

_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # controls: newlines, and what begins an order to the terminal
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"  # no width, line ends of Unicode, directions, tags
    "\ud800-\udfff]"  # halves of characters
)


def one_line(text: str) -> str:
    """The text with all that nobody would see escaped, so that it stays in its line and tells the terminal nothing."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PlainFormatter(logging.Formatter):
    """Formats log records so: a record is one line, and each line of its traceback is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 - as above
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return "\n".join(map(one_line, super().formatException(ei).split("\n")))
