"""Waiting for each other: latches, fenced locks, leader election."""

from .latch import CountDownLatch, CountUpDownLatch, LatchLevel, LatchProgress

__all__ = ["CountDownLatch", "CountUpDownLatch", "LatchLevel", "LatchProgress"]
