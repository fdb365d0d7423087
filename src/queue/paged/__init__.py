"""The local paged queue: messages in files."""

from .queue import PagedQueue
from .reader import PagedEntry

__all__ = ["PagedQueue", "PagedEntry"]
