"""Waiting for each other: latches, fenced locks, leader election."""

from .election.election import Leadership, LeaseElection
from .election.zookeeper import ZooKeeperElection
from .latch.latch import CountDownLatch, CountUpDownLatch, LatchLevel, LatchProgress
from .lock import FencedLock, Grant

__all__ = [
    "FencedLock",
    "Grant",
    "Leadership",
    "LeaseElection",
    "ZooKeeperElection",
    "CountDownLatch",
    "CountUpDownLatch",
    "LatchLevel",
    "LatchProgress",
]
