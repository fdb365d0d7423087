"""Latchwork: distributed coordination primitives for Python and Spark on Aerospike."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from . import errors
from .errors import (
    AlreadyExists,
    AlreadyOpen,
    Corrupt,
    Expired,
    FencedOut,
    InvalidMessageHandler,
    InvalidRequest,
    InvalidShovelInterval,
    LatchworkError,
    LeaseLost,
    LockUnavailable,
    Misconfigured,
    NonDeterministicInput,
    NotFound,
    OutcomeUnknown,
    QueueFull,
    QueueOwned,
    RecordTooBig,
    Refused,
    StorageFailed,
    TooManyConsumers,
    Unavailable,
    Unreadable,
    WaitTimeout,
)
from .store.connect import connect

if TYPE_CHECKING:
    from .store.aerospike.store import AerospikeStore

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """`AerospikeStore`, whose C client is loaded only where it is used."""
    if name == "AerospikeStore":
        from .store.aerospike.store import AerospikeStore  # noqa: PLC0415 - see above

        return AerospikeStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "connect", "AerospikeStore", "errors", "LatchworkError", "AlreadyExists", "AlreadyOpen", "Corrupt", "Expired",
    "FencedOut", "InvalidMessageHandler", "InvalidRequest", "InvalidShovelInterval", "LeaseLost", "LockUnavailable",
    "Misconfigured", "NonDeterministicInput", "NotFound", "OutcomeUnknown", "QueueFull", "QueueOwned", "RecordTooBig",
    "Refused", "StorageFailed", "TooManyConsumers", "Unavailable", "Unreadable", "WaitTimeout",
]  # fmt: skip
