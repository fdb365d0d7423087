"""Leader election: by a lease in the store, or by ZooKeeper."""

from .election import Leadership, LeaseElection

__all__ = ["Leadership", "LeaseElection"]
