"""Waits as the outside is told of them: how long they took, and how they ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..seams import Seams

T = TypeVar("T")


def told(seams: Seams, kind: str, wait: Callable[[], T | None]) -> T | None:
    """What `wait` returns, None = the time was over. kind: of the primitive, `latch` or `lock`."""
    began, outcome = seams.monotonic(), "failed"
    try:
        with seams.span("wait", kind=kind):
            got = wait()
        outcome = "timed_out" if got is None else "done"
        return got
    finally:
        seams.note("waits", seams.monotonic() - began, kind=kind, outcome=outcome)
