"""The large circular queue: first in, first out, over many records."""

from .buffer import Entry
from .groups import Batch, ConsumerGroup
from .queue import LargeQueue, QueueInfo, Transaction

__all__ = ["Entry", "Batch", "ConsumerGroup", "LargeQueue", "QueueInfo", "Transaction"]
