"""What tests cost: processor time of each, memory of each worker.

Processor time is that of the test's process and of the children that it has waited for. On a busy machine it grows
less than wall time; but a core whose caches others use too may need three times as much of it. So the limit, which
`make test` sets by `$LATCHWORK_CPU_LIMIT`, is for a quiet machine, and is raised by how much slower this one is.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .scale import SCALE

LIMIT = float(os.environ.get("LATCHWORK_CPU_LIMIT", "inf"))
"""Seconds of processor time, on a quiet machine, that a test may take which is not marked `slow` or `long`."""
QUIET = 0.011
"""Seconds of processor time that `_piece` takes beside the other workers on a quiet machine, about: it took 0.024 to
0.029 s on one where all tests took 2.1 times what they take there."""
MEMORY = 1024 if SCALE < 1 else 1536
"""Megabytes that a worker may take. At scale 1 one has half as many tests again, and more of each."""


def processor_time() -> float:
    """Seconds that this process has computed so far, with the children that it has waited for."""
    user, system, children_user, children_system, _ = os.times()
    return user + system + children_user + children_system


def _piece() -> float:
    """Do some work as tests do; the seconds of processor time that it took."""
    began = time.process_time()
    found = {f"{n % 5_000}": (n, [n]) for n in range(60_000)}
    sorted(found.items(), key=lambda one: one[1][0])
    return time.process_time() - began


def slowness() -> float:
    """How many times as much processor time as on a quiet machine the same work takes here and now; at least 1."""
    was_enabled = gc.isenabled()
    gc.disable()  # how much there is to collect says nothing of the machine
    try:
        return max(1.0, *(_piece() / QUIET for _ in range(5)))
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def limited(item: Any, limit: float = LIMIT) -> Iterator[None]:
    """The test fails if it takes more than the limit and has no mark that says so."""
    began = processor_time()
    yield
    took = processor_time() - began
    is_marked = any(item.get_closest_marker(mark) for mark in ("slow", "long"))
    if took > limit and not is_marked and took > limit * (slower := slowness()):
        on_slow = f" on a machine that is {slower:.1f} times as slow as a quiet one" if slower > 1 else ""
        pytest.fail(
            f"it took {took:.1f} s of processor time{on_slow}, more than {limit:g} s on a quiet one: "
            "make it cheaper, or mark it `slow`, or `long` to leave it to `make long`",
            pytrace=False,
        )


def peak_memory() -> int:
    """The most memory that this process has had, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak >> (20 if sys.platform == "darwin" else 10)
