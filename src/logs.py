"""The logs of this library: what they are given never raises, whatever the program's log handlers and filters do.

A failure is logged where nothing is left that could handle another one: in loops that nobody would start again. A
handler that raises there, such as one that ships records to a service in an outage, must not end them. A handler that
blocks keeps the thread that logs; once a signal has asked the process to end, it does so for a second at most.
"""

from __future__ import annotations

import atexit
import logging
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from .seams import SYSTEM

LEAVING = 1.0
"""Seconds for which a process that ends waits for a log handler."""


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
            if not self._logger.isEnabledFor(level):
                return
            if not _ends:
                self._logger.log(level, text, *values, stacklevel=3, **how)
            elif _ends[-1]:
                if how.get("exc_info") is True:
                    how["exc_info"] = sys.exc_info()
                _ends.append(_returns(partial(self._logger.log, level, text, *values, **how)))
        except Exception as failure:  # noqa: BLE001 - the program's handler or filter: it may raise anything
            _show(failure)


_ends: list[bool] = []
"""Empty until the process is asked to end; then whether the handlers have returned, each time."""


def ends() -> None:
    """Wait for no log handler for longer than `LEAVING` from now on; the records of one that blocks are lost."""
    if not _ends:
        _ends.append(True)


def let_end() -> None:
    """Let the interpreter end although a handler blocks, for which `logging.shutdown` would wait. At most `LEAVING`."""
    if not _returns(_flush):
        atexit.unregister(logging.shutdown)


def _returns(run: Callable[[], object]) -> bool:
    def guarded() -> None:
        try:
            run()
        except Exception as failure:  # noqa: BLE001 - as in `_log`
            _show(failure)

    task = SYSTEM.spawn(guarded, "latchwork-log")
    task.join(LEAVING)
    return not task.is_alive()


def _flush() -> None:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for handler in {one for logger in loggers for one in getattr(logger, "handlers", ())}:
        handler.acquire()
        try:
            handler.flush()
        finally:
            handler.release()


_shown: set[type[BaseException]] = set()


def _show(failure: Exception) -> None:
    """Print the failure once for each type, as the standard library does for an exception of a handler's `emit`."""
    if type(failure) in _shown or not logging.raiseExceptions:
        return
    _shown.add(type(failure))
    try:
        sys.stderr.write("--- latchwork: a log handler or filter failed, and its records are lost ---\n")
        traceback.print_exception(failure)
    except Exception:  # noqa: BLE001 - stderr may be closed, or the exception has no text
        return
