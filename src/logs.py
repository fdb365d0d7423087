"""The logs of this library: what they are given never raises, whatever the program's log handlers and filters do.

A failure is logged where nothing is left that could handle another one: in loops that nobody would start again. A
handler that raises there, such as one that ships records to a service in an outage, must not end them.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any


class Log:
    """The logger of that name. A handler or filter that raises loses the record, and is shown on stderr once."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)  # noqa: TID251 - the one that this guards

    def debug(self, text: str, *values: object, **how: Any) -> None:
        """Log at DEBUG."""
        self._log(logging.DEBUG, text, values, how)

    def info(self, text: str, *values: object, **how: Any) -> None:
        """Log at INFO."""
        self._log(logging.INFO, text, values, how)

    def warning(self, text: str, *values: object, **how: Any) -> None:
        """Log at WARNING."""
        self._log(logging.WARNING, text, values, how)

    def error(self, text: str, *values: object, **how: Any) -> None:
        """Log at ERROR."""
        self._log(logging.ERROR, text, values, how)

    def exception(self, text: str, *values: object) -> None:
        """Log at ERROR, with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, text, values, {"exc_info": True})

    def log(self, level: int, text: str, *values: object, **how: Any) -> None:
        """Log at this level."""
        self._log(level, text, values, how)

    def _log(self, level: int, text: str, values: tuple[object, ...], how: dict[str, Any]) -> None:
        try:
            if self._logger.isEnabledFor(level):
                self._logger.log(level, text, *values, stacklevel=3, **how)
        except Exception as failure:  # noqa: BLE001 - the program's handler or filter: it may raise anything
            _show(failure)


_shown: set[type[BaseException]] = set()


def _show(failure: Exception) -> None:
    """Print it as the standard library prints what a handler's `emit` raises, once for each type."""
    if type(failure) in _shown or not logging.raiseExceptions:
        return
    _shown.add(type(failure))
    try:
        sys.stderr.write("--- latchwork: a log handler or filter failed, and its records are lost ---\n")
        traceback.print_exception(failure)
    except Exception:  # noqa: BLE001 - stderr may be closed, or the exception has no text
        return
