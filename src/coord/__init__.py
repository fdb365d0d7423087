"""Waiting for each other: latches, fenced locks and semaphores, rate limiters, leader election."""

from typing import TYPE_CHECKING

from ..lazy import offer

if TYPE_CHECKING:
    from .barrier.barrier import Barrier, BarrierProgress
    from .effects.step import OnceFunction, OnceStep, Step
    from .election.across import GlobalElection
    from .election.election import Leadership, LeaseElection
    from .election.zookeeper import ZooKeeperElection
    from .latch.latch import CountDownLatch, CountUpDownLatch, LatchLevel, LatchProgress
    from .limiter import Decision, RateLimiter
    from .lock import FencedLock, Grant
    from .presence.presence import Change, Group, Member, Membership
    from .rwlock import ReadGrant, ReadWriteLock, WriteGrant
    from .semaphore import Holder, Permits, Semaphore

__all__ = [
    "FencedLock", "Grant", "Leadership", "LeaseElection", "ZooKeeperElection", "GlobalElection", "CountDownLatch",
    "CountUpDownLatch", "LatchLevel", "LatchProgress", "Semaphore", "Permits", "Holder",
    "Group", "Membership", "Member", "Change", "ReadWriteLock", "ReadGrant", "WriteGrant", "RateLimiter", "Decision",
    "Barrier", "BarrierProgress", "OnceStep", "OnceFunction", "Step",
]  # fmt: skip

__getattr__, __dir__ = offer(
    __name__,
    {
        ".barrier.barrier": "Barrier BarrierProgress",
        ".effects.step": "OnceFunction OnceStep Step",
        ".election.across": "GlobalElection",
        ".election.election": "Leadership LeaseElection",
        ".election.zookeeper": "ZooKeeperElection",
        ".latch.latch": "CountDownLatch CountUpDownLatch LatchLevel LatchProgress",
        ".limiter": "RateLimiter Decision",
        ".lock": "FencedLock Grant",
        ".presence.presence": "Group Membership Member Change",
        ".rwlock": "ReadWriteLock ReadGrant WriteGrant",
        ".semaphore": "Semaphore Permits Holder",
    },
)
