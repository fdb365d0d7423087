"""Queues: a large circular queue, a sharded work queue, a local paged queue and its outbox."""

from typing import TYPE_CHECKING

from ..lazy import offer

if TYPE_CHECKING:
    from .circular.buffer import Entry
    from .circular.groups import Batch, ConsumerGroup
    from .circular.queue import LargeQueue, QueueInfo, Transaction
    from .outbox.outbox import Outbox, OutboxLag, UnopenedQueue
    from .paged.queue import PagedQueue
    from .paged.reader import PagedEntry
    from .sharded.config import BatchingConfig, QueueConfig, ShovelConfig
    from .sharded.consumer.consumer import Consumer
    from .sharded.consumer.worker import Worker
    from .sharded.delayed.schedules import Schedule, ScheduleState
    from .sharded.delivery import Delivery
    from .sharded.depth import QueueDepth
    from .sharded.envelope import Message, Reason
    from .sharded.group import QueueGroup
    from .sharded.publishing.batch import BatchProgress, QueueBatch
    from .sharded.publishing.batch_results import BatchResult
    from .sharded.publishing.publication import Publication
    from .sharded.publishing.publisher import Publisher
    from .sharded.publishing.with_write import Publish
    from .sharded.queue import ShardedQueue
    from .sharded.record import LastSweep
    from .sharded.redrive import PassReport
    from .sharded.registry import QueueRegistry
    from .sharded.selection import Outcome
    from .sharded.status import State, Status
    from .sharded.tasks.task import Task
    from .sharded.upkeep.report import ShardReport, SweepReport
    from .sharded.upkeep.shovel import Shovel
    from .sharded.upkeep.sweeper import Sweeper

__all__ = [
    "Batch", "BatchingConfig", "BatchProgress", "BatchResult", "Consumer", "ConsumerGroup", "Delivery", "Entry",
    "LargeQueue", "LastSweep", "Message", "Outbox", "OutboxLag", "Outcome", "PagedEntry", "PagedQueue", "PassReport",
    "Publication", "Publish", "Publisher", "QueueBatch", "QueueConfig", "QueueDepth", "QueueGroup", "QueueInfo",
    "QueueRegistry", "Reason", "Schedule", "ScheduleState", "ShardedQueue", "ShardReport", "Shovel", "ShovelConfig",
    "State", "Status", "Sweeper", "SweepReport", "Task", "Transaction", "UnopenedQueue", "Worker",
]  # fmt: skip

__getattr__, __dir__ = offer(
    __name__,
    {
        ".circular.buffer": "Entry",
        ".circular.groups": "Batch ConsumerGroup",
        ".circular.queue": "LargeQueue QueueInfo Transaction",
        ".outbox.outbox": "Outbox OutboxLag UnopenedQueue",
        ".paged.queue": "PagedQueue",
        ".paged.reader": "PagedEntry",
        ".sharded.publishing.batch": "BatchProgress QueueBatch",
        ".sharded.publishing.batch_results": "BatchResult",
        ".sharded.config": "BatchingConfig QueueConfig ShovelConfig",
        ".sharded.consumer.consumer": "Consumer",
        ".sharded.consumer.worker": "Worker",
        ".sharded.delivery": "Delivery",
        ".sharded.redrive": "PassReport",
        ".sharded.envelope": "Message Reason",
        ".sharded.depth": "QueueDepth",
        ".sharded.publishing.publication": "Publication",
        ".sharded.publishing.publisher": "Publisher",
        ".sharded.publishing.with_write": "Publish",
        ".sharded.queue": "ShardedQueue",
        ".sharded.group": "QueueGroup",
        ".sharded.selection": "Outcome",
        ".sharded.status": "State Status",
        ".sharded.record": "LastSweep",
        ".sharded.registry": "QueueRegistry",
        ".sharded.delayed.schedules": "Schedule ScheduleState",
        ".sharded.tasks.task": "Task",
        ".sharded.upkeep.report": "ShardReport SweepReport",
        ".sharded.upkeep.shovel": "Shovel",
        ".sharded.upkeep.sweeper": "Sweeper",
    },
)
