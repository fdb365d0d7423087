"""The Aerospike backend."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .store import AerospikeStore

__all__ = ["AerospikeStore"]

__getattr__, __dir__ = offer(__name__, {".store": "AerospikeStore"})
