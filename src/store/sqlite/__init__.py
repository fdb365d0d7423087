"""The SQLite backend: one file, many processes."""

from .store import SQLiteStore

__all__ = ["SQLiteStore"]
