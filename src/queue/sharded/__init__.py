"""The sharded work queue: at least once, with a sideline, a shovel and a sweeper."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .config import BatchingConfig, QueueConfig, ShovelConfig
    from .delivery import Delivery
    from .depth import QueueDepth
    from .envelope import Message, Reason
    from .queue import ShardedQueue
    from .record import LastSweep
    from .redrive import PassReport
    from .registry import QueueRegistry

__all__ = [
    "BatchingConfig", "QueueConfig", "ShovelConfig", "Delivery", "Message", "Reason", "PassReport", "QueueDepth",
    "ShardedQueue", "LastSweep", "QueueRegistry",
]  # fmt: skip

__getattr__, __dir__ = offer(
    __name__,
    {
        ".config": "BatchingConfig QueueConfig ShovelConfig",
        ".delivery": "Delivery",
        ".redrive": "PassReport",
        ".envelope": "Message Reason",
        ".depth": "QueueDepth",
        ".queue": "ShardedQueue",
        ".record": "LastSweep",
        ".registry": "QueueRegistry",
    },
)
