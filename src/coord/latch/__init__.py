"""Latches: wait until a count reaches zero, in one data centre or in several."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .latch import CountDownLatch, CountUpDownLatch, LatchLevel, LatchProgress

__all__ = ["CountDownLatch", "CountUpDownLatch", "LatchLevel", "LatchProgress"]

__getattr__, __dir__ = offer(__name__, {".latch": "CountDownLatch CountUpDownLatch LatchLevel LatchProgress"})
