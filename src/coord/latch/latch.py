"""Latches: wait until a given number of things have happened, in one data centre or in several ("farms").

Every count is applied exactly once: per party (a Spark partition, a job) if one is named, else per token. So a lost
reply never counts twice (docs/protocols P1, P8).
"""

from __future__ import annotations

from ...inputs import checked_whole
from . import layout
from .base import Latch
from .handle import LatchLevel
from .layout import CountMode
from .watch import LatchProgress

__all__ = ["CountDownLatch", "CountUpDownLatch", "LatchLevel", "LatchProgress"]


class CountDownLatch(Latch):
    """A latch that only counts down. It also reads and writes the records of the Java library, without changing their
    layout. Handles are cheap, safe to share between threads, and pickle with their store.
    """


class CountUpDownLatch(Latch):
    """A latch that also counts up, while work is still being found. Handles are cheap, safe to share between threads,
    and pickle with their store.
    """

    _least = 0

    def count_up(self, n: int = 1) -> int:
        """Count up by `n`, exactly once, and return the remaining count of this farm. One store call.

        Raises what `count_down` raises. Not promised: if data centres replicate their stores to each other (XDR), a
        count-up that is still being shipped may arrive too late to keep the latch closed.
        """
        return self._count(CountMode.ADD, checked_whole("n", n, 1, layout.MAX_COUNT))
