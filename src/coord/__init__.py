"""Waiting for each other: latches, fenced locks, leader election."""

from .election import Leadership, LeaseElection
from .latch import CountDownLatch, CountUpDownLatch, LatchLevel, LatchProgress
from .lock import FencedLock, Grant
from .semaphore import Holder, Permits, Semaphore
from .zookeeper import ZooKeeperElection

__all__ = [
    "FencedLock",
    "Grant",
    "Semaphore",
    "Permits",
    "Holder",
    "Leadership",
    "LeaseElection",
    "ZooKeeperElection",
    "CountDownLatch",
    "CountUpDownLatch",
    "LatchLevel",
    "LatchProgress",
]
