"""The ledger: publishing exactly once."""

from .ledger import Ledger

__all__ = ["Ledger"]
