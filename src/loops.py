"""What a blocking call does in the thread of a running asyncio loop, which stands still meanwhile: a wait is refused,
and any other call is logged once.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path

from .errors import InvalidRequest
from .logs import Log

log = Log(__name__)


def runs_a_loop() -> bool:
    """Whether this thread runs an asyncio loop now. A program without asyncio does not load it here."""
    asyncio = sys.modules.get("asyncio.events")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - raises nothing without one


def refuse_wait(verb: str) -> None:
    """Raise `InvalidRequest` if a wait of `verb` would stop a loop."""
    if runs_a_loop():
        raise InvalidRequest(
            f"{verb} waits, and this thread runs an asyncio loop, which would stand still: await {verb} of "
            "latchwork.aio, or let a thread wait (asyncio.to_thread)"
        )


def warn_of_call() -> None:
    """Log, once in a process, that a call of the store stops a loop, and where."""
    global _is_said
    if _is_said or not runs_a_loop():
        return
    _is_said = True
    ours = (str(Path(__file__).parent), contextlib.__file__)
    callers = [one for one in traceback.extract_stack() if not one.filename.startswith(ours)]
    where = f" at {callers[-1].filename}:{callers[-1].lineno}" if callers else ""
    log.warning(
        "a call of the store%s stops the asyncio loop of its thread until it is answered: await its twin in "
        "latchwork.aio, or let a thread make it (asyncio.to_thread); this is said once",
        where,
    )


_is_said = False
