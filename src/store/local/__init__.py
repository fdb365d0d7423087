"""The local backends: the rules of a store applied to records in memory."""

from .memory import MemoryStore

__all__ = ["MemoryStore"]
