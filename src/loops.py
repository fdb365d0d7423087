"""A wait in the thread of a running asyncio loop is refused: the loop would stand still meanwhile."""

from __future__ import annotations

import sys

from .errors import InvalidRequest


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
