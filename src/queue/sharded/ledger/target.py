"""The part of a queue that a ledger publishes to."""

from __future__ import annotations

from typing import Protocol

from ....store import RecordStore
from ..active import ActiveShards
from ..config import QueueConfig
from ..envelope import Codec
from ..record import QueueRecords
from ..shards import Shards


class HasRecords(Protocol):
    """A source of the records of queues; `QueueRegistry` is one."""

    records: QueueRecords


class LedgerTarget(Protocol):
    """The part of a sharded queue that a ledger uses; `ShardedQueue` implements it."""

    config: QueueConfig
    codec: Codec
    pointers: Shards
    active: ActiveShards

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> RecordStore: ...
    @property
    def registry(self) -> HasRecords: ...
    def open_for_publishing(self) -> None: ...
    def shard_of(self, key: str) -> int: ...
