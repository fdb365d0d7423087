"""Latchwork: distributed coordination primitives for Python and Spark on Aerospike."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from . import errors
from .errors import (
    AlreadyExists,
    AlreadyOpen,
    BarrierBroken,
    BinMismatch,
    Cancelled,
    Corrupt,
    Expired,
    FencedOut,
    HandlerFailed,
    Interrupted,
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
    PartyLost,
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
from .lazy import offer
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .coord.effects.step import once
    from .store.aerospike.store import AerospikeStore
    from .store.connect import connect

logging.getLogger(__name__).addHandler(logging.NullHandler())  # noqa: TID251 - nothing is logged here


__all__ = [
    "connect", "once", "AerospikeStore", "errors", "LatchworkError", "AlreadyExists", "AlreadyOpen", "BarrierBroken",
    "BinMismatch", "Cancelled", "Corrupt", "Expired", "FencedOut", "HandlerFailed", "Interrupted",
    "InvalidMessageHandler",
    "InvalidRequest", "InvalidShovelInterval", "LeaseLost", "LockUnavailable", "Misconfigured", "NonDeterministicInput",
    "NotFound", "OutcomeUnknown", "PartyLost", "QueueFull", "QueueOwned", "RecordTooBig", "Refused", "StorageFailed",
    "TooManyConsumers", "Unavailable", "Unreadable", "WaitTimeout",
]  # fmt: skip

# the C client is loaded only where it is used, and a command that needs no store loads none
__getattr__, __dir__ = offer(
    __name__, {".coord.effects.step": "once", ".store.aerospike.store": "AerospikeStore", ".store.connect": "connect"}
)
