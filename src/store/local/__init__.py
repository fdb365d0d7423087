"""The local backends: the rules of a store applied to records in memory."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .memory import MemoryStore

__all__ = ["MemoryStore"]

__getattr__, __dir__ = offer(__name__, {".memory": "MemoryStore"})
