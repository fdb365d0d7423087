"""Leader election, by a lease in the store or by ZooKeeper."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .election import Leadership, LeaseElection

__all__ = ["Leadership", "LeaseElection"]

__getattr__, __dir__ = offer(__name__, {".election": "Leadership LeaseElection"})
