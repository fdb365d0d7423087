"""A call of the store in the thread of a running asyncio loop, which stands still meanwhile, is logged once."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path

from .logs import Log
from .loops import runs_a_loop

log = Log(__name__)


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
