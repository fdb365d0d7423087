"""Barriers: parties that wait for each other, again and again, and exchange data."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .barrier import Barrier, BarrierProgress

__all__ = ["Barrier", "BarrierProgress"]

__getattr__, __dir__ = offer(__name__, {".barrier": "Barrier BarrierProgress"})
