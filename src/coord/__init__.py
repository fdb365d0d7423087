"""Waiting for each other: latches, fenced locks, leader election."""

from .election.election import Leadership, LeaseElection
from .election.zookeeper import ZooKeeperElection
from .latch.latch import CountDownLatch, CountUpDownLatch, LatchLevel, LatchProgress
from .lock import FencedLock, Grant
from .semaphore import Holder, Permits, Semaphore

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
