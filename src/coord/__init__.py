"""Waiting for each other: latches, fenced locks, leader election."""

from .election import Leadership, LeaseElection
from .latch import CountDownLatch, CountUpDownLatch, LatchLevel, LatchProgress
from .lock import FencedLock, Grant

__all__ = [
    "FencedLock",
    "Grant",
    "Leadership",
    "LeaseElection",
    "CountDownLatch",
    "CountUpDownLatch",
    "LatchLevel",
    "LatchProgress",
]
