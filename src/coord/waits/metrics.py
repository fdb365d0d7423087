"""Metrics and spans of waits: how long a wait took, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...seams import Seams

T = TypeVar("T")


def measured(seams: Seams, kind: str, wait: Callable[[], T | None]) -> T | None:
    """Call `wait` and return its result, after recording its duration and outcome.

    kind: the primitive, for example `latch` or `lock`.
    wait: returns None if the time was over.
    """
    began, outcome = seams.monotonic(), "failed"
    try:
        with seams.span("wait", kind=kind):
            got = wait()
        outcome = "timed_out" if got is None else "done"
        return got
    finally:
        seams.note("waits", seams.monotonic() - began, kind=kind, outcome=outcome)
