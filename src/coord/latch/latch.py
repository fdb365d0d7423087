"""Latches: wait until so many things have happened, here or in several data centres ("farms").

Every count is exactly-once: by its party (a Spark partition, a job) where one is named, else by a token, so that a
lost reply never counts twice (docs/protocols.md P1, P8).
"""

from __future__ import annotations

from ...inputs import checked_whole
from . import layout
from .base import Latch
from .handle import LatchLevel
from .layout import By
from .watch import LatchProgress

__all__ = ["CountDownLatch", "CountUpDownLatch", "LatchLevel", "LatchProgress"]


class CountDownLatch(Latch):
    """A latch that only counts down. For the Java library's records too, which it reads and writes as they are."""


class CountUpDownLatch(Latch):
    """A latch that also counts up, while work is still being found."""

    _least = 0

    def count_up(self, n: int = 1) -> int:
        """Count up by `n`, exactly once; what remains in this farm. One store call. Raises as `count_down`.

        Not promised: across data centres whose stores are shipped to one another, a count-up in flight can come too
        late to hold the latch.
        """
        return self._count(By.ADDING, checked_whole("n", n, 1, layout.MAX_COUNT))
