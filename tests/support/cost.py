"""What tests cost: processor time of each, memory of each worker.

Processor time is that of the test's process and of the children that it has waited for. It is the same on a busy
machine, where wall time is not. So a limit on it fails no test by chance. `make test` sets `$LATCHWORK_CPU_LIMIT`.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .scale import SCALE

LIMIT = float(os.environ.get("LATCHWORK_CPU_LIMIT", "inf"))
"""Seconds of processor time that a test may take which is not marked `slow` or `long`."""
MEMORY = 1024 if SCALE < 1 else 1536
"""Megabytes that a worker may take. At scale 1 one has half as many tests again, and more of each."""


def processor_time() -> float:
    """Seconds that this process has computed so far, with the children that it has waited for."""
    user, system, children_user, children_system, _ = os.times()
    return user + system + children_user + children_system


@contextmanager
def limited(item: Any, limit: float = LIMIT) -> Iterator[None]:
    """The test fails if it takes more than the limit and has no mark that says so."""
    began = processor_time()
    yield
    took = processor_time() - began
    if took > limit and not any(item.get_closest_marker(mark) for mark in ("slow", "long")):
        pytest.fail(
            f"it took {took:.1f} s of processor time, more than {limit:g} s: "
            "make it cheaper, or mark it `slow`, or `long` to leave it to `make long`",
            pytrace=False,
        )


def peak_memory() -> int:
    """The most memory that this process has had, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak >> (20 if sys.platform == "darwin" else 10)
