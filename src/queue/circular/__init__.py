"""The large circular queue: first in, first out, over many records."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .buffer import Entry
    from .groups import Batch, ConsumerGroup
    from .queue import LargeQueue, QueueInfo, Transaction

__all__ = ["Entry", "Batch", "ConsumerGroup", "LargeQueue", "QueueInfo", "Transaction"]

__getattr__, __dir__ = offer(
    __name__, {".buffer": "Entry", ".groups": "Batch ConsumerGroup", ".queue": "LargeQueue QueueInfo Transaction"}
)
