"""Latches: wait until a count is reached, in one data centre or in several."""

from .latch import CountDownLatch, CountUpDownLatch, LatchLevel, LatchProgress

__all__ = ["CountDownLatch", "CountUpDownLatch", "LatchLevel", "LatchProgress"]
