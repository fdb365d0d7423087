"""The Aerospike backend."""

from .store import AerospikeStore

__all__ = ["AerospikeStore"]
