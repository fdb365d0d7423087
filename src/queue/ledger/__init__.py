"""The ledger: publishing exactly once."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .ledger import Ledger

__all__ = ["Ledger"]

__getattr__, __dir__ = offer(
    __name__,
    {
        ".ledger": "Ledger",
    },
)
