"""The part of a queue that a ledger publishes to."""

from __future__ import annotations

from typing import Protocol

from ...store import RecordStore
from ..sharded.active import ActiveShards
from ..sharded.config import QueueConfig
from ..sharded.envelope import Codec
from ..sharded.shards import PointerQueue


class Target(Protocol):
    """A sharded queue, as a ledger sees it: `ShardedQueue` is one."""

    config: QueueConfig
    codec: Codec
    pointers: PointerQueue
    active: ActiveShards

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> RecordStore: ...
    def open_for_publishing(self) -> None: ...
    def shard_of(self, key: str) -> int: ...
