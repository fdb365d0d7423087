"""The sharded work queue: at least once, with a sideline, a shovel and a sweeper."""

from .config import BatchingConfig, QueueConfig, ShovelConfig
from .delivery import Delivery
from .drain import PassReport
from .envelope import Message, Reason
from .queue import QueueDepth, ShardedQueue
from .record import LastSweep
from .registry import QueueRegistry

__all__ = [
    "BatchingConfig",
    "QueueConfig",
    "ShovelConfig",
    "Delivery",
    "Message",
    "Reason",
    "PassReport",
    "QueueDepth",
    "ShardedQueue",
    "LastSweep",
    "QueueRegistry",
]
