"""The SQLite backend: one file, many processes."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .store import SQLiteStore

__all__ = ["SQLiteStore"]

__getattr__, __dir__ = offer(__name__, {".store": "SQLiteStore"})
