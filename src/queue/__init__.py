"""Queues: a large circular queue, a sharded work queue, a local paged queue and its outbox."""

from .config import BatchingConfig, QueueConfig, ShovelConfig
from .delivery import Delivery
from .envelope import Message, Reason
from .records import LastSweep
from .registry import QueueRegistry
from .sharded import QueueDepth, ShardedQueue
from .sweep_report import ShardReport, SweepReport
from .sweeper import Sweeper

__all__ = [
    "BatchingConfig", "Delivery", "LastSweep", "Message", "QueueConfig", "QueueDepth", "QueueRegistry", "Reason",
    "ShardReport", "ShardedQueue", "ShovelConfig", "SweepReport", "Sweeper",
]  # fmt: skip
