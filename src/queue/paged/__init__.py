"""The local paged queue: messages in files."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .queue import PagedQueue
    from .reader import PagedEntry

__all__ = ["PagedQueue", "PagedEntry"]

__getattr__, __dir__ = offer(__name__, {".queue": "PagedQueue", ".reader": "PagedEntry"})
