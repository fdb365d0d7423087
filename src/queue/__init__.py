"""Queues: a large circular queue, a sharded work queue, a local paged queue and its outbox."""

from .circular import LargeQueue, QueueInfo, Transaction
from .circular_slots import Entry
from .config import BatchingConfig, QueueConfig, ShovelConfig
from .consumer import Consumer
from .delivery import Delivery
from .envelope import Message, Reason
from .groups import Batch, ConsumerGroup
from .outbox import Outbox, OutboxLag, UnopenedQueue
from .page_reader import PagedEntry
from .paged import PagedQueue
from .passes import PassReport
from .records import LastSweep
from .registry import QueueRegistry
from .sharded import QueueDepth, ShardedQueue
from .shovel import Shovel
from .sweep_report import ShardReport, SweepReport
from .sweeper import Sweeper

__all__ = [
    "Batch", "BatchingConfig", "Consumer", "ConsumerGroup", "Delivery", "Entry", "LargeQueue", "LastSweep", "Message",
    "Outbox", "OutboxLag", "PagedEntry", "PagedQueue", "PassReport", "QueueConfig", "QueueDepth", "QueueInfo",
    "QueueRegistry", "Reason", "ShardedQueue", "ShardReport", "Shovel", "ShovelConfig", "Sweeper", "SweepReport",
    "Transaction", "UnopenedQueue",
]  # fmt: skip
